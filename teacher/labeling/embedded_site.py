"""Control of the labeling site on this machine, which the first run starts and later runs share.

The site is a separate process, ``python -m human_feedback_site.embedded``, so Ctrl-C or a crash of one run
doesn't stop it for the others. This module finds the site through files in the state folder;
``human_feedback_site/embedded.py`` explains how these files are locked.
"""

import contextlib
import fcntl
import json
import os
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import requests

from teacher.clips.backoff import Backoff
from teacher.errors import ConfigError, SiteUnreachableError
from teacher.files import read_token
from teacher.settings.addresses import require_own_address

# Command that starts a site.
COMMAND = (sys.executable, "-m", "human_feedback_site.embedded")
PACKAGES = Path(__file__).resolve().parents[2]
"""Folder that contains ``human_feedback_site``; the site's working directory."""
START_SECONDS = 180.0
_POLL_SECONDS = 0.2
_RETRY_SECONDS = 1.0
_LOG_BYTES = 10_000_000


@dataclass
class SiteHandle:
    """Handle that keeps this machine's site running until :meth:`release` is called.

    Attributes:
        storage: the site's clip store, ``s3://bucket/prefix`` or a folder.
        instance_id: random ID of the site's process, which changes when the site is restarted.
        sign_in_url: link that signs in the site's admin, until the site stops.
    """

    url: str
    token: str
    storage: str
    instance_id: str
    sign_in_url: str
    _folder: "_StateFolder"
    _run_lock: IO[str]
    _starting: Backoff = field(default_factory=Backoff)

    @property
    def state_dir(self) -> Path:
        """Folder that holds the site's database, clips, secrets and log."""
        return self._folder.state_dir

    def page_url(self, experiment: str) -> str:
        """Return the URL of an experiment's page."""
        return f"{self.sign_in_url.rpartition('/j/')[0]}/experiments/{experiment}/"

    def revive(self) -> None:
        """Restart the site on the same port if it has died, without waiting for it to respond.

        Do nothing if the state folder is missing. A site that can't be started, for example because the disk
        is full, is tried again by later calls, at growing intervals.
        """
        if self._folder.is_starting():
            return
        if self._folder.find_site() is not None:
            self._starting.succeeded()
        elif not self._starting.seconds_left() and self._folder.state_dir.is_dir():
            self._starting.failed(SiteUnreachableError("the labeling site did not start"))
            with contextlib.suppress(OSError):
                self._folder.rotate_log()
                self._folder.spawn()

    def release(self) -> None:
        """Tell the site that this run no longer needs it; the site stops when no run needs it."""
        self._run_lock.close()


def ensure_site(
    state_dir: Path, bind: str = "127.0.0.1", public_url: str | None = None, storage: str | None = None
) -> SiteHandle:
    """Start the site for a state folder unless it is already running, and return a handle to it.

    It is safe to call this concurrently from several processes.

    Args:
        state_dir: folder that holds the site's database, clips, secrets and log.
        public_url: URL at which other machines reach the site; None if only this machine uses it.
        storage: clip store; None for the one set by ``TEACHER_STORAGE`` or, if that is unset, a folder in
            ``state_dir``.

    Raises:
        SiteUnreachableError: the site didn't start; the message includes the last line of the site's log.
    """
    require_own_address(bind)
    storage = storage or os.environ.get("TEACHER_STORAGE", "")
    if storage and "://" not in storage:
        storage = str(Path(storage).resolve())
    wanted = {"bind": bind, "public_url": public_url or "", "storage": storage}
    folder = _StateFolder(state_dir.resolve(), wanted)
    try:
        folder.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)  # private: it contains secrets
        run_lock = _lock_run(folder.state_dir / "site" / "runs")
    except OSError as error:
        raise ConfigError(f"--state_dir: cannot create {error.filename}: {error.strerror}") from error
    try:
        site = folder.join_or_start()
        folder.wanted = {name: site[name] for name in wanted}  # revive() restarts it with the same options
        return SiteHandle(
            url=site["url"],
            token=read_token(folder.state_dir / "token"),
            storage=site["storage"] or str(folder.state_dir / "media"),
            instance_id=site["instance"],
            sign_in_url=f"{site['public_url'] or site['url']}/j/{site.get('sign_in_code')}",
            _folder=folder,
            _run_lock=run_lock,
        )
    except BaseException:
        run_lock.close()
        raise


def find_running_site(state_dir: Path) -> tuple[str, str] | None:
    """Return the URL and token of a state folder's site, or None if the site isn't running."""
    site = _StateFolder(state_dir.resolve(), {}).find_site()
    return None if site is None else (str(site["url"]), read_token(state_dir / "token"))


