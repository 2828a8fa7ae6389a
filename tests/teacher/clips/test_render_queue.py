"""Clips by real render workers on a real Redis and a real S3 store, and what comes when one of these dies."""

import base64
import contextlib
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest
import redis
import requests
from prometheus_client.parser import text_string_to_metric_families

from teacher.clips import ClipJob, ClipRenderer, ClipSpec, backoff
from teacher.clips import queue as render_queue
from teacher.clips.backoff import Backoff
from teacher.clips.metrics import FAILURE_KINDS
from teacher.clips.queue import RenderQueue, _Clip
from teacher.clips.tasks import TASK, clip_request
from teacher.data.segments import Segment
from teacher.errors import RenderError, ReplayMismatchError
from teacher.storage import Storage, open_storage
from tests.redis_server import PASSWORD, Redis
from tests.teacher.clips.conftest import record
from tests.waiting import free_port, wait_until


class Queue(Redis):
    """A Redis that keeps its queue when it is killed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "--appendonly", "yes", "--appendfsync", "always")

    def start(self) -> None:
        """Start it, unless it runs, and wait until it answers."""
        super().start()
        wait_until(self._answers)

    def forget_everything(self) -> None:
        """Lose what an earlier test left."""
        with redis.Redis.from_url(self.url) as client:
            client.flushdb()

    def waiting(self) -> int:
        """Tasks that no worker has."""
        with redis.Redis.from_url(self.url) as client:
            return int(client.llen("render"))

    def has(self, job: ClipJob) -> bool:
        """Return whether a clip's task is among those that no worker has."""
        with redis.Redis.from_url(self.url) as client:
            tasks = [json.loads(task) for task in client.lrange("render", 0, -1)]
        return any(job.key.encode() in base64.b64decode(task["body"]) for task in tasks)

    def forget(self) -> None:
        """Lose the tasks that no worker has."""
        with redis.Redis.from_url(self.url) as client:
            client.delete("render")

    def _answers(self) -> bool:
        with contextlib.suppress(redis.RedisError), redis.Redis.from_url(self.url) as client:
            return bool(client.ping())
        return False


class Worker:
    """A render worker with one process in its pool, and with its metrics on; it goes on from test to test."""

    def __init__(self, log: Path, port: int, environment: dict[str, str]) -> None:
        self._log, self.port = log, port
        own = {"TEACHER_METRICS_BIND": str(port), "TMPDIR": str(log.parent)}  # it may leave files when killed
        self._environment = environment | own
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, unless it runs."""
        if self.processes():
            return
        command = [sys.executable, "-m", "celery", "--app", "teacher.render_tasks", "worker"]
        self._log.touch()
        starts = self._log.read_text().count(" ready.")
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--concurrency", "1", "--loglevel", "INFO"],
                env=self._environment,
                cwd=self._log.parent,
                stdout=log,
                stderr=log,
            )
        wait_until(lambda: self._log.read_text().count(" ready.") > starts)

    def processes(self) -> list[psutil.Process]:
        """The main process, the pool's, and what that one started."""
        if self._process is None or self._process.poll() is not None:
            return []
        main = psutil.Process(self._process.pid)
        return [main, *main.children(recursive=True)]

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Suspend the main process, and resume it even if the test fails, because later tests need it."""
        main, *_ = self.processes()
        main.suspend()
        try:
            yield
        finally:
            main.resume()

    def metrics(self) -> dict[str, float]:
        """Return what Prometheus reads, by name without ``rl_teacher_render_`` or by kind of failure."""
        text = requests.get(f"http://127.0.0.1:{self.port}/metrics", timeout=60).text
        samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
        return {
            each.labels.get("kind", each.name.removeprefix("rl_teacher_render_")): each.value
            for each in samples
            if "le" not in each.labels
        }

    def counted_since(self, before: dict[str, float], *names: str) -> dict[str, float]:
        """By how much metrics have grown."""
        after = self.metrics()
        return {name: after[name] - before[name] for name in names}

    def stop(self) -> None:
        """Kill the main process alone, as the system does when memory runs out; the others go with it."""
        if self._process is not None:
            processes = self.processes()
            self._process.kill()
            self._process.wait()
            _, alive = psutil.wait_procs(processes, timeout=60)
            assert not alive


@dataclass
class Scene:
    """A trainer's queue, its Redis and store, and a render worker that may not have started yet."""

    redis: Queue
    worker: Worker
    queue: RenderQueue
    storage: Storage
    record: Callable[..., Segment]
    folder: Path

    def job(self, **trouble: Any) -> ClipJob:
        """A clip that nobody has asked for yet."""
        name = uuid4().hex
        segment = self.record("troubled_environment:Troubled-v0", **trouble)
        return ClipJob(ClipSpec.of(segment), self.folder / f"{name}.mp4", 10, f"reach/{name}/first.mp4")

    def sent(self, job: ClipJob) -> list[Any]:
        """Return the queue's entry for a sent clip; the list is empty until its thread has recorded it."""
        return [each for each in list(self.queue._sent.values()) if each.job is job]

    def ask(self, job: ClipJob) -> Any:
        """Return what a worker answers when it is sent a clip's task."""
        request = clip_request(job, self.queue._storage_url)
        return self.queue._celery.send_task(TASK, args=[request]).get(timeout=240)

    def makes(self, job: ClipJob) -> str:
        return self.maker(job, self.queue.submit(job))

    def maker(self, job: ClipJob, clip: "Future[Path | None]") -> str:
        """Who made a clip: ``worker`` where it is in the store, ``trainer`` where it is in a file here."""
        path = clip.result(240)
        stored = self.storage.size(job.key)
        if path is None:
            assert stored is not None
            assert stored > 500
            return "worker"
        assert path.stat().st_size > 500
        return "trainer"

    def until_a_worker_makes_them(self) -> None:
        wait_until(lambda: self.makes(self.job()) == "worker", pause=0.5)


