"""Histogram of the returns of demonstrated episodes."""

from pathlib import Path

import numpy as np

from teacher.data.demonstrations.episodes import Demonstrations
from teacher.extras import require_extra
from teacher.files import saved


def draw_returns(demonstrations: Demonstrations, path: str | Path) -> None:
    """Save a histogram of the demonstrated episodes' returns as a PNG file.

    Raises:
        ConfigError: matplotlib is not installed.
        StorageError: the file cannot be written.
    """
    path = Path(path)
    figures = require_extra("matplotlib.figure", f"the plot {path}", "plots")
    locator = require_extra("matplotlib.ticker", f"the plot {path}", "plots").MaxNLocator
    returns = demonstrations.episode_returns
    mean, margin = returns.mean(), 0.05 * (np.ptp(returns) or abs(returns[0]) or 1)
    figure = figures.Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    bins = "auto" if np.ptp(returns) else [mean - margin / 10, mean + margin / 10]
    axes.hist(returns, bins=bins, color="#4c78a8", edgecolor="white")
    axes.axvline(mean, color="#333333", linestyle="--", linewidth=1)
    axes.set(xlim=(returns.min() - margin, returns.max() + margin), xlabel="return (dashed: mean)")
    axes.set(ylabel="episodes", title=demonstrations.summary().replace("+-", "\N{PLUS-MINUS SIGN}"))
    axes.title.set_fontsize("medium")
    axes.yaxis.set_major_locator(locator(integer=True))
    axes.spines[["top", "right"]].set_visible(False)
    with saved(path, f"the plot {path}") as file:
        figure.savefig(file, format="png")
