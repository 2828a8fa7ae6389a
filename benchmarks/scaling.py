"""Simulation of queue lengths and render workers at large scale, for the tables in docs/scaling.md.

``python benchmarks/scaling.py`` takes half a minute on one core.

- Labelers: an experiment whose labeling pages hold leases, and whose trainer keeps a number of comparisons
  open per labeler. A labeled comparison is replaced after a delay, in which the trainer learns of the label,
  selects a new pair, has both clips rendered and registers the comparison. Some labelers vanish, and their
  leases expire.
- Workers: experiments request clips in batches, and each worker renders one clip at a time.

It first prints the network sizes of two tasks and an estimate of the time that a ring of training hosts needs
to sum a gradient.
"""

import argparse
import contextlib
import heapq
import itertools
import random
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from agents.distributed import ALONE
from agents.ppo import PPO
from teacher.data.checkpoint import dump_state
from teacher.settings.config import RunSettings, TeachConfig
from teacher.training.parts import RunPlan, make_agent, make_envs, make_predictor, task_of


class Clock:
    """Event queue of a simulation; times are in seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()

    def after(self, delay: float, action: Callable[[], None]) -> None:
        """Schedule ``action`` to run in ``delay`` seconds."""
        heapq.heappush(self._events, (self.now + delay, next(self._count), action))

    def run(self, until: float) -> None:
        """Run all events up to time ``until``."""
        while self._events and self._events[0][0] <= until:
            self.now, _, action = heapq.heappop(self._events)
            action()
        self.now = until


@dataclass(frozen=True)
class Crowd:
    """Settings of a simulated experiment at overlap 1; times are in seconds.

    Attributes:
        labelers: number of open labeling pages.
        open_per_labeler: open comparisons that the trainer keeps per labeler.
        delay: mean time from a label to the comparison that replaces the labeled one.
        held: leases per page, including the pair on screen.
        answer: mean time a labeler takes for a pair.
        vanish: probability that a labeler vanishes instead of answering and a new labeler takes over.
        lease: time until a lease expires if it isn't renewed.
    """

    labelers: int = 200
    open_per_labeler: float = 4.0
    delay: float = 10.0
    held: int = 3
    answer: float = 3.0
    vanish: float = 0.0
    lease: float = 60.0


@dataclass(frozen=True)
class Labeling:
    """Result of a simulated crowd.

    Attributes:
        idle: share of labeler time spent without a pair.
        labels_per_second: total labels per second.
        waited: median and 99th percentile of the seconds from registering a comparison to its label.
    """

    idle: float
    labels_per_second: float
    waited: tuple[float, float]


class CrowdSimulation:
    """Simulation of labelers and a trainer; a comparison is represented by its registration time."""

    def __init__(self, crowd: Crowd, rng: random.Random) -> None:
        self.crowd, self._rng, self._clock = crowd, rng, Clock()
        self._queue: deque[float] = deque([0.0] * max(1, round(crowd.open_per_labeler * crowd.labelers)))
        self._prefetched: list[deque[float]] = [deque() for _ in range(crowd.labelers)]
        self._empty: deque[int] = deque()
        self._since = [0.0] * crowd.labelers
        self._idle, self._begin, self._waits = 0.0, 0.0, list[float]()

    def run(self, seconds: float, warm_up: float) -> Labeling:
        """Simulate ``warm_up`` seconds that aren't counted, then ``seconds`` that are."""
        for labeler in range(self.crowd.labelers):
            self._next(labeler)
        self._clock.run(warm_up)
        self._begin, self._idle, self._waits = warm_up, 0.0, []
        self._clock.run(warm_up + seconds)
        for labeler in self._empty:
            self._count_idle(labeler)
        median, late = np.percentile(self._waits, (50, 99))
        return Labeling(
            self._idle / seconds / self.crowd.labelers,
            len(self._waits) / seconds,
            (float(median), float(late)),
        )

    def _next(self, labeler: int) -> None:
        """Show the labeler a pair: prefetched by its own page, from the queue, or from another page."""
        pair = self._take(labeler)
        if pair is None:
            self._since[labeler] = self._clock.now
            self._empty.append(labeler)
            return
        own = self._prefetched[labeler]
        while self._queue and len(own) < self.crowd.held - 1:
            own.append(self._queue.popleft())
        self._clock.after(self._exponential(self.crowd.answer), lambda: self._answer(labeler, pair))

    def _take(self, labeler: int) -> float | None:
        if self._prefetched[labeler]:
            return self._prefetched[labeler].popleft()
        if self._queue:
            return self._queue.popleft()
        richest = max(self._prefetched, key=len)
        return richest.pop() if richest else None

    def _answer(self, labeler: int, registered: float) -> None:
        if self._rng.random() < self.crowd.vanish:
            # The pair on screen and the prefetched ones return to the queue when their leases expire.
            for pair in (registered, *self._prefetched[labeler]):
                self._clock.after(self.crowd.lease, lambda pair=pair: self._offer(pair))  # type: ignore[misc]
            self._prefetched[labeler].clear()
        else:
            self._waits.append(self._clock.now - registered)
            delay = self._exponential(self.crowd.delay)
            self._clock.after(delay, lambda: self._offer(self._clock.now))
        self._next(labeler)

    def _offer(self, pair: float) -> None:
        self._queue.append(pair)
        if self._empty:
            labeler = self._empty.popleft()
            self._count_idle(labeler)
            self._next(labeler)

    def _count_idle(self, labeler: int) -> None:
        self._idle += self._clock.now - max(self._since[labeler], self._begin)

    def _exponential(self, mean: float) -> float:
        return self._rng.expovariate(1 / mean) if mean else 0.0


