"""The other servers that pip installs: Redis, and an S3 whose buckets are the folders of a folder."""

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
    """Redis on this machine alone, whose queues outlive it.

    Args:
        folder: of its configuration and its data.
    """

    def __init__(self, folder: Path, port: int, password: str) -> None:
        self.url = f"redis://:{password}@127.0.0.1:{port}/0"
        self._folder = folder
        self._port = port
        self._password = password

    def service(self) -> Service:
        """The server, ready to be started. Raises :class:`StackError` where it is not installed."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        configuration = self._folder / "redis.conf"  # a command line would show the password to everyone
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
        except redis.RedisError:  # not there yet, or still reading its data
            return False


class S3:
    """An S3 server on this machine alone.

    Args:
        folder: its folders are the buckets.
        access_key: three characters or more, as the secret key.
        origin: of the pages that may read from it.
    """

    def __init__(
        self, folder: Path, port: int, access_key: str, secret_key: str, origin: str | None = None
    ) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._folder = folder
        self._keys = (access_key, secret_key)
        self._origin = origin

    def environment(self) -> dict[str, str]:
        """The variables by which the site, the workers and trainers find it."""
        access_key, secret_key = self._keys
        return {
            "S3_ENDPOINT_URL": self.url,
            "S3_PUBLIC_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": access_key,
            "AWS_SECRET_ACCESS_KEY": secret_key,
            "AWS_DEFAULT_REGION": REGION,
        }

    def service(self) -> Service:
        """The server, ready to be started. Raises :class:`StackError` where it is not installed."""
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
            # A command line would show the keys to everyone. The quotes: it may be a list of pairs.
            environment=os.environ | {"RCLONE_AUTH_KEY": '"{},{}"'.format(*self._keys)},
            is_ready=self._is_ready,
            address=self.url,
        )

    def _is_ready(self) -> bool:
        return answer_of(self.url) is not None  # it refuses what is not signed, and so it is there


def _escaped(path: Path) -> str:
    """As it stands between double quotes in Redis's configuration."""
    return re.sub(rb"[^ !#-\[\]-~]", lambda odd: b"\\x%02x" % odd[0][0], os.fsencode(path)).decode()


def program(name: str) -> str:
    """The path of a program that pip has installed beside Python, or that the system has.

    Raises:
        StackError: neither has it.
    """
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise StackError(f"{name} is missing; run make stack, which installs it")
    return found


def answer_of(url: str) -> requests.Response | None:
    """Send a GET and return the response, None where nobody answers."""
    with requests.Session() as session:
        session.trust_env = False  # no proxy reaches this machine's own address
        try:
            return session.get(url, timeout=2)
        except requests.RequestException:
            return None
