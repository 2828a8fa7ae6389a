"""Extension of a saved run with more steps or labels, as in ``teach --resume RUN -t 2e6 -l 600``.

The kind of question may change too.
"""

import dataclasses
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from teacher.data.checkpoint import CHECKPOINT_NAME, load_state, restoring
from teacher.errors import ConfigError
from teacher.settings.addresses import RATING_WORDS
from teacher.settings.config import TeachConfig
from teacher.settings.config_files import load_config
from teacher.settings.options import RunStage

GROWING: Mapping[str, str] = {"num_timesteps": "-t", "n_labels": "-l"}
"""Settings that may be increased when a run is resumed, with their command-line flags."""
CHANGING = (*GROWING, "feedback", *RATING_WORDS)
"""Settings that may change when a run is resumed."""


def load_extended(run_dir: Path, wanted: Mapping[str, Any]) -> tuple[TeachConfig, uuid.UUID]:
    """Return a saved run's settings, changed as requested, and the run's ID.

    The label schedule up to the current step doesn't change. The added labels are spread over the remaining
    steps by the same kind of schedule. Nothing is written to disk.

    Args:
        wanted: new values of settings in :data:`CHANGING`; may be empty. Passing a setting's current value
            changes nothing.
    """
    config, run_id = load_config(run_dir)
    for name in filter(wanted.__contains__, GROWING):
        _refuse_to_shrink(config, name, wanted[name])
    changes_kind = wanted.get("feedback", config.feedback) != config.feedback
    wanted = {**dict.fromkeys(RATING_WORDS if changes_kind else ()), **wanted}
    wanted = {name: value for name, value in wanted.items() if value != getattr(config, name)}
    if not wanted:
        return config, run_id
    step = steps_made(config)
    end = wanted.get("num_timesteps", config.num_timesteps)
    if step >= end:
        flag = "--feedback: new questions need more training steps"
        flag = "-l: more labels need more training steps" if "n_labels" in wanted else flag
        flag = "-t is too low" if "num_timesteps" in wanted else flag
        raise ConfigError(
            f"{flag}: {config.run_dir} is already at step {step:,}; pass a higher -t, such as -t {2 * step}"
        )
    stage = RunStage(num_timesteps=config.num_timesteps, n_labels=config.n_labels, step=step)
    grows = step > 0 and bool(GROWING.keys() & wanted)
    if config.predictor != "rl":  # the default is a share of n_labels, which grows
        wanted |= {"pretrain_labels": config.num_pretrain_labels}
    grown = dataclasses.replace(
        config,
        **wanted,
        stages=(*config.stages, stage) if grows else config.stages,
    )
    return grown, run_id


def _refuse_to_shrink(config: TeachConfig, name: str, value: Any) -> None:
    flag, present = GROWING[name], getattr(config, name)
    if name == "n_labels" and config.predictor == "rl":
        raise ConfigError(
            f"{flag}: {config.run_dir} learns from the true reward and uses no labels; leave out {flag}"
        )
    if present is None:
        raise ConfigError(
            f"{flag}: {config.run_dir} has no label limit; to get more labels, add steps with -t"
        )
    if value < present:
        raise ConfigError(
            f"{flag}: {value:,} is less than {present:,}, the current value in {config.run_dir}; runs "
            "can't be shortened (to end a run early, press Ctrl-C while it is running)"
        )


def steps_made(config: TeachConfig) -> int:
    """Return the number of environment steps in a run's checkpoint; 0 if there is no checkpoint."""
    checkpoint = config.run_dir / CHECKPOINT_NAME
    if not checkpoint.exists():
        return 0
    with restoring(checkpoint):
        return int(load_state(checkpoint, with_arrays=False)["agent"]["total_steps"])
