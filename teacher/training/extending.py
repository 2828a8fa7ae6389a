"""Give an earlier run more steps or more labels: ``teach --resume RUN -t 2e6 -l 600``."""

import dataclasses
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from teacher.data.checkpoint import CHECKPOINT_NAME, load_state, restoring
from teacher.errors import ConfigError
from teacher.settings.config import TeachConfig, load_config
from teacher.settings.options import RunStage

GROWING: Mapping[str, str] = {"num_timesteps": "-t", "n_labels": "-l"}
"""The settings of a run that may grow, and their flags."""


def load_extended(run_dir: Path, wanted: Mapping[str, Any]) -> tuple[TeachConfig, uuid.UUID]:
    """Read the settings of a run, with more steps or labels than before.

    What was due before the present step stays as it was; the labels that are added are spread over the steps
    that are left as the first ones were over the first steps. Nothing is written.

    Args:
        run_dir: of the run.
        wanted: ``num_timesteps``, ``n_labels``, both or neither; what they are already changes nothing.

    Raises:
        ConfigError: one of them would shrink, or cannot be set for this run.
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
        said = "-t: expected more" if "num_timesteps" in wanted else "-l: labels are asked in training"
        raise ConfigError(
            f"{said}; {config.run_dir} has made {step:,} steps already; give it more, such as -t {2 * step}"
        )
    stage = RunStage(num_timesteps=config.num_timesteps, n_labels=config.n_labels, step=step)
    grown = dataclasses.replace(
        config,
        **wanted,
        pretrain_labels=config.num_pretrain_labels,  # else a quarter of more would be more
        stages=(*config.stages, stage) if step else config.stages,
    )
    return grown, run_id


def _refuse_to_shrink(config: TeachConfig, name: str, value: Any) -> None:
    """Raise :class:`ConfigError` unless the setting may have this value, which is no less than now."""
    flag, present = GROWING[name], getattr(config, name)
    if name == "n_labels" and config.predictor == "rl":
        raise ConfigError(f"{flag}: {config.run_dir} learns from the true reward and asks for no labels")
    if present is None:
        raise ConfigError(
            f"{flag}: {config.run_dir} asks by time for as long as it is trained; give it more steps, with -t"
        )
    if value < present:
        raise ConfigError(
            f"{flag}: expected {present:,} or more, as {config.run_dir} has it, got {value:,}; a run can be "
            "given more but not less, and stops early with Ctrl-C"
        )


def steps_made(config: TeachConfig) -> int:
    """Environment steps of a run when it was saved last; 0 where it never was."""
    checkpoint = config.run_dir / CHECKPOINT_NAME
    if not checkpoint.exists():
        return 0
    with restoring(checkpoint):
        return int(load_state(checkpoint, with_arrays=False)["agent"]["total_steps"])