Notices = Callable[[], list[str]]


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Queue]:
    server = Queue(tmp_path_factory.mktemp("queue"))
    yield server
    server.kill()


@pytest.fixture(scope="module")
def worker(
    redis_server: Queue, s3_server: Any, modules: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Worker]:
    worker = Worker(
        tmp_path_factory.mktemp("worker") / "log",
        free_port(),
        {
            **os.environ,
            **s3_server.variables,
            "PYTHONPATH": os.pathsep.join([str(Path.cwd()), str(modules)]),
            "REDIS_URL": redis_server.url,
            "TEACHER_STORAGE": f"s3://{s3_server.bucket}",
            "TEACHER_RENDER_MODULES": "troubled_environment",
        },
    )
    yield worker
    worker.stop()


@pytest.fixture(scope="module")
def store(s3_server: Any) -> Iterator[tuple[Storage, str]]:
    url = f"s3://{s3_server.bucket}/queue"
    with pytest.MonkeyPatch.context() as patch:
        s3_server.use(patch)
        yield open_storage(url), url


@pytest.fixture
def scene(
    redis_server: Queue,
    worker: Worker,
    renderer: ClipRenderer,
    store: tuple[Storage, str],
    *,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Scene]:
    monkeypatch.setattr(render_queue, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(backoff, "FIRST_SECONDS", 0.1)
    redis_server.start()
    redis_server.forget_everything()
    with contextlib.closing(RenderQueue(redis_server.url, *store, renderer)) as queue:
        yield Scene(redis_server, worker, queue, store[0], record, tmp_path)


@pytest.fixture
def notices(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.WARNING, "teacher")
    return lambda: [entry.getMessage() for entry in caplog.records if entry.name.startswith("teacher")]


def test_absent_workers_not_awaited(scene: Scene, notices: Notices, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.worker.stop()
    monkeypatch.setattr(render_queue, "PATIENCE", 1.0)
    monkeypatch.setattr(Backoff, "seconds_left", lambda self: 60.0 if self.away else 0.0)
    assert scene.makes(scene.job()) == "trainer"
    assert notices() == [
        "no render worker responded for 1 s; clips are rendered on this machine until one does"
    ]
    assert scene.makes(scene.job()) == "trainer"
    assert scene.redis.waiting() == 1  # the second was not even sent


def test_closing_cancels_what_is_on_its_way(scene: Scene, notices: Notices) -> None:
    scene.worker.stop()
    clip = scene.queue.submit(scene.job())
    wait_until(lambda: scene.redis.waiting() == 1)
    scene.queue.close()
    assert clip.cancelled()
    with pytest.raises(RenderError, match="closed"):
        scene.queue.submit(scene.job())
    stopped: Future[Path] = Future()
    stopped.set_exception(RenderError("the renderer was closed"))
    scene.queue._rendered_locally(_Clip(scene.job()), stopped)
    assert notices() == []


def test_clips_wait_for_workers_if_needed(scene: Scene, notices: Notices) -> None:
    scene.worker.stop()
    scene.redis.kill()
    job = scene.job(trouble="fail_here", at=9)
    clip = scene.queue.submit(job)
    wait_until(lambda: len(notices()) == 2)
    assert "cannot render a clip on this machine; waiting for render workers" in notices()[1]
    assert "this machine cannot draw" in notices()[1]
    assert not clip.done()
    scene.redis.start()
    scene.worker.start()
    assert scene.maker(job, clip) == "worker"


def test_workers_put_clips_into_the_store(scene: Scene) -> None:
    scene.worker.start()
    jobs = [scene.job(seed=seed) for seed in range(4)]
    clips = [scene.queue.submit(job) for job in jobs]
    assert {scene.maker(job, clip) for job, clip in zip(jobs, clips, strict=True)} == {"worker"}
    assert list(scene.folder.glob("*.mp4")) == []
    assert scene.makes(jobs[0]) == "worker"  # again, which changes nothing


def test_clips_are_made_here_while_redis_is_away(scene: Scene, notices: Notices) -> None:
    scene.redis.kill()
    assert [scene.makes(scene.job()) for _ in range(2)] == ["trainer", "trainer"]
    (notice,) = notices()
    assert notice.startswith("the render queue does not respond")
    assert PASSWORD not in notice
    scene.redis.start()
    scene.worker.start()
    scene.until_a_worker_makes_them()
    assert {scene.makes(scene.job()) for _ in range(3)} == {"worker"}
    assert notices()[1:] == ["the render queue is responding again; render workers will render the clips"]


def test_a_redis_killed_at_work_loses_no_clip(scene: Scene) -> None:
    scene.worker.start()
    jobs = [scene.job(length=20) for _ in range(6)]
    clips = [scene.queue.submit(job) for job in jobs]
    assert scene.maker(jobs[0], clips[0]) == "worker"
    scene.redis.kill()
    assert scene.maker(jobs[-1], clips[-1]) == "trainer"
    for job, clip in zip(jobs, clips, strict=True):
        scene.maker(job, clip)
    scene.redis.start()
    scene.until_a_worker_makes_them()


def test_a_clip_whose_task_is_gone_is_made_though_others_flow(scene: Scene, notices: Notices) -> None:
    scene.worker.start()
    with scene.worker.suspended():
        others = [scene.queue.submit(scene.job()) for _ in range(4)]  # some of which it has fetched already
        job = scene.job()
        clip = scene.queue.submit(job)
        wait_until(lambda: scene.sent(job) and scene.redis.has(job))
        scene.redis.forget()
    assert scene.makes(scene.job()) == "worker"
    (sent,) = scene.sent(job)
    sent.sent_at -= render_queue.PATIENCE  # so long ago
    assert scene.maker(job, clip) == "trainer"
    for each in list(scene.queue._sent.values()):  # the others whose tasks are gone, too
        each.sent_at -= render_queue.PATIENCE
    assert not wait(others, timeout=240).not_done
    assert notices() == []


def test_a_clip_goes_to_another_process_when_one_is_killed(scene: Scene) -> None:
    scene.worker.start()
    scene.until_a_worker_makes_them()
    before = scene.worker.metrics()
    hangs = scene.folder / "hangs"
    job = scene.job(trouble="hang", at=9, once=str(hangs))
    clip = scene.queue.submit(job)
    wait_until(hangs.exists)
    later = scene.queue.submit(scene.job())
    wait_until(lambda: scene.worker.metrics()["queue_length"] == 1)
    _, pool_process, *others = scene.worker.processes()
    pool_process.kill()
    assert scene.maker(job, clip) == "worker"
    assert later.result(240) is None
    psutil.wait_procs(others, timeout=60)
    assert not any(process.is_running() for process in others)
    # The clips of the process that was killed still count.
    assert before["seconds_count"] >= 1
    assert before["seconds_sum"] > 0
    expected = {"seconds_count": 2, "lost": 1, "timeout": 0, "other": 0, "queue_length": 0}
    assert scene.worker.counted_since(before, *expected) == expected


def test_task_is_killed_on_time(scene: Scene, notices: Notices, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time out one task after a second, as Celery would after its limit."""
    scene.worker.start()
    before = scene.worker.metrics()
    send = scene.queue._celery.send_task
    monkeypatch.setattr(scene.queue._celery, "send_task", partial(send, time_limit=1))
    clip = scene.queue.submit(job := scene.job(trouble="hang_there", at=9))
    wait_until(lambda: clip.done() or scene.queue._sent)
    monkeypatch.setattr(scene.queue._celery, "send_task", send)
    assert scene.maker(job, clip) == "trainer"
    (notice,) = notices()
    said = "a render worker failed to render a clip; rendering it on this machine: TimeLimitExceeded"
    assert notice.startswith(said)
    scene.until_a_worker_makes_them()
    expected = {"timeout": 1, "lost": 0, "other": 0}
    assert scene.worker.counted_since(before, *expected) == expected


def test_a_worker_killed_as_a_whole_leaves_nothing_and_is_replaced(scene: Scene) -> None:
    scene.worker.start()
    hangs = scene.folder / "hangs"
    job = scene.job(trouble="hang_there", at=9, once=str(hangs))
    clip = scene.queue.submit(job)
    wait_until(hangs.exists)
    scene.worker.stop()  # kills the main process, and checks that the others follow
    scene.worker.start()
    (sent,) = scene.queue._sent.values()
    sent.sent_at -= render_queue.PATIENCE  # so long ago
    assert scene.maker(job, clip) == "trainer"
    scene.until_a_worker_makes_them()


def test_clips_nobody_can_render_are_given_up(scene: Scene) -> None:
    scene.worker.start()
    with pytest.raises(RenderError, match="the robot fell apart"):
        scene.makes(scene.job(trouble="fail", at=9))
    job = scene.job()
    different = replace(job.spec, digests=("0" * 16,) * len(job.spec.digests or ()))
    with pytest.raises(ReplayMismatchError, match="differs from the recorded"):
        scene.makes(replace(job, spec=different))


def test_failures_are_counted_by_their_kind(scene: Scene) -> None:
    scene.worker.start()
    before = scene.worker.metrics()
    job = scene.job()
    different = replace(job.spec, digests=("0" * 16,) * len(job.spec.digests or ()))
    assert "the robot fell apart" in scene.ask(scene.job(trouble="fail", at=9))["error"]
    assert "differs from the recorded" in scene.ask(replace(job, spec=different))["error"]
    assert "invalid clip key" in scene.ask(replace(job, key="../x.mp4"))["error"]
    assert "at most 5000 frames" in scene.ask(replace(job, fps=10_000))["error"]
    expected = dict.fromkeys(FAILURE_KINDS, 0.0) | {"render": 1, "replay": 1, "storage": 1, "request": 1}
    assert scene.worker.counted_since(before, *expected) == expected


def test_metrics_are_for_this_machine_alone_and_served_without_redis(scene: Scene) -> None:
    scene.worker.start()
    main = scene.worker.processes()[0]
    listening = [each.laddr for each in main.net_connections() if each.status == psutil.CONN_LISTEN]
    assert listening == [("127.0.0.1", scene.worker.port)]
    scene.redis.kill()
    figures = scene.worker.metrics()
    assert "queue_length" not in figures
    assert figures["lost"] >= 0
    scene.redis.start()
    wait_until(lambda: "queue_length" in scene.worker.metrics())
