"""Learning curves, results files in JSON Lines, and statistics over seeds, shared by the benchmarks.

Scores follow Agarwal et al. 2021 ("Deep Reinforcement Learning at the Edge of the Statistical Precipice"):
interquartile means with percentile bootstrap intervals over the seeds.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

CURVE_POINTS = 20
RESAMPLES = 10_000


@dataclass
class Curve:
    """Learning curve: the returns of the episodes that ended in each twentieth of a run."""

    steps: int
    returns: list[list[float]] = field(default_factory=lambda: [[] for _ in range(CURVE_POINTS)])

    def add(self, step: int, episode_return: float) -> None:
        """Add an episode that ended after ``step`` steps of the run."""
        point = (step - 1) * CURVE_POINTS // self.steps
        self.returns[min(point, CURVE_POINTS - 1)].append(episode_return)

    def means(self) -> list[float | None]:
        """Return the mean return of each twentieth, None if no episode ended in it."""
        return [round(float(np.mean(some)), 3) if some else None for some in self.returns]


def curve_steps(steps: int) -> NDArray[np.float64]:
    """Return the x values of a curve over ``steps`` steps: the middle of each twentieth."""
    return (np.arange(CURVE_POINTS) + 0.5) * steps / CURVE_POINTS


def load(path: Path) -> list[dict[str, Any]]:
    """Return the results in a file, or an empty list if the file doesn't exist.

    Exits the program if a line is invalid, which happens if the machine crashed while writing it.
    """
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return [_result(path, number, line) for number, line in enumerate(lines, 1)]


def _result(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        result = json.loads(line)
    except (ValueError, RecursionError):
        result = None
    if not isinstance(result, dict):
        sys.exit(f"{path} line {number}: not a JSON object; remove the line")
    return result


def append(path: Path, result: Mapping[str, Any]) -> None:
    """Append a result to a JSON Lines file."""
    with path.open("a") as file:
        file.write(json.dumps(result) + "\n")


def iqm(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the interquartile mean along the last axis; for five values, the mean of the middle three."""
    cut = values.shape[-1] // 4
    means: NDArray[np.float64] = np.sort(values)[..., cut : values.shape[-1] - cut].mean(axis=-1)
    return means


def bootstrap(values: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    """Return bootstrapped IQMs of shape ``(RESAMPLES, ...)`` for ``values`` of shape ``(..., seeds)``."""
    drawn = rng.integers(values.shape[-1], size=(RESAMPLES, values.shape[-1]))
    return iqm(np.moveaxis(values[..., drawn], -2, 0))


def interval(resampled: NDArray[np.float64]) -> tuple[float, float]:
    """Return the 95 % interval of bootstrapped values, from 2.5 % to 97.5 %."""
    low, high = np.quantile(resampled, (0.025, 0.975))
    return float(low), float(high)
