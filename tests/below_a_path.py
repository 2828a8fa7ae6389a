"""A real site as one of several on its host, at https://host/teacher, and what a trainer does with it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
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
from tests.reverse_proxy import ReverseProxy, reverse_proxy
from tests.site.conftest import CLIP
from tests.site.production.conftest import Production

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
        first, second = (ClipReference(key, reward) for key, reward in zip(keys, (2.0, 1.0), strict=True))
        return Registration(uuid=uuid, phase="training", step=1, priority=1, first=first, second=second)


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
