"""A real site in a folder of its own, real segments, and the collector between them."""

import contextlib
import fcntl
import itertools
import json
import os
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import requests

from teacher.clips import ClipJob, ClipRenderer, backoff
from teacher.data.ledger import Ledger
from teacher.data.preferences import Preference
from teacher.data.segment_pool import SegmentPool
from teacher.data.segments import Segment
from teacher.envs.gl import select_gl
from teacher.envs.random_episodes import random_trajectories
from teacher.envs.tasks import describe_task
from teacher.labeling import bots, human, publisher
from teacher.labeling.bots import Bot
from teacher.labeling.client import ExperimentSettings, FeedbackClient
from teacher.labeling.embedded_site import SiteHandle, ensure_site
from teacher.labeling.human import HumanCollector
from teacher.labeling.publisher import PublishTarget
from teacher.queries.judges import Value, true_return
from teacher.queries.kinds import kinds_of
from teacher.settings.options import KindName
from teacher.settings.teachers import ErrorModel
from teacher.storage import Storage, open_storage
from tests.waiting import wait_until


def announced(state_dir: Path) -> Any:
    """Return what a site says of itself; nothing where there never was one."""
    return json.loads((state_dir / "site" / "lock").read_text() or "{}")


def is_held(state_dir: Path) -> bool:
    """Return whether any process of a site is alive."""
    try:
        with (state_dir / "site" / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    return False


def kill_site(state_dir: Path) -> None:
    """Kill the server with all its processes, of which it is the group's leader."""
    leader = announced(state_dir)["pid"]
    assert leader > 1, "the group 1 is every process there is"
    os.killpg(leader, signal.SIGKILL)


Pair = tuple[Segment, Segment]
SEGMENT_STEPS = 8
CLIP_SIZE = 96


MakeState = Callable[[Path], Path]


@pytest.fixture(scope="session")
def _site_and_copy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SiteHandle, Path]]:
    """A site, and a copy of its state folder as it is before anybody has used it."""
    state_dir, copy = tmp_path_factory.mktemp("site") / "state", tmp_path_factory.mktemp("state")
    handle = ensure_site(state_dir)
    with (
        contextlib.closing(sqlite3.connect(state_dir / "site.sqlite3")) as database,
        contextlib.closing(sqlite3.connect(copy / "site.sqlite3")) as target,
    ):
        database.backup(target)
    for name in ("secret_key", "token"):
        shutil.copy2(state_dir / name, copy)
    yield handle, copy
    handle.release()


@pytest.fixture(scope="session")
def site(_site_and_copy: tuple[SiteHandle, Path]) -> SiteHandle:
    """One site for all tests that leave it alive, in a folder that it has made."""
    return _site_and_copy[0]


@pytest.fixture(scope="session")
def make_state(_site_and_copy: tuple[SiteHandle, Path]) -> MakeState:
    """Makes state folders in which a new site finds its tables, which takes it longest to make."""
    return lambda path: Path(shutil.copytree(_site_and_copy[1], path))


@pytest.fixture(scope="session")
def s3_site(
    make_state: MakeState, s3_server: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SiteHandle]:
    """Another site, with clips in S3; who puts them there needs ``s3_variables``."""
    state_dir = make_state(tmp_path_factory.mktemp("s3-site") / "state")
    with pytest.MonkeyPatch.context() as patch:
        s3_server.use(patch)
        handle = ensure_site(state_dir, storage=f"s3://{s3_server.bucket}/people")
    yield handle
    handle.release()


