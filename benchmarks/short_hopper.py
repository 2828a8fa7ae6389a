"""Benchmark of teaching on ShortHopper-v1: true reward, synthetic labels, coin flips, and SB3's PPO.

Every side trains for the same number of steps; its final policy then plays 20 episodes with sampled actions.
Prints for each side the medians over the seeds of the return, mean forward velocity and mean height. Taught
sides also show f = (R - R_random) / (R_rl - R_random), where R_random and R_rl are medians, and the Spearman
correlation of predicted and true returns of 200 segments spread evenly over the run.

    python benchmarks/short_hopper.py                     all seeds and sides, about an hour on two cores
    python benchmarks/short_hopper.py --seeds 1 --steps 1e5
"""

import argparse
import multiprocessing
import operator
import tempfile
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from agents.numerics.correlation import rank_correlation
from benchmarks.results import append, load
from teacher.data.decisions import Decision
from teacher.data.segment_pool import SegmentPool
from teacher.data.segments import Segment
from teacher.envs.families import resolve_env_id
from teacher.envs.trajectory import Trajectory
from teacher.queries.collector import SyntheticTeacher
from teacher.settings.config import RunSettings, TeachConfig
from teacher.training.builder import build_run, prepared_directory
from teacher.training.loop import train
from teacher.training.run import Run
from teacher.training.start import check

ENV_ID = "ShortHopper-v1"
N_LABELS = 300
EVALUATION_EPISODES = 20
SPEARMAN_SEGMENTS = 200
SIDES = ("random", "sb3", "rl", "synth", "coin")

Policy = Callable[[NDArray[Any]], NDArray[Any]]


@dataclass(frozen=True)
class Play:
    """Means over the evaluation episodes: return, forward velocity in m/s and height in m."""

    reward: float
    velocity: float
    height: float


@dataclass(frozen=True)
class Outcomes:
    """Result of one side with one seed."""

    side: str
    seed: int
    play: Play
    labels_asked: int = 0
    spearman: float = float("nan")


def play(policy: Policy, seed: int) -> Play:
    """Play new episodes with ``policy``, which maps one observation to one action; return the means."""
    env = gym.make(resolve_env_id(ENV_ID))
    returns, velocities, heights = [], [], []
    for episode in range(EVALUATION_EPISODES):
        observation, _ = env.reset(seed=10_000 * seed + episode)
        total, over = 0.0, False
        while not over:
            observation, reward, terminated, truncated, info = env.step(policy(observation))
            total += float(reward)
            over = terminated or truncated
            velocities.append(info["x_velocity"])
            heights.append(env.unwrapped.data.qpos[1])  # type: ignore[attr-defined]
        returns.append(total)
    env.close()
    return Play(float(np.mean(returns)), float(np.mean(velocities)), float(np.mean(heights)))


def flip_coin(first: Segment, second: Segment) -> Decision:
    """Return a coin flip as the control's label, seeded by the segments so that runs are reproducible."""
    coin = np.random.default_rng(np.array([first.true_return, second.true_return]).view(np.uint64))
    return "first" if coin.random() < 0.5 else "second"


def config_of(side: str, seed: int, steps: int, runs_dir: Path) -> TeachConfig:
    """Return the settings of one of our runs: on the true reward (``rl``) or on labels."""
    return TeachConfig(
        env_id=ENV_ID,
        predictor="rl" if side == "rl" else "synth",
        name=f"{side}-{seed}",
        seed=seed,
        num_timesteps=steps,
        n_labels=None if side == "rl" else N_LABELS,
        no_videos=True,
        runs_dir=str(runs_dir),
    )


def teach(side: str, seed: int, steps: int, runs_dir: Path) -> Outcomes:
    """Train one of our runs, on the true reward or labels according to ``side``, and evaluate it."""
    console = Console(quiet=True)
    settings = RunSettings(config_of(side, seed, steps, runs_dir), uuid.uuid4())
    plan = check(settings, console)
    with prepared_directory(plan.settings), build_run(plan, console) as run:
        kept = keep_segments(run, seed)
        if run.teaching is not None and side == "coin":
            run.teaching.collector = SyntheticTeacher(run.teaching.ledger, seed, judge=flip_coin)
        train(run)
        outcome = play(lambda observation: run.agent.act(observation[None], deterministic=False)[0], seed)
        if run.teaching is None:
            return Outcomes(side, seed, outcome)
        return Outcomes(
            side,
            seed,
            outcome,
            labels_asked=run.teaching.ledger.asked(),
            spearman=spearman(run, kept.segments),
        )


def keep_segments(run: Run, seed: int) -> SegmentPool:
    """Return a pool that collects the segments of the whole run, in addition to the run's own pool."""
    kept, remember = SegmentPool(run.segment_length, capacity=1_000_000, seed=seed), run.remember

    def remember_and_keep(trajectories: Sequence[Trajectory]) -> None:
        kept.extend(trajectories)
        remember(trajectories)

    run.remember = remember_and_keep  # type: ignore[method-assign]
    return kept