class _StateFolder:
    def __init__(self, state_dir: Path, wanted: Mapping[str, str]) -> None:
        self.state_dir = state_dir
        self.wanted = wanted
        self._log = state_dir / "site.log"
        self._child: subprocess.Popen[bytes] | None = None

    def join_or_start(self) -> Mapping[str, Any]:
        """Start the site if it isn't running, wait until it responds, and return its URL and options.

        Raises:
            ConfigError: the site is running with different options.
        """
        deadline = time.monotonic() + START_SECONDS
        log_start = self._log.stat().st_size if self._log.exists() else 0
        child: subprocess.Popen[bytes] | None = None
        while time.monotonic() < deadline:
            site = self.find_site()
            if site is not None:
                self._check_options(site)
                return site
            status = None if child is None else child.poll()
            if status == 0:  # the child found a different process that is starting or stopping the site
                self._refuse_other_host()
                time.sleep(_RETRY_SECONDS)
            elif status is not None:
                raise SiteUnreachableError(
                    f"the labeling site did not start: {self._last_log_line(log_start)}"
                )
            if child is None or status == 0:
                child = self.spawn()
            time.sleep(_POLL_SECONDS)
        raise SiteUnreachableError(
            f"the labeling site did not start within {START_SECONDS:.0f} s: {self._last_log_line(log_start)}"
        )

    def find_site(self) -> Mapping[str, Any] | None:
        """Return the content of ``site/lock`` (URL, instance ID, options), or None if the site isn't running.

        A stale lock file is ignored: the site counts as running only if it responds with the instance ID
        from the file.
        """
        try:
            site: dict[str, Any] = json.loads((self.state_dir / "site" / "lock").read_text())
            with requests.Session() as session:
                session.trust_env = False  # a proxy can't reach this machine's loopback address
                answer = session.get(f"{site['url']}/livez", timeout=5).json()
            return site if answer["instance"] == site["instance"] else None
        except (OSError, ValueError, KeyError, TypeError, RecursionError):  # no file, or no valid response
            return None

    def _refuse_other_host(self) -> None:
        try:
            host = json.loads((self.state_dir / "site" / "lock").read_text()).get("host")
        except (OSError, ValueError, AttributeError, RecursionError):
            return
        if host not in {None, socket.gethostname()}:
            raise ConfigError(
                f"--state_dir: the site in {self.state_dir} runs on {host}; run there, or with --site_url "
                "and the site's public URL, or choose a different --state_dir"
            )

    def spawn(self) -> subprocess.Popen[bytes]:
        """Start a site process; it exits with status 0 if another site is using the state folder."""
        options = [f"--{name.replace('_', '-')}={value}" for name, value in self.wanted.items()]
        with self._log.open("ab") as log:
            child = subprocess.Popen(
                [*COMMAND, f"--state-dir={self.state_dir}", *options],
                cwd=PACKAGES,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C must stop only the run
            )
        threading.Thread(target=child.wait, daemon=True).start()  # reaps the process when it exits
        self._child = child
        return child

    def is_starting(self) -> bool:
        """Return True if the process that this object started last is still running."""
        return self._child is not None and self._child.poll() is None

    def rotate_log(self) -> None:
        """Rename a large log, as the running site does, so that failed starts don't fill the disk."""
        if self._log.exists() and self._log.stat().st_size > _LOG_BYTES:
            self._log.replace(self._log.with_name("site.log.1"))

    def _check_options(self, site: Mapping[str, Any]) -> None:
        defaults = {"bind": "127.0.0.1", "public_url": "", "storage": ""}
        for name, value in self.wanted.items():
            if value not in (defaults[name], site[name]):
                raise ConfigError(
                    f"--{name}: the site in {self.state_dir} is already running with {site[name] or 'none'}, "
                    f"not {value}; stop the runs that use the site, or choose a different --state_dir"
                )

    def _last_log_line(self, log_start: int) -> str:
        """Return the log's last line that has a letter, ignoring its first ``log_start`` bytes."""
        with self._log.open("rb") as log:
            log.seek(log_start)
            lines = log.read().decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if any(map(str.isalpha, line))), "no output")
        return f"{last} (see {self._log})"


def _lock_run(folder: Path) -> IO[str]:
    """Create and lock a file in ``folder`` that marks the site as in use; return the open file.

    The file gets its final name only after it is locked, because the site removes unlocked lock files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    unnamed = folder / uuid.uuid4().hex
    lock = unnamed.open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    unnamed.rename(unnamed.with_suffix(".lock"))
    return lock
