"""The one site of a state folder: ``python -m human_feedback_site.embedded --state-dir state --bind HOST``.

The first training run that needs it starts it, and it ends by itself after the last one. What must hold when
any process is killed rests on ``flock``, because the kernel takes a lock back from the dead:

- ``site/lock`` is locked by the site, and says in JSON where it is. The server's master and worker both hold
  the lock, so that it is free only when the port is, whichever of them was killed.
- ``site/runs/*.lock`` are each locked by one run. Once there is none, the site takes its address out of
  ``site/lock``, looks once more (a run locks its file before it reads the address) and ends. It also ends
  where ``site/lock`` is not its own any more, because somebody moved or deleted the folder.
"""

import argparse
import errno
import fcntl
import ipaddress
import itertools
import json
import logging
import os
import shutil
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from django.core.exceptions import ImproperlyConfigured

os.environ.pop("WEB_CONCURRENCY", None)  # for the site in production; gunicorn fails where it is no number
from gunicorn.app.base import BaseApplication

from human_feedback_site.environment import make_private_folder, read_count, read_list

PORT = 8000  # or that of TEACHER_PORT; where it is taken, the next that is free
PORTS = 100
THREADS = 8
# Without any run, so that one that is resumed at once finds the site still there, and each open labeling
# page hears that the experiment is finished: in sight it asks every ten seconds, hidden every thirty, or
# every minute where the browser lets it no more often.
GRACE_SECONDS = 75.0
POLL_SECONDS = 0.5
MINUTE = 60.0
LOG_BYTES = 10_000_000  # that the log may have; twice as much is kept

_log = logging.getLogger(__name__)


def main(arguments: list[str] | None = None) -> int:
    """Serve until the last run has ended; returns at once where the state folder has its site already."""
    parser = argparse.ArgumentParser(prog="python -m human_feedback_site.embedded")
    parser.add_argument("--state-dir", type=Path, required=True)
    parser.add_argument("--bind", required=True, help="address to listen on")
    parser.add_argument("--public-url", default="", help="address by which other machines reach the site")
    parser.add_argument("--storage", default="", help="where clips are: s3://bucket/prefix or a folder")
    options = parser.parse_args(arguments)
    options.storage = _store_named(options.storage or os.environ.get("TEACHER_STORAGE", "").strip())
    os.umask(0o077)  # what the site writes is for its owner alone, also in a folder that others may enter
    state_dir = options.state_dir.resolve()
    folder = state_dir / "site"
    _make_state_folder(state_dir)
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600), "r+b") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return 0
        listener = _listen(options.bind, _last_port(folder / "lock"))
        port = listener.getsockname()[1]
        instance = uuid.uuid4().hex
        os.environ |= _environment(options, state_dir, port, instance)
        _prepare_database()
        announcement = {
            "pid": os.getpid(),
            "instance": instance,
            "url": f"http://{_own_host(options.bind)}:{port}",
            "port": port,
            "bind": options.bind,
            "public_url": options.public_url,
            "storage": options.storage,
            "s3_endpoint_url": os.environ.get("S3_ENDPOINT_URL", "").strip(),
        }
        EmbeddedSite(folder, lock.fileno(), listener.detach(), announcement).run()
    return 0


def _make_state_folder(state_dir: Path) -> None:
    """Make the folder, for its owner alone; one that a run has made a moment ago for its lock is made so."""
    make_private_folder(state_dir)
    names = {path.name for path in state_dir.iterdir()}
    if "site" in names and names <= {"site", "site.log"}:
        state_dir.chmod(0o700)


class EmbeddedSite(BaseApplication):  # type: ignore[misc]
    """Gunicorn with one worker of several threads, one of which watches for the end of the last run.

    Args:
        folder: of the lock files.
        lock: file descriptor of ``site/lock``, locked.
        listener: file descriptor of the socket to serve; gunicorn closes it.
        announcement: what ``site/lock`` is to say.
    """

    def __init__(self, folder: Path, lock: int, listener: int, announcement: Mapping[str, Any]) -> None:
        self._folder = folder
        self._lock = lock
        self._listener = listener
        self._announcement = announcement
        self._master = os.getpid()
        super().__init__()

    def load_config(self) -> None:
        """Set what differs from gunicorn's defaults."""
        settings = {
            "bind": f"fd://{self._listener}",
            "workers": 1,  # whatever WEB_CONCURRENCY says: that worker alone watches the runs
            "worker_class": "gthread",
            "threads": THREADS,
            "keepalive": 75,  # longer than a trainer waits between two polls
            "timeout": 120,  # training next to it may keep all processors busy
            "graceful_timeout": 5,
            "control_socket_disable": True,
            "post_worker_init": self._serve,
        }
        for name, value in settings.items():
            self.cfg.set(name, value)

    def load(self) -> Any:
        """Return the WSGI application."""
        from human_feedback_site.wsgi import application  # noqa: PLC0415 (after the environment is set)

        return application

    def _serve(self, _worker: Any) -> None:
        """Say where the site is, now that it answers; threads of the worker watch the runs and do chores."""
        self._announce()
        log = self._folder.parent / "site.log"
        for work in (self._stop_after_last_run, lambda: _do_chores(log)):
            threading.Thread(target=work, daemon=True).start()

    def _stop_after_last_run(self) -> None:
        last_seen = time.monotonic()
        while self._is_in_place():
            time.sleep(POLL_SECONDS)
            if self._has_runs():
                last_seen = time.monotonic()
            elif time.monotonic() - last_seen > GRACE_SECONDS:
                self._announce(url=None)  # from here on nobody joins
                if not self._has_runs():
                    break
                self._announce()
        else:
            _log.error("%s was moved or deleted while its site served, so the site ends", self._folder.parent)
        if os.getppid() == self._master:
            os.kill(self._master, signal.SIGTERM)

    def _is_in_place(self) -> bool:
        """Say whether the lock that this site holds is where runs look for it."""
        try:
            return os.path.samestat(os.fstat(self._lock), (self._folder / "lock").stat())
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # a disk that is away for a moment
            return True

    def _announce(self, **changes: object) -> None:
        # Over what it says, with blanks for what was longer: nobody ever reads an empty one.
        text = json.dumps({**self._announcement, **changes}).ljust(os.fstat(self._lock).st_size)
        os.pwrite(self._lock, text.encode(), 0)

    def _has_runs(self) -> bool:
        return any(_is_locked(path) for path in (self._folder / "runs").glob("*.lock"))


