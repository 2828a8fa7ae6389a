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
from teacher.settings.options import REWARD_BEFORE, RewardConfig, current_settings

Space = spaces.Space[Any]

_FORMAT = "rl-teacher predictor"
_VERSION = 4  # linear models, whose settings may leave the number of members open
_AVERAGED = 3  # image averaging, which earlier versions would silently skip
_CENTERED = 2  # input centering, which earlier versions would silently skip
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
    """Save a predictor to an ``.npz`` file, atomically.

    Args:
        observation_space: observation space of a single environment, not of a vector environment.

    Raises:
        ConfigError: ``new`` is True and the file exists.
        StorageError: the file can't be written.
    """
    settings = dataclasses.asdict(predictor.config)
    if predictor.model == "network":  # from now on
        settings["members"] = predictor.members
    about = {
        "format": _FORMAT,
        "version": _version_of(predictor),
        "observation_space": describe_space(observation_space),
        "action_space": describe_space(action_space),
        "reward": settings,
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
    """Load a predictor and its settings from a file written by :func:`save_predictor`.

    Args:
        observation_space: expected observation space; None accepts any.
        action_space: expected action space; None accepts any.
        network: factory function that created the predictor's custom networks; None for built-in networks.
        env_id: expected environment ID; None accepts any. Equivalent environments are accepted too (see
            :func:`~teacher.envs.families.same_environment`).

    Raises:
        DataError: the file is missing, damaged, in a newer format, or from a different environment, or
            ``network`` isn't the factory that created the networks.
        ConfigError: the file has settings that only a newer RL-Teacher version supports.
    """
    path = Path(path)
    state = _read(path)
    about = state["about"]
    require_environment(path, about, observation_space, action_space, env_id)
    with _restoring(path):
        found = space_of(about["observation_space"]), space_of(about["action_space"])
    config = _reward_config(path, about["reward"])
    if about.get("own_network", False) != (network is not None):
        raise DataError(
            f"{path} contains a predictor with {'built-in' if network else 'custom'} networks; "
            f"{'do not pass a network function' if network else 'pass the function that makes them'}"
        )
    predictor = RewardPredictor(*found, config, seed=0, device=device, network=network)
    try:
        predictor.load_state_dict(state["predictor"])
    except DataError as error:
        raise DataError(
            f"{path} is damaged: the saved parameters don't match the networks "
            f"({one_line(error.__cause__)}); save the predictor again"
            f"{', or pass the function that made its networks' if network else ''}"
        ) from error
    predictor.env_id = about.get("env_id")
    return predictor


def _version_of(predictor: RewardPredictor) -> int:
    """Return the lowest format version that supports the predictor's features."""
    if predictor.model == "linear":
        return _VERSION
    if predictor.averages_images:
        return _AVERAGED
    return _CENTERED if predictor.is_centered else 1


def _read(path: Path) -> State:
    state = load_state(path, "predictor", _EXPECTED)
    about = state.get("about") if isinstance(state, dict) else None
    if not isinstance(about, dict) or about.get("format") != _FORMAT:
        raise DataError(f"{path} contains no reward predictor; use {_EXPECTED}")
    missing = [*(name for name in _SAID if name not in about), *{"predictor"}.difference(state)]
    if missing:
        raise DataError(f"{path} is damaged: {missing[0]} is missing; save the predictor again")
    try:
        require_version(about["version"], _VERSION)
    except DataError as error:
        raise DataError(f"{path} cannot be read as a predictor: {error}") from error
    return state


def _reward_config(path: Path, settings: Any) -> RewardConfig:
    """Make a :class:`RewardConfig` from a file's settings, which an older version may have written."""
    with _restoring(path):
        saved = {**settings}
    current = current_settings(saved)
    refuse_newer(path, RewardConfig, current, "reward.")
    with _restoring(path):
        return RewardConfig(**{**REWARD_BEFORE, **current})


@contextlib.contextmanager
def _restoring(path: Path) -> Iterator[None]:
    try:
        yield
    except (TypeError, ConfigError, DataError) as error:
        raise DataError(f"{path} is damaged: {one_line(error)}; save the predictor again") from error
