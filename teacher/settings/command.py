"""Conversion of settings to an equivalent ``teach`` command."""

import dataclasses
import shlex
import typing
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from teacher.settings.config import NO_OPTIONS, PARTS, TeachConfig
from teacher.settings.presets import PRESETS


def command_of(config: TeachConfig, changes: Mapping[str, Any]) -> str:
    """Return the ``teach`` command that starts a run with ``config``, modified by ``changes``.

    Options at their defaults are omitted, as are options that ``changes`` sets to None. The changed
    configuration is not validated, because a value may be a placeholder such as ``NAME``.
    """
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    values = {**values, **changes}
    preset = next((name for name, options in PRESETS.items() if options and _sets(options, values)), None)
    words = ["teach", *_words(TeachConfig, values, known=PRESETS[preset] if preset else {})]
    return shlex.join([*words, *(("--preset", preset) if preset else ())])


def _sets(options: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Return True if the settings match all values of a preset."""

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
    for field in sorted(dataclasses.fields(settings), key=lambda field: field.name != "predictor"):
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
    """Return the short flag of a field if it has one, else ``--prefix.name``."""
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
