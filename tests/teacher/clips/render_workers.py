"""A trainer's queue on a real Redis and a real S3 store, and a render worker with its metrics on."""

import base64
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import redis
import requests
from prometheus_client.parser import text_string_to_metric_families

from teacher.clips import ClipJob, ClipSpec
from teacher.clips.queue import RenderQueue
from teacher.clips.tasks import TASK, clip_request
from teacher.data.segments import Segment
from teacher.storage import Storage

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

    def sent(self, job: ClipJob) -> list[Any]:
        """Return the queue's entry for a sent clip; the list is empty until its thread has recorded it."""
        return [each for each in list(self.queue._sent.values()) if each.job is job]

    def ask(self, job: ClipJob) -> Any:
        """Return what a worker answers when it is sent a clip's task."""
        request = clip_request(job, self.queue._storage_url)
        return self.queue._celery.send_task(TASK, args=[request]).get(timeout=240)

    def makes(self, job: ClipJob) -> str:
        """Return who makes a clip."""
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


def wait_until(condition: Callable[[], Any], seconds: float = 240.0, pause: float = 0.05) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(pause)
