"""Benchmark of returns: our PPO and SAC against Stable-Baselines3's, our TRPO against sb3-contrib's.

Both sides use the hyperparameters in ``agents/defaults.py``, the same number of environments and steps,
64-64 tanh networks, and one thread. Ours always normalizes rewards, and normalizes observations except on
Pendulum. Theirs normalizes both (with VecNormalize) where RL Baselines3 Zoo does, so neither on Pendulum nor
on CartPole. SAC has Stable-Baselines3's defaults on both sides, 256-256 ReLU networks and no normalization,
except that ours makes 32 steps between updates of 32 gradient steps, and theirs one. Each run's final policy
plays 20 episodes with sampled actions and seeds not used in training. A side's score is the interquartile
mean (IQM) over the seeds of the mean return, with a 95 % bootstrap interval (Agarwal et al. 2021, "Deep
Reinforcement Learning at the Edge of the Statistical Precipice").

    python -m benchmarks.agents_return --plot returns.png                     plot the stored results
    python -m benchmarks.agents_return --results new.jsonl --workers 2        run everything, 1+ hour of CPU
    python -m benchmarks.agents_return --results new.jsonl --sides ours --seeds 1 2

Every finished run is appended to the results file; runs that are already in the file are skipped.
"""

import argparse
import itertools
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):  # read when numpy is imported
    os.environ[_name] = "1"

import matplotlib as mpl  # noqa: E402
import numpy as np  # noqa: E402
import sb3_contrib  # noqa: E402
import stable_baselines3 as sb3  # noqa: E402
import torch  # noqa: E402
from gymnasium.vector import SyncVectorEnv  # noqa: E402
from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.ticker import MultipleLocator  # noqa: E402
from numpy.typing import NDArray  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.progress import track  # noqa: E402
from rich.table import Table  # noqa: E402
from stable_baselines3.common.callbacks import BaseCallback  # noqa: E402
from stable_baselines3.common.env_util import make_vec_env  # noqa: E402
from stable_baselines3.common.vec_env import VecNormalize  # noqa: E402

from agents.base import Agent  # noqa: E402
from agents.defaults import defaults_for  # noqa: E402
from agents.ppo import PPO  # noqa: E402
from agents.sac import SAC  # noqa: E402
from agents.trpo import TRPO  # noqa: E402
from benchmarks.results import Curve, append, bootstrap, curve_steps, interval, iqm, load  # noqa: E402
from teacher.envs.make import make_env  # noqa: E402
from teacher.envs.tasks import describe_task, make_vector_env  # noqa: E402

STEPS = {
    "Hopper-v5": 100_000,
    "HalfCheetah-v5": 100_000,
    "Walker2d-v5": 100_000,
    "Reacher-v5": 60_000,
    "Pendulum-v1": 80_000,
    "CartPole-v1": 50_000,
}
RESULTS = Path(__file__).with_suffix(".jsonl")
AS_THEY_ARE = ("Pendulum-v1", "CartPole-v1")
SAC_STEPS = {"Pendulum-v1": 20_000, "Hopper-v5": 100_000, "HalfCheetah-v5": 100_000}
ALGORITHMS = ("ppo", "trpo", "sac")
SIDES = ("ours", "theirs")
EVALUATION_EPISODES = 20
COLORS = {"ours": "#1b6ac9", "theirs": "#d9730d"}
LABELS = {"ours": "RL-Teacher", "theirs": "Stable-Baselines3, sb3-contrib"}

Policy = Callable[[NDArray[Any]], NDArray[Any]]


def steps_of(algorithm: str) -> Mapping[str, int]:
    """Return the training steps of an algorithm by environment."""
    return SAC_STEPS if algorithm == "sac" else STEPS


@dataclass(frozen=True)
class Job:
    """One training run, identified by everything that determines its result."""

    env_id: str
    algorithm: str
    side: str
    seed: int
    steps: int


