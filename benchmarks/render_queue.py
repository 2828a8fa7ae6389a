"""Benchmark of the load that render workers and trainers put on Redis.

``python -m benchmarks.render_queue`` takes a few minutes. A render worker makes ShortHopper-v1 clips for a
trainer's queue, with Redis and an S3 server on the same machine. Commands and bytes come from Redis's own
statistics and don't depend on how busy the machine is; CPU times do. As redis-benchmark isn't available, the
capacity of Redis is measured as CPU time: of 1 kB GETs over a plain socket, single and in pipelines of 100,
and of one task's commands, repeated.
"""

import argparse
import contextlib
import itertools
import os
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from unittest.mock import patch
from urllib.parse import urlsplit

import redis

from benchmarks.clips import ENV_ID, record_pairs
from stack.folder import Folder
from stack.process import running
from stack.site import STORAGE, Site
from teacher.clips import ClipJob, ClipRenderer, ClipSpec
from teacher.clips.queue import RenderQueue
from teacher.data.segments import Segment
from teacher.envs.tasks import describe_task
from teacher.storage import open_storage

_OWN = ("info", "auth", "hello", "client", "config", "ping")  # not counted
VALUE = b"x" * 1000
GET = b"*2\r\n$3\r\nGET\r\n$5\r\nvalue\r\n"


@dataclass(frozen=True)
class Snapshot:
    """Statistics of Redis, either totals at a time or the difference between two times.

    Attributes:
        seconds: monotonic time in seconds, or the time between.
        commands: number of calls by command.
        received: bytes received.
        sent: bytes sent.
        cpu: CPU seconds.
    """

    seconds: float
    commands: Counter[str]
    received: int
    sent: int
    cpu: float

    @classmethod
    def of(cls, server: "redis.Redis") -> "Snapshot":
        """Read a server's current totals."""
        found = {**server.info("commandstats"), **server.info("stats"), **server.info("cpu")}
        calls = {
            name.removeprefix("cmdstat_").partition("|")[0]: value["calls"]
            for name, value in found.items()
            if name.startswith("cmdstat_")
        }
        return cls(
            time.monotonic(),
            Counter({name: count for name, count in calls.items() if name not in _OWN}),
            found["total_net_input_bytes"],
            found["total_net_output_bytes"],
            found["used_cpu_user"] + found["used_cpu_sys"],
        )

    def since(self, earlier: "Snapshot") -> "Snapshot":
        """Return the difference from an earlier snapshot."""
        return Snapshot(
            self.seconds - earlier.seconds,
            self.commands - earlier.commands,
            self.received - earlier.received,
            self.sent - earlier.sent,
            self.cpu - earlier.cpu,
        )


class Farm:
    """Context manager that runs Redis, an S3 server and render workers in a new folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = Folder(folder)
        self._open = contextlib.ExitStack()

    def __enter__(self) -> "Farm":
        self._open.enter_context(self._folder.held())
        self._folder.token.write_text("of no site")
        ports, _ = self._folder.ports()
        self.site = Site.of(self._folder, ports)
        for service in (self.site.redis.service(), self.site.s3.service()):
            self._open.enter_context(running(service, self._folder.logs))
        (self._folder.path / "s3" / "clips").mkdir()
        self.redis: redis.Redis = self._open.enter_context(redis.Redis.from_url(self.site.redis.url))
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @contextlib.contextmanager
    def workers(self, count: int, *, gossip: bool = False) -> Iterator[None]:
        """Run ``count`` render workers inside the ``with`` block, with or without Celery's gossip."""
        with contextlib.ExitStack() as started:
            for service in self.site.render_workers(count):
                left_out = {"--without-gossip"} if gossip else set()
                command = [word for word in service.command() if word not in left_out]
                started.enter_context(
                    running(replace(service, command=partial(list, command)), self._folder.logs)
                )
            time.sleep(2)  # until the last reply to a ping has been sent
            yield

    def watch(self, seconds: float) -> Snapshot:
        """Wait ``seconds`` without sending tasks and return what Redis did."""
        before = Snapshot.of(self.redis)
        time.sleep(seconds)
        return Snapshot.of(self.redis).since(before)


def make_clips(queue: RenderQueue, segments: Sequence[Segment], batch: int, folder: Path) -> float:
    """Render segments in batches; return the mean seconds from submitting a clip to its result."""
    fps, away = describe_task(ENV_ID).fps, 0.0
    for first in range(0, len(segments), batch):
        begin, clips = time.monotonic(), []
        for number, segment in enumerate(segments[first : first + batch], first):
            name = f"{batch}-{number}.mp4"
            clips.append(
                queue.submit(ClipJob(ClipSpec.of(segment), folder / name, fps, f"experiment/{name}"))
            )
        for clip in clips:
            assert clip.result() is None, "the clip was rendered locally, not by a worker"
            away += time.monotonic() - begin
    return away / len(segments)


