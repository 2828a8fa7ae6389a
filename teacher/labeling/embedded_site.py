"""The labeling site on this machine: started by the first run that needs it, shared by the others.

The site is a separate process (``python -m human_feedback_site.embedded``, which explains its locks), so
that Ctrl-C or a crash of one run does not stop it for the others. This module reads only its files.
"""

import fcntl
import json
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import requests

from teacher.errors import ConfigError, SiteUnreachableError
from teacher.files import read_token
from teacher.settings.addresses import require_own_address

# The command that serves a state folder.
COMMAND = (sys.executable, "-m", "human_feedback_site.embedded")
PACKAGES = Path(__file__).resolve().parents[2]
"""The folder that holds ``human_feedback_site``, installed or not; the site starts in it."""
START_SECONDS = 180.0
_POLL_SECONDS = 0.2
_RETRY_SECONDS = 1.0


@dataclass
class SiteHandle:
    """A site that runs at least until :meth:`release` or the end of this process.

    Attributes:
        url: URL of the site on this machine.
        token: a researcher's token.
        storage: clip store, ``s3://bucket/prefix`` or a folder.
        instance_id: distinguishes this site from a later one at the same address.
    """

    url: str
    token: str
    storage: str
    instance_id: str
    _folder: "_StateFolder"
    _run_lock: IO[str]

    @property
    def admin_url(self) -> str:
        """URL of the admin pages."""
        return f"{self.url}/admin/"

    @property
    def admin_password_file(self) -> Path:
        """File with the password of the user ``admin``."""
        return self._folder.state_dir / "admin_password"

    def revive(self) -> None:
        """Restart the site on its port if it has died, without waiting until it serves.

        Does nothing while its state folder is missing.
        """
        if not self._folder.serves() and self._folder.state_dir.is_dir():
            self._folder.spawn()

    def release(self) -> None:
        """Release the site, which stops when no run needs it."""
        self._run_lock.close()


def ensure_site(
    state_dir: Path, bind: str = "127.0.0.1", public_url: str | None = None, storage: str | None = None
) -> SiteHandle:
    """Start the site of a state folder, or use the running one; several processes may call this at once.

    Args:
        state_dir: folder of the site's database, clips, secrets and log.
        bind: address to listen on.
        public_url: URL at which other machines reach the site.
        storage: clip store (default: ``TEACHER_STORAGE``, else a folder in the state folder).

    Raises:
        ConfigError: this machine cannot listen on the address, the options do not fit together, or the site
            already runs with others.
        SiteUnreachableError: it did not start; the message ends with the last line of its log.
    """
    require_own_address(bind)
    storage = storage or os.environ.get("TEACHER_STORAGE", "")
    if storage and "://" not in storage:
        storage = str(Path(storage).resolve())
    wanted = {"bind": bind, "public_url": public_url or "", "storage": storage}
    folder = _StateFolder(state_dir.resolve(), wanted)
    try:
        folder.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)  # for secrets
        run_lock = _lock_run(folder.state_dir / "site" / "runs")
    except OSError as error:
        raise ConfigError(f"--state_dir: cannot make {error.filename}: {error.strerror}") from error
    try:
        site = folder.join_or_start()
        folder.wanted = {name: site[name] for name in wanted}  # a revived site keeps its options
        return SiteHandle(
            url=site["url"],
            token=read_token(folder.state_dir / "token"),
            storage=site["storage"] or str(folder.state_dir / "media"),
            instance_id=site["instance"],
            _folder=folder,
            _run_lock=run_lock,
        )
    except BaseException:
        run_lock.close()
        raise


def find_running_site(state_dir: Path) -> tuple[str, str] | None:
    """Return URL and token of a state folder's site; None if it is not running."""
    site = _StateFolder(state_dir.resolve(), {}).find_site()
    return None if site is None else (str(site["url"]), read_token(state_dir / "token"))


class _StateFolder:
    """Reads the files of a state folder and starts its site."""

    def __init__(self, state_dir: Path, wanted: Mapping[str, str]) -> None:
        self.state_dir = state_dir
        self.wanted = wanted
        self._log = state_dir / "site.log"
        self._child: subprocess.Popen[bytes] | None = None

    def join_or_start(self) -> Mapping[str, Any]:
        """Start the site unless it runs, wait until it serves, and return its address and options."""
        deadline = time.monotonic() + START_SECONDS
        log_start = self._log.stat().st_size if self._log.exists() else 0
        child: subprocess.Popen[bytes] | None = None
        while time.monotonic() < deadline:
            site = self.find_site()
            if site is not None:
                self._check_options(site)
                return site
            status = None if child is None else child.poll()
            if status == 0:  # it found another one that is starting or stopping
                time.sleep(_RETRY_SECONDS)
            elif status is not None:
                raise SiteUnreachableError(f"the labeling site did not start: {self._last_words(log_start)}")
            if child is None or status == 0:
                child = self.spawn()
            time.sleep(_POLL_SECONDS)
        raise SiteUnreachableError(
            f"the labeling site did not start within {START_SECONDS:.0f} s: {self._last_words(log_start)}"
        )

    def find_site(self) -> Mapping[str, Any] | None:
        """Return the content of ``site/lock`` if that instance of the site responds."""
        try:
            site: dict[str, Any] = json.loads((self.state_dir / "site" / "lock").read_text())
            with requests.Session() as session:
                session.trust_env = False  # no proxy reaches this machine's own address
                answer = session.get(f"{site['url']}/livez", timeout=5).json()
            return site if answer["instance"] == site["instance"] else None
        except (OSError, ValueError, KeyError, TypeError, RecursionError):  # no file, response or such site
            return None

    def spawn(self) -> subprocess.Popen[bytes]:
        """Start a site process, which exits with status 0 if the folder has a site already."""
        options = [f"--{name.replace('_', '-')}={value}" for name, value in self.wanted.items()]
        with self._log.open("ab") as log:
            child = subprocess.Popen(
                [*COMMAND, f"--state-dir={self.state_dir}", *options],
                cwd=PACKAGES,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # so that Ctrl-C stops only the run
            )
        threading.Thread(target=child.wait, daemon=True).start()  # so that it never stays a zombie
        self._child = child
        return child

    def serves(self) -> bool:
        """Return whether a site serves, or the last spawned process is still starting."""
        return (self._child is not None and self._child.poll() is None) or self.find_site() is not None

    def _check_options(self, site: Mapping[str, Any]) -> None:
        defaults = {"bind": "127.0.0.1", "public_url": "", "storage": ""}
        for name, value in self.wanted.items():
            if value not in (defaults[name], site[name]):
                raise ConfigError(
                    f"--{name}: the site of {self.state_dir} already runs with {site[name] or 'none'}, "
                    f"got {value}; stop the runs that use it first, or choose another --state_dir"
                )

    def _last_words(self, log_start: int) -> str:
        """Return the last line of the log after its first ``log_start`` bytes."""
        with self._log.open("rb") as log:
            log.seek(log_start)
            lines = log.read().decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "no output")
        return f"{last} (see {self._log})"


def _lock_run(folder: Path) -> IO[str]:
    """Create a file in ``folder`` that stays locked while this process keeps it open.

    It is renamed into place after it is locked, as the site removes unlocked ones.
    """
    folder.mkdir(parents=True, exist_ok=True)
    unnamed = folder / uuid.uuid4().hex
    lock = unnamed.open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    unnamed.rename(unnamed.with_suffix(".lock"))
    return lock
