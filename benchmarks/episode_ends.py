"""Benchmark of ways to handle episodes that end early: does a higher predicted return mean a higher true one?

Random episodes, or episodes of policies of mixed quality, are cut into segments. The oracle labels 200 pairs,
and a predictor is fitted to them. The table shows the share of ties among the labels, and the Spearman
correlation between predicted and true returns of new episodes by policies of mixed quality. Episodes are of
the kind that the agent would be trained on: extended, restarted, or of variable length. Sides:

    frozen    absorb, with segments of the frozen final state, and next_state as the only input
    cut       absorb, without such segments
    absorb    also with the input ``absorbing``, as ``teach --fixed_horizon absorb``
    restart   as ``teach --fixed_horizon restart``
    variable  as ``teach --allow_variable_horizon``

    python -m benchmarks.episode_ends --show         print the stored results
    python -m benchmarks.episode_ends                make what is missing, some minutes

Policies of mixed quality take random actions with some probability, and otherwise those of a simple
controller. Box2D needs the extra ``box2d``.
"""

import argparse
import itertools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from agents.numerics.correlation import rank_correlation
from benchmarks.results import append, load
from benchmarks.teaching import describe_commit
from teacher.data.preferences import Preference, PreferenceDataset
from teacher.data.segment_pool import SegmentPool
from teacher.envs.make import make_env
from teacher.envs.trajectory import Trajectory
from teacher.envs.trial import try_episodes
from teacher.reward.images import with_absorbing
from teacher.reward.predictor import RewardPredictor
from teacher.settings.options import RewardConfig

RESULTS = Path(__file__).with_suffix(".jsonl")
TASKS: Mapping[str, Sequence[float]] = {
    "CartPole-v1": (1.0, 0.8, 0.6, 0.4, 0.2),
    "InvertedPendulum-v5": (1.0, 0.7, 0.5, 0.3, 0.15),
    "LunarLanderContinuous-v3": (1.0, 0.6, 0.4, 0.2, 0.0),
}
"""Probabilities of a random action in the policies of mixed quality."""
SIDES: Mapping[str, Mapping[str, str]] = {
    "frozen": {"fixed_horizon": "absorb"},
    "cut": {"fixed_horizon": "absorb"},
    "absorb": {"fixed_horizon": "absorb"},
    "restart": {"fixed_horizon": "restart"},
    "variable": {},
}
LABELED = ("random", "mixed")
SEEDS = (1, 2, 3)
LABELS = 200
LENGTH = 75  # steps per segment, but half the median episode if that is shorter and lengths are variable
_EPISODES, _TESTED = 40, 20
_VARIABLE = 200  # episodes, which are shorter
_KEYS = ("task", "side", "labeled", "seed")


def controlled(env: gym.Env[Any, Any], task: str, observation: NDArray[Any]) -> Any:
    """Return the action of a simple controller."""
    if task.startswith("LunarLander"):
        from gymnasium.envs.box2d.lunar_lander import heuristic  # noqa: PLC0415 (needs Box2D)

        action = heuristic(env.unwrapped, observation)  # type: ignore[no-untyped-call]  # Gymnasium's
        return np.asarray(action, np.float32)
    if task.startswith("CartPole"):
        return int(observation @ (0.02, 0.05, 1.0, 0.5) > 0)
    return 3 * np.clip(observation[[1]] * 3 + observation @ (0.1, 0, 0.2, 0.6), -1, 1)


def play(
    task: str, kwargs: Mapping[str, str], count: int, noises: Sequence[float], seed: int
) -> list[Trajectory]:
    """Record episodes of policies that take random actions with the given probabilities, in turn."""
    env, random, episodes = make_env(task, kwargs), np.random.default_rng(seed), []
    env.action_space.seed(seed)
    for number in range(count):
        episode = Trajectory(task, kwargs, 1000 * seed + number)
        observation, _ = env.reset(seed=episode.seed)
        observations, actions, rewards = [observation], [], []
        while not episode.finished:
            is_random = random.random() < noises[number % len(noises)]
            action = env.action_space.sample() if is_random else controlled(env, task, observation)
            observation, reward, episode.terminated, episode.truncated, _ = env.step(action)
            observations.append(observation)
            actions.append(action)
            rewards.append(float(reward))
        episode.extend(np.array(observations), np.array(actions), np.array(rewards), [])
        episodes.append(episode)
    return episodes


def labeled(pool: SegmentPool) -> PreferenceDataset:
    """Return the oracle's labels on random pairs of segments."""
    dataset = PreferenceDataset()
    for number, (first, second) in enumerate(pool.sample_pairs(LABELS), 1):
        value = 0.5 + 0.5 * float(np.sign(first.true_return - second.true_return))
        mixed = number * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128  # held-out sets depend on it
        dataset.upsert([Preference(UUID(int=mixed), first, second, value)])
    return dataset


def make(task: str, side: str, taught_by: str, seed: int) -> dict[str, float | None]:
    """Fit a predictor, and return the share of ties and the correlation; None if that is undefined."""
    kwargs = SIDES[side]
    count = _EPISODES if kwargs else _VARIABLE
    episodes = play(task, kwargs, count, (1.0,) if taught_by == "random" else TASKS[task], seed)
    for episode in episodes:
        episode.absorbs &= side != "frozen"
    env = make_env(task, {})
    trial = try_episodes(make_env(task, {}), None, seed, most=LENGTH)
    pool = SegmentPool(LENGTH if kwargs else trial.fitted(LENGTH), capacity=10**9, seed=seed)
    pool.extend(episodes)
    config = RewardConfig()
    if side == "absorb":
        config = with_absorbing(config, env.observation_space)
    predictor = RewardPredictor(env.observation_space, env.action_space, config, seed)
    ties = predictor.fit(labeled(pool)).ties
    new = play(task, kwargs, _TESTED, TASKS[task], seed + 100)
    predicted = [float(predictor.step_rewards(episode).sum()) for episode in new]
    correlation = rank_correlation(np.array(predicted), np.array([episode.true_return for episode in new]))
    return {"ties": round(ties, 3), "spearman": None if np.isnan(correlation) else round(correlation, 3)}


def table(results: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of the share of ties and the correlations over the seeds."""
    shown = Table("task", "side", *(f"{what}, {by}" for by in LABELED for what in ("ties", "correlation")))
    for task in TASKS:
        for side in SIDES:
            cells = []
            for by in LABELED:
                some = [each for each in results if [each[key] for key in _KEYS[:3]] == [task, side, by]]
                found = [each["spearman"] for each in some if each["spearman"] is not None]
                ties = f"{np.mean([each['ties'] for each in some]):.0%}" if some else ""
                cells += [
                    ties,
                    f"{np.mean(found):.2f} ({min(found):.2f} to {max(found):.2f})" if found else "-",
                ]
            shown.add_row(task, side, *cells)
        shown.add_section()
    return shown


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the missing results, print the table, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.episode_ends",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="default: next to this script")
    parser.add_argument("--show", action="store_true", help="print the stored results")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    made = {tuple(each[key] for key in _KEYS) for each in load(options.results)}
    for seed, task, by, side in itertools.product(SEEDS, TASKS, LABELED, SIDES):
        point = (task, side, by, seed)
        if not options.show and point not in made:
            outcome = make(task, side, by, seed)
            append(
                options.results,
                {**dict(zip(_KEYS, point, strict=True)), **outcome, "commit": describe_commit()},
            )
    Console(width=110).print(table(load(options.results)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
