"""Embedded labeling site, shared by the training runs that use the same state folder.

The first run that needs the site starts it with ``python -m human_feedback_site.embedded --state-dir state
--bind HOST``. The site shuts down on its own after the last run ends. Coordination uses ``flock``, because
the kernel releases a process's locks even if it's killed:

- The site locks ``site/lock`` and writes its URL there as JSON. Gunicorn's master and worker both keep the
  lock, so it is released only once neither of them uses the port.
- Each run locks its own file ``site/runs/*.lock`` before it reads the URL. When there are no runs left, the
  site removes its URL from ``site/lock``, checks once more for new runs, and ends. It also ends if
  ``site/lock`` is no longer the file that it locked, because the state folder was moved or deleted.
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

os.environ.pop("WEB_CONCURRENCY", None)  # only for production; gunicorn would fail if it isn't a number
from gunicorn.app.base import BaseApplication

from human_feedback_site.environment import read_count, read_list
from human_feedback_site.private import CODE_LENGTH, make_private_folder, random_code

PORT = 8000  # first port to try unless TEACHER_PORT is set
PORTS = 100  # number of ports to try
THREADS = 8
# Time from the end of the last run to the end of the site. A run that is resumed at once then finds the site
# still running, and each open labeling page learns that the experiment is finished. Pages poll every 10
# seconds, hidden pages every 30 seconds, or every minute in browsers that limit timers.
GRACE_SECONDS = 75.0
POLL_SECONDS = 0.5
MINUTE = 60.0
LOG_BYTES = 10_000_000  # size at which the log is rotated; one old log is kept

_log = logging.getLogger(__name__)


def main(arguments: list[str] | None = None) -> int:
    """Serve the site until the last run has ended, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m human_feedback_site.embedded")
    parser.add_argument("--state-dir", type=Path, required=True)
    parser.add_argument("--bind", required=True, help="IP address or host name to listen on")
    parser.add_argument("--public-url", default="", help="URL at which other machines reach the site")
    parser.add_argument("--storage", default="", help="clip store: s3://bucket/prefix or a folder")
    options = parser.parse_args(arguments)
    options.storage = _absolute_storage(options.storage or os.environ.get("TEACHER_STORAGE", "").strip())
    os.umask(0o077)  # only the owner can access new files, even in a folder that others can access
    state_dir = options.state_dir.resolve()
    folder = state_dir / "site"
    _make_state_folder(state_dir)
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600), "r+b") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return 0
        last = _last_announcement(folder / "lock")
        listener = _listen(options.bind, _last_port(last))
        port = listener.getsockname()[1]
        host = socket.gethostname()  # while the site starts, a run on another machine must know who does
        _overwrite(lock.fileno(), json.dumps({**last, "host": host}))
        instance = uuid.uuid4().hex
        os.environ |= _environment(options, state_dir, port, instance)
        os.environ["TEACHER_SIGN_IN_CODE"] = _sign_in_code(last)
        _prepare_database()
        announcement = {
            "pid": os.getpid(),
            "host": host,
            "instance": instance,
            "url": f"http://{_own_host(options.bind)}:{port}",
            "port": port,
            "bind": options.bind,
            "public_url": options.public_url,
            "storage": options.storage,
            "sign_in_code": os.environ["TEACHER_SIGN_IN_CODE"],
            "s3_endpoint_url": os.environ.get("S3_ENDPOINT_URL", "").strip(),
        }
        EmbeddedSite(folder, lock.fileno(), listener.detach(), announcement).run()
    return 0


def _make_state_folder(state_dir: Path) -> None:
    """Create the state folder with owner-only permissions.

    If a run has just created the folder for its lock file, the folder's permissions are changed instead.
    Other existing folders keep their permissions.
    """
    make_private_folder(state_dir)
    names = {path.name for path in state_dir.iterdir()}
    if "site" in names and names <= {"site", "site.log"}:
        state_dir.chmod(0o700)


