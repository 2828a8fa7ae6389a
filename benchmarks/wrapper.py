"""Benchmark of the wrapper: Stable-Baselines3's PPO on predicted rewards against PPO on true rewards.

Both sides use the same program and hyperparameters: RL Baselines3 Zoo's on Pendulum, and SB3's defaults with
8 environments on ShortHopper. One side wraps the environments in HumanPreferencesEnvWrapper with synthetic
labels, so the agent never sees the true reward. Each run's final policy plays 20 episodes with sampled
actions. f = (R - R_random) / (R_sb3 - R_random).

    python -m benchmarks.wrapper --plot wrapper.png                        plot the stored results
    python -m benchmarks.wrapper --results new.jsonl                       run everything, 40 minutes of CPU
    python -m benchmarks.wrapper --results new.jsonl --envs Pendulum-v1 --seeds 1 2

Every finished run is appended to the results file; runs that are already in the file are skipped.
"""

import argparse
import itertools
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):  # read when numpy is imported
    os.environ[_name] = "1"

import gymnasium as gym  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from matplotlib import pyplot as plt  # noqa: E402
from numpy.typing import NDArray  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402
from stable_baselines3 import PPO  # noqa: E402
from stable_baselines3.common.monitor import Monitor  # noqa: E402
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize  # noqa: E402

from benchmarks.agents_return import CurveCallback, Job, Policy, evaluate  # noqa: E402
from benchmarks.results import Curve, append, curve_steps, iqm, load  # noqa: E402
from teacher import HumanPreferencesEnvWrapper  # noqa: E402
from teacher.envs.make import make_env  # noqa: E402

RESULTS = Path(__file__).with_suffix(".jsonl")
SIDES = ("random", "sb3", "wrapper")
COLORS = {"sb3": "#d9730d", "wrapper": "#1b6ac9"}
LABELS = {"sb3": "SB3's PPO, true reward", "wrapper": "in the wrapper, synthetic labels"}


@dataclass(frozen=True)
class Task:
    """Training settings of both sides, and the label budget and segment length of the wrapper."""

    steps: int
    num_envs: int
    ppo: Mapping[str, Any]
    n_prefs: int
    segment_length: int
    normalize: bool = False


TASKS = {
    "Pendulum-v1": Task(
        100_000,
        4,
        {"n_steps": 1024, "gamma": 0.9, "learning_rate": 1e-3, "use_sde": True, "sde_sample_freq": 4},
        n_prefs=200,
        segment_length=40,
    ),
    "teacher/ShortHopper-v1": Task(
        300_000, 8, {"n_steps": 256}, n_prefs=300, segment_length=60, normalize=True
    ),
}


@dataclass
class Outcome:
    """Final policy, learning curve and number of labels of a run."""

    policy: Policy
    curve: Curve
    labels: int = 0
    before: list[int] = field(default_factory=list)


def train(job: Job) -> Outcome:
    """Train Stable-Baselines3's PPO, with or without the wrapper."""
    task, curve = TASKS[job.env_id], Curve(job.steps)

    def make() -> gym.Env[Any, Any]:
        return Monitor(make_env(job.env_id, {}))  # inside the wrapper, so it records the true reward

    with tempfile.TemporaryDirectory() as folder:
        makers: list[Callable[[], gym.Env[Any, Any]]] = [make] * task.num_envs
        first: HumanPreferencesEnvWrapper | None = None
        if job.side == "wrapper":
            first = HumanPreferencesEnvWrapper(
                make(),
                segment_length=task.segment_length,
                n_prefs=task.n_prefs * job.steps // task.steps,
                n_initial_prefs=task.n_prefs * job.steps // task.steps // 4,
                total_timesteps=job.steps,
                background=False,
                seed=job.seed,
                log_dir=folder,
            )
            others = [first.beside(make()) for _ in range(task.num_envs - 1)]
            makers = [lambda env=env: env for env in (first, *others)]  # type: ignore[misc]
        envs: Any = DummyVecEnv(makers)
        envs = VecNormalize(envs) if task.normalize else envs
        model = PPO("MlpPolicy", envs, seed=job.seed, device="cpu", **task.ppo)
        model.learn(job.steps, callback=CurveCallback(curve))
        envs.close()
    envs.training = False

    def policy(observations: NDArray[Any]) -> NDArray[Any]:
        seen = envs.normalize_obs(observations) if task.normalize else observations
        actions: NDArray[Any] = model.predict(seen, deterministic=False)[0]
        return actions

    return Outcome(policy, curve, first.trainer.answers if first is not None else 0)