def train_ours(job: Job) -> tuple[Policy, Curve]:
    """Train our PPO or TRPO; return the final policy (with sampled actions) and the learning curve."""
    row, task = defaults_for(job.env_id), describe_task(job.env_id)
    envs = make_vector_env(task, row.num_envs_for(job.algorithm), job.seed)
    curve = Curve(job.steps)
    agent: Agent
    if job.algorithm == "ppo":
        agent = PPO(envs, row.ppo_for(job.steps, normalize_rewards=True), job.seed)
    elif job.algorithm == "trpo":
        agent = TRPO(envs, row.trpo_for(task.action_space, normalize_rewards=True), job.seed)
    else:
        agent = SAC(envs, row.sac, job.seed)
    while agent.total_steps < job.steps:
        rollout: Any = agent.collect()
        for trajectory in envs.drain():
            if trajectory.finished:
                curve.add(agent.total_steps, trajectory.true_return)
        agent.update(rollout, rollout.rewards)
    envs.close()
    return lambda observations: agent.act(observations, deterministic=False), curve


class CurveCallback(BaseCallback):
    """Stable-Baselines3 callback that adds the return of each finished episode to a learning curve."""

    def __init__(self, curve: Curve) -> None:
        super().__init__()
        self._curve, self._finished = curve, list[float]()

    def _on_step(self) -> bool:
        self._finished += [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
        return True

    def _on_rollout_end(self) -> None:
        for episode_return in self._finished:
            self._curve.add(self.num_timesteps, episode_return)
        self._finished.clear()


def train_theirs(job: Job) -> tuple[Policy, Curve]:
    """Train Stable-Baselines3's PPO or sb3-contrib's TRPO; return the final policy and the learning curve."""
    if job.algorithm == "sac":
        return train_their_sac(job)
    row, curve = defaults_for(job.env_id), Curve(job.steps)
    config = row.ppo if job.algorithm == "ppo" else row.trpo
    rate = config.learning_rate
    settings: dict[str, Any] = {
        "n_steps": config.num_steps,
        "batch_size": config.minibatch_size,
        "gamma": config.gamma,
        "gae_lambda": config.gae_lambda,
        "policy_kwargs": {"net_arch": {"pi": [64, 64], "vf": [64, 64]}, "activation_fn": torch.nn.Tanh},
        "device": "cpu",
        "seed": job.seed,
    }
    normalize = job.env_id not in AS_THEY_ARE
    envs = VecNormalize(
        make_vec_env(lambda: make_env(job.env_id, {}), n_envs=row.num_envs, seed=job.seed),
        norm_obs=normalize,
        norm_reward=normalize,
        gamma=config.gamma,
    )
    model: Any
    if job.algorithm == "ppo":
        model = sb3.PPO(
            "MlpPolicy",
            envs,
            learning_rate=(lambda remaining: remaining * rate) if row.anneal else rate,
            n_epochs=row.ppo.update_epochs,
            clip_range=row.ppo.clip_coef,
            ent_coef=row.ppo.ent_coef,
            vf_coef=row.ppo.vf_coef,
            max_grad_norm=row.ppo.max_grad_norm,
            **settings,
        )
    else:
        model = sb3_contrib.TRPO(
            "MlpPolicy",
            envs,
            learning_rate=rate,
            target_kl=row.trpo.target_kl,  # averaged over action dimensions, as in our table
            cg_max_steps=row.trpo.cg_max_steps,
            cg_damping=row.trpo.cg_damping,
            line_search_shrinking_factor=row.trpo.line_search_shrinking_factor,
            line_search_max_iter=row.trpo.line_search_max_iter,
            n_critic_updates=row.trpo.n_critic_updates,
            **settings,
        )
    model.learn(job.steps, callback=CurveCallback(curve))
    envs.training = False

    def policy(observations: NDArray[Any]) -> NDArray[Any]:
        actions: NDArray[Any] = model.predict(envs.normalize_obs(observations), deterministic=False)[0]
        return actions

    return policy, curve


def train_their_sac(job: Job) -> tuple[Policy, Curve]:
    """Train Stable-Baselines3's SAC with its defaults, except for our ``learning_starts``."""
    curve = Curve(job.steps)
    envs = make_vec_env(lambda: make_env(job.env_id, {}), n_envs=1, seed=job.seed)
    starts = defaults_for(job.env_id).sac.learning_starts
    model = sb3.SAC("MlpPolicy", envs, learning_starts=starts, device="cpu", seed=job.seed)
    model.learn(job.steps, callback=CurveCallback(curve))

    def policy(observations: NDArray[Any]) -> NDArray[Any]:
        actions: NDArray[Any] = model.predict(observations, deterministic=False)[0]
        return actions

    return policy, curve


def evaluate(policy: Policy, job: Job) -> float:
    """Play new episodes in parallel and return their mean return."""
    envs = SyncVectorEnv([lambda: make_env(job.env_id, {})] * EVALUATION_EPISODES)
    observations, _ = envs.reset(seed=[1_000_000 * job.seed + index for index in range(EVALUATION_EPISODES)])
    totals, playing = np.zeros(EVALUATION_EPISODES), np.ones(EVALUATION_EPISODES, dtype=bool)
    while playing.any():
        observations, rewards, terminated, truncated, _ = envs.step(policy(observations))
        totals += rewards * playing
        playing &= ~(terminated | truncated)
    envs.close()
    return float(totals.mean())


def run(job: Job) -> dict[str, Any]:
    """Train and evaluate one run in a worker process; return its line of the results file."""
    torch.set_num_threads(1)
    policy, curve = (train_ours if job.side == "ours" else train_theirs)(job)
    return {**asdict(job), "return": round(evaluate(policy, job), 3), "curve": curve.means()}


def missing(options: argparse.Namespace, results: Sequence[dict[str, Any]]) -> list[Job]:
    """Return the requested runs that have no result yet, ordered by seed."""
    made = {Job(*(result[name] for name in Job.__dataclass_fields__)) for result in results}
    wanted = itertools.product(options.seeds, options.sides, options.algorithms, options.envs)
    jobs = [
        Job(env_id, algorithm, side, seed, steps_of(algorithm)[env_id])
        for seed, side, algorithm, env_id in wanted
        if env_id in steps_of(algorithm)
    ]
    return [job for job in jobs if job not in made]


def make_runs(jobs: Sequence[Job], workers: int, path: Path) -> Iterator[dict[str, Any]]:
    """Make the runs in worker processes; append each result to the file and yield it."""
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        for result in pool.imap_unordered(run, jobs):
            append(path, result)
            yield result


@dataclass(frozen=True)
class Comparison:
    """Scores of both sides with one algorithm on one environment, with 95 % intervals.

    Attributes:
        iqm: interquartile mean of the returns, by side.
        interval: its 95 % bootstrap interval, by side.
        difference: 95 % bootstrap interval of ours minus theirs.
    """

    env_id: str
    algorithm: str
    iqm: dict[str, float]
    interval: dict[str, tuple[float, float]]
    difference: tuple[float, float]

    @property
    def verdict(self) -> str:
        """``above`` or ``below`` if the interval of the difference excludes 0, else ``level``."""
        low, high = self.difference
        return "above" if low > 0 else "below" if high < 0 else "level"


def select(results: Sequence[dict[str, Any]], env_id: str, algorithm: str, side: str) -> list[dict[str, Any]]:
    """Return the results of all seeds for one side, without runs that have a different number of steps."""
    wanted = {
        "env_id": env_id,
        "algorithm": algorithm,
        "side": side,
        "steps": steps_of(algorithm).get(env_id),
    }
    return [result for result in results if wanted.items() <= result.items()]


def compare(results: Sequence[dict[str, Any]], env_id: str, algorithm: str) -> Comparison | None:
    """Compare both sides on one environment; return None if either side has no results."""
    returns = {
        side: np.array([result["return"] for result in select(results, env_id, algorithm, side)])
        for side in SIDES
    }
    if not all(map(len, returns.values())):
        return None
    rng = np.random.default_rng(0)
    resampled = {side: bootstrap(values, rng) for side, values in returns.items()}
    return Comparison(
        env_id,
        algorithm,
        {side: float(iqm(values)) for side, values in returns.items()},
        {side: interval(values) for side, values in resampled.items()},
        interval(resampled["ours"] - resampled["theirs"]),
    )


def print_table(comparisons: Sequence[Comparison]) -> None:
    """Print one row per comparison: both scores, their difference and the verdict."""
    table = Table("algorithm", "environment", "ours, IQM", "theirs, IQM", "ours - theirs", "verdict")

    def spread(bounds: tuple[float, float]) -> str:
        return f"[{bounds[0]:.1f}, {bounds[1]:.1f}]"

    for one in comparisons:
        sides = [f"{one.iqm[side]:.1f} {spread(one.interval[side])}" for side in SIDES]
        difference = f"{one.iqm['ours'] - one.iqm['theirs']:+.1f} {spread(one.difference)}"
        row = [one.algorithm.upper(), one.env_id, *sides, difference, one.verdict]
        table.add_row(*(cell.replace("[", r"\[") for cell in row))
    Console(width=140).print(table)


def draw(results: Sequence[dict[str, Any]], comparisons: Sequence[Comparison], path: Path) -> None:
    """Plot one panel per comparison: returns during training, then the final policies' returns."""
    mpl.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    columns = [env_id for env_id in STEPS if any(one.env_id == env_id for one in comparisons)]
    rows = [name for name in ALGORITHMS if any(one.algorithm == name for one in comparisons)]
    size = (2.3 * len(columns) + 0.4, 2.1 * len(rows) + 0.5)
    figure, panels = plt.subplots(len(rows), len(columns), figsize=size, squeeze=False, layout="constrained")
    for one in comparisons:
        axes = panels[rows.index(one.algorithm)][columns.index(one.env_id)]
        for offset, side in enumerate(SIDES):
            draw_side(axes, select(results, one.env_id, one.algorithm, side), one, side, offset)
        steps = steps_of(one.algorithm)[one.env_id]
        axes.set_xlim(0, 1.14 * steps)
        axes.xaxis.set_major_locator(MultipleLocator(steps / 2))
        axes.xaxis.set_major_formatter(lambda step, _: f"{step / 1000:.0f}k")
        axes.grid(axis="y", alpha=0.25)
        if one.algorithm == rows[0]:
            axes.set_title(one.env_id, loc="left", fontsize=9.5)
    for axes in panels.flat:
        axes.set_visible(axes.has_data())
    for name, row in zip(rows, panels, strict=True):
        row[0].set_ylabel(f"{name.upper()}: return per episode")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=2, frameon=False)
    figure.supxlabel("environment steps", fontsize=9)
    figure.savefig(path, dpi=110)


