"""What the benchmarks of returns do with their runs: learning curves, kept lines, and what many seeds say.

Scores are summarised as Agarwal et al. 2021 ("Deep Reinforcement Learning at the Edge of the Statistical
Precipice") propose: interquartile means with percentile bootstrap intervals over the seeds.
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
    """Mean return of the episodes that ended in each twentieth of a run."""

    steps: int
    returns: list[list[float]] = field(default_factory=lambda: [[] for _ in range(CURVE_POINTS)])

    def add(self, step: int, episode_return: float) -> None:
        """Take in an episode that ended when the run had made ``step`` steps."""
        point = (step - 1) * CURVE_POINTS // self.steps
        self.returns[min(point, CURVE_POINTS - 1)].append(episode_return)

    def means(self) -> list[float | None]:
        """None where no episode ended."""
        return [round(float(np.mean(some)), 3) if some else None for some in self.returns]


def curve_steps(steps: int) -> NDArray[np.float64]:
    """Where the points of a curve over ``steps`` steps lie: the middles of the twentieths."""
    return (np.arange(CURVE_POINTS) + 0.5) * steps / CURVE_POINTS


def load(path: Path) -> list[dict[str, Any]]:
    """The results that an earlier call left, none where there is no such file.

    Ends the program where a line is none, as when a machine went down while it was written.
    """
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return [_result(path, number, line) for number, line in enumerate(lines, 1)]


def _result(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        result = json.loads(line)
    except (ValueError, RecursionError):
        result = None
    if not isinstance(result, dict):
        sys.exit(f"{path} line {number}: expected a result as JSON; remove the line")
    return result


def append(path: Path, result: Mapping[str, Any]) -> None:
    """Keep one more result."""
    with path.open("a") as file:
        file.write(json.dumps(result) + "\n")


def iqm(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean of the middle half along the last axis; of five values, of the middle three."""
    cut = values.shape[-1] // 4
    means: NDArray[np.float64] = np.sort(values)[..., cut : values.shape[-1] - cut].mean(axis=-1)
    return means


def bootstrap(values: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    """IQMs ``(RESAMPLES, ...)`` of ``values`` ``(..., seeds)`` over seeds drawn with replacement."""
    drawn = rng.integers(values.shape[-1], size=(RESAMPLES, values.shape[-1]))
    return iqm(np.moveaxis(values[..., drawn], -2, 0))


def interval(resampled: NDArray[np.float64]) -> tuple[float, float]:
    """The middle 95 % of bootstrapped values."""
    low, high = np.quantile(resampled, (0.025, 0.975))
    return float(low), float(high)