class EmbeddedSite(BaseApplication):  # type: ignore[misc]
    """Gunicorn server with one worker process; a thread in the worker stops the server after the last run.

    Args:
        folder: folder that contains the lock files.
        lock: file descriptor of ``site/lock``, already locked.
        listener: file descriptor of the listening socket; gunicorn closes it.
        announcement: JSON object to write to ``site/lock``.
    """

    def __init__(self, folder: Path, lock: int, listener: int, announcement: Mapping[str, Any]) -> None:
        self._folder = folder
        self._lock = lock
        self._listener = listener
        self._announcement = announcement
        self._master = os.getpid()
        super().__init__()

    def load_config(self) -> None:
        """Set the gunicorn settings that differ from its defaults."""
        settings = {
            "bind": f"fd://{self._listener}",
            "workers": 1,  # exactly one worker must watch the runs
            "worker_class": "human_feedback_site.worker.BufferedWorker",
            "threads": THREADS,
            "keepalive": 75,  # longer than a trainer waits between two requests
            "timeout": 120,  # training on the same machine may use all CPU cores
            "graceful_timeout": 5,
            "control_socket_disable": True,
            "post_worker_init": self._serve,
        }
        for name, value in settings.items():
            self.cfg.set(name, value)

    def load(self) -> Any:
        """Return the WSGI application."""
        from human_feedback_site.wsgi import application  # noqa: PLC0415 (needs environment variables)

        return application

    def _serve(self, _worker: Any) -> None:
        """Announce the site, and start the threads that watch the runs and perform the chores."""
        self._announce()
        log = self._folder.parent / "site.log"
        for work in (self._stop_after_last_run, lambda: _do_chores(log)):
            threading.Thread(target=work, daemon=True).start()

    def _stop_after_last_run(self) -> None:
        """Stop the server once no runs are left or the state folder has been moved or deleted."""
        last_seen = time.monotonic()
        while self._is_in_place():
            time.sleep(POLL_SECONDS)
            if self._has_runs():
                last_seen = time.monotonic()
            elif time.monotonic() - last_seen > GRACE_SECONDS:
                self._announce(url=None)  # from now on, new runs don't use this site
                if not self._has_runs():
                    break
                self._announce()
        else:
            _log.error("%s was moved or deleted, so its site is shutting down", self._folder.parent)
        if os.getppid() == self._master:
            os.kill(self._master, signal.SIGTERM)

    def _is_in_place(self) -> bool:
        """Return True if the file that this site has locked is still at ``site/lock``."""
        try:
            return os.path.samestat(os.fstat(self._lock), (self._folder / "lock").stat())
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # the disk may be unavailable for a moment
            return True

    def _announce(self, **changes: object) -> None:
        _overwrite(self._lock, json.dumps({**self._announcement, **changes}))

    def _has_runs(self) -> bool:
        return any(_is_locked(path) for path in (self._folder / "runs").glob("*.lock"))


def _overwrite(lock: int, text: str) -> None:
    """Overwrite ``site/lock`` in place, padded, so that no run ever reads an empty file."""
    os.pwrite(lock, text.ljust(os.fstat(lock).st_size).encode(), 0)


def _do_chores(log: Path) -> None:
    """Loop forever: run each maintenance task ("chore") at its own interval, and rotate the log.

    Tasks in ``EVERY_MINUTE`` run every minute, all others every hour. Log rotation is checked every minute.
    """
    from django.db import connections  # noqa: PLC0415 (needs environment variables)

    from human_feedback_site.feedback.health import log_once, temporary_reason  # noqa: PLC0415
    from human_feedback_site.feedback.services.chores import CHORES, EVERY_MINUTE  # noqa: PLC0415

    for minute in itertools.count():
        time.sleep(MINUTE)
        for name, chore in CHORES.items():
            if minute % 60 and chore not in EVERY_MINUTE:
                continue
            try:
                chore()
            except Exception as error:
                reason = temporary_reason(error)
                if reason is None:
                    _log.exception("The maintenance task %r failed and will be retried later", name)
                else:
                    log_once(f"Maintenance tasks failed and will be retried later: {reason}", error)
        try:
            connections.close_all()
        except Exception:
            _log.exception("Can't close the connections to the database")
        _rotate(log)


def _rotate(log: Path) -> None:
    """If the log is larger than :data:`LOG_BYTES`, copy it to ``site.log.1`` and truncate the original.

    The log can't be renamed because the process that started the site opened it for appending, and all of the
    site's processes write to that open file.
    """
    try:
        if log.stat().st_size > LOG_BYTES:
            shutil.copyfile(log, log.with_name("site.log.1"))
            os.truncate(log, 0)
    except FileNotFoundError:
        pass  # the site's output doesn't go to this file
    except OSError:
        _log.exception("Can't rotate the log %s", log)


