"""Clips by real render workers on a real Redis and a real S3 store, and what comes when one of these dies."""

import base64
import contextlib
import json
import logging
import os
import subprocess
import sys
import time
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

from teacher.clips import ClipJob, ClipRenderer, ClipSpec, backoff
from teacher.clips import queue as render_queue
from teacher.clips.backoff import Backoff
from teacher.clips.queue import RenderQueue
from teacher.data.segments import Segment
from teacher.errors import RenderError, ReplayMismatchError
from teacher.storage import Storage, open_storage

Notices = Callable[[], list[str]]
PASSWORD = "a-password-of-redis"


class Redis:
    """A Redis that keeps its queue when it is killed."""

    def __init__(self, folder: Path, port: int) -> None:
        folder.mkdir()
        self.url = f"redis://:{PASSWORD}@127.0.0.1:{port}/0"
        self._command = [
            *(str(Path(sys.executable).parent / "redis-server"), "--dir", str(folder)),
            *("--port", str(port), "--bind", "127.0.0.1", "--requirepass", PASSWORD),
            *("--appendonly", "yes", "--appendfsync", "always"),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, unless it runs."""
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        wait_until(self._answers)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def forget_everything(self) -> None:
        """Lose what an earlier test left."""
        with redis.Redis.from_url(self.url) as client:
            client.flushdb()

    def waiting(self) -> int:
        """Tasks that no worker has."""
        with redis.Redis.from_url(self.url) as client:
            return int(client.llen("render"))

    def has(self, job: ClipJob) -> bool:
        """Whether a clip's task is among those that no worker has."""
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
    """A render worker with one process in its pool; it goes on from test to test."""

    def __init__(self, log: Path, environment: dict[str, str]) -> None:
        self._log, self._environment = log, environment
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

    redis: Redis
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

    def makes(self, job: ClipJob) -> str:
        """Who makes a clip."""
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


@pytest.fixture(scope="module")
def redis_server(free_port: Callable[[], int], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    server = Redis(tmp_path_factory.mktemp("queue") / "redis", free_port())
    yield server
    server.kill()


@pytest.fixture(scope="module")
def worker(
    redis_server: Redis, s3_server: Any, modules: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Worker]:
    worker = Worker(
        tmp_path_factory.mktemp("worker") / "log",
        {
            **os.environ,
            **s3_server.environment(),
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
        for name, value in s3_server.environment().items():
            patch.setenv(name, value)
        yield open_storage(url), url


@pytest.fixture
def scene(
    redis_server: Redis,
    worker: Worker,
    renderer: ClipRenderer,
    store: tuple[Storage, str],
    *,
    tmp_path: Path,
    record: Callable[..., Segment],
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


def test_workers_that_are_not_there_are_not_waited_for(
    scene: Scene, notices: Notices, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.worker.stop()
    monkeypatch.setattr(render_queue, "PATIENCE", 1.0)
    monkeypatch.setattr(Backoff, "seconds_left", lambda self: 60.0 if self.away else 0.0)
    assert scene.makes(scene.job()) == "trainer"
    assert notices() == [
        "no render worker responded for 1 s; clips are rendered on this machine until one does"
    ]
    assert scene.makes(scene.job()) == "trainer"
    assert scene.redis.waiting() == 1  # the second was not even sent


def test_closing_cancels_what_is_on_its_way(scene: Scene) -> None:
    scene.worker.stop()
    clip = scene.queue.submit(scene.job())
    wait_until(lambda: scene.redis.waiting() == 1)
    scene.queue.close()
    assert clip.cancelled()
    with pytest.raises(RenderError, match="closed"):
        scene.queue.submit(scene.job())


def test_what_cannot_be_made_here_waits_for_the_workers_and_says_so(scene: Scene, notices: Notices) -> None:
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
    main, *_ = scene.worker.processes()
    main.suspend()
    others = [scene.queue.submit(scene.job()) for _ in range(4)]  # some of which it has fetched already
    job = scene.job()
    clip = scene.queue.submit(job)
    wait_until(lambda: scene.redis.has(job))
    (sent,) = [each for each in list(scene.queue._sent.values()) if each.job is job]
    scene.redis.forget()
    main.resume()
    assert scene.makes(scene.job()) == "worker"
    sent.sent_at -= render_queue.PATIENCE  # so long ago
    assert scene.maker(job, clip) == "trainer"
    for each in list(scene.queue._sent.values()):  # the others whose tasks are gone, too
        each.sent_at -= render_queue.PATIENCE
    assert not wait(others, timeout=240).not_done
    assert notices() == []


def test_a_clip_goes_to_another_process_when_one_is_killed(scene: Scene) -> None:
    scene.worker.start()
    hangs = scene.folder / "hangs"
    job = scene.job(trouble="hang", at=9, once=str(hangs))
    clip = scene.queue.submit(job)
    wait_until(hangs.exists)
    _, pool_process, *others = scene.worker.processes()
    pool_process.kill()
    assert scene.maker(job, clip) == "worker"
    psutil.wait_procs(others, timeout=60)
    assert not any(process.is_running() for process in others)


def test_a_task_is_killed_after_its_time(
    scene: Scene, notices: Notices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Celery does it to all of them, in the end; to one here, after a second."""
    scene.worker.start()
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


def test_what_neither_a_worker_nor_the_trainer_can_make_is_given_up(scene: Scene) -> None:
    scene.worker.start()
    with pytest.raises(RenderError, match="the robot fell apart"):
        scene.makes(scene.job(trouble="fail", at=9))
    job = scene.job()
    different = replace(job.spec, digests=("0" * 16,) * len(job.spec.digests or ()))
    with pytest.raises(ReplayMismatchError, match="differs from the recorded"):
        scene.makes(replace(job, spec=different))


def wait_until(condition: Callable[[], Any], seconds: float = 240.0, pause: float = 0.05) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(pause)