def run(job: Job) -> dict[str, Any]:
    """Train and evaluate one run; return its line of the results file."""
    torch.set_num_threads(1)
    if job.side == "random":
        space = make_env(job.env_id, {}).action_space
        space.seed(job.seed)
        outcome = Outcome(lambda observations: np.array([space.sample() for _ in observations]), Curve(1))
    else:
        outcome = train(job)
    reached = round(evaluate(outcome.policy, job), 3)
    return {**asdict(job), "return": reached, "labels": outcome.labels, "curve": outcome.curve.means()}


def missing(options: argparse.Namespace, results: Sequence[Mapping[str, Any]]) -> list[Job]:
    """Return the requested runs that have no result yet, ordered by seed."""
    made = {Job(*(result[name] for name in Job.__dataclass_fields__)) for result in results}
    wanted = itertools.product(options.seeds, options.envs, SIDES)
    jobs = [
        Job(env_id, "ppo", side, seed, int(options.steps or TASKS[env_id].steps))
        for seed, env_id, side in wanted
    ]
    return [job for job in jobs if job not in made]


def returns(results: Sequence[Mapping[str, Any]], env_id: str, side: str) -> NDArray[np.float64]:
    """Return the returns of all seeds for one side on one environment."""
    chosen = [one["return"] for one in results if (one["env_id"], one["side"]) == (env_id, side)]
    return np.array(chosen, np.float64)


def print_table(results: Sequence[Mapping[str, Any]]) -> None:
    """Print medians and ranges of return and f for each environment and side."""
    table = Table("environment", "side", "seeds", "return, median (range)", "f, median (range)", "labels")
    for env_id in dict.fromkeys(str(one["env_id"]) for one in results):
        by_side = {side: returns(results, env_id, side) for side in SIDES}
        if not all(map(len, by_side.values())):
            continue
        low, high = float(np.median(by_side["random"])), float(np.median(by_side["sb3"]))
        for side, values in by_side.items():
            labels = {one["labels"] for one in results if (one["env_id"], one["side"]) == (env_id, side)}
            shares = (values - low) / (high - low)
            table.add_row(
                env_id,
                side,
                str(len(values)),
                f"{np.median(values):.0f} ({values.min():.0f} to {values.max():.0f})",
                f"{np.median(shares):.2f} ({shares.min():.2f} to {shares.max():.2f})",
                ", ".join(map(str, sorted(labels))),
            )
    Console(width=110).print(table)


def draw(results: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Plot the true return during training: a thin line per run and a thick one for the IQM."""
    env_ids = [name for name in TASKS if len(returns(results, name, "wrapper"))]
    figure, panels = plt.subplots(1, len(env_ids), figsize=(4.2 * len(env_ids), 3.0), squeeze=False)
    for axes, env_id in zip(panels[0], env_ids, strict=True):
        for side, color in COLORS.items():
            runs = [one for one in results if (one["env_id"], one["side"]) == (env_id, side)]
            at = curve_steps(runs[0]["steps"]) / 1000
            curves = np.array([one["curve"] for one in runs], np.float64).T
            axes.plot(at, curves, color=color, alpha=0.25, linewidth=0.8)
            axes.plot(at, iqm(curves), color=color, linewidth=1.8, label=LABELS[side])
        axes.set_title(env_id, loc="left", fontsize=9.5)
        axes.set_xlabel("environment steps, thousands")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.25)
    panels[0][0].set_ylabel("true return per episode")
    panels[0][0].legend(frameon=False, fontsize=8, loc="lower right", handlelength=1)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Make the missing runs, print the table, and draw the plot if asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.wrapper",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--envs", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--seeds", nargs="*", type=int, default=())
    parser.add_argument("--steps", type=float, help="environment steps per run (default: by task)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="default: next to this script")
    parser.add_argument("--plot", type=Path, help="save a plot of the learning curves to this file")
    options = parser.parse_args()
    results = load(options.results)
    for job in missing(options, results):
        result = run(job)
        append(options.results, result)
        results.append(result)
    print_table(results)
    if options.plot:
        draw(results, options.plot)


if __name__ == "__main__":
    main()
