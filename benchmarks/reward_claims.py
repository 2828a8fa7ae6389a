"""Benchmark of the reward predictor without an agent, on small datasets with several seeds.

Each figure is the correlation of predicted and true rewards on held-out data. Prints the median and range
over the seeds; for ``choice``, the number of seeds in which the predictor chose even features.

    controls        300 labels about random Pendulum episodes, from the oracle and from coin flips; Spearman
                    correlation over segments of held-out episodes
    later           75 labels about random Pendulum episodes, against 300 labels about those and episodes of
                    a swing-up policy; Spearman correlation over segments of held-out episodes of both kinds
    distance        60 labels, reward is a distance in two of six dimensions; plain features, and even ones
                    (with squares and logarithms); Pearson correlation over steps
    choice          how often the first fit chooses even features, by number of labels, if the reward is a
                    distance, and if it is the sum of all eight dimensions
    regularization  60 labels, reward is the sum of two of five dimensions; Pearson correlation over steps
    frames          60 labels, reward is the x position of Pong's ball or Breakout's paddle under random
                    actions; 210 x 160 frames, downsampled with 600 updates or full size with 150 updates,
                    which take equally long; Pearson correlation over steps, and CPU minutes

    python -m benchmarks.reward_claims --show                         print the stored results
    python -m benchmarks.reward_claims                                compute missing results, some minutes
    python -m benchmarks.reward_claims --part distance --seeds 1 2 --results new.jsonl
"""

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args
from unittest import mock

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table

from agents.numerics.correlation import correlation, rank_correlation
from benchmarks.results import append, load
from teacher.data.segment_pool import SegmentPool
from teacher.envs.random_episodes import policy_trajectories, random_trajectories
from teacher.envs.tasks import describe_task
from teacher.envs.trajectory import Trajectory
from teacher.queries.judges import Judge, ScriptedTeacher, oracle
from teacher.queries.offline import OfflineConfig, learn_reward
from teacher.reward import images
from teacher.reward.predictor import RewardPredictor
from teacher.settings.options import MAX_UPDATES, NumberFeatures, Regularization, RewardConfig
from teacher.settings.teachers import ErrorModel

torch.set_num_threads(1)  # as in a run; more threads slow down small networks

RESULTS = Path(__file__).with_suffix(".jsonl")
TASK = describe_task("Pendulum-v1")
SEGMENT_STEPS = {"Pendulum": 15, "numbers": 10, "frames": 8}
FRAME_LABELS = 60
MEMORY = {"Pong": 49, "Breakout": 72}
"""Address in the Atari RAM of the x position of the game's ball or paddle."""
NEW_STEPS = 2000
CHOICE_LABELS = (40, 80, 160)

Figures = dict[str, float]
"""Result of one seed by variant."""
RewardOf = Callable[[NDArray[Any]], NDArray[Any]]
"""Function from states of shape ``(n, dimensions)`` to true rewards of shape ``(n,)``."""


@dataclass(frozen=True)
class Fit:
    """Settings for fitting a predictor.

    Attributes:
        reward: settings of the predictor.
        max_updates: maximum number of updates in the fit to convergence.
    """

    reward: RewardConfig = field(default_factory=RewardConfig)
    max_updates: int = MAX_UPDATES

    def set(self, **settings: Any) -> "Fit":
        """Return a copy with changed reward settings."""
        return replace(self, reward=replace(self.reward, **settings))


FULL = Fit(RewardConfig(model="network"))


def swing_up(observations: NDArray[Any]) -> NDArray[Any]:
    """Return a swing-up controller's torques for Pendulum: about -140 per episode; random gets -1290."""
    cos, sin, speed = observations.T
    energy = speed**2 / 6 + 9.81 / 2 * (cos - 1)
    torque = np.where(cos > 0.9, -12 * np.arctan2(sin, cos) - 2.5 * speed, -3 * energy * np.sign(speed))
    return np.asarray(torque.clip(-2, 2)[:, None], np.float32)


def agreement(predictor: RewardPredictor, episodes: Sequence[Trajectory]) -> float:
    """Return the rank correlation of predicted and true returns over all segments of the episodes."""
    pool = SegmentPool(SEGMENT_STEPS["Pendulum"], seed=0)
    pool.extend(episodes)
    return rank_correlation(
        predictor.segment_returns(pool.segments), [segment.true_return for segment in pool.segments]
    )


