"""The file config.json in a run's folder: a run's settings and ID."""

import dataclasses
import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from teacher.errors import ConfigError
from teacher.files import atomic_write
from teacher.settings.checks import refuse_newer
from teacher.settings.config import PARTS, TeachConfig, from_fields
from teacher.settings.options import REWARD_BEFORE, with_new_names
from teacher.settings.unused import without_unused

CONFIG_NAME = "config.json"


def refuse_existing(config: TeachConfig) -> None:
    """Raise :class:`ConfigError` if a run of this name exists already."""
    if (config.run_dir / CONFIG_NAME).exists():
        raise ConfigError(
            f"{config.run_dir} exists; continue it with teach --resume {config.run_dir}, or choose another -n"
        )


def save_config(config: TeachConfig, run_id: uuid.UUID) -> None:
    """Write ``config.json`` into the run directory atomically.

    Paths are written as absolute, so that a run resumed in another folder finds the same site and clips, and
    the initial policy and demonstrations are identified.
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
    """Read ``config.json`` of a run. Raises :class:`ConfigError` if it is missing or invalid."""
    path = run_dir / CONFIG_NAME
    try:
        data = json.loads(path.read_text())
        run_id = uuid.UUID(data.pop("run_id"))
        # The folder may have been moved since it was written.
        data["runs_dir"] = str(run_dir.resolve().parent.parent)
        refuse_newer(path, TeachConfig, data)
        data["reward"] = with_new_names(data.get("reward", {}))
        for part, kind in PARTS.items():
            refuse_newer(path, kind, data.get(part, ()), f"{part}.")
        data["reward"] = REWARD_BEFORE | data["reward"]
        config = from_fields(_without_unused(data))
    except FileNotFoundError as error:
        raise ConfigError(f"expected a run directory with a config.json; {path} does not exist") from error
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{path} is not a run's configuration: {error}") from error
    if config.run_dir.resolve() != run_dir.resolve():
        raise ConfigError(f"{run_dir} was renamed; expected it to end in {config.slug}/{config.name}")
    return config, run_id


def _without_unused(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return saved settings without those that have no effect; earlier versions accepted and saved them."""
    used = without_unused(data, data["predictor"])
    if "queries" in used:
        queries = used["queries"]
        if queries.get("selection") == "random":
            queries = without_unused(queries, "random selection")
        if not queries.get("exploration_frac"):
            queries = without_unused(queries, "no exploration")
        used["queries"] = queries
    if used.get("reward", {}).get("converge"):
        used["reward"] = without_unused(used["reward"], "converge")
    if used.get("segment_steps") is not None:
        used.pop("segment_seconds", None)
    return used
