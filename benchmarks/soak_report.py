"""Report of the soak test: a table with slopes and verdicts, and a plot."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from benchmarks.chaos import FAULTS

BLOCKS = 12
_T = 2.228  # 97.5 % of Student's t with BLOCKS - 2 degrees of freedom
MOST_MB, MOST_HANDLES = 2.0, 2.0  # maximum growth per hour that counts as flat
_CHANGING = ("postgres",)  # connections, and so processes, are replaced after ten minutes
_COLORS = ("#1b6ac9", "#d9730d", "#2f9e6b", "#3d3d3d", "#7fb2ec", "#a5559b", "#b8a038", "#888888", "#c94040")


@dataclass(frozen=True)
class Slope:
    """Growth per hour with its 95 % interval."""

    an_hour: float
    low: float
    high: float

    def verdict(self, most: float) -> str:
        """Return ``flat`` if the interval is below ``most``, ``grows`` if above 0, else ``unclear``."""
        if self.high <= most:
            return "flat"
        return "grows" if self.low > 0 else "unclear"

    def __str__(self) -> str:
        return f"{self.an_hour:+.1f} ({self.low:+.1f} to {self.high:+.1f})"


@dataclass(frozen=True)
class Program:
    """Measurements of one program over time; arrays have shape ``(samples,)``.

    Attributes:
        name: name of the program.
        processes: number of processes that are counted: those that existed during the whole fit.
        minutes: time of each sample.
        memory_mb: total memory of the counted processes in MB.
        handles: total open files of the counted processes.
    """

    name: str
    processes: int
    minutes: NDArray[np.float64]
    memory_mb: NDArray[np.float64]
    handles: NDArray[np.float64]


def slope(minutes: NDArray[np.float64], values: NDArray[np.float64]) -> Slope | None:
    """Fit a line through the means of :data:`BLOCKS` blocks; return None if there are too few samples.

    Consecutive samples are correlated, so an interval from single samples would be too narrow. Block means
    are nearly independent.
    """
    if len(values) < 2 * BLOCKS:
        return None
    x = np.array([block.mean() for block in np.array_split(minutes / 60, BLOCKS)])
    y = np.array([block.mean() for block in np.array_split(values, BLOCKS)])
    spread = float(((x - x.mean()) ** 2).sum())
    steep = float(((x - x.mean()) * (y - y.mean())).sum()) / spread
    rest = y - y.mean() - steep * (x - x.mean())
    error = math.sqrt(float((rest**2).sum()) / (BLOCKS - 2) / spread)
    return Slope(steep, steep - _T * error, steep + _T * error)


def second_half(minutes: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return a mask of the samples in the second half, which are used for the fit."""
    later: NDArray[np.bool_] = minutes >= minutes[-1] / 2
    return later


def programs_of(lines: Sequence[Mapping[str, Any]]) -> list[Program]:
    """Return the measurements of each program, starting with the first sample that includes it."""
    samples = [line for line in lines if "programs" in line]
    names = dict.fromkeys(name for line in samples for name in line["programs"])
    found = []
    for name in names:
        own = [line for line in samples if line["programs"].get(name)]
        minutes = np.array([line["seconds"] / 60 for line in own])
        counted = _lasting(name, own, minutes)
        sizes: dict[str, list[float]] = defaultdict(list)
        for line in own:
            these = [size for size in line["programs"][name] if counted is None or size[0] in counted]
            sizes["memory"].append(sum(size[1] for size in these) / 1024)
            sizes["handles"].append(sum(size[2] for size in these))
        last = len(counted) if counted is not None else len(own[-1]["programs"][name])
        arrays = np.array(sizes["memory"]), np.array(sizes["handles"], dtype=float)
        found.append(Program(name, last, minutes, *arrays))
    return found


def _lasting(name: str, own: Sequence[Mapping[str, Any]], minutes: NDArray[np.float64]) -> set[int] | None:
    """Return the PIDs that are in every sample of the fit; None means to count all processes."""
    if name in _CHANGING:
        return None
    later = [line for line, is_later in zip(own, second_half(minutes), strict=True) if is_later]
    return set.intersection(*({size[0] for size in line["programs"][name]} for line in later))


def report(lines: Sequence[Mapping[str, Any]]) -> str:
    """Format a table of programs, the list of verdicts, and the labelers' measurements."""
    begun, ended = lines[0], lines[-1]
    cores = ended.get("cores", {})
    titles = ["program", "processes", "cores", "MB at half, at the end", "MB an hour", ""]
    titles += ["files at half, at the end", "files an hour", ""]
    table = ["| " + " | ".join(titles) + " |", "|---" * len(titles) + "|"]
    verdicts: dict[str, list[str]] = defaultdict(list)
    for program in programs_of(lines):
        later = second_half(program.minutes)
        cells = [program.name, str(program.processes), f"{cores.get(program.name, math.nan):.2f}"]
        for what, values, most in (
            ("memory", program.memory_mb, MOST_MB),
            ("files", program.handles, MOST_HANDLES),
        ):
            fitted = slope(program.minutes[later], values[later])
            verdict = fitted.verdict(most) if fitted else "too short"
            verdicts[verdict].append(f"{program.name}'s {what}")
            digits = 1 if what == "memory" else 0
            cells += [f"{values[later][0]:.{digits}f}, {values[-1]:.{digits}f}", str(fitted or ""), verdict]
        table.append("| " + " | ".join(cells) + " |")
    said = [f"{verdict}: {', '.join(of)}" for verdict, of in sorted(verdicts.items())]
    return "\n".join([f"{begun['minutes']:g} minutes", *table, *said, *_met_with(ended)])


def _met_with(ended: Mapping[str, Any]) -> list[str]:
    if "labels" not in ended:
        return ["the run didn't finish"]
    rate = ended["labels"] / ended["label_seconds"]
    times = ", ".join(f"{name} {ended[name]:g} ms" for name in ended if name.startswith(("next p", "save p")))
    slow = ended["slow"]
    most = "".join(f"\n  {count}, at most {ms:,.0f} ms: {text[:90]}" for count, ms, text in slow[:3])
    minutes = ", ".join(f"{minute} ({count})" for minute, count in ended["slow_minutes"].items())
    trainer = ended["trainer"]
    faults = {name: trainer[name] for name in FAULTS if trainer[name]}
    outcome = f"WRONG: {faults}" if faults else "no label was lost, doubled or inverted"
    failures = ", ".join(f"{kind} {count}" for kind, count in ended["failures"].items()) or "none"
    return [
        f"{ended['labels']:,} labels, {rate:.1f} per second; in the database {ended['stored']:,}",
        f"failures: {failures}; responses without a pair: {ended['empty']}",
        times,
        f"statements of more than {ended['slow_ms']} ms: {sum(each[0] for each in slow):,}{most}",
        f"when: {minutes or 'never'}",
        f"the trainer asked for {trainer['asked']} labels and has {trainer['reached']}; {outcome}",
    ]


def draw(lines: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Plot memory and open files of each program against time."""
    mpl.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    figure, (memory, handles) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    for program, color in zip(programs_of(lines), _COLORS, strict=False):
        memory.plot(program.minutes, program.memory_mb, color=color, label=program.name, linewidth=1.4)
        handles.plot(program.minutes, program.handles, color=color, linewidth=1.4)
    for axes, title in ((memory, "Private memory, MB"), (handles, "Open files")):
        axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
        axes.set_xlabel("minutes")
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.legend(loc="outside right center", frameon=False)
    figure.savefig(path, dpi=110)
    plt.close(figure)