def _taught(
    episodes: Sequence[Trajectory], judge: Judge, n_labels: int, seed: int, fit: Fit
) -> RewardPredictor:
    """Train a predictor of Pendulum's reward on labels from ``judge``."""
    lesson = OfflineConfig(
        n_labels=n_labels,
        segment_steps=SEGMENT_STEPS["Pendulum"],
        seed=seed,
        max_updates=fit.max_updates,
        reward=fit.reward,
    )
    return learn_reward(episodes, judge, TASK.observation_space, TASK.action_space, lesson)


def controls(seed: int, fit: Fit) -> Figures:
    """Compare oracle labels with coin flips."""
    episodes = list(itertools.islice(random_trajectories(TASK, seed), 70))
    judges: Mapping[str, Judge] = {
        "oracle": oracle,
        "coin flips": ScriptedTeacher(ErrorModel(mistake=0.5), seed),
    }
    return {
        name: agreement(_taught(episodes[:50], judge, 300, seed, fit), episodes[50:])
        for name, judge in judges.items()
    }


def later(seed: int, fit: Fit) -> Figures:
    """Compare labels about random episodes only with labels about random and skilled episodes."""
    random = list(itertools.islice(random_trajectories(TASK, seed), 60))
    skilled = list(itertools.islice(policy_trajectories(TASK, seed, swing_up), 60))
    before = _taught(random[:40], oracle, 75, seed, fit)
    after = _taught([*random[:40], *skilled[:40]], oracle, 300, seed, fit)
    return {
        f"{name}, {of}": agreement(predictor, episodes)
        for name, predictor in {"labels before": before, "labels of both": after}.items()
        for of, episodes in {"random": random[40:], "policy": skilled[40:]}.items()
    }


def closeness(states: NDArray[Any]) -> NDArray[Any]:
    """Return the negative distance from the origin in the first two dimensions."""
    distances: NDArray[Any] = np.linalg.norm(states[:, :2], axis=1)
    return -distances


def total(states: NDArray[Any]) -> NDArray[Any]:
    """Return the sum of all dimensions."""
    sums: NDArray[Any] = states.sum(axis=1)
    return sums


def sum_of_two(states: NDArray[Any]) -> NDArray[Any]:
    """Return the sum of the first two dimensions."""
    return total(states[:, :2])


def _learned_from_numbers(
    reward_of: RewardOf, size: int, n_labels: int, seed: int, fit: Fit
) -> tuple[RewardPredictor, float]:
    """Train a predictor on states with ``size`` dimensions; return it and its correlation on new states."""
    random = np.random.default_rng(seed)
    episodes = []
    for _ in range(n_labels):
        states = random.normal(size=(31, size)) + random.normal(size=size)
        episodes.append(Trajectory.from_arrays(states, np.zeros((30, 1)), reward_of(states[1:])))
    lesson = OfflineConfig(
        n_labels=n_labels,
        segment_steps=SEGMENT_STEPS["numbers"],
        max_updates=fit.max_updates,
        reward=replace(fit.reward, inputs="next_state"),
    )
    spaces_ = spaces.Box(-np.inf, np.inf, (size,)), spaces.Box(-1, 1, (1,))
    predictor = learn_reward(episodes, oracle, *spaces_, lesson)
    tried = random.normal(size=(NEW_STEPS, size))
    rewards = predictor.rewards(tried, np.zeros((NEW_STEPS, 1)), tried)
    return predictor, correlation(rewards, reward_of(tried))


def distance(seed: int, fit: Fit) -> Figures:
    """Compare plain features with even ones (squares and logarithms) if the reward is a distance."""
    features: Sequence[NumberFeatures] = ("plain", "even")
    return {
        name: _learned_from_numbers(closeness, 6, 60, seed, fit.set(features=name))[1] for name in features
    }


def choice(seed: int, fit: Fit) -> Figures:
    """Return 1 by variant if the predictor chose even features (squares and logarithms), else 0."""
    rewards: Mapping[str, RewardOf] = {"distance": closeness, "sum": total}
    fit = fit.set(features="auto")
    return {
        f"{name}, {count} labels": float(
            _learned_from_numbers(reward_of, 8, count, seed, fit)[0].features == "even"
        )
        for name, reward_of in rewards.items()
        for count in CHOICE_LABELS
    }


