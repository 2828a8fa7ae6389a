"""Settings that do not fit: all of them are found, and others put in their place.

So what a run needs of its environment can be looked at, too, and a command can be offered that works.
"""

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

from teacher.errors import ConfigError
from teacher.settings.addresses import is_http_url
from teacher.settings.config import ScheduleName, TeachConfig, from_options, refuse_existing, slug

ANY_NAME = "NAME"
_OF_THE_ENVIRONMENT = {"env_kwargs", "obs_transform", "max_episode_steps"}
"""Without them nobody knows what would be looked at."""
_PUBLIC_URL = "http://this-machine:8000"
_SHORT = 40  # characters of a name that was too long


def correct_settings(options: Mapping[str, Any]) -> tuple[TeachConfig, ConfigError | None]:
    """Make settings of those options that fit, and of others where they do not.

    Args:
        options: ``{"seed": 3, "reward.members": 5}``, with an environment and a predictor; ``preset``
            may be among them.

    Returns:
        The settings, and all that is refused. Its remedy has the value in the place of each option that does
        not fit; None where it is left out.

    Raises:
        ConfigError: all that is refused, where the environment is unknown because of it, or nothing mends it.
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
            # What is said first counts: the rest may come of a change.
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
    """Find what mends a setting: another value of it, what it needs, or to leave it out (None)."""
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