def _do_chores(log: Path) -> None:
    """Do all chores after a minute and then every hour, and some of them every minute; keep the log short."""
    from django.db import connections  # noqa: PLC0415 (after the environment is set)

    from human_feedback_site.feedback.services.chores import CHORES, EVERY_MINUTE  # noqa: PLC0415

    for minute in itertools.count():
        time.sleep(MINUTE)
        for name, chore in CHORES.items():
            if minute % 60 and chore not in EVERY_MINUTE:
                continue
            try:
                chore()
            except Exception:
                _log.exception("A chore failed and is tried again later: %s", name)
        connections.close_all()
        _shorten(log)


def _shorten(log: Path) -> None:
    """Begin a log anew that has grown long, and keep the one before.

    Whoever started this site opened it, to append: all processes go on in the same file.
    """
    try:
        if log.stat().st_size > LOG_BYTES:
            shutil.copyfile(log, log.with_name("site.log.1"))
            os.truncate(log, 0)
    except FileNotFoundError:
        pass  # somebody else keeps what is said
    except OSError:
        _log.exception("The log cannot be shortened: %s", log)


def _is_locked(path: Path) -> bool:
    """Whether a run holds this file; removes what a dead one left. A run names its file after locking it."""
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # locked, or not to be read now: then it may be
        return True
    return False


def _listen(bind: str, last_port: int | None) -> socket.socket:
    """Listen on the port of last time, so that open pages and links go on, or on the first that is free."""
    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    first = read_count("TEACHER_PORT", PORT, least=1, most=65535)
    ports = [*range(first, min(first + PORTS, 65536)), 0]  # 0 is any
    for port in ports if last_port is None else [last_port, *ports]:
        try:
            listener = socket.create_server((bind, port), family=family)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                sys.exit(f"cannot listen on {bind}: {error.strerror}; expected an address of this machine")
            continue
        if not _is_claimed(port):
            return listener
        listener.close()
    raise AssertionError("port 0 is never in use")


def _is_claimed(port: int) -> bool:
    """Return whether a program that starts now has reserved ``port`` by binding its UDP namesake.

    ``python -m stack`` does so for ports whose servers listen only seconds later. It binds UDP first and then
    looks at TCP; here it is the other way round, so that two programs never take one port.
    """
    with socket.socket(type=socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return port != 0
    return False


def _last_port(lock: Path) -> int | None:
    try:
        port = int(json.loads(lock.read_text())["port"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    return port if 0 < port < 65536 else None


def _own_host(bind: str) -> str:
    """The host by which this machine reaches what listens on ``bind``."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bind, bind)  # noqa: S104 (compared, not bound)
    return f"[{host}]" if ":" in host else host


def _environment(options: argparse.Namespace, state_dir: Path, port: int, instance: str) -> dict[str, str]:
    """The settings of this site, as environment variables."""
    own_host = _own_host(options.bind)
    public_url = options.public_url or os.environ.get("TEACHER_PUBLIC_URL", "")
    if not public_url and not _is_loopback(options.bind):
        public_url = f"http://{own_host}:{port}"
    environment = {
        "DJANGO_SETTINGS_MODULE": "human_feedback_site.settings",
        "TEACHER_STATE_DIR": str(state_dir),
        "TEACHER_INSTANCE_ID": instance,
        "ALLOWED_HOSTS": ",".join([own_host, *read_list("ALLOWED_HOSTS")]),
    }
    if public_url:
        environment["TEACHER_PUBLIC_URL"] = public_url
    # Always: without it, the settings take what the site before this one was started with.
    environment["TEACHER_STORAGE"] = options.storage or str(state_dir / "media")
    return environment


def _store_named(storage: str) -> str:
    """The clip store by a name that is the same from any folder; empty for the one in the state folder."""
    return storage if not storage or "://" in storage else str(Path(storage).resolve())


def _is_loopback(bind: str) -> bool:
    try:
        return ipaddress.ip_address(bind).is_loopback
    except ValueError:
        return bind == "localhost"


def _prepare_database() -> None:
    """Create or migrate the database, and make the first admin and the researcher's token."""
    import django  # noqa: PLC0415 (a process that finds the site there already is spared the import)
    from django.core.management import call_command  # noqa: PLC0415
    from django.db import connections  # noqa: PLC0415

    from human_feedback_site.feedback.system_checks import sign_in_obstacle  # noqa: PLC0415

    django.setup()
    obstacle = sign_in_obstacle()
    if obstacle is not None:
        _log.warning("%s", obstacle)
    call_command("setup_embedded")
    connections.close_all()  # a worker must not inherit them


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ImproperlyConfigured as error:
        sys.exit(f"Error: {error}")
