"""A site with a researcher, an experiment and labelers, driven through HTTP as trainers and browsers do."""

import functools
import json
import os
import runpy
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, ParamSpec, TypeVar
from unittest.mock import patch
from uuid import UUID, uuid4

import boto3
import pytest
from django.conf import settings as site
from django.contrib.auth.models import User
from django.db import connections
from django.db.models.functions import Now
from django.http import FileResponse, HttpResponse
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

import human_feedback_site
from human_feedback_site.feedback import models
from human_feedback_site.feedback.media.store import FolderMedia, S3Media, media_store
from human_feedback_site.feedback.models import Comparison, Experiment, Invite, Label, Lease
from human_feedback_site.feedback.services import accounts, experiments, invites, webhooks, wording
from human_feedback_site.feedback.services.accounts import create_token, token_of
from human_feedback_site.feedback.services.answers import Revision, revise_answer
from tests.conftest import S3Server

CLIP = b"\x00\x00\x00\x18ftypmp42" + bytes(range(256)) * 4  # enough to be served; nothing here decodes it
API = "/api/v1"
RUN: dict[str, Any] = {"env_id": "x", "prompt": "Which?", "fps": 40, "has_true_reward": False}
"""A new experiment's description without its ``run_id``."""
P = ParamSpec("P")
R = TypeVar("R")


class Api:
    """A Django test client that speaks JSON."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def send(self, method: str, path: str, body: object = None) -> HttpResponse:
        """Send ``body`` as JSON to an address below ``/api/v1``."""
        data = "" if body is None else json.dumps(body)
        response: HttpResponse = self.client.generic(
            method, API + path, data, content_type="application/json"
        )  # type: ignore[assignment]
        return response

    def get(self, path: str) -> Any:
        return self._ok(self.send("GET", path))

    def post(self, path: str, body: object) -> Any:
        return self._ok(self.send("POST", path, body))

    @staticmethod
    def _ok(response: HttpResponse) -> Any:
        assert response.status_code in {200, 201}, response.content.decode()
        return json.loads(response.content)


class Trainer(Api):
    """A researcher's run."""

    def __init__(self, user: User, name: str) -> None:
        super().__init__(Client(headers={"Authorization": f"Bearer {create_token(user)}"}))
        self.user = user
        self.name = name
        self.run_id = str(uuid4())

    def description(self, **changes: object) -> dict[str, Any]:
        return {
            "run_id": self.run_id,
            "env_id": "ShortHopper-v1",
            "prompt": "Which hops higher?",
            "n_labels": 700,
            "fps": 40,
            "has_true_reward": True,
            **changes,
        }

    def put(self, **changes: object) -> Any:
        """Create or resume the experiment."""
        return self._ok(self.send("PUT", f"/experiments/{self.name}", self.description(**changes)))

    def begin(self) -> "Trainer":
        """Create the experiment as :meth:`put` does, without the request: nearly every test needs one."""
        values = self.description()
        made, _ = experiments.put_experiment(self.user, self.name, UUID(values.pop("run_id")), values)
        experiments.hear_from_trainer(made)
        accounts.invite(made, "you")
        return self

    def invite(self, name: str) -> str:
        """Return the link that :meth:`put` would return for a labeler of that name."""
        experiment = self.experiment
        accounts.invite_newcomer(experiment, name)
        return accounts.invite_url(experiment, name, "")

    @property
    def path(self) -> str:
        """The experiment's address below the API's."""
        return f"/experiments/{self.name}"

    @property
    def experiment(self) -> Experiment:
        return Experiment.objects.get(name=self.name)

    def comparison(self, **changes: object) -> dict[str, Any]:
        """Return a new comparison whose clips are uploaded; the first has the larger true return."""
        uuid = str(uuid4())
        clips = {"first": 2.0, "second": 1.0}
        body: dict[str, Any] = {"uuid": uuid, "phase": "training", "step": 100, "priority": 1}
        for side, true_return in clips.items():
            key = f"{self.name}/{uuid}/{side}.mp4"
            self.upload(key)
            body[side] = {"key": key, "true_return": true_return}
        return {**body, **changes}

    def upload(self, key: str) -> None:
        store = media_store()
        assert isinstance(store, FolderMedia)
        path = store.path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(CLIP)

    def film(self, step: int, name: str = "") -> None:
        """Upload a video of an episode, and say of which step it is."""
        key = f"{self.name}/episodes/{name or step}.mp4"
        self.upload(key)
        self.post(f"{self.path}/episodes", {"step": step, "key": key})

    def predict(self, step: int = 1, *, films: Mapping[int, Sequence[float]] | None = None) -> None:
        """Say which rewards the predictor predicts: for films, and 0.625 for each clip of each comparison."""
        curves = [{"step": at, "rewards": curve} for at, curve in (films or {}).items()]
        clips = [
            {"uuid": str(each.uuid), "items": [[-0.5, 0.625]] * each.question.size}
            for each in self.experiment.comparisons.all()
        ]
        predicted = {"step": step, "films": curves, "comparisons": clips}
        self.post(f"{self.path}/points", {"points": [], "predicted": predicted})

    def wait_for(self, answers: int | None) -> None:
        """Say for how many answers training waits."""
        self.post(f"{self.path}/points", {"points": [], "waiting_for": answers})

    def silence(self, seconds: float = 3600) -> None:
        """Let nothing have been heard from the trainer for a while."""
        long_ago = Now() - timedelta(seconds=seconds)
        Experiment.objects.filter(name=self.name).update(trainer_seen_at=long_ago)

    def register(self, count: int = 1, **changes: object) -> list[str]:
        """Register new comparisons and return their UUIDs, in order."""
        comparisons = [self.comparison(**changes) for _ in range(count)]
        self.post(f"{self.path}/comparisons", {"comparisons": comparisons})
        return [comparison["uuid"] for comparison in comparisons]

    def overlap(self, overlap: int, *, more: int = 1, share: float = 0.0) -> None:
        """Say how many labelers judge each comparison, and how many judge some; the majority decides."""
        Experiment.objects.filter(name=self.name).update(aggregation="majority")
        experiments.set_overlap(self.experiment, overlap, more, share)

    def decisions(self, after: int = 0, limit: int = 1000) -> Any:
        """Read the feed."""
        return self.get(f"{self.path}/decisions?after={after}&limit={limit}")


