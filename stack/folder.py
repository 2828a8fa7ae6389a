"""The folder of a stack: its lock, secrets, ports, and environment file."""

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

from stack.errors import StackError
from teacher.files import atomic_write

T = TypeVar("T")
PORTS = {  # of each server; the first free one is used
    "site": range(8000, 8100),
    "s3": range(9000, 9100),
    "postgres": range(5432, 5532),
    "redis": range(6379, 6479),
}
ENV_NAME = "env"
_SECRETS = "secrets.json"
_PATIENCE_SECONDS = 10.0  # for the programs of a killed stack to end by themselves


def _secret() -> str:
    return secrets.token_hex(32)  # only letters and digits, which need no quotes anywhere


@dataclass(frozen=True)
class Secrets:
    """Secrets of a stack, generated once."""

    secret_key: str = field(default_factory=_secret)
    postgres_password: str = field(default_factory=_secret)
    redis_password: str = field(default_factory=_secret)
    s3_access_key: str = field(default_factory=_secret)
    s3_secret_key: str = field(default_factory=_secret)


class Folder:
    """The folder with all data of a stack, accessible to its owner only."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.logs = self.path / "logs"
        self.env = self.path / ENV_NAME
        self.admin_password = self.path / "admin_password"
        self.token = self.path / "token"
        self._claims: dict[int, socket.socket] = {}

    @contextlib.contextmanager
    def held(self) -> Iterator[int]:
        """Lock the folder against a second stack.

        Yields a file descriptor for all programs of the stack to keep open, by which a later stack finds
        programs left by a killed one.

        Raises:
            StackError: another stack runs in it, or it holds other files.
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        mark = self.path / "programs.lock"  # the first file that a stack creates
        if not mark.exists() and any(self.path.iterdir()):
            raise StackError(
                f"expected a new or empty folder, or a stack's; {self.path} holds other files: "
                "choose another --dir"
            )
        with mark.open("a+") as programs, (self.path / "lock").open("a+") as lock:
            self.logs.mkdir(mode=0o700, exist_ok=True)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StackError(f"a stack is running in {self.path} already: {_announced(lock)}") from None
            self.announce(None)
            _take_over(programs)
            try:
                yield programs.fileno()
            finally:
                while self._claims:
                    self._claims.popitem()[1].close()

    def announce(self, url: str | None) -> None:
        """Write process id and URL into the lock file, for the error of a second stack."""
        (self.path / "lock").write_text(json.dumps({"pid": os.getpid(), "url": url}) + "\n")

    def secrets(self) -> Secrets:
        """Return the secrets of this stack, generated at the first call; raises :class:`StackError`."""
        path = self.path / _SECRETS
        kept = _read(path, str)
        found = Secrets(**{name: kept[name] for name in Secrets.__dataclass_fields__ if name in kept})
        if asdict(found) != kept:
            _write(path, asdict(found))
        return found

    def require_stack(self) -> None:
        """Raise :class:`StackError` if the folder does not hold a stack."""
        if not (self.path / _SECRETS).exists():
            raise StackError(f"expected the folder of a stack, got {self.path}; pass it as --dir")

    def take_secrets(self, backup: Path) -> None:
        """Copy the secrets of a backup into a new stack; backups of other servers have none.

        Raises:
            StackError: this folder holds a stack already.
        """
        kept, own = backup / "state" / _SECRETS, self.path / _SECRETS
        if own.exists() and (not kept.exists() or own.read_bytes() != kept.read_bytes()):
            raise StackError(f"{self.path} holds a stack already; restore into another folder: --dir")
        if kept.exists():
            _write(own, _read(kept, str))

    def ports(self) -> tuple[dict[str, int], list[str]]:
        """Return a port for each server, the last one if it is free, and notes about changed ports.

        The ports are reserved against other stacks, even before the servers start.

        Raises:
            StackError: no port is free, or the file of the last ports is damaged.
        """
        last = _read(self.path / "ports.json", int)
        ports = {name: self._free_port(name, last.get(name)) for name in PORTS}
        _write(self.path / "ports.json", ports)
        moved = [name for name in PORTS if ports[name] != last.get(name, ports[name])]
        return ports, [
            f"port {last[name]} is taken by another program; {name} moves to {ports[name]}" for name in moved
        ]

    def _free_port(self, name: str, last: int | None) -> int:
        candidates: list[int] = [port for port in (last, *PORTS[name]) if port is not None]
        for port in candidates:
            if self._claim(port):
                return port
        first, last = PORTS[name][0], PORTS[name][-1]
        raise StackError(f"no port for {name}: {first} to {last} are all taken; stop the programs using them")

    def _claim(self, port: int) -> bool:
        """Reserve a port that no server listens on yet, and return whether that worked.

        Binds the UDP port of the same number, which no server needs. Other stacks and the embedded site of
        ``teach`` skip such a port.
        """
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
        """Write the file ``env``, which a shell sources to run trainers."""
        lines = [f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()]
        with atomic_write(self.env) as file:
            file.write("".join(lines).encode())


def _announced(lock: IO[str]) -> str:
    lock.seek(0)
    try:
        said = json.loads(lock.read())
        return f"{said['url'] or 'it is starting'} (process {said['pid']})"
    except (ValueError, KeyError, TypeError):
        return "it is starting"


def _take_over(programs: IO[str]) -> None:
    """Wait for the programs of a killed stack to end, and kill those that do not."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        with contextlib.suppress(BlockingIOError):
            return fcntl.flock(programs, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if time.monotonic() > deadline:
            for pid in _holders(Path(programs.name)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


def _holders(path: Path) -> list[int]:
    """Return the ids of other processes that have a file open."""
    pids = []
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if link.readlink() == path:
                pids.append(int(link.parts[2]))
    return [pid for pid in pids if pid != os.getpid()]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # like servers
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
        raise StackError(f"{path} is damaged: {error}; restore it") from error
    if not isinstance(kept, dict) or not all(type(value) is kind for value in kept.values()):
        raise StackError(f"{path} is damaged: expected {kind.__name__} by names; restore it")
    return kept


def _write(path: Path, values: Mapping[str, object]) -> None:
    with atomic_write(path) as file:
        file.write(json.dumps(values, indent=2).encode() + b"\n")
