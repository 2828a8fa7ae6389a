"""Data folder of a stack: its lock, secrets, ports and environment file."""

import contextlib
import fcntl
import json
import os
import secrets
import shlex
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, TypeVar

from stack.process import StackError
from teacher.files import atomic_write

T = TypeVar("T")
PORTS = {  # each server uses the first free port in its range
    "site": range(8000, 8100),
    "s3": range(9000, 9100),
    "postgres": range(5432, 5532),
    "redis": range(6379, 6479),
}
ENV_NAME = "env"
_SECRETS = "secrets.json"
_PATIENCE_SECONDS = 10.0  # time for a killed stack's programs to end before they are killed, too


def _secret() -> str:
    return secrets.token_hex(32)  # only letters and digits, so it never needs quoting


def _code() -> str:
    """Return a random code for the site's sign-in link, of the site's length and symbols."""
    return "".join(secrets.choice("23456789abcdefghjkmnpqrstuvwxyz") for _ in range(17))


@dataclass(frozen=True)
class Secrets:
    """A stack's keys and passwords, random by default."""

    secret_key: str = field(default_factory=_secret)
    postgres_password: str = field(default_factory=_secret)
    redis_password: str = field(default_factory=_secret)
    s3_access_key: str = field(default_factory=_secret)
    s3_secret_key: str = field(default_factory=_secret)
    sign_in_code: str = field(default_factory=_code)


class Folder:
    """Data folder of a stack; only its owner can access it."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.logs = self.path / "logs"
        self.env = self.path / ENV_NAME
        self.token = self.path / "token"
        self._claims: dict[int, socket.socket] = {}

    @contextlib.contextmanager
    def held(self) -> Iterator[int]:
        """Lock the folder for the ``with`` block, so that no other stack can use it.

        Yields a file descriptor of ``programs.lock``, which all programs of the stack must inherit: if the
        stack is killed, the next stack finds the surviving programs by this open file.

        Raises:
            StackError: a stack is already running in the folder, or the folder contains files that don't
                belong to a stack.
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        mark = self.path / "programs.lock"  # the first file that a stack creates
        if not mark.exists() and any(self.path.iterdir()):
            raise StackError(
                f"{self.path} contains files that don't belong to a stack; set --dir to a new or empty "
                "folder, or to a stack's data folder"
            )
        with mark.open("a+") as programs, (self.path / "lock").open("a+") as lock:
            self.logs.mkdir(mode=0o700, exist_ok=True)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StackError(
                    f"a stack is already running in {self.path}: {_describe_running_stack(lock)}"
                ) from None
            self.announce(None)
            _end_leftover_programs(programs)
            try:
                yield programs.fileno()
            finally:
                while self._claims:
                    self._claims.popitem()[1].close()

    def announce(self, url: str | None) -> None:
        """Write the process ID and URL to the lock file; a second stack shows them in its error message."""
        (self.path / "lock").write_text(json.dumps({"pid": os.getpid(), "url": url}) + "\n")

    def secrets(self) -> Secrets:
        """Return this stack's secrets, generating and saving those that are missing."""
        path = self.path / _SECRETS
        kept = _read(path, str)
        found = Secrets(**{name: kept[name] for name in Secrets.__dataclass_fields__ if name in kept})
        if asdict(found) != kept:
            _write(path, asdict(found))
        return found

    def require_stack(self) -> None:
        """Raise :class:`StackError` if this is not a stack's data folder."""
        if not (self.path / _SECRETS).exists():
            raise StackError(
                f"{self.path} is not a stack's data folder; set --dir to the folder of the stack to back up"
            )

    def take_secrets(self, backup: Path) -> None:
        """Copy a backup's secrets, if any, into this folder, which must not have a different stack's."""
        kept, own = backup / "state" / _SECRETS, self.path / _SECRETS
        if own.exists() and (not kept.exists() or own.read_bytes() != kept.read_bytes()):
            raise StackError(f"{self.path} already has a stack; restore into a different folder with --dir")
        if kept.exists():
            _write(own, _read(kept, str))

    def ports(self) -> tuple[dict[str, int], list[str]]:
        """Reserve each server's port, the last one if possible; also return messages about changes."""
        last = _read(self.path / "ports.json", int)
        ports = {name: self._free_port(name, last.get(name)) for name in PORTS}
        _write(self.path / "ports.json", ports)
        moved = [name for name in PORTS if ports[name] != last.get(name, ports[name])]
        return ports, [
            f"port {last[name]} is used by another program; {name} now uses port {ports[name]}"
            for name in moved
        ]

    def _free_port(self, name: str, last: int | None) -> int:
        candidates: list[int] = [port for port in (last, *PORTS[name]) if port is not None]
        for port in candidates:
            if self._claim(port):
                return port
        first, last = PORTS[name][0], PORTS[name][-1]
        raise StackError(
            f"no free port for {name}: {first} to {last} are all in use; stop a program that uses one of them"
        )

    def _claim(self, port: int) -> bool:
        """Reserve a port, if it's free, by binding its UDP port, as other stacks and embedded sites check."""
        if port not in self._claims:
            claim = socket.socket(type=socket.SOCK_DGRAM)
            try:
                claim.bind(("127.0.0.1", port))
            except (OSError, OverflowError):  # OverflowError: not a valid port
                claim.close()
                return False
            self._claims[port] = claim
        if _is_free(port):
            return True
        self._claims.pop(port).close()
        return False

    def write_env(self, variables: Mapping[str, str]) -> None:
        """Write ``variables`` to the file ``env``, which users source in a shell before running ``teach``."""
        lines = [f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()]
        with atomic_write(self.env) as file:
            file.write("".join(lines).encode())


def _describe_running_stack(lock: IO[str]) -> str:
    lock.seek(0)
    try:
        found = json.loads(lock.read())
        return f"{found['url'] or 'it is starting'} (process {found['pid']})"
    except (ValueError, KeyError, TypeError):
        return "it is starting"


def _end_leftover_programs(programs: IO[str]) -> None:
    """Wait for the programs of a killed stack to end; after a timeout, kill those that are still running."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        with contextlib.suppress(BlockingIOError):
            return fcntl.flock(programs, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if time.monotonic() > deadline:
            for pid in _processes_with_open(Path(programs.name)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


def _processes_with_open(path: Path) -> list[int]:
    """Return the process IDs of other processes that have the file ``path`` open."""
    pids = []
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if link.readlink() == path:
                pids.append(int(link.parts[2]))
    return [pid for pid in pids if pid != os.getpid()]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _read(path: Path, kind: type[T]) -> dict[str, T]:
    try:
        kept = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise StackError(f"{path} is damaged: {error}; restore the file from a backup") from error
    if not isinstance(kept, dict) or not all(type(value) is kind for value in kept.values()):
        raise StackError(
            f"{path} is damaged: expected a JSON object with only {kind.__name__} values; "
            "restore the file from a backup"
        )
    return kept


def _write(path: Path, values: Mapping[str, object]) -> None:
    with atomic_write(path) as file:
        file.write(json.dumps(values, indent=2).encode() + b"\n")
