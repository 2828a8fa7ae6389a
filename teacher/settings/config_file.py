"""Reader for TOML settings files (``teach --config``)."""

import dataclasses
import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from teacher.errors import ConfigError, one_line, short_repr
from teacher.settings.config import NO_OPTIONS, PARTS, TeachConfig


def read_config_file(path: Path) -> dict[str, Any]:
    """Return the options in a TOML file, such as ``{"seed": 3, "reward.members": 5, "agent.gamma": 0.9}``.

    Each of the tables ``[reward]``, ``[queries]`` and ``[agent]`` contains the options prefixed with its
    name. The key ``name`` in ``[agent]`` selects the RL algorithm.

    Raises:
        ConfigError: the file can't be read, or has an unknown option or a value of an unsupported type.
    """
    try:
        content = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"--config: can't read {path}: {error.strerror or error}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"--config: {path} is not valid TOML: {one_line(error)}") from error
    options: dict[str, Any] = {}
    for name, value in content.items():
        if not isinstance(value, Mapping):
            options[name] = value
            continue
        for inner, setting in value.items():
            options["agent" if (name, inner) == ("agent", "name") else f"{name}.{inner}"] = setting
    of_parts = (f"{part}.{name}" for part, kind in PARTS.items() for name in _names(kind))
    known = {"preset", *_names(TeachConfig), *of_parts}
    for name, value in options.items():
        if name not in known and not name.startswith("agent."):
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else "; teach --help-all lists all options"
            raise ConfigError(f"--config: {path}: unknown option {name}{hint}")
        if not isinstance(value, (str, int, float, bool, list)):
            found = short_repr(value)
            raise ConfigError(
                f"--config: {path}: {name} must be a string, number, boolean or array, not {found}"
            )
    return options


def _names(settings: type) -> set[str]:
    return {field.name for field in dataclasses.fields(settings)} - NO_OPTIONS