class Labeling(Api):
    """The requests of a labeling page."""

    experiment = "hopper"

    def ask(self, count: int = 1, **body: object) -> Any:
        """Ask for leases; return the whole reply."""
        return self.post(f"/experiments/{self.experiment}/leases", {"count": count, **body})

    def lease(self, count: int = 1, **body: object) -> Any:
        """Ask for leases; return the new ones."""
        return self.ask(count, **body)["leases"]

    def answer(self, lease: Any, choice: str = "left", **changes: object) -> Any:
        return self.post("/labels", self.label(lease, choice, **changes))

    def label(self, lease: Any, choice: str = "left", **changes: object) -> dict[str, object]:
        return {"uuid": str(uuid4()), "lease": lease["uuid"], "choice": choice, "response_ms": 900, **changes}

    def undo(self, label: Any) -> Any:
        return self.post(f"/labels/{label['uuid']}/undo", {"uuid": str(uuid4())})


class Browser(Labeling):
    """A labeler who followed an invitation."""

    def __init__(self, invite_url: str, experiment: str) -> None:
        super().__init__(Client())
        self.experiment = experiment
        response = self.client.get(invite_url)
        assert response.status_code == 302, response.content.decode()


def new_invite(experiment: Experiment, **facts: Any) -> Invite:
    """Make an invitation that is good for a day, for anybody unless ``facts`` name somebody."""
    usual = {"kind": "anonymous", "expires_at": timezone.now() + timedelta(days=1)}
    return Invite.objects.create(experiment=experiment, **{**usual, **facts})


def revise(label: Any, choice: str, uuid: UUID | None = None) -> Label:
    """Change an answer as the history page does."""
    old = Label.objects.get(uuid=label["uuid"])
    return revise_answer(old.labeler, Revision(uuid or uuid4(), old.uuid, choice))


