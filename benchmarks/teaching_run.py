"""Make and measure one run of the label-efficiency benchmark; started by :mod:`benchmarks.teaching`.

    python -m benchmarks.teaching_run '{"task": "Hopper", "side": "oracle", "labels": 350, ...}'

Prints the measurements as one line of JSON. Runs of imitation need a second argument, the path of its Python.
"""

import contextlib
import importlib.metadata
import json
import sys
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from agents.numerics.correlation import correlation, rank_correlation
from benchmarks.imitation_client import Imitation
from benchmarks.results import Curve
from benchmarks.teaching_points import TASKS, Point
from teacher.data.segment_pool import SegmentPool
from teacher.data.segments import Segment
from teacher.envs.tasks import TaskInfo, describe_task, make_vector_env
from teacher.envs.trajectory import Trajectory
from teacher.queries.kinds import preferences_in
from teacher.settings.config import RunSettings
from teacher.training.builder import build_run, prepared_directory
from teacher.training.loop import train
from teacher.training.run import Run, Teaching
from teacher.training.start import check

EVALUATION_EPISODES = 50
KEPT_EPISODES = 200
HELD_OUT_SEGMENTS = 2000
HELD_OUT_PAIRS = 4000
_EVALUATION_STREAM = 7  # seed stream, different from those of a run

Act = Callable[[NDArray[Any]], NDArray[Any]]


def make(point: Point, imitation: str | None = None) -> dict[str, Any]:
    """Make one run and return its measurements; ``imitation`` is the Python path for imitation's runs."""
    if point.side == "random":
        return {"return": evaluate(point, act=None), "versions": versions()}
    if point.side == "imitation":
        assert imitation is not None
        return _train_imitation(point, imitation)
    with tempfile.TemporaryDirectory() as folder:
        return _train(point, folder)


def versions() -> dict[str, str]:
    """Return the versions of the main dependencies."""
    return {name: importlib.metadata.version(name) for name in ("torch", "gymnasium", "mujoco", "numpy")}


@contextlib.contextmanager
def built(point: Point, runs_dir: str) -> Iterator[Run]:
    """Build a ``teach`` run for a point without starting training."""
    console = Console(quiet=True)
    plan = check(RunSettings(point.config(runs_dir), uuid.uuid4()), console)
    with prepared_directory(plan.settings), build_run(plan, console) as run:
        yield run


def _train(point: Point, runs_dir: str) -> dict[str, Any]:
    """Train and measure one ``teach`` run."""
    with built(point, runs_dir) as run:
        record = record_episodes(run)
        started, worked = time.monotonic(), time.process_time()
        train(run)
        seconds, cpu_seconds = time.monotonic() - started, time.process_time() - worked
        judged = {} if run.teaching is None else judge_predictor(run.teaching, record.kept, point.seed)
        return {
            "return": evaluate(point, partial(run.agent.act, deterministic=False)),
            "deterministic_return": evaluate(point, partial(run.agent.act, deterministic=True)),
            "curve": record.curve.means(),
            **judged,
            "seconds": round(seconds, 1),
            "cpu_seconds": round(cpu_seconds, 1),
            "versions": versions(),
        }


def _train_imitation(point: Point, python: str) -> dict[str, Any]:
    """Train and measure one run of imitation; its predictor isn't measured."""
    with Imitation(python) as imitation:
        answer = imitation.train(TASKS[point.task].env_id, point.steps, point.labels, point.seed)
    curve = Curve(point.steps)
    for step, episode_return in answer["ended"]:
        curve.add(step, episode_return)
    return {
        "return": round(float(np.mean(answer["returns"])), 3),
        "deterministic_return": round(float(np.mean(answer["deterministic_returns"])), 3),
        "curve": curve.means(),
        **{name: answer[name] for name in ("seconds", "cpu_seconds", "versions")},
    }


@dataclass
class Record:
    """Learning curve of a run, and a sample of its episodes spread evenly over the run.

    Attributes:
        every: keeps one of this many episodes.
        seen: number of finished episodes so far.
        kept: sampled episodes.
    """

    curve: Curve
    every: int
    seen: int = 0
    kept: list[Trajectory] = field(default_factory=list)

    def add(self, step: int, trajectory: Trajectory) -> None:
        """Add a finished episode."""
        self.curve.add(step, trajectory.true_return)
        if self.seen % self.every == 0:
            self.kept.append(trajectory)
        self.seen += 1


