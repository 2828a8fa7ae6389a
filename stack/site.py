"""Services of a stack with their commands and environment variables, matching the Compose file."""

import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from celery import Celery
from kombu.exceptions import OperationalError
from redis import RedisError

from stack.folder import Folder
from stack.postgres import PostgreSQL
from stack.process import Service
from stack.servers import S3, Redis, answer_of, program

STORAGE = "s3://clips"
_WEB_WORKERS = "2"
_FOREIGN = ("ALLOWED_HOSTS", "AWS_", "CELERY_", "CSRF_", "DATABASE_", "DEBUG", "DJANGO_", "REDIS_", "S3_")
# The user's variables that services inherit.
_OWN = ("LOG_FORMAT", "MEDIA_KEEP_DAYS", "TEACHER_RENDER_MODULES", "WEBHOOK_ALLOWED_HOSTS")
_PING_SECONDS = 0.5
_PING = {"max_retries": 1, "interval_start": 0.1, "socket_timeout": 2.0, "socket_connect_timeout": 2.0}


@dataclass(frozen=True)
class Site:
    """The servers of a stack, and the services that use them."""

    folder: Folder  # data folder of the stack
    url: str  # URL of the labeling site
    postgres: PostgreSQL  # PostgreSQL server for the site's database
    redis: Redis  # Redis server for task queues
    s3: S3  # S3 server for clips
    # random ID by which :meth:`is_ready` distinguishes this site from a different one at the same URL
    instance: str = field(default_factory=lambda: uuid4().hex)

    @classmethod
    def of(cls, folder: Folder, ports: Mapping[str, int]) -> "Site":
        """Create the servers of the stack in ``folder``; ``ports`` is keyed by server name."""
        secrets = folder.secrets()
        url = f"http://127.0.0.1:{ports['site']}"
        return cls(
            folder=folder,
            url=url,
            postgres=PostgreSQL(folder.path / "postgres", ports["postgres"], secrets.postgres_password),
            redis=Redis(folder.path / "redis", ports["redis"], secrets.redis_password),
            s3=S3(folder.path / "s3", ports["s3"], secrets.s3_access_key, secrets.s3_secret_key, origin=url),
        )

    def set_up(self) -> Service:
        """Return the service that prepares the site's storage and database."""
        steps = ("setup_storage", "setup_embedded")
        script = " && ".join(f'"$0" manage.py {step}' for step in steps)
        return Service(
            name="set-up",
            command=lambda: ["sh", "-c", script, sys.executable],
            environment=self._site_environment(),
            is_ready=lambda: False,  # never ready; it ends when its work is done
            ends=True,
            max_failures=1,
        )

    def manage(self, command: str, folder: Path, runs: Path) -> Service:
        """Return the service that runs ``manage.py backup`` or ``manage.py restore``."""
        words = [sys.executable, "manage.py", command, str(folder.absolute()), "--runs", str(runs)]
        return Service(
            name=command,
            command=lambda: words,
            environment=self._site_environment(),
            ends=True,
            max_failures=1,
        )

    def web(self) -> Service:
        """Return the service that runs the site's web server."""
        address = self.url.removeprefix("http://")
        command = [sys.executable, "-m", "human_feedback_site.serve", "--bind", address]
        return Service(
            name="web",
            command=lambda: command,
            environment=self._site_environment() | {"WEB_CONCURRENCY": _WEB_WORKERS},
            is_ready=lambda: self.is_ready(self.url),
            address=self.url,
        )

    def is_ready(self, url: str) -> bool:
        """Return True if this instance of the site responds at ``url`` and is ready."""
        answer = answer_of(f"{url}/readyz")
        return answer is not None and answer.status_code == 200 and self.instance in answer.text

    def chores(self) -> Service:
        """Return the service that runs the site's periodic maintenance tasks."""
        return self._celery("chores", "human_feedback_site.celery", "--beat", "--concurrency", "1")

    def render_workers(self, count: int) -> list[Service]:
        """Return ``count`` services, each of which runs a render worker with one process."""
        names = [f"render-{number}" for number in range(1, count + 1)]
        options = ("--without-gossip", "--without-mingle", "--concurrency", "1")
        return [self._celery(name, "teacher.render_tasks", *options) for name in names]

    def trainer_variables(self) -> dict[str, str]:
        """Return the environment variables for running ``teach`` on this stack.

        ``TEACHER_SITE_URL`` and ``TEACHER_STORAGE`` are the values for ``teach --site_url`` and
        ``--storage``.
        """
        return {
            "TEACHER_SITE_URL": self.url,
            "TEACHER_STORAGE": STORAGE,
            "TEACHER_TOKEN": self.folder.token.read_text().strip(),
            **self._store(),
            "REDIS_URL": self.redis.url,
            **_no_proxy(),
        }

    def trainer_environment(self) -> dict[str, str]:
        """Return all environment variables of a trainer process on this stack."""
        return _cleared_environment() | self.trainer_variables()

    def _site_environment(self) -> dict[str, str]:
        return (
            _cleared_environment()
            | self.s3.environment()
            | {
                "SECRET_KEY": self.folder.secrets().secret_key,
                "DATABASE_URL": self.postgres.url,
                "TEACHER_PUBLIC_URL": self.url,
                "TEACHER_INSTANCE_ID": self.instance,
                "TEACHER_SIGN_IN_CODE": self.folder.secrets().sign_in_code,
                "TEACHER_STORAGE": STORAGE,
                "TEACHER_STATE_DIR": str(self.folder.path),
            }
        )

    def _store(self) -> dict[str, str]:
        variables = self.s3.environment()
        del variables["S3_PUBLIC_ENDPOINT_URL"]  # only the site needs it, for links in browsers
        return variables

    def _celery(self, name: str, app: str, *options: str) -> Service:
        host = f"{name}@{socket.gethostname()}"
        command = [
            *(program("celery"), "--quiet", "--app", app),
            *("worker", "--hostname", host, "--loglevel", "INFO", *options),
        ]
        environment = self._site_environment() if name == "chores" else self.trainer_environment()
        environment.pop("TEACHER_TOKEN", None)
        return Service(
            name=name,
            command=lambda: command,
            environment=environment | {"REDIS_URL": self.redis.url},
            is_ready=lambda: self._responds(host),
        )

    def _responds(self, worker: str) -> bool:
        """Return True if a Celery worker responds to a ping.

        Uses a short Redis timeout: if Redis is down, the caller may be the supervisor that must restart it.
        """
        with Celery(broker=self.redis.url, fixups=[], set_as_current=False) as app:
            app.conf.broker_transport_options = _PING
            try:
                return bool(app.control.ping(destination=[worker], timeout=_PING_SECONDS))
            except (OperationalError, RedisError, OSError):
                return False


def _cleared_environment() -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _OWN or not name.startswith((*_FOREIGN, "TEACHER_"))
    }
    return {"LOG_FORMAT": "plain", "PYTHONUNBUFFERED": "1", **kept, **_no_proxy()}


def _no_proxy() -> dict[str, str]:
    """Return the environment variables ``NO_PROXY`` and ``no_proxy``, with 127.0.0.1 added."""
    hosts = [*filter(None, [os.environ.get("NO_PROXY") or os.environ.get("no_proxy")]), "127.0.0.1"]
    return {"NO_PROXY": ",".join(hosts), "no_proxy": ",".join(hosts)}
