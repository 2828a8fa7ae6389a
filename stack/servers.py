"""Redis server and S3 server (rclone), both installed with pip."""

import os
import re
import shutil
import sys
from pathlib import Path

import redis
import requests

from stack.process import Service, StackError

REGION = "us-east-1"


class Redis:
    """A Redis server that listens only on localhost and keeps its data across restarts."""

    def __init__(self, folder: Path, port: int, password: str) -> None:
        self.url = f"redis://:{password}@127.0.0.1:{port}/0"
        self._folder = folder
        self._port = port
        self._password = password

    def service(self) -> Service:
        """Write the server's configuration file, and return the service that runs the server."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        configuration = self._folder / "redis.conf"  # command-line options would expose the password
        configuration.touch(mode=0o600)
        configuration.write_text(
            f"bind 127.0.0.1\nport {self._port}\nrequirepass {self._password}\n"
            f'dir "{_escaped(self._folder.absolute())}"\nappendonly yes\nsave ""\n'
        )
        command = [program("redis-server"), str(configuration.absolute())]
        return Service(
            name="redis",
            command=lambda: command,
            is_ready=self._is_ready,
            address=f"127.0.0.1:{self._port}",
        )

    def _is_ready(self) -> bool:
        try:
            with redis.Redis.from_url(self.url, socket_timeout=2) as client:
                return bool(client.ping())
        except redis.RedisError:  # the server hasn't started yet, or is still loading its data
            return False


class S3:
    """An S3 server that listens only on localhost; each subfolder of ``folder`` is a bucket."""

    def __init__(
        self, folder: Path, port: int, access_key: str, secret_key: str, origin: str | None = None
    ) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._folder = folder
        self._keys = (access_key, secret_key)
        self._origin = origin

    def environment(self) -> dict[str, str]:
        """Return the environment variables that the site, workers and trainers need to use this server."""
        access_key, secret_key = self._keys
        return {
            "S3_ENDPOINT_URL": self.url,
            "S3_PUBLIC_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": access_key,
            "AWS_SECRET_ACCESS_KEY": secret_key,
            "AWS_DEFAULT_REGION": REGION,
        }

    def service(self) -> Service:
        """Return the service that runs the server."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        address = self.url.removeprefix("http://")
        command = [
            *(program("rclone"), "serve", "s3", str(self._folder.absolute()), "--addr", address),
            *("--vfs-cache-mode", "off", "--config", os.devnull),
            *(("--allow-origin", self._origin) if self._origin else ()),
        ]
        return Service(
            name="s3",
            command=lambda: command,
            # Command-line options would expose the keys. rclone reads the variable as a CSV list of key
            # pairs, so this single pair needs quotes.
            environment=os.environ | {"RCLONE_AUTH_KEY": '"{},{}"'.format(*self._keys)},
            is_ready=self._is_ready,
            address=self.url,
        )

    def _is_ready(self) -> bool:
        return answer_of(self.url) is not None  # any response will do; unsigned requests are refused


def _escaped(path: Path) -> str:
    """Return a path escaped for a double-quoted string in Redis's configuration file."""
    return re.sub(rb"[^ !#-\[\]-~]", lambda odd: b"\\x%02x" % odd[0][0], os.fsencode(path)).decode()


def program(name: str) -> str:
    """Return the path of a program, found in the Python interpreter's folder or else in PATH."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise StackError(f"{name} is not installed; run make stack, which installs it")
    return found


def answer_of(url: str) -> requests.Response | None:
    """Send a GET request and return the response, or None if none arrives within two seconds."""
    with requests.Session() as session:
        session.trust_env = False  # no proxy, because it couldn't reach this machine's loopback address
        try:
            return session.get(url, timeout=2)
        except requests.RequestException:
            return None
