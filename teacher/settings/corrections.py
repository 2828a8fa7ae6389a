"""Replacement of invalid settings with valid ones, and the ``teach`` command that settings correspond to.

Once the settings are valid, the environment can also be checked. One error can then name all problems and
suggest a command that works.
"""

import dataclasses
import itertools
import shlex
import typing
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, get_args

from teacher.errors import ConfigError
from teacher.settings.addresses import SiteSettings, is_http_url
from teacher.settings.config import NO_OPTIONS, PARTS, ScheduleName, TeachConfig, slug
from teacher.settings.config_files import refuse_existing
from teacher.settings.presets import PRESETS, from_options

ANY_NAME = "run"
_OF_THE_ENVIRONMENT = {"env_kwargs", "obs_transform", "max_episode_steps"}
"""Settings that must be valid before the environment can be checked."""
_PUBLIC_URL, _STORAGE = PLACEHOLDERS = ("http://this-machine:8000", "s3://bucket/prefix")
"""Values in corrected commands that users have to replace."""
_SHORT = 40  # length that names are cut to if they are too long


def correct_settings(options: Mapping[str, Any]) -> tuple[TeachConfig, ConfigError | None]:
    """Make a configuration from command-line options, replacing invalid values.

    Args:
        options: values such as ``{"seed": 3, "reward.members": 5}``; must include ``env_id`` and
            ``predictor``.

    Returns:
        The configuration, and an error that names all invalid options, or None if all are valid. The error's
        ``remedy`` maps each invalid option to its replacement, or to None if it must be omitted.
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
        if "name" not in said:
            said["run_dir"] = str(error)
        others = (replace(config, name=f"{config.name[:_SHORT]}-{number}") for number in itertools.count(2))
        config = next(other for other in others if not other.run_dir.exists())
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
        changes["site_url"] = {"storage": _STORAGE}
    return changes.get(name, {name: None})


def _without_accents(text: str) -> str:
    return "".join(each for each in unicodedata.normalize("NFKD", text) if not unicodedata.combining(each))


def command_of(config: TeachConfig, changes: Mapping[str, Any]) -> str:
    """Return the ``teach`` command that starts a run with ``config``, modified by ``changes``.

    Options at their defaults are omitted, as are options that ``changes`` sets to None. The changed
    configuration is not validated, because a value may be a placeholder.
    """
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    values = {**values, **changes}
    preset = next((name for name, options in PRESETS.items() if options and _sets(options, values)), None)
    words = ["teach", *_words(TeachConfig, values, known=PRESETS[preset] if preset else {})]
    return shlex.join([*words, *(("--preset", preset) if preset else ())])


def _sets(options: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    def value_of(name: str) -> Any:
        part, dot, rest = name.partition(".")
        if dot and part == "agent":
            return values["agent_settings"].get(rest)
        return getattr(values[part], rest) if dot else values[part]

    return all(value_of(name) == value for name, value in options.items())


def _words(
    settings: type, values: Mapping[str, Any], prefix: str = "", known: Mapping[str, Any] | None = None
) -> Iterator[str]:
    """Yield the command's options: those that differ from the defaults and are not set by a preset.

    ``known`` contains the preset's options.
    """
    known = known or {}
    hints = typing.get_type_hints(settings, include_extras=True)
    of_site = SiteSettings.__dataclass_fields__
    for field in sorted(
        dataclasses.fields(settings), key=lambda field: (field.name != "predictor", field.name in of_site)
    ):
        value = values[field.name]
        if field.name in PARTS and not prefix:
            yield from _words(PARTS[field.name], vars(value), f"{field.name}.", known)
        elif field.name == "agent_settings":
            for name, setting in value.items():
                if f"agent.{name}" not in known:
                    yield from (f"--agent.{name}", _said(setting))
        elif f"{prefix}{field.name}" in known:
            continue
        elif field.name not in NO_OPTIONS and value != field.default and value is not None:
            yield _option(field.name, get_args(hints[field.name]), prefix)
            if value is not True:
                yield _said(value)


def _option(name: str, annotations: tuple[Any, ...], prefix: str) -> str:
    flags = (one for one in annotations[1:] if isinstance(one, str) and one.startswith("-"))
    return next((flag for flag in flags if " " not in flag), f"--{prefix}{name}")


def _said(value: object) -> str:
    """Return a value as users type it: 4000 as ``4000``, a million as ``1e6``."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1000 and value % 1000 == 0:
        digits = str(value).rstrip("0")
        if len(digits) == 1:
            return f"{digits}e{len(str(value)) - 1}"
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)