def regularization(seed: int, fit: Fit) -> Figures:
    """Compare the regularization methods, with their default and with adapted strength."""
    return {
        f"{name}, adapted" if adapt else name: _learned_from_numbers(
            sum_of_two, 5, 60, seed, fit.set(features="plain", regularization=name, adapt=adapt)
        )[1]
        for name in get_args(Regularization)
        for adapt in (False, True)
    }


def frames(seed: int, fit: Fit) -> Figures:
    """Compare downsampled with full-size Atari frames in correlation and CPU minutes."""
    figures: Figures = {}
    sides = {"averaged": (images.PAPER_SIDE, 600), "as they are": (sys.maxsize, 150)}
    for game, address in MEMORY.items():
        env = gym.make(f"ale_py:ALE/{game}-v5")
        episodes = [_played(env, address, 1000 * seed + part) for part in range(FRAME_LABELS + 20)]
        some, others = episodes[:FRAME_LABELS], episodes[FRAME_LABELS:]
        for name, (side, updates) in sides.items():
            lesson = OfflineConfig(
                n_labels=FRAME_LABELS,
                segment_steps=SEGMENT_STEPS["frames"],
                seed=seed,
                max_updates=min(fit.max_updates, updates),
                reward=replace(fit.reward, inputs="next_state"),
            )
            with mock.patch.object(images, "PAPER_SIDE", side):
                started = time.process_time()
                predictor = learn_reward(some, oracle, env.observation_space, env.action_space, lesson)
            figures[f"{game}, {name}, minutes"] = (time.process_time() - started) / 60
            found = [
                predictor.rewards(one.observations, one.actions, one.next_observations) for one in others
            ]
            wanted = [one.true_rewards for one in others]
            figures[f"{game}, {name}"] = correlation(np.concatenate(found), np.concatenate(wanted))
        env.close()
    return figures


def _played(env: gym.Env[Any, Any], address: int, seed: int) -> Trajectory:
    """Record random actions from the middle of a game; the reward is a byte of the Atari RAM."""
    env.reset(seed=seed)
    env.action_space.seed(seed)
    for _ in range(60 + seed % 100):
        state = env.step(env.action_space.sample())[0]
    memory = env.get_wrapper_attr("ale").getRAM
    states, actions, rewards = [state], list[int](), list[float]()
    for _ in range(4 * SEGMENT_STEPS["frames"]):
        actions.append(env.action_space.sample())
        states.append(env.step(actions[-1])[0])
        rewards.append(memory()[address] / 255)
    return Trajectory.from_arrays(np.array(states), np.array(actions), np.array(rewards))


PARTS: Mapping[str, Callable[[int, Fit], Figures]] = {
    part.__name__: part for part in (controls, later, distance, choice, regularization, frames)
}


def print_table(results: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print a row for each variant that has results."""
    table = Table("part", "variant", "seeds", "median (range)")
    for part in PARTS:
        figures = [result["figures"] for result in results if result["part"] == part]
        for variant in figures[0] if figures else ():
            values = [one[variant] for one in figures]
            told = f"{np.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"
            if part == "choice":
                told = f"{sum(values):.0f} of {len(values)}"
            table.add_row(part, variant, str(len(values)), told)
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compute missing results unless ``--show`` is given, print the table, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.reward_claims",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seeds", nargs="+", type=int, default=range(1, 9), help="default: 1 to 8")
    parser.add_argument("--results", type=Path, default=RESULTS, help="default: next to this script")
    parser.add_argument(
        "--show", action="store_true", help="print the stored results without computing anything"
    )
    options = parser.parse_args(arguments)
    console, made = Console(width=100), {(one["part"], one["seed"]) for one in load(options.results)}
    wanted = itertools.product(options.seeds, options.part)
    missing = [] if options.show else [(part, seed) for seed, part in wanted if (part, seed) not in made]
    for part, seed in track(missing, console=console, disable=not missing):
        figures = {name: round(value, 3) for name, value in PARTS[part](seed, FULL).items()}
        append(options.results, {"part": part, "seed": seed, "figures": figures})
    print_table(load(options.results), console)
    return 0


if __name__ == "__main__":
    sys.exit(main())