@pytest.fixture
def s3_variables(s3_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Return what reads and writes the store of ``s3_site``."""
    s3_server.use(monkeypatch)


@pytest.fixture(scope="session")
def _mortal_state(make_state: MakeState, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    state_dir = make_state(tmp_path_factory.mktemp("mortal-site") / "state")
    yield state_dir
    if is_held(state_dir):
        kill_site(state_dir)


@pytest.fixture
def mortal_state(_mortal_state: Path) -> Path:
    """The folder of a site that tests may kill; it may live when a test begins, or not."""
    return _mortal_state


@pytest.fixture(scope="session")
def renderer() -> Iterator[ClipRenderer]:
    select_gl()  # once for all processes that are started from here
    with ClipRenderer(workers=1) as renderer:
        yield renderer


@pytest.fixture(scope="session")
def pairs() -> list[Pair]:
    """Thirty pairs of random reaching, whose true returns all differ."""
    pool = SegmentPool(SEGMENT_STEPS, seed=1)
    pool.extend(itertools.islice(random_trajectories(describe_task("teacher/ShortReacher-v1"), seed=1), 40))
    return pool.sample_pairs(30)


@pytest.fixture(autouse=True)
def _quick_polls_and_small_clips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(human, "POLL_SECONDS", 0.2)
    monkeypatch.setattr(human, "_FINISH_DELAYS", (0.1, *human._FINISH_DELAYS))
    monkeypatch.setattr(publisher, "ClipJob", partial(ClipJob, size=CLIP_SIZE))
    monkeypatch.setattr(backoff, "FIRST_SECONDS", 0.1)
    monkeypatch.setattr(bots, "_IDLE_SECONDS", 0.3)
    monkeypatch.setattr(bots, "_LONGEST_WAIT", 0.5)


@pytest.fixture
def experiment() -> ExperimentSettings:
    """An experiment that the site does not know yet."""
    return ExperimentSettings(
        name=f"reach-{uuid4().hex[:8]}",
        run_id=uuid4(),
        env_id="teacher/ShortReacher-v1",
        prompt="Choose the clip in which the fingertip comes closer to the target.",
        n_labels=None,
        fps=10,
        has_true_reward=True,
    )


@dataclass
class Asking:
    """One run's side of the labeling: everything a loop would hold, and what a test needs besides."""

    site: SiteHandle
    settings: ExperimentSettings
    storage: Storage
    ledger: Ledger
    collector: HumanCollector
    client: FeedbackClient
    _at_work: list[Bot] = field(default_factory=list)

    def publish(self, pairs: list[Pair]) -> None:
        """Submit pairs, and wait until labelers may see them."""
        self.collector.submit(pairs, "training", 100, kind_in(self.settings))
        wait_until(lambda: self.ledger.unfinished() == [])

    def have_answered(self, pairs: list[Pair]) -> None:
        """Submit pairs, and wait until a scripted labeler has answered them."""
        self.collector.submit(pairs, "training", 100, kind_in(self.settings))
        self.bots(1)
        self.receive(len(pairs))

    def receive(self, count: int) -> list[Preference]:
        """The next ``count`` preferences, waiting for them."""
        received: list[Preference] = []
        deadline = time.monotonic() + 240.0
        while len(received) < count:
            failures = [bot.error for bot in self._at_work if bot.error]
            assert not failures, failures
            assert time.monotonic() < deadline, f"{len(received)} of {count} came; {self.collector.status}"
            received += self.collector.receive()
            time.sleep(0.05)
        return received

    def bots(self, count: int, log: Path | None = None, teacher: str = "oracle") -> list[Bot]:
        """Scripted labelers of this experiment, at work."""
        error_model, site, name = ErrorModel.parse(teacher), self.site, self.settings.name
        bots = [
            Bot(site.url, name, site.token, f"{name}-{index}", log, error_model) for index in range(count)
        ]
        for bot in bots:
            bot.start()
        self._at_work += bots
        return bots

    def dismiss(self) -> None:
        """Let the labelers go that are still here: they would ask for work until all tests have ended."""
        if any(bot.is_alive() for bot in self._at_work):
            self.client.put_experiment(self.settings, state="finished")
        for bot in self._at_work:
            bot.join(240)


StartAsking = Callable[..., contextlib.AbstractContextManager[Asking]]


@pytest.fixture
def start_asking(
    tmp_path: Path, site: SiteHandle, renderer: ClipRenderer, experiment: ExperimentSettings
) -> StartAsking:
    """Starts a collector on a ledger in ``tmp_path``; starting it again there is resuming."""

    @contextlib.contextmanager
    def start(
        *,
        at: SiteHandle = site,
        storage: Storage | None = None,
        renderer: ClipRenderer = renderer,
        value: Value = true_return,
        kind: KindName = "pair",
    ) -> Iterator[Asking]:
        storage = open_storage(at.storage) if storage is None else storage
        with contextlib.ExitStack() as parts:
            ledger = parts.enter_context(contextlib.closing(Ledger(tmp_path / "ledger.sqlite3")))
            client = parts.enter_context(contextlib.closing(FeedbackClient(at.url, at.token)))
            settings = replace(experiment, feedback=kind)
            publication = PublishTarget(ledger, client, renderer, storage, settings, value)
            collector = HumanCollector(publication, at.revive)
            parts.enter_context(contextlib.closing(collector))
            asking = Asking(at, settings, storage, ledger, collector, client)
            yield asking
            asking.dismiss()

    return start


def kind_in(settings: ExperimentSettings) -> KindName:
    """The kind of question that a run asks."""
    [kind] = kinds_of(settings.feedback)
    return kind.name


class Labeler:
    """A person who followed an invitation, on a browser without a screen."""

    def __init__(self, asking: Asking) -> None:
        self._session = requests.Session()
        self._session.get(asking.collector.experiment.invite_url).raise_for_status()
        self._site, self._name = asking.site.url, asking.settings.name

    def leases(self, count: int = 1) -> Any:
        """The site's whole reply to a request for leases."""
        return self._post(f"experiments/{self._name}/leases", {"count": count})

    def film(self) -> Any:
        """The newest film of a whole episode, as the site shows it: step and bytes."""
        path = f"{self._site}/api/v1/experiments/{self._name}/progress"
        episode = self._session.get(path).json()["episode"]
        return episode and (episode["step"], self._session.get(self._site + episode["url"]).content)

    def answer(self, lease: Any, choice: str) -> str:
        """Answer a lease and return the label's UUID."""
        uuid = str(uuid4())
        self._post("labels", {"uuid": uuid, "lease": lease["uuid"], "choice": choice})
        return uuid

    def undo(self, label: str) -> None:
        self._post(f"labels/{label}/undo", {"uuid": str(uuid4())})

    def _post(self, path: str, body: Any) -> Any:
        headers = {"X-CSRFToken": self._session.cookies["csrftoken"]}
        answer = self._session.post(f"{self._site}/api/v1/{path}", json=body, headers=headers)
        answer.raise_for_status()
        return answer.json()

    def close(self) -> None:
        self._session.close()


@pytest.fixture
def open_labeler() -> Iterator[Callable[[Asking], Labeler]]:
    """Opens the invitation of an experiment."""
    with contextlib.ExitStack() as labelers:
        yield lambda asking: labelers.enter_context(contextlib.closing(Labeler(asking)))
