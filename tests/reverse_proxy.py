"""A reverse proxy of a few lines, and a real site below a path of its host, at https://host/teacher."""

import contextlib
import http.client
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.contrib.auth.models import User

from teacher.labeling.client import (
    ClipReference,
    Experiment,
    ExperimentSettings,
    FeedbackClient,
    Registration,
)
from tests.databases import Using
from tests.servers import Handler, serving
from tests.site.conftest import CLIP
from tests.site.production.conftest import Production

_OF_ONE_CONNECTION = {"connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"}


class ReverseProxy(ThreadingHTTPServer):
    """Sends a request for a path on to its site.

    Attributes:
        sites: address of a site by path, such as ``/teacher``.
        cuts: whether the path is taken off on the way.
        astray: what was asked for that is below none of the paths.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Forward)
        self.sites: dict[str, str] = {}
        self.cuts = False
        self.astray: list[str] = []

    @property
    def url(self) -> str:
        """Return where the host's root is."""
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def reverse_proxy() -> Iterator[ReverseProxy]:
    """Run a proxy that has no sites yet."""
    proxy = ReverseProxy()
    with serving(proxy):
        yield proxy


class _Forward(Handler):
    protocol_version = "HTTP/1.1"

    def _forward(self) -> None:
        body = self.body()
        below = [path for path in self.server.sites if self.path.startswith((f"{path}/", f"{path}?"))]
        if not below:
            self.server.astray.append(f"{self.command} {self.path}")
            self.reply(404, "There is nothing here.")
            return
        target = self.path.removeprefix(below[0]) if self.server.cuts else self.path
        address = urlsplit(self.server.sites[below[0]]).netloc
        with contextlib.closing(http.client.HTTPConnection(address, timeout=60)) as site:
            site.request(self.command, target, body or None, dict(self.headers.items()))
            answer = site.getresponse()
            headers = [each for each in answer.getheaders() if each[0].lower() not in _OF_ONE_CONNECTION]
            with contextlib.suppress(ConnectionError):  # who asked is gone
                self.reply(answer.status, answer.read(), headers)

    do_GET = do_HEAD = do_POST = do_PUT = _forward  # noqa: N815 (as the base class has it)


PATH = "/teacher"
PASSWORD = "a-long-enough-password"


@dataclass
class Below:
    """A site below a path, and what a trainer knows of it."""

    site: Production
    proxy: ReverseProxy
    token: str
    clips: tuple[bytes, bytes] = (CLIP, CLIP)

    @property
    def url(self) -> str:
        """The address that everybody is told."""
        return self.proxy.url + PATH

    def client(self) -> FeedbackClient:
        """Return a trainer's client, as ``--site_url`` makes it."""
        return FeedbackClient(self.url, self.token)

    def put(self, name: str, pairs: int = 0) -> Experiment:
        """Make an experiment of a name that begins so, with some comparisons."""
        name = f"{name}-{uuid4().hex[:8]}"
        client = self.client()
        values: Any = {"env_id": "x", "prompt": "Which?", "n_labels": 9, "fps": 20, "has_true_reward": True}
        experiment = client.put_experiment(ExperimentSettings(name=name, run_id=uuid4(), **values))
        new = [self._registration(name) for _ in range(pairs)]
        if new:
            assert client.register(name, new).registered == pairs
        client.close()
        return experiment

    def _registration(self, name: str) -> Registration:
        uuid = uuid4()
        keys = [f"{name}/{uuid}/{side}.mp4" for side in ("first", "second")]
        for key, clip in zip(keys, self.clips, strict=True):
            path = Path(self.site.environment["TEACHER_STATE_DIR"]) / "media" / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(clip)
        items = tuple(ClipReference(key, reward) for key, reward in zip(keys, (2.0, 1.0), strict=True))
        return Registration(uuid=uuid, phase="training", step=1, priority=1, items=items)


@contextmanager
def below_a_path(site: Production, using: Using) -> Iterator[Below]:
    """Start a site whose database has its tables, and a proxy in front of it."""
    with reverse_proxy() as proxy:
        site.environment["TEACHER_PUBLIC_URL"] = proxy.url + PATH
        token = site.migrate()
        with using(site.environment["DATABASE_URL"]):
            make_admin()
        site.start(WEB_CONCURRENCY="1")
        try:
            proxy.sites[PATH] = site.url
            yield Below(site, proxy, token)
        finally:
            site.stop()


def make_admin() -> None:
    """Make somebody whose password the site can check, though tests have quicker ways of their own."""
    password = PBKDF2PasswordHasher().encode(PASSWORD, "salt", iterations=1)
    User.objects.create(username="root", password=password, is_staff=True, is_superuser=True)
