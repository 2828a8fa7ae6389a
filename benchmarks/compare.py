"""Measure five speed ratios on this machine, and print them beside the published ones.

It takes under ten minutes on two cores; run nothing else meanwhile. What is not installed is named and
skipped.

    pip install -e '.[benchmarks,stack]'
    python -m benchmarks.compare
    python -m benchmarks.compare --imitation PYTHON
"""

import argparse
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.clips import INSTALL_MOVIEPY

ROOT = Path(__file__).parents[1]
RATIOS = {
    "PPO": ("SB3", "agents-speed.md", r"\| PPO \| Hopper-v5 \|"),
    "TRPO": ("sb3-contrib", "agents-speed.md", r"\| TRPO \| Hopper-v5 \|"),
    "SAC": ("SB3", "agents-speed.md", r"\| SAC \| Hopper-v5 \|"),
    "reward fit": ("imitation", "reward-speed.md", r"\| `fit` \|"),
    "clips": ("Gymnasium", "clips.md", r"\| ratio \|"),
}
"""The other side of each ratio, and where the published one is the first bold number of a row."""


def published(name: str) -> float:
    """Return the ratio on the page of its benchmark."""
    _, page, row = RATIOS[name]
    text = (ROOT / "docs" / "benchmarks" / page).read_text()
    found = re.search(rf"^{row}.*?\*\*([\d.]+)\*\*", text, re.MULTILINE)
    if found is None:
        raise ValueError(f"docs/benchmarks/{page} has no row {row} with a bold ratio")
    return float(found[1])


def missing(name: str, imitation: str | None) -> str | None:
    """Say what is not installed for a ratio; None if nothing is missing."""
    if name == "reward fit":
        return None if imitation else "pass --imitation PYTHON, an interpreter that has imitation"
    if name == "clips":
        return None if importlib.util.find_spec("moviepy") else INSTALL_MOVIEPY
    package = "sb3_contrib" if name == "TRPO" else "stable_baselines3"
    return None if importlib.util.find_spec(package) else "pip install -e '.[benchmarks]'"


def measured(name: str, folder: Path, imitation: str | None) -> float:
    """Run a benchmark in a process of its own, in a short form, and return its ratio."""
    results = folder / "results.json"
    module, options = {
        "reward fit": ("reward_speed", ["--part", "fit", "--rounds", "3", "--imitation", str(imitation)]),
        "clips": ("clips", ["--repeats", "3", "--json", str(results)]),
    }.get(
        name,
        ("agents_speed", ["--envs", "Hopper-v5", "--algorithms", name.lower(), "--json", str(results)]),
    )
    command = [sys.executable, "-m", f"benchmarks.{module}", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError((done.stderr or done.stdout).strip().splitlines()[-1])
    return ratio_in(name, done.stdout if name == "reward fit" else json.loads(results.read_text()))


def ratio_in(name: str, outcome: Any) -> float:
    """Return how many times as fast as the other side we are, from what a benchmark printed or wrote."""
    if name == "reward fit":
        (ratio,) = re.findall(r"\| imitation / ours \| \*\*([\d.e+]+)", outcome)
        return float(ratio)
    if name == "clips":
        theirs, ours = (
            median(each["cpu"] for each in outcome["pair"][side]) for side in ("gymnasium", "teacher")
        )
        return float(theirs / ours)
    return float(outcome[0]["ours"] / outcome[0]["sb3"])


def main() -> None:
    """Measure each ratio and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--imitation", metavar="PYTHON", help="interpreter that has imitation installed")
    imitation = parser.parse_args().imitation
    table, failed = Table("", "compared with", "published", "here"), False
    console = Console(width=120)
    with tempfile.TemporaryDirectory() as folder:
        for name, (other, _, _) in RATIOS.items():
            here = missing(name, imitation)
            if here is None:
                console.print(f"measuring {name}", highlight=False)
                try:
                    here = f"{measured(name, Path(folder), imitation):.1f} times as fast"
                except RuntimeError as error:
                    here, failed = f"failed: {error}", True
            else:
                here = f"skipped: {here}"
            table.add_row(name, other, f"{published(name):.1f}", here)
    console.print(table, markup=False)
    sys.exit(failed)


if __name__ == "__main__":
    main()
