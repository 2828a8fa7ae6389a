"""Replacement of invalid settings with valid ones.

Once the settings are valid, the environment can also be checked. One error can then name all problems and
suggest a command that works.
"""

import itertools
import unicodedata
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

from teacher.errors import ConfigError
from teacher.settings.addresses import is_http_url
from teacher.settings.config import ScheduleName, TeachConfig, slug
from teacher.settings.presets import from_options
from teacher.settings.saved_config import refuse_existing

ANY_NAME = "NAME"
_OF_THE_ENVIRONMENT = {"env_kwargs", "obs_transform", "max_episode_steps"}
"""Settings that must be valid before the environment can be checked."""
_PUBLIC_URL = "http://this-machine:8000"
_SHORT = 40  # length that names are cut to if they are too long


def correct_settings(options: Mapping[str, Any]) -> tuple[TeachConfig, ConfigError | None]:
    """Make a configuration from command-line options, replacing invalid values.

    Args:
        options: values such as ``{"seed": 3, "reward.members": 5}``; must include ``env_id`` and
            ``predictor``.

    Returns:
        The configuration, and an error that names all invalid options, or None if all are valid. The error's
        ``remedy`` maps each invalid option to its replacement, or to None if it must be omitted.

    Raises:
        ConfigError: the environment ID is invalid, or an option can't be replaced. The message names all
            invalid options.
    """
    given, said = dict(options), dict[str, str]()
    remedy: dict[str, Any] = {}
    if "name" not in given:
        said["name"] = "-n/--name is required"
        given["name"] = remedy["name"] = ANY_NAME
    while True:
        try:
            config = from_options(given)
            break
        except ConfigError as error:
            refused = {option.removeprefix("--"): text for option, text in error.refused.items()}
            changes: dict[str, Any] = {}
            for name in refused:
                changes.update(_correction(name, given) if name not in said else {name: None})
            # Keep only the first message of an option: its replacement may have caused later ones.
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


def _correction(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return corrections, as values keyed by option, that fix the invalid option called ``name``.

    They may include options that ``name`` requires. A value of None means that the option must be left out.
    """
    value = str(given.get(name))
    changes: dict[str, dict[str, Any]] = {
        "n_labels": {name: 1400},
        "name": {name: slug(_without_accents(value))[:_SHORT] or ANY_NAME},
        "queries.selection": {name: "random"},
    }
    if "n_labels" not in given and given.get("schedule", "exponential") in get_args(ScheduleName):
        changes["schedule"] = {"n_labels": 1400}
    if "public_url" not in given:
        changes["bind"] = {"public_url": _PUBLIC_URL}
    if "bind" in given:
        changes["public_url"] = {name: _PUBLIC_URL}
    if is_http_url(value):
        changes["site_url"] = {"storage": "s3://bucket/prefix"}
    return changes.get(name, {name: None})


def _without_accents(text: str) -> str:
    return "".join(each for each in unicodedata.normalize("NFKD", text) if not unicodedata.combining(each))


def _under_another_name(config: TeachConfig) -> TeachConfig:
    others = (replace(config, name=f"{config.name[:_SHORT]}-{number}") for number in itertools.count(2))
    return next(other for other in others if not other.run_dir.exists())
