"""Correction of invalid settings: all of them are collected and replaced by valid ones.

With the replacements, the environment can be checked too, and the error can offer a command that works.
"""

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

from teacher.errors import ConfigError
from teacher.settings.addresses import is_http_url
from teacher.settings.config import ScheduleName, TeachConfig, from_options, slug
from teacher.settings.saved_config import refuse_existing

ANY_NAME = "NAME"
_OF_THE_ENVIRONMENT = {"env_kwargs", "obs_transform", "max_episode_steps"}
"""Settings without which the environment can't be checked."""
_PUBLIC_URL = "http://this-machine:8000"
_SHORT = 40  # characters that a too long name is cut to


def correct_settings(options: Mapping[str, Any]) -> tuple[TeachConfig, ConfigError | None]:
    """Make settings from options, with replacements of invalid ones.

    Args:
        options: such as ``{"seed": 3, "reward.members": 5}``, with an environment and a predictor;
            ``preset`` may be among them.

    Returns:
        The settings, and an error for all invalid options, None if there are none. The error's remedy has
        the replacement of each invalid option, None to leave it out.

    Raises:
        ConfigError: the environment is unknown, or an option can't be corrected; names all invalid ones.
    """
    given, said = dict(options), dict[str, str]()
    remedy: dict[str, Any] = {}
    if "name" not in given:
        said["name"] = "expected -n/--name"
        given["name"] = remedy["name"] = ANY_NAME
    while True:
        try:
            config = from_options(given)
            break
        except ConfigError as error:
            refused = {option.removeprefix("--"): text for option, text in error.refused.items()}
            changes: dict[str, Any] = {}
            for name in refused:
                changes.update(_mend(name, given) if name not in said else {name: None})
            # Only the first message of an option counts: later ones may result from its replacement.
            said |= {name: text for name, text in refused.items() if name not in said}
            stuck = not refused or all(given.get(name) == value for name, value in changes.items())
            if stuck or "env_id" in refused:
                raise ConfigError("; ".join(said.values()) or str(error)) from error
            remedy |= changes
            given = {name: value for name, value in {**given, **changes}.items() if value is not None}
    if _OF_THE_ENVIRONMENT & said.keys():
        raise ConfigError("; ".join(said.values()))
    try:
        refuse_existing(config)
    except ConfigError as error:
        said["run_dir"] = str(error)
        config = _under_another_name(config)
        remedy["name"] = config.name
    return config, ConfigError("; ".join(said.values()), remedy) if said else None


def _mend(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes that fix a setting: another value, an option that it needs, or None to omit it."""
    value = str(given.get(name))
    mends: dict[str, dict[str, Any]] = {
        "n_labels": {name: 1400},
        "name": {name: slug(value)[:_SHORT] or ANY_NAME},
        "queries.selection": {name: "random"},
    }
    if "n_labels" not in given and given.get("schedule", "exponential") in get_args(ScheduleName):
        mends["schedule"] = {"n_labels": 1400}
    if "reward.shaping" in given:
        mends["reward.inputs"] = {name: "state,next_state,terminated"}
    if "public_url" not in given:
        mends["bind"] = {"public_url": _PUBLIC_URL}
    if "bind" in given:
        mends["public_url"] = {name: _PUBLIC_URL}
    if is_http_url(value):
        mends["site_url"] = {"storage": "s3://bucket/prefix"}
    return mends.get(name, {name: None})


def _under_another_name(config: TeachConfig) -> TeachConfig:
    others = (replace(config, name=f"{config.name[:_SHORT]}-{number}") for number in itertools.count(2))
    return next(other for other in others if not other.run_dir.exists())