def spearman(run: Run, segments: Sequence[Segment]) -> float:
    """Return the rank correlation of predicted and true returns on segments spread evenly over the run."""
    assert run.teaching is not None
    chosen = [segments[i] for i in np.linspace(0, len(segments) - 1, SPEARMAN_SEGMENTS).astype(int)]
    return rank_correlation(
        run.teaching.predictor.segment_returns(chosen), [segment.true_return for segment in chosen]
    )


def train_sb3(seed: int, steps: int) -> Outcomes:
    """Train Stable-Baselines3's PPO with VecNormalize and the same hyperparameters, and evaluate it."""
    envs = VecNormalize(make_vec_env(resolve_env_id(ENV_ID), n_envs=8, seed=seed))
    model = PPO("MlpPolicy", envs, n_steps=256, batch_size=64, n_epochs=10, seed=seed, device="cpu")
    model.learn(steps)
    envs.training = False

    def policy(observation: NDArray[Any]) -> NDArray[Any]:
        action: NDArray[Any] = model.predict(envs.normalize_obs(observation), deterministic=False)[0]
        return action

    return Outcomes("sb3", seed, play(policy, seed))


def play_random(seed: int) -> Outcomes:
    """Evaluate uniformly random actions."""
    space = gym.make(resolve_env_id(ENV_ID)).action_space
    space.seed(seed)
    return Outcomes("random", seed, play(lambda _: space.sample(), seed))


def run_side(job: tuple[str, int, int, Path]) -> Outcomes:
    """Make one run in a worker process; ``job`` is (side, seed, steps, runs folder)."""
    side, seed, steps, runs_dir = job
    torch.set_num_threads(1)
    if side == "random":
        return play_random(seed)
    if side == "sb3":
        return train_sb3(seed, steps)
    return teach(side, seed, steps, runs_dir)


def print_table(outcomes: Sequence[Outcomes], console: Console) -> None:
    """Print medians over the seeds by side, f, and the ratio of our return to SB3's."""

    def median(side: str, field: str) -> float:
        values = [operator.attrgetter(field)(outcome) for outcome in outcomes if outcome.side == side]
        return float(np.median(values)) if values else float("nan")

    low, high = median("random", "play.reward"), median("rl", "play.reward")
    table = Table(
        "side", "return (median)", "min - max", "velocity m/s", "height m", "f", "Spearman", "labels"
    )
    for side in dict.fromkeys(outcome.side for outcome in outcomes):
        rewards = [outcome.play.reward for outcome in outcomes if outcome.side == side]
        f = [(reward - low) / (high - low) for reward in rewards]
        taught = side in ("synth", "coin")
        table.add_row(
            side,
            f"{np.median(rewards):.0f}",
            f"{min(rewards):.0f} - {max(rewards):.0f}",
            f"{median(side, 'play.velocity'):.2f}",
            f"{median(side, 'play.height'):.2f}",
            f"{np.median(f):.2f} ({min(f):.2f} - {max(f):.2f})" if taught else "",
            f"{median(side, 'spearman'):.3f}" if taught else "",
            str({outcome.labels_asked for outcome in outcomes if outcome.side == side}) if taught else "",
        )
    console.print(table)
    console.print(f"rl / SB3 = {high / median('sb3', 'play.reward'):.2f}")


def load_outcomes(path: Path | None) -> list[Outcomes]:
    """Load results that an earlier call of this script wrote to its ``--json`` file."""
    records = [] if path is None else load(path)
    return [Outcomes(**{**record, "play": Play(**record["play"])}) for record in records]


def main() -> None:
    """Run all sides and seeds in worker processes, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds, counted from 1")
    parser.add_argument("--steps", type=float, default=3e5)
    parser.add_argument("--sides", nargs="+", default=SIDES, choices=SIDES)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", type=Path, help="append results to this file; skip runs already in it")
    parser.add_argument("--runs-dir", type=Path, help="folder to keep the runs in (default: temporary)")
    arguments = parser.parse_args()
    console, outcomes = Console(width=140), load_outcomes(arguments.json)
    done = {(outcome.side, outcome.seed) for outcome in outcomes}
    with tempfile.TemporaryDirectory() as folder:
        jobs = [
            (side, seed, int(arguments.steps), arguments.runs_dir or Path(folder))
            for seed in range(1, arguments.seeds + 1)
            for side in arguments.sides
            if (side, seed) not in done
        ]
        with multiprocessing.get_context("spawn").Pool(arguments.processes) as pool:
            for outcome in track(pool.imap_unordered(run_side, jobs), total=len(jobs), console=console):
                outcomes.append(outcome)
                console.print(outcome, highlight=False)
                if arguments.json is not None:
                    append(arguments.json, asdict(outcome))
    order = {side: index for index, side in enumerate(SIDES)}
    print_table(sorted(outcomes, key=lambda outcome: (order[outcome.side], outcome.seed)), console)


if __name__ == "__main__":
    main()
