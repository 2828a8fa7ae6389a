"""Make the README's pictures.

python scripts/pictures.py labeling                    screenshot of a run's labeling page in Chromium
python scripts/pictures.py learning-curve RUNS_DIR     plot of runs from benchmarks/short_hopper.py --runs-dir
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt
from numpy.typing import NDArray
from playwright.sync_api import sync_playwright
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
PROMPT = "Choose the clip in which the robot moves forward better without falling over."
SIDES = {
    "rl": ("true reward", "#1b6ac9"),
    "synth": ("300 synthetic labels", "#d9730d"),
    "coin": ("300 coin flips", "#8a8f98"),
}


def picture_labeling() -> None:
    """Start a run, open its invitation in Chromium, and take a screenshot of the first pair."""
    with tempfile.TemporaryDirectory() as folder:
        line = ["-p", "human", "-e", "ShortHopper-v1", "-n", "picture", "-L", "20", "-V", "--prompt", PROMPT]
        said = Path(folder) / "said"
        with said.open("w") as output:
            trainer = subprocess.Popen(
                [sys.executable, "-m", "teacher.teach", *line], cwd=folder, stdout=output
            )
        try:
            photograph(wait_for_address(said), PICTURES / "labeling.png")
        finally:
            trainer.terminate()
            trainer.wait()


def wait_for_address(said: Path) -> str:
    """Wait until ``teach`` prints the invitation URL to the file ``said``, and return the URL."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        found = re.search(r"Label here: (\S+)", said.read_text())
        if found:
            return found[1]
        time.sleep(0.5)
    raise TimeoutError(f"teach printed no URL within two minutes: {said.read_text()}")


def photograph(address: str, path: Path) -> None:
    """Save a screenshot of the labeling page with its first pair playing."""
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        page = chromium.new_page(viewport={"width": 1280, "height": 760}, color_scheme="light")
        page.goto(address)
        page.wait_for_selector("main[data-state=judging]", timeout=120_000)
        page.wait_for_timeout(900)
        page.screenshot(path=path)
        chromium.close()


def picture_learning_curve(runs_dir: Path) -> None:
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
    """Make the picture named on the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("picture", choices=("labeling", "learning-curve"))
    parser.add_argument("runs_dir", type=Path, nargs="?")
    arguments = parser.parse_args()
    PICTURES.mkdir(parents=True, exist_ok=True)
    if arguments.picture == "labeling":
        picture_labeling()
    elif arguments.runs_dir is None:
        parser.error(
            "learning-curve needs RUNS_DIR, a folder written by benchmarks/short_hopper.py --runs-dir"
        )
    else:
        picture_learning_curve(arguments.runs_dir)


if __name__ == "__main__":
    main()
