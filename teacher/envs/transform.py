"""Observation transforms: functions that convert dicts, text, or views of several agents to arrays.

The function's name is stored in episode recipes, so that replays apply the same function.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from numpy.typing import NDArray

from teacher.errors import EnvironmentUnsuitableError, describe_exception, one_line
from teacher.settings.functions import named_function

KWARG = "obs_transform"
"""Keyword argument of ``make_env`` for the transform's name."""
SHIPPED = frozenset({"teacher.envs.collect", "teacher.envs.minigrid"})
"""Modules of RL-Teacher that contain transforms."""
_OF_MINIGRID = "teacher.envs.minigrid:cells"
ANY_TRANSFORM = "module:function"
"""Placeholder for the name of a transform that a user has to write."""
_MOST_NUMBERS = 1_000_000
FLATTEN = "flatten"
"""Name of the built-in transform :class:`Flattened`, used in place of ``module:function``."""


class TransformedObservations(gym.ObservationWrapper[Any, Any, Any]):
    """Converts an environment's observations with a user-supplied function.

    The function takes one observation and returns a numeric array, always of the same shape and dtype. uint8
    arrays with two to four dimensions are treated as images. Boolean arrays, and integer arrays other than
    uint8, are converted to float32.

    Args:
        name: ``module:function``, or ``flatten``.

    Raises:
        ConfigError: the function does not exist.
        EnvironmentUnsuitableError: the function fails or returns an unsuitable value.
    """

    def __init__(self, env: gym.Env[Any, Any], name: str) -> None:
        super().__init__(env)
        self._name = name
        self._function = _find(name, env.observation_space)
        # Use a real observation, because the function may fail on samples of the space, such as random text.
        example = self._result(env.reset(seed=0)[0])
        low, high = (0, 255) if example.dtype == np.uint8 else (-np.inf, np.inf)
        self.observation_space = Box(low, high, example.shape, example.dtype.type)

    def observation(self, observation: Any) -> NDArray[Any]:
        """Convert an observation; raise EnvironmentUnsuitableError if its shape or dtype changed."""
        result, space = self._result(observation), self.observation_space
        if (result.shape, result.dtype) != (space.shape, space.dtype):
            raise self._refusal(
                f"returned shape {result.shape} and dtype {result.dtype}, but {space.shape} and "
                f"{space.dtype} for the first observation; shape and dtype must not change"
            )
        return result

    def _result(self, observation: Any) -> NDArray[Any]:
        try:
            result = np.asarray(self._function(observation))
        except (Exception, SystemExit) as error:  # from the user's code
            raise self._refusal(describe_exception(error)) from error
        if result.dtype.kind not in "iufb" or result.size == 0:
            raise self._refusal(
                f"returned shape {result.shape} and dtype {result.dtype}; it must return a non-empty numeric "
                "array"
            )
        return result if result.dtype.kind == "f" or result.dtype == np.uint8 else result.astype(np.float32)

    def _refusal(self, reason: str) -> EnvironmentUnsuitableError:
        return EnvironmentUnsuitableError(f"--{KWARG} {self._name}: {reason}")


@dataclass(frozen=True)
class Flattened:
    """Transform that concatenates all parts of an observation; discrete values become one-hot vectors."""

    space: gym.Space[Any]

    def __call__(self, observation: Any) -> NDArray[Any]:
        """Return an observation as a flat numeric array."""
        flat = np.asarray(gym.spaces.flatten(self.space, observation))
        return flat if flat.dtype.kind == "f" or flat.dtype == np.uint8 else flat.astype(np.float32)


def has_fixed_size(space: gym.Space[Any]) -> bool:
    """Return True if observations of a space flatten to a fixed number of values, at most one million."""
    try:
        return bool(space.is_np_flattenable) and 0 < gym.spaces.flatdim(space) <= _MOST_NUMBERS
    except NotImplementedError:  # raised by custom spaces
        return False


def are_numbers(space: gym.Space[Any]) -> bool:
    """Return True if a space is a Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of these.

    Dict and Tuple spaces may be nested, and must flatten to between one and one million values.
    """
    match space:
        case gym.spaces.Dict():
            parts: Iterable[gym.Space[Any]] = space.spaces.values()
        case gym.spaces.Tuple():
            parts = space.spaces
        case _:
            return isinstance(space, Box | Discrete | MultiDiscrete | MultiBinary)
    return all(map(are_numbers, parts)) and has_fixed_size(space)


def told_flattened(declared: object, flat: gym.Space[Any]) -> str:
    """Return a notice that observations are flattened by default."""
    return f"Observations in {one_line(declared)} are flattened into {gym.spaces.flatdim(flat)} numbers."


def transform_for(space: gym.Space[Any]) -> str:
    """Return the name of a transform for a space, or the placeholder :data:`ANY_TRANSFORM`."""
    parts = space.spaces.keys() if isinstance(space, gym.spaces.Dict) else set()
    return _OF_MINIGRID if parts == {"image", "direction", "mission"} else ANY_TRANSFORM


def _find(name: str, space: gym.Space[Any]) -> Callable[[Any], Any]:
    if name == FLATTEN:
        if not has_fixed_size(space):
            raise EnvironmentUnsuitableError(
                f"--{KWARG} {FLATTEN}: observations in {one_line(space)} have no fixed size; instead, pass a "
                "module:function that converts them to an array"
            )
        return Flattened(space)
    return named_function(name, f"--{KWARG}")
