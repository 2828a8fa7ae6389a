"""Extending a run by more steps or labels: ``teach --resume RUN -t 2e6 -l 600``."""

import dataclasses
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from teacher.data.checkpoint import CHECKPOINT_NAME, load_state, restoring
from teacher.errors import ConfigError
from teacher.settings.config import TeachConfig
from teacher.settings.options import RunStage
from teacher.settings.saved_config import load_config

GROWING: Mapping[str, str] = {"num_timesteps": "-t", "n_labels": "-l"}
"""Flags of the settings that may be increased when a run is resumed, by name."""


def load_extended(run_dir: Path, wanted: Mapping[str, Any]) -> tuple[TeachConfig, uuid.UUID]:
    """Return the settings of a run, with more steps or labels than before, and its id.

    The label schedule up to the current step stays as it was; the added labels are spread over the remaining
    steps by the same schedule. Nothing is written.

    Args:
        run_dir: the run's folder.
        wanted: new values of ``num_timesteps``, ``n_labels``, both or neither; current values change nothing.

    Raises:
        ConfigError: a value is lower than before, or cannot be set for this run.
    """
    config, run_id = load_config(run_dir)
    for name, value in wanted.items():
        _refuse_to_shrink(config, name, value)
    wanted = {name: value for name, value in wanted.items() if value != getattr(config, name)}
    if not wanted:
        return config, run_id
    step = steps_made(config)
    end = wanted.get("num_timesteps", config.num_timesteps)
    if step >= end:
        said = "-t: expected more" if "num_timesteps" in wanted else "-l: labels are collected in training"
        raise ConfigError(
            f"{said}; {config.run_dir} is at step {step:,} already; give it more steps, such as -t {2 * step}"
        )
    stage = RunStage(num_timesteps=config.num_timesteps, n_labels=config.n_labels, step=step)
    grown = dataclasses.replace(
        config,
        **wanted,
        pretrain_labels=config.num_pretrain_labels,  # its default is a share of n_labels, which grows
        stages=(*config.stages, stage) if step else config.stages,
    )
    return grown, run_id


def _refuse_to_shrink(config: TeachConfig, name: str, value: Any) -> None:
    """Raise :class:`ConfigError` if the setting cannot have this value or it is lower than before."""
    flag, present = GROWING[name], getattr(config, name)
    if name == "n_labels" and config.predictor == "rl":
        raise ConfigError(f"{flag}: {config.run_dir} learns from the true reward and asks for no labels")
    if present is None:
        raise ConfigError(
            f"{flag}: {config.run_dir} has no label limit, it asks by time; give it more steps with -t"
        )
    if value < present:
        raise ConfigError(
            f"{flag}: expected at least {present:,}, the value of {config.run_dir}, got {value:,}; "
            "a run can be extended but not shortened; stop it early with Ctrl-C"
        )


def steps_made(config: TeachConfig) -> int:
    """Return the environment steps in a run's checkpoint, 0 without one."""
    checkpoint = config.run_dir / CHECKPOINT_NAME
    if not checkpoint.exists():
        return 0
    with restoring(checkpoint):
        return int(load_state(checkpoint, with_arrays=False)["agent"]["total_steps"])
