"""A week without the site, the store, Redis or the render workers, on a simulated clock."""

import contextlib
import io
import json
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
import requests
from rich.console import Console

from teacher.clips import ClipJob, ClipSpec, backoff
from teacher.clips import queue as render_queue
from teacher.clips.backoff import LONGEST_SECONDS, Backoff
from teacher.clips.queue import RenderQueue
from teacher.data.ledger import Ledger
from teacher.errors import RenderError, SiteUnreachableError, StorageError
from teacher.labeling import bots, embedded_site, human
from teacher.labeling.bots import Bot
from teacher.labeling.client import ExperimentSettings, FeedbackClient
from teacher.labeling.embedded_site import SiteHandle
from teacher.labeling.human import HumanCollector
from teacher.labeling.publisher import PublishTarget
from teacher.queries.collector import CollectorStatus
from teacher.reporting.console import RunConsole
from teacher.storage import FolderStorage
from tests.teacher.conftest import make_segment
from tests.waiting import WEEK, SimulatedTime, wait_until

NAME = "cart-pole"
LONGEST = 300.0
EXPERIMENT = {
    "name": NAME,
    "state": "running",
    "prompt": "Which?",
    "last_seq": 0,
    "page_url": "",
    "label_url": "",
    "invite_url": "",
    "run_id": str(uuid4()),
}
FEED = {"state": "running", "last_seq": 0, "items": [], "active_labelers": 0, "open": 1, "open_training": 1}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimulatedTime:
    # Longer waits than those of a run, so that a week takes thousands of tries and not tens of thousands.
    for module in (human, render_queue):
        monkeypatch.setattr(module, "Backoff", lambda *_: Backoff(LONGEST))
    monkeypatch.setattr(human, "POLL_SECONDS", LONGEST)
    monkeypatch.setattr(bots, "_LONGEST_WAIT", LONGEST)
    return SimulatedTime(monkeypatch, backoff, render_queue, human, bots, embedded_site)


@pytest.mark.parametrize(("longest", "length"), [(2.0, 3 * 3600.0), (LONGEST_SECONDS, WEEK)])
def test_waits_are_capped(clock: SimulatedTime, longest: float, length: float) -> None:
    waits = Backoff(longest)
    end = clock.now + length
    while clock.now < end:
        waits.failed(SiteUnreachableError("refused"))
        assert 0.0 < waits.seconds_left() <= longest
        clock.sleep(waits.seconds_left())
    assert waits.seconds_left() == 0.0
    assert longest / 2 <= length / clock.waits <= longest
    waits.succeeded()
    waits.failed(SiteUnreachableError("refused"))
    assert waits.seconds_left() <= 1.0


class Site(requests.Session):
    """A site that is away until a time, and counts what reaches it."""

    def __init__(self, clock: SimulatedTime) -> None:
        super().__init__()
        self.clock, self.back_at, self.tries = clock, 0.0, 0
        self.proxy: requests.Response | None = None  # sends this in front of a site that is away
        self.points: list[int] = []
        self.registered: list[str] = []

    def request(self, method: str, url: str, **options: Any) -> requests.Response:  # type: ignore[override]
        if self.clock.now < self.back_at:
            self.tries += 1
            if self.proxy is None:
                raise requests.ConnectionError("refused")
            return self.proxy
        answer = requests.Response()
        answer.headers["Content-Type"] = "application/json"
        answer.status_code = 200
        answer._content = json.dumps(self._answer(method, url, json.loads(_sent(options)))).encode()
        return answer

    def _answer(self, method: str, url: str, body: Any) -> dict[str, Any]:
        if url.endswith("/points"):
            self.points += [point["step"] for point in body["points"]]
            return {"stored": len(body["points"])}
        if url.endswith("/comparisons"):
            self.registered += [item["uuid"] for item in body["comparisons"]]
            return {"registered": len(body["comparisons"]), "existing": 0}
        return EXPERIMENT if method == "PUT" else FEED


def _sent(options: dict[str, Any]) -> str:
    """The JSON text of a request, however it is given."""
    data = options.get("data")
    return json.dumps(options.get("json")) if data is None else data.read().decode()


class Store(FolderStorage):
    """A clip store that is away until a time."""

    def __init__(self, clock: SimulatedTime) -> None:
        self.clock, self.back_at = clock, 0.0
        self.sizes: dict[str, int] = {}

    def put(self, key: str, path: Path) -> None:
        self._check()
        self.sizes[key] = path.stat().st_size

    def size(self, key: str) -> int | None:
        self._check()
        return self.sizes.get(key)

    def remove(self, key: str) -> None:
        raise AssertionError(key)

    def _check(self) -> None:
        if self.clock.now < self.back_at:
            raise StorageError("the store is away")