def _is_locked(path: Path) -> bool:
    """Return True if a run holds the lock on ``path``; otherwise, delete the file and return False.

    Deleting is safe because a run locks its file before renaming it to ``path``. A file that exists but can't
    be opened counts as locked.
    """
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # locked, or can't be read now and so may be locked
        return True
    return False


def _listen(bind: str, last_port: int | None) -> socket.socket:
    """Return a socket that listens on ``last_port``, or on the first free port if it is None or taken.

    The search for a free port starts at ``TEACHER_PORT`` (8000 if unset). If the first :data:`PORTS` ports
    are taken, the operating system chooses one. Reusing the previous site's port lets open pages and links
    keep working. Exits with an error message if this machine can't listen on ``bind``.
    """
    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    first = read_count("TEACHER_PORT", PORT, least=1, most=65535)
    ports = [*range(first, min(first + PORTS, 65536)), 0]  # 0: any free port
    for port in ports if last_port is None else [last_port, *ports]:
        try:
            listener = socket.create_server((bind, port), family=family)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                sys.exit(f"can't listen on {bind}: {error.strerror}; use one of this machine's addresses")
            continue
        if not _is_claimed(port):
            return listener
        listener.close()
    raise AssertionError("unreachable: port 0 is any free port")


def _is_claimed(port: int) -> bool:
    """Return True if another program has reserved ``port`` by binding the UDP port with the same number.

    ``python -m stack`` reserves ports in this way before its servers start. It binds the UDP port and then
    checks the TCP port, while this module binds the TCP port and then checks the UDP port. Two programs
    therefore never use the same port.
    """
    with socket.socket(type=socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return port != 0
    return False


def _sign_in_code(last: Mapping[str, Any]) -> str:
    """Return the code of a site that died, so that links printed for it keep working, or a new one."""
    code = last.get("sign_in_code")
    return code if last.get("url") and isinstance(code, str) and len(code) == CODE_LENGTH else random_code()


def _last_port(last: Mapping[str, Any]) -> int | None:
    try:
        port = int(last["port"])
    except (ValueError, KeyError, TypeError, OverflowError):
        return None
    return port if 0 < port < 65536 else None


def _last_announcement(lock: Path) -> dict[str, Any]:
    """Return what the previous site wrote to ``site/lock``; an empty dictionary if that isn't readable."""
    try:
        found = json.loads(lock.read_text())
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _own_host(bind: str) -> str:
    """Return the host to use in local URLs for a server that listens on ``bind``."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bind, bind)  # noqa: S104 (compared, not bound)
    return f"[{host}]" if ":" in host else host


def _environment(options: argparse.Namespace, state_dir: Path, port: int, instance: str) -> dict[str, str]:
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
    # Always set it. Otherwise, the settings would use the store of the last site in this state folder.
    environment["TEACHER_STORAGE"] = options.storage or str(state_dir / "media")
    return environment


def _absolute_storage(storage: str) -> str:
    """Convert a relative folder path to an absolute one."""
    return storage if not storage or "://" in storage else str(Path(storage).resolve())


def _is_loopback(bind: str) -> bool:
    try:
        return ipaddress.ip_address(bind).is_loopback
    except ValueError:
        return bind == "localhost"


def _prepare_database() -> None:
    import django  # noqa: PLC0415 (a slow import, not needed if the site is already running)
    from django.conf import settings  # noqa: PLC0415
    from django.core.management import CommandError, call_command  # noqa: PLC0415
    from django.db import connections  # noqa: PLC0415

    from human_feedback_site.environment import require_all_variables  # noqa: PLC0415
    from human_feedback_site.feedback.system_checks import sign_in_obstacle  # noqa: PLC0415

    django.setup()
    require_all_variables(settings)
    obstacle = sign_in_obstacle()
    if obstacle is not None:
        _log.warning("%s", obstacle)
    try:
        call_command("setup_embedded")
    except CommandError as error:
        raise ImproperlyConfigured(*error.args) from error
    connections.close_all()  # the worker process must not inherit connections


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ImproperlyConfigured as error:
        sys.exit(f"Error: {error}")
