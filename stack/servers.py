"""Redis and an S3 server, which pip installs."""

import os
import re
import shutil
import sys
from pathlib import Path

import redis
import requests

from stack.errors import StackError
from stack.process import Service

REGION = "us-east-1"


class Redis:
    """A Redis server for this machine, with persistent queues.

    Args:
        folder: folder of its configuration and data.
        port: port to listen on.
        password: password of its clients.
    """

    def __init__(self, folder: Path, port: int, password: str) -> None:
        self.url = f"redis://:{password}@127.0.0.1:{port}/0"
        self._folder = folder
        self._port = port
        self._password = password

    def service(self) -> Service:
        """Return the server's service. Raises :class:`StackError` if it is not installed."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        configuration = self._folder / "redis.conf"  # a command line would expose the password
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
        except redis.RedisError:  # not started yet, or still loading its data
            return False


class S3:
    """An S3 server for this machine.

    Args:
        folder: folder whose subfolders are the buckets.
        port: port to listen on.
        access_key: at least three characters.
        secret_key: at least three characters.
        origin: origin of the web pages that may read from it.
    """

    def __init__(
        self, folder: Path, port: int, access_key: str, secret_key: str, origin: str | None = None
    ) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._folder = folder
        self._keys = (access_key, secret_key)
        self._origin = origin

    def environment(self) -> dict[str, str]:
        """Return the environment variables by which site, workers and trainers use it."""
        access_key, secret_key = self._keys
        return {
            "S3_ENDPOINT_URL": self.url,
            "S3_PUBLIC_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": access_key,
            "AWS_SECRET_ACCESS_KEY": secret_key,
            "AWS_DEFAULT_REGION": REGION,
        }

    def service(self) -> Service:
        """Return the server's service. Raises :class:`StackError` if it is not installed."""
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
            # A command line would expose the keys. The quotes: it may be a list of pairs.
            environment=os.environ | {"RCLONE_AUTH_KEY": '"{},{}"'.format(*self._keys)},
            is_ready=self._is_ready,
            address=self.url,
        )

    def _is_ready(self) -> bool:
        return answer_of(self.url) is not None  # it responds, though it refuses unsigned requests


def _escaped(path: Path) -> str:
    """Return a path escaped for double quotes in Redis's configuration."""
    return re.sub(rb"[^ !#-\[\]-~]", lambda odd: b"\\x%02x" % odd[0][0], os.fsencode(path)).decode()


def program(name: str) -> str:
    """Return the path of a program installed by pip next to Python, or by the system.

    Raises:
        StackError: it is not installed.
    """
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise StackError(f"{name} is missing; run make stack, which installs it")
    return found


def answer_of(url: str) -> requests.Response | None:
    """Send a GET and return the response, None without one."""
    with requests.Session() as session:
        session.trust_env = False  # no proxy reaches this machine's own address
        try:
            return session.get(url, timeout=2)
        except requests.RequestException:
            return None
