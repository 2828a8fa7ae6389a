"""Benchmark of training speed: PPO and SAC against Stable-Baselines3 and sbx (JAX), TRPO against sb3-contrib.

All sides use the same hyperparameters: 8 environments x 256 steps, 10 epochs with minibatches of 64 (128 for
TRPO's critic), 64-64 tanh networks, and one thread each for torch, XLA and BLAS. SAC has one environment,
256-256 ReLU networks, and a gradient step on 256 transitions per environment step. All run in one process and
take turns; a turn is a few rollouts with their updates. The table shows median steps per second, our speed
divided by each other side's, the split of our time between rollout and update, and sbx's compile time, which
its median excludes. Times are wall-clock, so run nothing else at the same time. sbx is optional. SAC
takes most of the time: 3,200 gradient steps per side and environment, at 4 to 18 ms each.

    python benchmarks/agents_speed.py
    python benchmarks/agents_speed.py --envs Hopper-v5 --rounds 5 --workers 2
"""

import argparse
import importlib.util
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):  # read when numpy is imported
    os.environ[_name] = "1"
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
os.environ["JAX_PLATFORMS"] = "cpu"

import mujoco  # noqa: E402
import sb3_contrib  # noqa: E402
import stable_baselines3 as sb3  # noqa: E402
import torch  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.progress import track  # noqa: E402
from rich.table import Table  # noqa: E402
from stable_baselines3.common.env_util import make_vec_env  # noqa: E402

from agents.base import Agent  # noqa: E402
from agents.ppo import PPO, PPOConfig  # noqa: E402
from agents.sac import SAC  # noqa: E402
from agents.sac_step import SACConfig  # noqa: E402
from agents.trpo import TRPO, TRPOConfig  # noqa: E402
from teacher.envs.tasks import describe_task, make_vector_env  # noqa: E402

NUM_ENVS, NUM_STEPS = 8, 256
SAC_STEPS = 128  # environment steps per slice
SIDES = ("ours", "sb3", "sbx")
ALGORITHMS = ("ppo", "trpo", "sac")
ENVS = ("Hopper-v5", "HalfCheetah-v5", "CartPole-v1")
NET_ARCH = {"pi": [64, 64], "vf": [64, 64]}


@dataclass
class Side:
    """One trainer and its timings; a slice is one rollout with its update.

    Attributes:
        slice: runs one slice and returns the seconds for the rollout and for the update. A library that
            can't time them separately reports everything as rollout.
        steps: environment steps of one slice.
        rollouts: rollout seconds of each slice.
        updates: update seconds of each slice.
        first: seconds of the first slice, which includes one-time work such as compilation.
    """

    slice: Callable[[], tuple[float, float]]
    steps: int = NUM_ENVS * NUM_STEPS
    rollouts: list[float] = field(default_factory=list)
    updates: list[float] = field(default_factory=list)
    first: float = 0.0

    def warm_up(self) -> None:
        """Run the first slice, which the median excludes."""
        self.first = sum(self.slice())

    def turn(self, slices: int) -> None:
        """Run and time the given number of slices."""
        for _ in range(slices):
            rollout, update = self.slice()
            self.rollouts.append(rollout)
            self.updates.append(update)

    @property
    def speed(self) -> float:
        """Median environment steps per second."""
        return self.steps / self.median

    @property
    def median(self) -> float:
        """Median seconds per slice."""
        return statistics.median(a + b for a, b in zip(self.rollouts, self.updates, strict=True))

    @property
    def rollout_share(self) -> float:
        """Share of the total time spent on rollouts."""
        rollouts = sum(self.rollouts)
        return rollouts / (rollouts + sum(self.updates))


def ours(algorithm: str, env_id: str, workers: int) -> Side:
    """Return a side that trains our PPO or TRPO, with ``workers`` threads stepping the environments."""
    envs = make_vector_env(describe_task(env_id), NUM_ENVS, seed=0, workers=workers)
    agent: Agent = (
        PPO(envs, PPOConfig(num_steps=NUM_STEPS), seed=0)
        if algorithm == "ppo"
        else TRPO(envs, TRPOConfig(num_steps=NUM_STEPS), seed=0)
    )

    def one() -> tuple[float, float]:
        started = time.perf_counter()
        rollout = agent.collect()
        envs.drain()
        collected = time.perf_counter()
        agent.update(rollout, rollout.rewards)
        return collected - started, time.perf_counter() - collected

    return Side(one)