class Renderer:
    """Renders at once, or cannot."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def submit(self, job: ClipJob) -> "Future[Path]":
        done: Future[Path] = Future()
        if self.error is not None:
            done.set_exception(self.error)
        else:
            job.path.write_bytes(b"clip")
            done.set_result(job.path)
        return done


Start = Callable[..., contextlib.AbstractContextManager[HumanCollector]]


@pytest.fixture
def collecting(clock: SimulatedTime, tmp_path: Path) -> Start:
    @contextlib.contextmanager
    def start(site: Site, store: Store, revive: Callable[[], None] | None) -> Iterator[HumanCollector]:
        settings = ExperimentSettings(
            name=NAME, run_id=uuid4(), env_id="CartPole-v1", prompt="Which?", n_labels=None, fps=10,
            has_true_reward=True,
        )  # fmt: skip
        with contextlib.closing(Ledger(tmp_path / "ledger.sqlite3")) as ledger:
            client = FeedbackClient("http://127.0.0.1:1", "token", site)
            target = PublishTarget(ledger, client, Renderer(), store, settings)
            with contextlib.closing(HumanCollector(target, revive)) as collector:
                yield collector

    return start


@pytest.mark.parametrize(
    ("away", "revives"), [("site", False), ("store", False), ("site", True), (404, False), (200, False)]
)
def test_a_run_goes_on_after_a_week_away(
    clock: SimulatedTime,
    collecting: Start,
    monkeypatch: pytest.MonkeyPatch,
    *,
    away: str | int,
    revives: bool,
) -> None:
    site, store = Site(clock), Store(clock)
    tries: list[None] = []
    with collecting(site, store, (lambda: tries.append(None)) if revives else None) as collector:
        gone = store if away == "store" else site
        if isinstance(away, int):
            site.proxy = requests.Response()
            site.proxy.status_code, site.proxy._content = away, b"<h1>We will be back soon</h1>"
            site.proxy.headers["Content-Type"] = "text/html"
        gone.back_at = clock.now + WEEK
        collector.submit([(make_segment(1), make_segment(1))], "training", 100)
        for step in range(21_000 if gone is site else 1):
            collector.report({"loss": 1.0}, step, 1)
        wait_until(lambda: clock.now > gone.back_at and len(site.registered) == 1)
        wait_until(lambda: collector.status.away is None)
        assert collector.receive() == []
        assert len(store.sizes) == 2
        on_their_way = collector._ledger.path.parent / "clips-on-their-way"
        assert list(on_their_way.iterdir()) == []
        if gone is site:
            assert site.points[-1] == 20_999
            assert len(site.points) == 20_000
            assert WEEK / LONGEST < site.tries < 2 * WEEK / LONGEST + 50
        assert len(tries) == (site.tries if revives else 0)


class Queue:
    """Redis and Celery: away until a time, or there, with workers that take nothing until then."""

    def __init__(self, clock: SimulatedTime, back_at: float, *, workers: bool = False) -> None:
        self.clock, self.back_at, self.only_workers = clock, back_at, workers
        self.tasks: list[str] = []
        self.most = self.calls = 0
        self.backend = SimpleNamespace(get_task_meta=self._meta, client=SimpleNamespace(llen=self._length))

    def send_task(self, name: str, *, task_id: str, **_: Any) -> None:
        self._check()
        self.tasks.append(task_id)
        self.most = max(self.most, len(self.tasks))

    def _length(self, name: str) -> int:
        self._check()
        if self.clock.now >= self.back_at:
            self.tasks.clear()
        return len(self.tasks)

    def _meta(self, task: str) -> dict[str, Any]:
        self._check()
        if self.clock.now < self.back_at:
            return {"status": "PENDING", "result": None}
        return {"status": "SUCCESS", "result": {"bytes": 4}}

    def _check(self) -> None:
        self.calls += 1
        if self.clock.now < self.back_at and not self.only_workers:
            raise ConnectionError("Redis is away")


@pytest.fixture
def job(tmp_path: Path) -> ClipJob:
    return ClipJob(ClipSpec.of(make_segment(1)), tmp_path / "clip.mp4", 10, f"{NAME}/pair/first.mp4")


@contextlib.contextmanager
def _rendering(
    monkeypatch: pytest.MonkeyPatch, queue: Queue, store: Store, renderer: Renderer
) -> Iterator[RenderQueue]:
    monkeypatch.setattr(render_queue, "celery_app", lambda *_, **__: queue)
    rendering = RenderQueue("redis://", store, "s3://clips", renderer)  # type: ignore[arg-type]
    with contextlib.closing(rendering):
        yield rendering


@pytest.mark.parametrize("workers", [False, True])
def test_a_clip_that_only_workers_can_make_is_made_after_a_week(
    clock: SimulatedTime,
    job: ClipJob,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    workers: bool,
) -> None:
    queue, store = Queue(clock, clock.now + WEEK, workers=workers), Store(clock)
    store.sizes[job.key] = 4
    caplog.set_level(logging.WARNING, "teacher")
    with _rendering(monkeypatch, queue, store, Renderer(RenderError("no OpenGL"))) as rendering:
        assert rendering.submit(job).result(60) is None
        assert clock.now >= queue.back_at
    assert queue.most <= 1  # though nobody took any
    assert queue.calls < 2 * WEEK / LONGEST + 1000
    assert len(caplog.records) == 3, caplog.text  # away, the clip waits, back again


def test_store_is_required(clock: SimulatedTime, job: ClipJob, monkeypatch: pytest.MonkeyPatch) -> None:
    queue, store = Queue(clock, 0.0), Store(clock)
    store.sizes[job.key] = 4
    back_at = clock.now + WEEK
    away = {"status": "SUCCESS", "result": {"error": "the store is away", "kind": "storage"}}
    there = {"status": "SUCCESS", "result": {"bytes": 4}}
    queue.backend.get_task_meta = lambda _: away if clock.now < back_at else there
    with _rendering(monkeypatch, queue, store, Renderer(RenderError("no OpenGL"))) as rendering:
        assert rendering.submit(job).result(60) is None
        assert clock.now >= back_at
        assert rendering._thread.is_alive()


@pytest.mark.parametrize("broken", ["_reclaim_overdue", "_reclaim_all", "_away.succeeded"])
def test_clips_are_resolved_whatever_fails_in_the_queue(
    clock: SimulatedTime, job: ClipJob, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def fail(*_: object) -> None:
        raise OverflowError(34, "Numerical result out of range")

    queue, store = Queue(clock, clock.now + 60.0 * (broken == "_reclaim_all")), Store(clock)
    store.sizes[job.key] = 4
    with _rendering(monkeypatch, queue, store, Renderer()) as rendering:
        with monkeypatch.context() as patch:
            owner, _, name = broken.rpartition(".")
            patch.setattr(getattr(rendering, owner) if owner else rendering, name, fail)
            clip = rendering.submit(job)
            error = clip.exception(60)
            if error is not None:
                assert isinstance(error, RenderError)
                assert "the render queue failed: OverflowError" in str(error)
        clock.now += 120.0
        assert rendering.submit(job).result(60) in {None, job.path}


@pytest.mark.parametrize("error", [OSError("no space left"), RuntimeError("can't start new thread")])
def test_a_renderer_that_cannot_start_fails_the_clip_and_not_the_queue(
    clock: SimulatedTime, job: ClipJob, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def cannot(_: ClipJob) -> None:
        raise error

    renderer = Renderer()
    queue = Queue(clock, clock.now + WEEK)
    with _rendering(monkeypatch, queue, Store(clock), renderer) as rendering:
        with monkeypatch.context() as patch:
            patch.setattr(renderer, "submit", cannot)
            with pytest.raises(RenderError, match=str(error)):
                rendering.submit(job).result(60)
        assert rendering.submit(job).result(60) == job.path


def test_site_start_log(clock: SimulatedTime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "site.log"
    folder = embedded_site._StateFolder(tmp_path, {})
    starts: list[float] = []

    def spawn() -> None:
        starts.append(clock.now)
        with log.open("ab") as file:
            file.write(b"x" * 100)
        if len(starts) % 2:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(embedded_site, "_LOG_BYTES", 10_000)
    monkeypatch.setattr(folder, "find_site", lambda: None)
    monkeypatch.setattr(folder, "spawn", spawn)
    handle = SiteHandle("", "", "", "", "", folder, io.StringIO())
    end = clock.now + 24 * 3600.0
    while clock.now < end:
        handle.revive()
        clock.sleep(10.0)
    assert 24 * 3600.0 / 40 <= len(starts) <= 24 * 3600.0 / 15
    assert sum(path.stat().st_size for path in tmp_path.glob("site.log*")) < 21_000
    monkeypatch.setattr(folder, "find_site", lambda: {"url": ""})
    handle.revive()
    monkeypatch.setattr(folder, "find_site", lambda: None)
    handle.revive()
    assert starts[-1] == clock.now


def test_a_bot_waits_a_week_for_its_site(clock: SimulatedTime) -> None:
    bot = Bot("http://127.0.0.1:1", NAME, "token", "bot-1")
    bot._session = site = Site(clock)
    site.back_at = clock.now + WEEK
    assert bot._until_answered("GET", "api/v1/").status_code == 200
    assert clock.now >= site.back_at
    assert WEEK / LONGEST <= site.tries <= 2 * WEEK / LONGEST + 50


def test_the_console_says_each_trouble_of_an_outage_once() -> None:
    said = io.StringIO()
    console = RunConsole(Console(file=said, width=200))
    for number in range(1000):
        error = ("Connection refused", "timed out")[number % 2]
        console.show_trouble(CollectorStatus("running", None, 0, f"{error} (since 10:00:00)"))
    console.show_trouble(CollectorStatus("running", None, 0, None))
    console.show_trouble(CollectorStatus("running", None, 0, "timed out (since 11:00:00)"))
    assert said.getvalue().splitlines() == [
        "retrying: Connection refused (since 10:00:00)",
        "retrying: timed out (since 10:00:00)",
        "the site is reachable again",
        "retrying: timed out (since 11:00:00)",
    ]
