"""Servers of the load benchmark: our site as in production, Label Studio on uWSGI, and one PostgreSQL."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import psycopg

from benchmarks.load_client import Dialect, Offer, Request
from benchmarks.load_rows import EXPERIMENT
from stack.folder import Folder
from stack.process import ROOT, Process, Service
from stack.servers import answer_of
from stack.site import Site

_ASK = json.dumps({"count": 1, "held": [], "shown": None}).encode()
_START_SECONDS = 900.0  # timeout, long enough for a busy machine
_UWSGI = """[uwsgi]
chdir = {chdir}
http = 127.0.0.1:{port}
module = core.wsgi:application
master = true
cheaper = true
single-interpreter = true
processes = 4
threads = 1
die-on-term = true
buffer-size = 65535
http-timeout = 300
need-app = true
post-buffering = 4096
disable-logging = true
enable-threads = true
thunder-lock = true
lazy-apps = true
max-requests = 5000
reload-on-rss = 2048
"""


@dataclass(frozen=True)
class Teacher:
    """Dialect of our site's API."""

    url: str
    keeps_connections: bool = True

    def ask(self) -> Request:
        """Return the request that leases one comparison."""
        return Request("POST", f"/api/v1/experiments/{EXPERIMENT}/leases", _ASK)

    def offered(self, answer: Any) -> Offer | None:
        """Return the leased comparison, or None if there is none."""
        given = answer["leases"]
        return Offer(given[0]["comparison"], given[0]["uuid"]) if given else None

    def save(self, offer: Offer) -> Request:
        """Return the request that saves a label."""
        label = {
            "uuid": str(uuid4()),
            "lease": offer.handle,
            "choice": "left",
            "response_ms": 900,
            "shown_ms": 900,
        }
        return Request("POST", "/api/v1/labels", json.dumps(label).encode())


@dataclass(frozen=True)
class LabelStudio:
    """Dialect of Label Studio's API; its server closes each connection after one response."""

    url: str
    project: int
    keeps_connections: bool = False

    def ask(self) -> Request:
        """Return the request for the project's next task."""
        return Request("GET", f"/api/projects/{self.project}/next")

    def offered(self, answer: Any) -> Offer | None:
        """Return the task, or None if there is none."""
        return Offer(str(answer["id"]), str(answer["id"])) if "id" in answer else None

    def save(self, offer: Offer) -> Request:
        """Return the request that saves an annotation."""
        choice = {
            "from_name": "better",
            "to_name": "first",
            "type": "choices",
            "value": {"choices": ["left"]},
        }
        body = {"result": [choice], "lead_time": 0.9, "project": self.project, "draft_id": 0}
        return Request("POST", f"/api/tasks/{offer.handle}/annotations/", json.dumps(body).encode())


@dataclass(frozen=True)
class Side:
    """A running site with labelers.

    Attributes:
        dialect: API of the site.
        cookies: session cookies, one per labeler.
        pid: PID of the web server's main process.
        environment: environment variables for programs that use the site's database.
    """

    name: str
    dialect: Dialect
    cookies: Sequence[str]
    pid: int
    environment: Mapping[str, str]