def draw_side(
    axes: Axes, results: Sequence[dict[str, Any]], comparison: Comparison, side: str, offset: int
) -> None:
    """Plot one side's IQM and interval: a line with a band during training, a point with a bar at the end."""
    steps, color = steps_of(comparison.algorithm)[comparison.env_id], COLORS[side]
    at = curve_steps(steps)
    curves = np.array([result["curve"] for result in results], dtype=np.float64).T  # None becomes NaN
    known = ~np.isnan(curves).any(axis=1)
    middle = iqm(curves[known])
    low, high = np.quantile(bootstrap(curves[known], np.random.default_rng(0)), (0.025, 0.975), axis=0)
    axes.fill_between(at[known], low, high, color=color, alpha=0.15, linewidth=0)
    axes.plot(at[known], middle, color=color, linewidth=1.6, label=LABELS[side])
    final = comparison.iqm[side]
    bar = [[final - comparison.interval[side][0]], [comparison.interval[side][1] - final]]
    axes.errorbar(
        (1.04 + 0.06 * offset) * steps, final, yerr=bar, color=color, marker="o", markersize=3.5, capsize=2
    )


def main() -> None:
    """Make the missing runs, print the table, and draw the plot if asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.agents_return",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--envs", nargs="+", choices=STEPS, default=STEPS)
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=ALGORITHMS)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES)
    parser.add_argument("--seeds", nargs="+", type=int, default=range(1, 6))
    parser.add_argument("--workers", type=int, default=1, help="number of worker processes")
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="results file (default: next to this script)"
    )
    parser.add_argument("--plot", type=Path, help="save a plot of the learning curves to this file")
    options = parser.parse_args()
    results = load(options.results)
    jobs = missing(options, results)
    for result in track(
        make_runs(jobs, options.workers, options.results), "training", total=len(jobs), transient=True
    ):
        results.append(result)
    pairs = itertools.product(options.algorithms, options.envs)
    compared = [compare(results, env_id, algorithm) for algorithm, env_id in pairs]
    comparisons = [one for one in compared if one is not None]
    print_table(comparisons)
    if options.plot and comparisons:
        draw(results, comparisons, options.plot)


if __name__ == "__main__":
    main()
