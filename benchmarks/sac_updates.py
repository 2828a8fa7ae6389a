"""Benchmark of processor time per gradient step of SAC: ours, Stable-Baselines3's and sbx's (JAX).

All sides have SB3's hyperparameters: 256-256 ReLU networks and minibatches of 256 from a buffer of random
transitions. They run in one process and take turns; a turn is 32 gradient steps, with sampling. Processor
time counts all threads, and there is one each for torch, BLAS and XLA. It does not count time in which other
processes run, but it still rises where they share a core's caches and arithmetic units,
so compare ratios. ``autograd`` is ours without hand-derived gradients, ``layer-norm`` a variant in
:mod:`benchmarks.agent_variants`. sbx is optional.

    python -m benchmarks.sac_updates
    python -m benchmarks.sac_updates --env Hopper-v5 --turns 40
"""

import argparse
import importlib.util
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):  # read when numpy is imported
    os.environ[_name] = "1"
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["JAX_PLATFORMS"] = "cpu"

import mujoco  # noqa: E402
import stable_baselines3 as sb3  # noqa: E402
import torch  # noqa: E402
from stable_baselines3.common.env_util import make_vec_env  # noqa: E402

from agents.sac import SAC  # noqa: E402
from agents.sac_step import SACConfig  # noqa: E402
from benchmarks.agent_variants import VARIANTS  # noqa: E402
from teacher.envs.tasks import describe_task, make_vector_env  # noqa: E402

GRADIENT_STEPS = 32
TRANSITIONS = 2_000

Turn = Callable[[], object]


def ours(name: str, env_id: str) -> Turn:
    """Return a turn of one of our agents."""
    envs = make_vector_env(describe_task(env_id), 1, seed=0)
    config = SACConfig(train_freq=100, gradient_steps=GRADIENT_STEPS, learning_starts=TRANSITIONS)
    kind = VARIANTS[name].kind
    assert issubclass(kind, SAC)
    agent = kind(envs, config, seed=0)
    while agent.total_steps < TRANSITIONS:
        rollout = agent.collect()
        agent.update(rollout, rollout.rewards)
    return partial(agent.update, rollout, rollout.rewards)


def theirs(library: str, env_id: str) -> Turn:
    """Return a turn of Stable-Baselines3 or sbx."""
    if library == "sbx":
        import sbx  # noqa: PLC0415 - optional dependency

        kind: Any = sbx.SAC
    else:
        kind = sb3.SAC
    envs = make_vec_env(env_id, n_envs=1, seed=0)
    model = kind("MlpPolicy", envs, device="cpu", seed=0, learning_starts=TRANSITIONS)
    model.learn(TRANSITIONS)
    return partial(model.train, gradient_steps=GRADIENT_STEPS, batch_size=model.batch_size)


def main() -> None:
    """Measure all sides in turn, and print milliseconds of processor time per gradient step."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--env", default="HalfCheetah-v5", help="default: HalfCheetah-v5")
    parser.add_argument("--turns", type=int, default=20, help="turns per side (default: 20)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    mujoco.set_mju_user_warning(lambda _: None)  # deprecations in Gymnasium's models
    sides = {name: ours(name, options.env) for name in ("default", "autograd", "layer-norm")}
    sides["sb3"] = theirs("sb3", options.env)
    if importlib.util.find_spec("sbx") is not None:
        sides["sbx"] = theirs("sbx", options.env)
    spent: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(options.turns + 1):  # the first one compiles
        for name, side in sides.items():
            started = time.process_time()
            side()
            if turn:
                spent[name].append((time.process_time() - started) / GRADIENT_STEPS * 1e3)
    print("| side | ms per gradient step, median | fastest turn | of SB3's, median |\n|---|---|---|---|")
    reference = statistics.median(spent["sb3"])
    for name, times in spent.items():
        middle = statistics.median(times)
        print(f"| {name} | {middle:.2f} | {min(times):.2f} | {middle / reference:.2f} |")


if __name__ == "__main__":
    main()