@dataclass(frozen=True)
class Farm:
    """Settings of simulated render workers; times are in seconds.

    Attributes:
        workers: number of workers, each rendering one clip at a time.
        clip: mean CPU time per clip.
        clips: clips requested per second by all experiments together.
        batch: clips per request.
    """

    workers: int = 1000
    clip: float = 0.2
    clips: float = 4000.0
    batch: int = 40


def clip_waits(farm: Farm, count: int, rng: random.Random) -> list[float]:
    """Return the seconds that ``count`` clips wait for a worker, after a warm-up of ``count`` clips."""
    free = [0.0] * farm.workers  # heap of the times when each worker becomes free
    waits, now = [], 0.0
    for number in range(2 * count):
        if number % farm.batch == 0:
            now += rng.expovariate(farm.clips / farm.batch)
        start = max(now, free[0])
        heapq.heapreplace(free, start + rng.expovariate(1 / farm.clip))
        waits.append(start - now)
    return waits[count:]


@dataclass(frozen=True)
class Ring:
    """Estimate of a ring all-reduce over n hosts: 2 (n - 1) sequential messages of 1/n of the data each.

    Attributes:
        hosts: number of hosts.
        message: latency of a message in seconds, typical for a data center.
        link: bandwidth in bytes per second.
    """

    hosts: int = 64
    message: float = 25e-6
    link: float = 1.25e9

    def moved(self, size: float) -> float:
        """Return the bytes that each host sends and receives to sum ``size`` bytes."""
        return 2 * (self.hosts - 1) / self.hosts * size

    def seconds(self, size: float) -> float:
        """Return the seconds to sum ``size`` bytes."""
        return 2 * (self.hosts - 1) * self.message + self.moved(size) / self.link


def print_hosts(ring: Ring) -> None:
    """Print network sizes, and the bytes and seconds of summing gradients in a round with PPO's defaults."""
    for env_id in ("ShortHopper-v1", "teacher/Pong-v1"):
        config = TeachConfig(env_id=env_id, predictor="synth", name="sizes", n_labels=100)
        plan = RunPlan(RunSettings(config, uuid.uuid4()), task_of(config))
        with contextlib.closing(make_envs(plan, 1, ALONE)) as envs:
            agent = make_agent(config, envs)
            share = agent.config.rollout_steps * envs.num_envs
        assert isinstance(agent, PPO)
        count = sum(each.numel() for each in agent.policy.parameters())
        minibatch, size = agent.config.minibatch_size, 4 * count
        print(
            f"{env_id}: {count:,} parameters, {size / 1e3:,.0f} kB; a sum moves "
            f"{ring.moved(size) / 1e3:,.0f} kB in and out of a host in {1e3 * ring.seconds(size):.1f} ms"
        )
        predictor = make_predictor(plan).state_dict()
        networks = sum(each.nbytes for each in predictor["network"].values())
        message = len(dump_state({"predictor": predictor, "critic_epochs": 0}))
        print(
            f"  the predictor: {networks // 4:,} parameters, {networks / 1e3:,.0f} kB, "
            f"{message / 1e3:,.0f} kB as a message, with its optimizer"
        )
        for times in (1, ring.hosts):
            sums = agent.config.update_epochs * ring.hosts * share // (times * minibatch)
            moved, seconds = sums * ring.moved(size), sums * ring.seconds(size)
            print(
                f"  minibatches of {times * minibatch:,}: {sums:,} sums per round, {moved / 1e9:.2f} GB, "
                f"{seconds:.2f} s"
            )


def print_labelers(seconds: float) -> None:
    """Print labelers' idle time and the 99th percentile wait of pairs, by delay and queue length."""
    lengths = (2.0, 4.0, 8.0, 16.0)
    print("| delay, s | vanish |" + "".join(f" {each:g} a labeler |" for each in lengths))
    print("|---|---|" + "---|" * len(lengths))
    for delay, vanish in ((5.0, 0.0), (10.0, 0.0), (20.0, 0.0), (10.0, 0.01), (10.0, 0.05)):
        crowds = [Crowd(open_per_labeler=each, delay=delay, vanish=vanish) for each in lengths]
        all_done = [CrowdSimulation(crowd, random.Random(1)).run(seconds, seconds / 4) for crowd in crowds]
        cells = "".join(f" {done.idle:.1%}, {done.waited[1]:.0f} s |" for done in all_done)
        print(f"| {delay:g} | {vanish:.0%} |{cells}")


def print_workers(count: int) -> None:
    """Print the mean and 99th percentile wait of clips, by number of workers, batch size and utilization."""
    loads = tuple(itertools.product((2, 40), (0.5, 0.8, 0.95)))
    print("| workers |" + "".join(f" {batch} at once, {busy:.0%} busy |" for batch, busy in loads))
    print("|---|" + "---|" * len(loads))
    for workers in (10, 100, 1000):
        farms = (Farm(workers, clips=busy * workers / Farm.clip, batch=batch) for batch, busy in loads)
        all_waits = [clip_waits(farm, count, random.Random(1)) for farm in farms]
        cells = "".join(f" {np.mean(waits):.2f}, {np.percentile(waits, 99):.2f} |" for waits in all_waits)
        print(f"| {workers:,} |{cells}")


def main() -> None:
    """Run the simulations and print all tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seconds", type=float, default=1200.0, help="simulated time per cell of the labelers table"
    )
    parser.add_argument("--clips", type=int, default=200_000, help="clips per cell of the workers table")
    given = parser.parse_args()
    print_hosts(Ring())
    print()
    print_labelers(given.seconds)
    print()
    print_workers(given.clips)


if __name__ == "__main__":
    main()
