"""Plot the learning curves of the runs that benchmarks/short_hopper.py --runs-dir writes.

python scripts/learning_curve.py RUNS_DIR
"""

import argparse
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt
from numpy.typing import NDArray
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
SIDES = {
    "rl": ("true reward", "#1b6ac9"),
    "synth": ("300 synthetic labels", "#d9730d"),
    "coin": ("300 coin flips", "#8a8f98"),
}


def plot_learning_curve(runs_dir: Path) -> None:
    """Plot the median and range over the seeds of the true return against steps."""
    mpl.rcParams.update({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(figsize=(8, 4.2), layout="constrained")
    for side, (title, color) in SIDES.items():
        curves = [read_curve(run) for run in sorted(runs_dir.glob(f"ShortHopper-v1/{side}-*"))]
        steps = np.linspace(5_000, min(curve[0][-1] for curve in curves), 100)
        returns = np.array([np.interp(steps, *curve) for curve in curves])
        axes.fill_between(steps, returns.min(0), returns.max(0), color=color, alpha=0.15, linewidth=0)
        axes.plot(steps, np.median(returns, 0), color=color, linewidth=2)
        axes.annotate(
            title,
            (steps[-1], np.median(returns, 0)[-1]),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            color=color,
        )
    axes.set_xlabel("environment steps")
    axes.set_ylabel("true return per episode")
    axes.set_title(f"ShortHopper-v1: median and range of {len(curves)} seeds", loc="left", fontsize=11)
    axes.xaxis.set_major_formatter(lambda step, _: f"{step / 1000:.0f}k")
    axes.grid(axis="y", alpha=0.25)
    figure.savefig(PICTURES / "learning-curve.png", dpi=140)


def read_curve(run_dir: Path) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the steps and mean true returns from a run's TensorBoard log."""
    events = EventAccumulator(str(run_dir / "tensorboard")).Reload().Scalars("agent/true_reward_per_episode")
    return np.array([float(event.step) for event in events]), np.array([event.value for event in events])


def main() -> None:
    """Plot the runs in the folder named on the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs_dir", type=Path, help="written by benchmarks/short_hopper.py --runs-dir")
    plot_learning_curve(parser.parse_args().runs_dir)


if __name__ == "__main__":
    main()
