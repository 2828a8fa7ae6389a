"""A real Redis with a password, on a port of its own, that can be killed and started again."""

import subprocess
import sys
from pathlib import Path

from tests.waiting import free_port

PASSWORD = "a-password-of-redis"


class Redis:
    """A Redis that is not started yet; it keeps its queue when it is killed only if told to."""

    def __init__(self, folder: Path, *keeping: str) -> None:
        port = free_port()
        self.url = f"redis://:{PASSWORD}@127.0.0.1:{port}/0"
        self._command = [
            *(str(Path(sys.executable).parent / "redis-server"), "--port", str(port), "--bind", "127.0.0.1"),
            *("--requirepass", PASSWORD, "--dir", str(folder), "--loglevel", "warning", "--save", ""),
            *keeping,
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, unless it runs."""
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
