"""Teach a reacher from Python with labels from its true reward, then reopen the finished run.

Opening the directory of a run restores its policy, predictor and labels.
"""

import sys
from pathlib import Path

from teacher import Round, TeachConfig, open_run, train

SHORT = "--short" in sys.argv


def report(ended: Round) -> None:
    """Print the rank correlation of predicted and true returns after each round."""
    correlation = ended.values.get("predictor/rank_correlation", float("nan"))
    print(f"step {ended.step}: correlation with the true reward {correlation:.2f}")


config = TeachConfig(
    env_id="teacher/ShortReacher-v1",
    predictor="synth",
    name="from-python",
    n_labels=20 if SHORT else 200,
    segment_steps=5,
    num_timesteps=2_048 if SHORT else 100_000,
    pretrain_iters=100 if SHORT else 10_000,
    no_videos=True,
)
with open_run(config) as run:
    train(run, on_round=report)
with open_run(Path(config.run_dir)) as run:
    state, _ = run.envs.reset(seed=1)
    print(f"action after {run.agent.total_steps} steps: {run.agent.act(state, deterministic=True)[0]}")
