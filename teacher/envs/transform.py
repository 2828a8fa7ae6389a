"""Observations as a function makes them of the environment's own: of dictionaries, texts, or several agents.

The function's name is part of what an episode is recorded with, so a replay applies it, too.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from numpy.typing import NDArray

from teacher.errors import EnvironmentUnsuitableError, describe_exception, one_line
from teacher.settings.functions import named_function

KWARG = "obs_transform"
"""What names the function among the arguments that an environment is made with."""
SHIPPED = frozenset({"teacher.envs.collect", "teacher.envs.minigrid"})
"""Modules with functions of this project."""
_OF_MINIGRID = "teacher.envs.minigrid:cells"
_MOST_NUMBERS = 1_000_000
FLATTEN = "flatten"
"""In place of a function: all parts of the observation one after the other, choices as one-hot vectors."""


class TransformedObservations(gym.Wrapper[Any, Any, Any, Any]):
    """An environment whose observations go through a function of the user's.

    The function takes one observation and returns numbers, an array always of one shape and type. Bytes of
    two to four dimensions are images; other whole numbers and truth values become single precision.

    Args:
        env: with observations of any kind.
        name: ``module:function``, or ``flatten``.

    Raises:
        ConfigError: there is no such function.
        EnvironmentUnsuitableError: what it returns does not do.
    """

    def __init__(self, env: gym.Env[Any, Any], name: str) -> None:
        super().__init__(env)
        self._name = name
        self._function = _find(name, env.observation_space)
        # Of a real observation: samples of a space of texts, say, may be nothing that the function knows.
        self.observation_space = self._space_of(self._result(env.reset(seed=0)[0]))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """See Gymnasium."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self._transformed(observation), info

    def step(self, action: Any) -> tuple[NDArray[Any], SupportsFloat, bool, bool, dict[str, Any]]:
        """See Gymnasium."""
        observation, *outcome = self.env.step(action)
        return (self._transformed(observation), *outcome)  # type: ignore[return-value]

    def _transformed(self, observation: Any) -> NDArray[Any]:
        result, space = self._result(observation), self.observation_space
        if (result.shape, result.dtype) != (space.shape, space.dtype):
            raise self._refusal(
                f"expected {space.shape} of {space.dtype} as at first, got {result.shape} of {result.dtype}"
            )
        return result

    def _result(self, observation: Any) -> NDArray[Any]:
        try:
            result = np.asarray(self._function(observation))
        except (Exception, SystemExit) as error:  # of the user's
            raise self._refusal(describe_exception(error)) from error
        if result.dtype.kind not in "iufb" or result.size == 0:
            raise self._refusal(f"expected an array of numbers, got {result.shape} of {result.dtype}")
        return result if result.dtype.kind == "f" or result.dtype == np.uint8 else result.astype(np.float32)

    def _space_of(self, example: NDArray[Any]) -> Box:
        low, high = (0, 255) if example.dtype == np.uint8 else (-np.inf, np.inf)
        return Box(low, high, example.shape, example.dtype.type)

    def _refusal(self, reason: str) -> EnvironmentUnsuitableError:
        return EnvironmentUnsuitableError(f"--{KWARG} {self._name}: {reason}")


@dataclass(frozen=True)
class Flattened:
    """Puts all parts of an observation one after the other, choices as one-hot vectors."""

    space: gym.Space[Any]

    def __call__(self, observation: Any) -> NDArray[Any]:
        """Make an array of one observation."""
        flat = np.asarray(gym.spaces.flatten(self.space, observation))
        return flat if flat.dtype.kind == "f" or flat.dtype == np.uint8 else flat.astype(np.float32)


def has_fixed_size(space: gym.Space[Any]) -> bool:
    """Return whether ``flatten`` can make an array of such observations, and one that memory holds."""
    try:
        return bool(space.is_np_flattenable) and 0 < gym.spaces.flatdim(space) <= _MOST_NUMBERS
    except NotImplementedError:  # by a space of somebody's own
        return False


def are_numbers(space: gym.Space[Any]) -> bool:
    """Return whether observations are numbers or choices, of any number of parts, and so of fixed size."""
    match space:
        case gym.spaces.Dict():
            parts: Iterable[gym.Space[Any]] = space.spaces.values()
        case gym.spaces.Tuple():
            parts = space.spaces
        case _:
            return isinstance(space, Box | Discrete | MultiDiscrete | MultiBinary)
    return all(map(are_numbers, parts)) and has_fixed_size(space)


def told_flattened(declared: object, flat: gym.Space[Any]) -> str:
    """Say what is done with observations that are flattened without being asked."""
    return f"Observations, {one_line(declared)}, are flattened into {gym.spaces.flatdim(flat)} numbers."


def transform_for(space: gym.Space[Any]) -> str:
    """Return what makes numbers of observations that ``flatten`` does not take, or a placeholder for it."""
    parts = space.spaces.keys() if isinstance(space, gym.spaces.Dict) else set()
    return _OF_MINIGRID if parts == {"image", "direction", "mission"} else "module:function"


def _find(name: str, space: gym.Space[Any]) -> Callable[[Any], Any]:
    if name == FLATTEN:
        if not has_fixed_size(space):
            raise EnvironmentUnsuitableError(
                f"--{KWARG} {FLATTEN}: expected observations of fixed size, got {one_line(space)}; name a "
                "module:function that makes an array of them"
            )
        return Flattened(space)
    return named_function(name, f"--{KWARG}")