def own_connection(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function close the database connection of the thread in which it is called."""

    @functools.wraps(function)
    def run(*args: P.args, **options: P.kwargs) -> R:
        try:
            return function(*args, **options)
        finally:
            connections.close_all()

    return run


def race(*functions: Callable[[], Any]) -> list[Any]:
    """Call functions at the same moment, each with a database connection of its own; return their results."""
    barrier = threading.Barrier(len(functions))

    @own_connection
    def go(function: Callable[[], Any]) -> Any:
        barrier.wait()
        return function()

    with ThreadPoolExecutor(len(functions)) as pool:
        return list(pool.map(go, functions))


def client_of(user: User) -> Client:
    """A browser in which a user is signed in."""
    client = Client()
    client.force_login(user)
    return client


Put = Callable[[str], None]
Invited = Callable[[str], Browser]
Stored = Callable[[], list[str]]


def settings_of(**variables: str) -> dict[str, Any]:
    """Return the site's settings where the environment says this and no more."""
    kept = {name: value for name, value in os.environ.items() if name in {"PATH", "HOME", "LANG"}}
    with patch.dict(os.environ, kept | variables, clear=True):
        values = runpy.run_path(str(Path(human_feedback_site.__file__).with_name("settings.py")))
    return {name: value for name, value in values.items() if name.isupper()}


def fill(trainer: Trainer, browser: Browser) -> None:
    """Let an experiment have a row of every kind; its clips are not stored."""
    trainer.post(f"{trainer.path}/comparisons", {"comparisons": [trainer.comparison() for _ in range(3)]})
    trainer.film(1)
    trainer.post(f"{trainer.path}/points", {"points": [{"step": 1, "values": {"a": 1}}]})
    trainer.predict()
    pair = models.Comparison.objects.filter(experiment=trainer.experiment).earliest("pk")
    models.Example.objects.create(experiment=trainer.experiment, comparison=pair, better="first")
    first, second, _ = browser.lease(3)
    browser.undo(browser.answer(first))
    browser.answer(second)
    link = invites.invite_by_name(trainer.experiment, f"mia-{trainer.name}")
    sent = f"{trainer.experiment.pk:024x}"
    invites.admit(link, invites.PlatformParticipant(sent, "b" * 24, "c" * 24))
    mia = models.Participation.objects.get(labeler__name=f"mia-{trainer.name}")
    models.InvitePart.objects.create(participation=mia, invite=link, answered=1)
    text = wording.set_text(trainer.experiment, "1 sentence")
    assert text is not None
    wording.answer(mia.labeler, text, agreed=True)
    if not models.WebhookEndpoint.objects.exists():
        webhooks.create_endpoint(models.WebhookEndpoint(name="pager", url="https://hooks.example/"))
    webhooks.announce_finished(trainer.experiment)


def owner_of(secret: str) -> User | None:
    """Whom a token speaks for."""
    token = token_of(secret)
    return None if token is None else token.user


def assert_guarded(response: HttpResponse, referrer_policy: str = "same-origin") -> None:
    """Assert that an answer forbids other hosts, framing and guessing, and scripts its cookies."""
    headers = response.headers
    policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
    assert policy == {
        "default-src": "'self'",
        "img-src": "'self' data:",
        "media-src": "'self' blob:",
        "connect-src": "'self'",
        "object-src": "'none'",
        "base-uri": "'none'",
        "form-action": "'self'",
        "frame-ancestors": "'none'",
    }
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Referrer-Policy"] == referrer_policy
    assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
    given = {name: each for name, each in response.cookies.items() if each.value}  # others are taken away
    given.pop(site.LANGUAGE_COOKIE_NAME, None)  # is no secret
    for name, cookie in given.items():
        assert cookie["samesite"] == "Lax", name
        assert bool(cookie["secure"]) is site.SESSION_COOKIE_SECURE, name
        assert cookie["httponly"] or name == site.CSRF_COOKIE_NAME, name  # pages' scripts send that one


@pytest.fixture(autouse=True)
def media_folder(settings: Settings, tmp_path: Path) -> Path:
    settings.TEACHER_STORAGE = str(tmp_path / "media")
    return tmp_path / "media"


@pytest.fixture(params=["folder", "s3"])
def in_store(
    request: pytest.FixtureRequest, media_folder: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> Stored:
    """The keys that are in the store, which is a folder in one run and a real S3 server in the other."""
    if request.param == "folder":
        return lambda: sorted(str(path.relative_to(media_folder)) for path in files(media_folder))
    server: S3Server = request.getfixturevalue("s3_server")
    server.use(monkeypatch, settings)
    bucket = f"expiry-{os.urandom(4).hex()}"
    settings.TEACHER_STORAGE = f"s3://{bucket}/some/prefix"
    boto3.client("s3", endpoint_url=server.endpoint_url).create_bucket(Bucket=bucket)
    root = server.root / bucket / "some/prefix"
    return lambda: sorted(str(path.relative_to(root)) for path in files(root))


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.fixture
def put(in_store: Stored) -> Put:
    """Put something into the store under a key."""

    def put(key: str) -> None:
        store = media_store()
        if isinstance(store, S3Media):
            client = boto3.client("s3", endpoint_url=store.client.meta.endpoint_url)
            client.put_object(Bucket=store.bucket, Key=f"{store.prefix}/{key}", Body=b"clip")
        else:
            path = store.root / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"clip")

    return put


@pytest.fixture(autouse=True)
def files_of_responses(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close the files of responses that a test doesn't read, as a server would."""
    files, begin = list[Any](), FileResponse.__init__

    def noted(response: FileResponse, *given: Any, **options: Any) -> None:
        begin(response, *given, **options)
        files.append(response.file_to_stream)

    monkeypatch.setattr(FileResponse, "__init__", noted)
    yield
    for file in filter(None, files):
        file.close()


@pytest.fixture(autouse=True)
def quick_static_files(settings: Settings) -> None:
    """Look static files up when they are asked for; each client would list all of them first."""
    settings.WHITENOISE_AUTOREFRESH = True


@pytest.fixture(autouse=True)
def quick_passwords(settings: Settings) -> None:
    """Hash passwords in no time: the real way is slow on purpose, half a second for each."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture
def researcher(db: None) -> User:
    """Somebody with access to the API."""
    return User.objects.create(username="ada", is_staff=True)


@pytest.fixture
def root(db: None) -> Client:
    """The browser of a superuser."""
    return client_of(User.objects.create(username="root", is_staff=True, is_superuser=True))


@pytest.fixture
def trainer(researcher: User) -> Trainer:
    """The researcher's run, whose experiment exists."""
    return Trainer(researcher, "hopper").begin()


@pytest.fixture
def researcher_browser(trainer: Trainer) -> Client:
    """The browser of the researcher whose experiment exists."""
    return client_of(trainer.user)


@pytest.fixture
def stranger(db: None) -> Trainer:
    """Another researcher's run, whose experiment exists too."""
    return Trainer(User.objects.create(username="eve", is_staff=True), "walker").begin()


@pytest.fixture
def invite(trainer: Trainer) -> Invited:
    """Make labelers by name."""
    return lambda name: Browser(trainer.invite(name), trainer.name)


@pytest.fixture
def browser(invite: Invited) -> Browser:
    """One labeler."""
    return invite("you")


@pytest.fixture
def lease(trainer: Trainer, browser: Browser) -> Any:
    """The lease of the only pair."""
    trainer.register()
    [lease] = browser.lease()
    return lease


@pytest.fixture
def label(browser: Browser, lease: Any) -> Any:
    """The answer to the only pair."""
    return browser.answer(lease)


def expire(*leases: Any) -> None:
    """Let leases expire, by the database's clock."""
    Lease.objects.filter(uuid__in=[lease["uuid"] for lease in leases]).update(expires_at=Now())


def side_of(lease: Any, which: str) -> str:
    """Tell on which side of the screen a lease shows ``first`` or ``second``."""
    swapped = Lease.objects.get(uuid=lease["uuid"]).swapped
    return "right" if (which == "first") == swapped else "left"


def stored(uuid: str) -> Comparison:
    return Comparison.objects.get(uuid=UUID(uuid))