class Machine:
    """Context manager that runs PostgreSQL and sites that use it, and stops them all on exit.

    Args:
        folder: new folder for logs and settings.

    Attributes:
        postgres: PID of PostgreSQL.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = Folder(folder)
        self._open = contextlib.ExitStack()

    def __enter__(self) -> "Machine":
        self._open.enter_context(self._folder.held())
        ports, _ = self._folder.ports()
        self._site = Site.of(self._folder, ports)
        self._open.callback(self._site.postgres.remove)
        self.postgres = self._start(self._site.postgres.service())
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def postgres_log(self) -> Path:
        """Path of PostgreSQL's log file."""
        return self._folder.logs / "postgres.log"

    @contextlib.contextmanager
    def logging_statements(self) -> Iterator[None]:
        """Have PostgreSQL log every statement inside the ``with`` block."""
        self._set_logging("all")
        try:
            yield
        finally:
            self._set_logging("none")

    def _set_logging(self, what: str) -> None:
        self._execute(f"ALTER SYSTEM SET log_statement = '{what}'", "SELECT pg_reload_conf()")
        time.sleep(1)  # until all backends have reloaded the setting

    def _execute(self, *statements: str) -> None:
        with psycopg.connect(self._site.postgres.url, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def teacher(self, name: str, *fill: str, sqlite: bool = False) -> Side:
        """Start our site on a new database; ``fill`` is passed to ``benchmarks.load_rows fill``."""
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        web = self._site.web()
        address = f"sqlite:///{self._folder.path / name}.sqlite3" if sqlite else self._new_database(name)
        environment = dict(web.environment) | {
            "DATABASE_URL": address,
            "TEACHER_PUBLIC_URL": url,
            "LOG_FORMAT": "json",
            "PYTHONPATH": str(ROOT),
        }
        cookies = run([sys.executable, "-m", "benchmarks.load_rows", "fill", *fill], environment)
        command = list(web.command())
        command[command.index("--bind") + 1] = f"127.0.0.1:{port}"
        pid = self._start(
            replace(
                web,
                name=name,
                command=lambda: command,
                environment=environment,
                is_ready=lambda: bool(answer_of(f"{url}/livez")),
            )
        )
        return Side(name, Teacher(url), cookies, pid, environment)

    def label_studio(self, python: Path, tasks: int, labelers: int) -> Side:
        """Start Label Studio from the environment of ``python``, with its own uWSGI settings."""
        port = free_port()
        address = psycopg.conninfo.conninfo_to_dict(self._new_database("label_studio"))
        folder = self._folder.path / "label_studio"
        folder.mkdir()
        environment = {
            "PATH": os.defpath,
            "DJANGO_SETTINGS_MODULE": "core.settings.label_studio",
            "DJANGO_DB": "default",
            "POSTGRE_USER": str(address["user"]),
            "POSTGRE_PASSWORD": str(address["password"]),
            "POSTGRE_NAME": str(address["dbname"]),
            "POSTGRE_HOST": str(address["host"]),
            "POSTGRE_PORT": str(address["port"]),
            "LABEL_STUDIO_BASE_DATA_DIR": str(folder),
            "APP_WEBSERVER": "uwsgi",
            "COLLECT_ANALYTICS": "false",
            "LATEST_VERSION_CHECK": "false",
            "SENTRY_DSN": "",
            "FRONTEND_SENTRY_DSN": "",
            "LOG_LEVEL": "ERROR",
            # Skip search indexes that need extensions missing from this PostgreSQL.
            "SKIP_TRIGRAM_EXTENSION": "full",
            "SKIP_BTREE_GIN_EXTENSION": "full",
        }
        script = Path(__file__).with_name("load_label_studio.py")
        made = run([str(python), str(script), str(tasks), str(labelers)], environment)
        settings = folder / "uwsgi.ini"
        settings.write_text(_UWSGI.format(chdir=made["folder"], port=port))
        command = [str(python.with_name("uwsgi")), "--ini", str(settings), "--home", str(python.parents[1])]
        dialect = LabelStudio(f"http://127.0.0.1:{port}", made["project"])
        pid = self._start(
            Service(
                name="label-studio",
                command=lambda: command,
                environment=environment,
                is_ready=lambda: bool(answer_of(f"{dialect.url}/health")),
            )
        )
        return Side("Label Studio", dialect, made["cookies"], pid, environment)

    def _new_database(self, name: str) -> str:
        self._execute(f'CREATE DATABASE "{name}"')
        return f"{self._site.postgres.url.rsplit('/', 1)[0]}/{name}"

    def _start(self, service: Service) -> int:
        process = Process(service, self._folder.logs)
        process.start()
        self._open.callback(process.stop)
        deadline = time.monotonic() + _START_SECONDS
        while not service.is_ready():
            if process.has_stopped() or time.monotonic() > deadline:
                raise RuntimeError(f"{service.name} didn't start: {process.last_words()}")
            time.sleep(0.05)
        assert process.pid is not None
        return process.pid


def run(command: Sequence[str], environment: Mapping[str, str]) -> Any:
    """Run a program and return the JSON on its last line of output."""
    done = subprocess.run(
        command, env=dict(environment), capture_output=True, text=True, check=False, cwd=ROOT
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def free_port() -> int:
    """Return an unused local TCP port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process and its descendants, including those that have ended."""
    total = 0.0
    root = psutil.Process(pid)
    for process in (root, *root.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])  # includes children that ended
    return total


def memory_mb(pid: int) -> float:
    """Return the memory of a process and its descendants in MB.

    On Linux this is the PSS, which counts shared pages once; elsewhere the USS, which omits them.
    """
    root = psutil.Process(pid)
    total = 0.0
    for process in (root, *root.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            memory = process.memory_full_info()
            total += getattr(memory, "pss", memory.uss) / 2**20
    return total
