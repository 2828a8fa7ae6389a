"""Reward predictor files: everything needed to use a predictor or continue fitting it, without pickle."""

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gymnasium import spaces

from teacher.data.checkpoint import State, load_state, save_state
from teacher.datasets.preference_files import describe_space, require_environment, require_version, space_of
from teacher.errors import ConfigError, DataError, one_line
from teacher.reward.modules import MakeNetwork
from teacher.reward.predictor import RewardPredictor
from teacher.settings.checks import refuse_newer
from teacher.settings.options import OLD_NAMES, REWARD_BEFORE, RewardConfig, with_new_names

Space = spaces.Space[Any]

_FORMAT = "rl-teacher predictor"
_VERSION = 3  # averaged images, which earlier versions would not average
_CENTERED = 2  # centered inputs, which earlier versions would silently not center
_EXPECTED = "a file from teach fit, teach export --predictor or save_predictor"
_SAID = ("version", "observation_space", "action_space", "reward")


def save_predictor(
    path: str | Path,
    predictor: RewardPredictor,
    observation_space: Space,
    action_space: Space,
    *,
    new: bool = False,
) -> None:
    """Write a predictor into an ``.npz`` file, atomically.

    Args:
        path: the file.
        predictor: the predictor to save.
        observation_space: of one environment.
        action_space: of one environment.
        new: never replace a file, even one that was just written by another process.

    Raises:
        ConfigError: with ``new``, the file exists.
        StorageError: the file cannot be written.
    """
    about = {
        "format": _FORMAT,
        "version": _version_of(predictor),
        "observation_space": describe_space(observation_space),
        "action_space": describe_space(action_space),
        "reward": dataclasses.asdict(predictor.config),
        "env_id": predictor.env_id,
        "own_network": predictor.own_network is not None,
    }
    save_state(Path(path), {"about": about, "predictor": predictor.state_dict()}, new=new)


def load_predictor(
    path: str | Path,
    observation_space: Space | None = None,
    action_space: Space | None = None,
    device: str = "cpu",
    network: MakeNetwork | None = None,
    *,
    env_id: str | None = None,
) -> RewardPredictor:
    """Load a predictor with the settings it was saved with.

    Args:
        path: a file of :func:`save_predictor`.
        observation_space: refuse a predictor with another observation space; default: the file's.
        action_space: refuse a predictor with another action space; default: the file's.
        device: torch device.
        network: the function that made the predictor's custom networks, if it has any.
        env_id: refuse a predictor of another environment; see
            :func:`~teacher.envs.families.same_environment`.

    Raises:
        DataError: the file is missing, damaged, of a newer version, or of another environment.
        ConfigError: a newer version wrote it, with settings that this one does not know.
    """
    path = Path(path)
    state = _read(path)
    about = state["about"]
    wanted = {"observation_space": observation_space, "action_space": action_space}
    found: dict[str, Space] = {}
    for name, space in wanted.items():
        if space is not None and describe_space(space) != about[name]:
            raise DataError(
                f"{path} is from another environment: its {name} is {about[name]}, expected "
                f"{describe_space(space)}"
            )
        with _restoring(path):
            found[name] = space_of(about[name])
    require_environment(path, about.get("env_id"), env_id)
    config = _reward_config(path, about["reward"])
    if about.get("own_network", False) != (network is not None):
        raise DataError(
            f"{path} holds a predictor with {'built-in' if network else 'custom'} networks; "
            f"{'leave out' if network else 'pass'} the function that makes custom networks"
        )
    predictor = RewardPredictor(**found, config=config, seed=0, device=device, network=network)
    try:
        predictor.load_state_dict(state["predictor"])
    except DataError as error:
        raise DataError(
            f"{path} is damaged: its parameters do not fit its network ({one_line(error.__cause__)}); "
            f"save the predictor again{', or pass the function that made its network' if network else ''}"
        ) from error
    predictor.env_id = about.get("env_id")
    return predictor


def _version_of(predictor: RewardPredictor) -> int:
    """Return the earliest format version that can hold the predictor."""
    if predictor.averages_images:
        return _VERSION
    return _CENTERED if predictor.is_centered else 1


def _read(path: Path) -> State:
    """Read a file with all parts of a predictor. Raise :class:`DataError` for any other file."""
    state = load_state(path, "predictor", _EXPECTED)
    about = state.get("about") if isinstance(state, dict) else None
    if not isinstance(about, dict) or about.get("format") != _FORMAT:
        raise DataError(f"{path} does not hold a reward predictor; expected {_EXPECTED}")
    missing = [*(name for name in _SAID if name not in about), *{"predictor"}.difference(state)]
    if missing:
        raise DataError(f"{path} is damaged: expected {missing[0]} in it; save the predictor again")
    try:
        require_version(about["version"], _VERSION)
    except DataError as error:
        raise DataError(f"{path} cannot be read as a predictor: {error}") from error
    return state


def _reward_config(path: Path, settings: Any) -> RewardConfig:
    """Return the settings stored in a file."""
    with _restoring(path):
        names = [OLD_NAMES.get(name, name) for name in settings]
    refuse_newer(path, RewardConfig, names, "reward.")
    with _restoring(path):
        return RewardConfig(**{**REWARD_BEFORE, **with_new_names(settings)})


@contextlib.contextmanager
def _restoring(path: Path) -> Iterator[None]:
    """Turn errors about the file's content inside the block into :class:`DataError` that names the file."""
    try:
        yield
    except (TypeError, ConfigError, DataError) as error:
        raise DataError(f"{path} is damaged: {one_line(error)}; save the predictor again") from error