def record_episodes(run: Run) -> Record:
    """Return a record that is filled while ``run`` trains."""
    steps, remember = run.config.num_timesteps, run.remember
    record = Record(Curve(steps), every=max(1, steps // run.task.horizon // KEPT_EPISODES))

    def remember_and_record(trajectories: Sequence[Trajectory]) -> None:
        for trajectory in trajectories:
            if trajectory.finished:
                record.add(run.agent.total_steps, trajectory)
        remember(trajectories)

    run.remember = remember_and_record  # type: ignore[method-assign]
    return record


def evaluate(point: Point, act: Act | None) -> float:
    """Return the mean return over new episodes, seeded alike for all sides; None takes random actions."""
    return mean_return(describe_task(TASKS[point.task].env_id), point.seed, EVALUATION_EPISODES, act)


def mean_return(task: TaskInfo, seed: int, episodes: int, act: Act | None) -> float:
    """Return the mean return over new episodes; None takes random actions."""
    played = evaluation_episodes(task, seed, episodes, act)
    return round(float(np.mean([episode.true_return for episode in played])), 3)


def evaluation_episodes(task: TaskInfo, seed: int, episodes: int, act: Act | None) -> list[Trajectory]:
    """Return new episodes, in the order of their ends; None takes random actions."""
    envs = make_vector_env(task, episodes, [seed, _EVALUATION_STREAM])
    envs.action_space.seed(seed)
    played: dict[int, Trajectory] = {}
    observations, _ = envs.reset()
    while len(played) < episodes:
        observations, *_ = envs.step(envs.action_space.sample() if act is None else act(observations))
        for trajectory in envs.drain():
            if trajectory.finished and trajectory.episode_index == 0:
                played[trajectory.env_index] = trajectory
    envs.close()
    return list(played.values())


def judge_predictor(teaching: Teaching, episodes: Sequence[Trajectory], seed: int) -> dict[str, Any]:
    """Evaluate a run's final predictor against the true reward on episodes of the whole run.

    Returns:
        A dict with ``accuracy``: share of held-out pairs of segments ordered correctly, by quartile of the
        difference in true return, smallest first; ``spearman``: correlation over held-out segments;
        ``late_spearman``: over those of the last quarter of the run; ``pearson``: correlation over
        episodes; ``asked``: total number of labels.
    """
    pool = SegmentPool(teaching.pool.length, capacity=10**9, seed=seed)
    pool.extend(episodes)
    asked = [(preference.first, preference.second) for preference in preferences_in(teaching.ledger)]
    segments = held_out(pool.segments, chain(*asked))
    chosen = np.linspace(0, len(segments) - 1, min(HELD_OUT_SEGMENTS, len(segments))).astype(int)
    segments = [segments[index] for index in chosen]
    true = np.array([segment.true_return for segment in segments])
    predicted = teaching.predictor.segment_returns(segments)
    late = slice(3 * len(segments) // 4, None)
    sums = [teaching.predictor.step_rewards(episode).sum() for episode in episodes]
    return {
        "accuracy": accuracy_by_margin(true, predicted, np.random.default_rng(seed)),
        "spearman": round(rank_correlation(predicted, true), 4),
        "late_spearman": round(rank_correlation(predicted[late], true[late]), 4),
        "pearson": round(correlation(sums, [episode.true_return for episode in episodes]), 4),
        "asked": teaching.ledger.asked(),
    }


def held_out(segments: Iterable[Segment], asked: Iterable[Segment]) -> list[Segment]:
    """Return the segments that share no step with a labeled segment."""
    starts = defaultdict[int, list[int]](list)
    for segment in asked:
        starts[segment.recipe.seed].append(segment.start)
    return [
        segment
        for segment in segments
        if all(abs(start - segment.start) >= len(segment) for start in starts[segment.recipe.seed])
    ]


def accuracy_by_margin(
    true: NDArray[np.float64], predicted: NDArray[np.float64], rng: np.random.Generator
) -> list[float]:
    """Return the accuracy on random pairs by quartile of the true difference, without ties."""
    first, second = rng.integers(len(true), size=(2, HELD_OUT_PAIRS))
    margins, said = true[first] - true[second], predicted[first] - predicted[second]
    apart = margins != 0
    order = np.argsort(np.abs(margins[apart]), kind="stable")
    right = ((margins > 0) == (said > 0))[apart][order]
    return [round(float(quarter.mean()), 4) for quarter in np.array_split(right, 4)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(make(Point(**json.loads(sys.argv[1])), *sys.argv[2:])))
