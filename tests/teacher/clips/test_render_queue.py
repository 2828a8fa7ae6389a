"""Clips by real render workers on a real Redis and a real S3 store, and what comes when one of these dies."""

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from teacher.clips import ClipRenderer, backoff
from teacher.clips import queue as render_queue
from teacher.clips.backoff import Backoff
from teacher.clips.metrics import FAILURE_KINDS
from teacher.clips.queue import RenderQueue, _Clip
from teacher.data.segments import Segment
from teacher.errors import RenderError, ReplayMismatchError
from teacher.storage import Storage, open_storage
from tests.teacher.clips.render_workers import PASSWORD, Redis, Scene, Worker, wait_until

Notices = Callable[[], list[str]]


@pytest.fixture(scope="module")
def redis_server(free_port: Callable[[], int], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    server = Redis(tmp_path_factory.mktemp("queue") / "redis", free_port())
    yield server
    server.kill()


@pytest.fixture(scope="module")
def worker(
    redis_server: Redis,
    s3_server: Any,
    modules: Path,
    free_port: Callable[[], int],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Worker]:
    worker = Worker(
        tmp_path_factory.mktemp("worker") / "log",
        free_port(),
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