def print_tasks(farm: Farm, count: int, seconds: float) -> None:
    """Print the Redis commands of an idle worker and those of a task, by batch size."""
    segments = list(itertools.chain(*record_pairs(describe_task(ENV_ID), count // 2, seed=1)))
    with (
        patch.dict(os.environ, farm.site.s3.environment()),
        farm.workers(1),
        tempfile.TemporaryDirectory() as folder,
        contextlib.closing(ClipRenderer(workers=1)) as here,
        contextlib.closing(RenderQueue(farm.site.redis.url, open_storage(STORAGE), STORAGE, here)) as queue,
    ):
        idle = farm.watch(seconds)
        print(f"a worker without a task: {per(idle.commands, idle.seconds)} per second")
        make_clips(queue, segments[:2], 1, Path(folder))  # opens connections
        for batch in (1, 2, 32):
            before = Snapshot.of(farm.redis)
            away = make_clips(queue, segments, batch, Path(folder))
            spent = Snapshot.of(farm.redis).since(before)
            share = spent.seconds / idle.seconds  # of the idle worker's commands
            own = Counter({name: n - share * idle.commands[name] for name, n in spent.commands.items()})
            print(
                f"{batch} at once, {away:.2f} s until the result: {per(own, count)} per task; "
                f"{(spent.received - share * idle.received) / count:,.0f} bytes to Redis and "
                f"{(spent.sent - share * idle.sent) / count:,.0f} from it"
            )


def per(commands: Mapping[str, float], divisor: float) -> str:
    """Format the number of commands per unit, most frequent first."""
    each = sorted(((n / divisor, name) for name, n in commands.items()), reverse=True)
    told = ", ".join(f"{name} {n:.1f}" for n, name in each if n > 0.05)
    return f"{sum(n for n, _ in each):.1f} commands ({told})"


def print_gossip(farm: Farm, count: int, seconds: float) -> None:
    """Print the messages and bytes that Celery's gossip between workers adds."""
    told = []
    for gossip in (False, True):
        with farm.workers(count, gossip=gossip):
            told.append(farm.watch(seconds))
    quiet, loud = told
    messages = loud.commands["publish"]  # workers publish heartbeats with and without gossip
    sent = loud.sent - quiet.sent * loud.seconds / quiet.seconds
    print(
        f"gossip of {count} workers: {messages / loud.seconds / count:.2f} messages per second and worker, "
        f"{sent / messages / count:.0f} bytes to each worker that receives one"
    )


def print_capacity(farm: Farm, seconds: float) -> None:
    """Print the throughput and CPU time of GET, single and in pipelines of 100."""
    farm.redis.set("value", VALUE)
    for together in (1, 100):
        before, rounds = Snapshot.of(farm.redis), 0
        with connected(farm.site.redis.url) as connection:
            while time.monotonic() < before.seconds + seconds:
                connection.sendall(GET * together)
                left = together * (len(VALUE) + len(f"${len(VALUE)}\r\n\r\n"))
                while left:
                    left -= len(connection.recv(left))
                rounds += 1
        spent = Snapshot.of(farm.redis).since(before)
        count = rounds * together
        print(
            f"GET of {len(VALUE):,} bytes, {together} in a pipeline: {count / spent.seconds:,.0f} per s, "
            f"{1e6 * spent.cpu / count:.1f} us of Redis CPU time each"
        )


def print_replay(farm: Farm, seconds: float) -> None:
    """Print the throughput and CPU time of one task's commands, sent by one client as fast as possible."""
    message, outcome, count, client = b"x" * 6000, b"y" * 300, 0, farm.redis
    before = Snapshot.of(client)
    while time.monotonic() < before.seconds + seconds:
        client.lpush("queue", message)
        client.brpop(["queue"])
        with client.pipeline() as together:
            together.zadd("left", {"task": 1.0})
            together.hset("kept", "task", message)
            together.execute()
        client.get("outcome")
        with client.pipeline() as together:
            together.set("outcome", outcome, ex=3600)
            together.publish("outcome", outcome)
            together.execute()
        with client.pipeline() as together:
            together.zrem("left", "task")
            together.hdel("kept", "task")
            together.execute()
        for _ in range(3):  # the trainer polls
            client.get("outcome")
        count += 1
    spent = Snapshot.of(farm.redis).since(before)
    print(
        f"the commands of {count / spent.seconds:.0f} tasks per second: {per(spent.commands, count)} each, "
        f"{1e6 * spent.cpu / count:.0f} us of Redis CPU time each"
    )


@contextlib.contextmanager
def connected(url: str) -> Iterator[socket.socket]:
    """Open an authenticated plain socket to Redis, which has less client overhead than redis-py."""
    parts = urlsplit(url)
    with socket.create_connection((str(parts.hostname), int(parts.port or 0))) as connection:
        connection.sendall(f"AUTH {parts.password}\r\n".encode())
        assert connection.recv(5) == b"+OK\r\n"
        yield connection


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all measurements and print them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--clips", type=int, default=32, help="clips per measurement")
    parser.add_argument("--workers", type=int, default=3, help="workers in the gossip measurement")
    parser.add_argument("--seconds", type=float, default=20.0, help="duration of the idle measurements")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, Farm(Path(folder) / "farm") as farm:
        print_capacity(farm, options.seconds / 4)
        print_replay(farm, options.seconds / 4)
        print_tasks(farm, options.clips, options.seconds)
        print_gossip(farm, options.workers, options.seconds)


if __name__ == "__main__":
    main()