def our_sac(env_id: str, workers: int) -> Side:
    """Return a side that trains our SAC."""
    envs = make_vector_env(describe_task(env_id), 1, seed=0, workers=workers)
    agent = SAC(envs, SACConfig(train_freq=32, gradient_steps=-1), seed=0)

    def one() -> tuple[float, float]:
        rollout_seconds, started = 0.0, time.perf_counter()
        for _ in range(SAC_STEPS // 32):
            before = time.perf_counter()
            rollout = agent.collect()
            envs.drain()
            rollout_seconds += time.perf_counter() - before
            agent.update(rollout, rollout.rewards)
        return rollout_seconds, time.perf_counter() - started - rollout_seconds

    return Side(one, SAC_STEPS)


def their_sac(library: str, env_id: str) -> Side:
    """Return a side that trains the SAC of Stable-Baselines3 or sbx with its default settings."""
    envs = make_vec_env(env_id, n_envs=1, seed=0)
    if library == "sbx":
        import sbx  # noqa: PLC0415 - optional dependency

        model: Any = sbx.SAC("MlpPolicy", envs, device="cpu", seed=0)
    else:
        model = sb3.SAC("MlpPolicy", envs, device="cpu", seed=0)

    def one() -> tuple[float, float]:
        started = time.perf_counter()
        model.learn(SAC_STEPS, reset_num_timesteps=False)
        return time.perf_counter() - started, 0.0

    return Side(one, SAC_STEPS)


def theirs(library: str, algorithm: str, env_id: str) -> Side:
    """Return a side that trains with Stable-Baselines3, sb3-contrib or sbx."""
    envs = make_vec_env(env_id, n_envs=NUM_ENVS, seed=0)
    common: dict[str, Any] = {"n_steps": NUM_STEPS, "device": "cpu", "seed": 0}
    if library == "sbx":
        import sbx  # noqa: PLC0415 - optional dependency

        policy = {"net_arch": NET_ARCH}  # sbx uses tanh by default
        model = sbx.PPO("MlpPolicy", envs, batch_size=64, n_epochs=10, policy_kwargs=policy, **common)
    else:
        common["policy_kwargs"] = {"net_arch": NET_ARCH, "activation_fn": torch.nn.Tanh}
        model = (
            sb3.PPO("MlpPolicy", envs, batch_size=64, n_epochs=10, **common)
            if algorithm == "ppo"
            else sb3_contrib.TRPO("MlpPolicy", envs, batch_size=128, **common)
        )

    def one() -> tuple[float, float]:
        started = time.perf_counter()
        model.learn(NUM_ENVS * NUM_STEPS, reset_num_timesteps=False)
        return time.perf_counter() - started, 0.0

    return Side(one)


def measure(algorithm: str, env_id: str, options: argparse.Namespace) -> dict[str, Any]:
    """Time all sides in turn; return steps per second by side, our rollout share and sbx's compile time."""
    has_sbx = algorithm != "trpo" and importlib.util.find_spec("sbx") is not None
    if algorithm == "sac":
        sides = {"ours": our_sac(env_id, options.workers), "sb3": their_sac("sb3", env_id)}
        sides |= {"sbx": their_sac("sbx", env_id)} if has_sbx else {}
    else:
        sides = {"ours": ours(algorithm, env_id, options.workers), "sb3": theirs("sb3", algorithm, env_id)}
        sides |= {"sbx": theirs("sbx", algorithm, env_id)} if has_sbx else {}
    for side in sides.values():
        side.warm_up()
    for _ in range(options.rounds):
        for side in sides.values():
            side.turn(options.slices)
    outcome: dict[str, Any] = {"algorithm": algorithm, "env_id": env_id}
    outcome["rollout_share"] = sides["ours"].rollout_share
    if "sbx" in sides:
        outcome["sbx_compile_seconds"] = sides["sbx"].first - sides["sbx"].median
    return outcome | {name: side.speed for name, side in sides.items()}


def print_table(outcomes: Sequence[dict[str, Any]], console: Console) -> None:
    """Print one row per algorithm and environment."""
    table = Table(
        "",
        "environment",
        "ours, steps/s",
        "rollout, update",
        "SB3, sb3-contrib",
        "ratio",
        "sbx",
        "ratio",
        "compile, s",
    )
    for outcome in outcomes:
        share = outcome["rollout_share"]
        sbx = ["no TRPO" if outcome["algorithm"] == "trpo" else "not installed", "", ""]
        if "sbx" in outcome:
            sbx = [
                f"{outcome['sbx']:,.0f}",
                f"{outcome['ours'] / outcome['sbx']:.2f}",
                f"{outcome['sbx_compile_seconds']:.1f}",
            ]
        table.add_row(
            outcome["algorithm"].upper(),
            outcome["env_id"],
            f"{outcome['ours']:,.0f}",
            f"{share:.0%}, {1 - share:.0%}",
            f"{outcome['sb3']:,.0f}",
            f"{outcome['ours'] / outcome['sb3']:.2f}",
            *sbx,
        )
    console.print(table)


def main() -> None:
    """Measure each algorithm on each environment and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--envs", nargs="+", default=ENVS)
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=ALGORITHMS)
    parser.add_argument("--rounds", type=int, default=3, help="number of turns per side")
    parser.add_argument("--slices", type=int, default=8, help="rollouts per turn")
    parser.add_argument("--workers", type=int, default=2, help="threads that step our environments")
    parser.add_argument("--json", type=Path, help="write the results to this JSON file")
    options = parser.parse_args()
    mujoco.set_mju_user_warning(lambda _: None)  # deprecations in Gymnasium's models
    torch.set_num_threads(1)
    pairs = [
        (algorithm, env_id)
        for algorithm in options.algorithms
        for env_id in options.envs
        if (algorithm, env_id) != ("sac", "CartPole-v1")
    ]
    outcomes, console = list[dict[str, Any]](), Console(width=120)
    for algorithm, env_id in track(pairs, "measuring", transient=True, console=console):
        outcome = measure(algorithm, env_id, options)
        outcomes.append(outcome)
        speeds = ", ".join(f"{name} {outcome[name]:,.0f}" for name in SIDES if name in outcome)
        console.print(f"{algorithm.upper()} on {env_id}, steps/s: {speeds}")
    print_table(outcomes, console)
    if options.json:
        options.json.write_text(json.dumps(outcomes, indent=2) + "\n")


if __name__ == "__main__":
    main()
