"""A run's ``config.json``, which contains its settings and ID, and TOML files (``teach --config``)."""

import dataclasses
import difflib
import json
import tomllib
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from teacher.errors import ConfigError, one_line, short_repr
from teacher.files import atomic_write
from teacher.settings.checks import refuse_newer
from teacher.settings.config import NO_OPTIONS, PARTS, TeachConfig, from_fields
from teacher.settings.options import REWARD_BEFORE, current_settings
from teacher.settings.unused import query_modes, without_unused

CONFIG_NAME = "config.json"


def refuse_existing(config: TeachConfig) -> None:
    """Raise :class:`ConfigError` if a run with this environment and name already exists."""
    if (config.run_dir / CONFIG_NAME).exists():
        raise ConfigError(
            f"{config.run_dir} already exists; continue it with teach --resume {config.run_dir}, or choose a "
            "different name with -n"
        )


def save_config(config: TeachConfig, run_id: uuid.UUID) -> None:
    """Write ``config.json`` into the run's folder atomically.

    Paths are saved as absolute paths, so that the run can be resumed from any folder.
    """
    data = {"run_id": str(run_id), **dataclasses.asdict(config)}
    for name in ("state_dir", "policy", "demonstrations"):
        if data[name] is not None:
            data[name] = str(Path(data[name]).absolute())
    if config.storage is not None and "://" not in config.storage:
        data["storage"] = str(Path(config.storage).absolute())
    with atomic_write(config.run_dir / CONFIG_NAME) as file:
        file.write(json.dumps(data, indent=2).encode() + b"\n")


def load_config(run_dir: Path) -> tuple[TeachConfig, uuid.UUID]:
    """Read a run's ``config.json``; return the run's settings and ID.

    Raises:
        ConfigError: the file is missing or invalid, or the run's folder was renamed.
    """
    path = run_dir / CONFIG_NAME
    if run_dir.is_file():
        raise ConfigError(f"{run_dir} is a file; pass its run's folder, {run_dir.parent}")
    try:
        data = json.loads(path.read_text())
        run_id = uuid.UUID(data.pop("run_id"))
        # The folder may have been moved since it was written.
        data["runs_dir"] = str(run_dir.resolve().parent.parent)
        refuse_newer(path, TeachConfig, data)
        data["reward"] = current_settings(data.get("reward", {}))
        for part, kind in PARTS.items():
            refuse_newer(path, kind, data.get(part, ()), f"{part}.")
        data["reward"] = REWARD_BEFORE | data["reward"]
        config = from_fields(_without_unused(data))
    except FileNotFoundError as error:
        raise ConfigError(f"{path} does not exist; pass a run's folder, such as runs/ENV/NAME") from error
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{path} is not a valid config.json of a run: {error}") from error
    if config.run_dir.resolve() != run_dir.resolve():
        raise ConfigError(f"{run_dir} was renamed; rename it back to {config.slug}/{config.name}")
    return config, run_id


def _without_unused(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the saved settings without unused ones, which earlier versions of RL-Teacher allowed."""
    used = without_unused(data, data["predictor"])
    if "queries" in used:
        queries = used["queries"]
        for mode in query_modes(queries.get("selection"), queries.get("exploration_frac")):
            queries = without_unused(queries, mode)
        used["queries"] = queries
    if used.get("reward", {}).get("converge"):
        used["reward"] = without_unused(used["reward"], "converge")
    if used.get("segment_steps") is not None:
        used.pop("segment_seconds", None)
    return used


def read_config_file(path: Path) -> dict[str, Any]:
    """Return the options in a TOML file, such as ``{"seed": 3, "reward.members": 5, "agent.gamma": 0.9}``.

    Each of the tables ``[reward]``, ``[queries]`` and ``[agent]`` contains the options prefixed with its
    name. The key ``name`` in ``[agent]`` selects the RL algorithm.
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
