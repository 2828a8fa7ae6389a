"""Step environments at once: Python runs once per step of all of them, the arithmetic in numpy.

The results are those of ``SyncVectorEnv`` bit for bit. What is simulated, and by which rules, is up to
:mod:`~teacher.envs.fast.batched_mujoco` and :mod:`~teacher.envs.fast.batched_classic`.
"""

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from teacher.envs.families import plain_class, resolve_env_id

Array = NDArray[Any]


class Outcome(NamedTuple):
    """What ``step`` returns for ``n`` environments: arrays of ``n`` rows."""

    observations: Array
    rewards: Array
    terminated: Array


def plain_entry_point(env_id: str, kwargs: Mapping[str, Any]) -> str | None:
    """The class under what ``make_env`` makes of the same arguments; None where it may be something special.

    Special are other arguments than a limit of steps, further wrappers, and episodes without a limit.
    """
    spec = gym.registry.get(resolve_env_id(env_id))
    if spec is None or spec.additional_wrappers or set(kwargs) - {"max_episode_steps"}:
        return None
    horizon = kwargs.get("max_episode_steps", spec.max_episode_steps)
    return plain_class(spec) if horizon is not None and horizon > 0 else None


class BatchedVectorEnv(SyncVectorEnv[Any, Any], abc.ABC):
    """A ``SyncVectorEnv`` of environments of one id with a :func:`plain_entry_point`, stepped at once.

    Resets go through the environments and their wrappers; steps go past them.

    Args:
        env_fns: each makes one environment by ``make_env``, perhaps wrapped in ``SeededResets``.
        autoreset_mode: as in Gymnasium.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gym.Env[Any, Any]]],
        autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP,
    ) -> None:
        super().__init__(env_fns, autoreset_mode=autoreset_mode)
        self._horizon: int = self.envs[0].get_wrapper_attr("_max_episode_steps")
        self._elapsed = np.zeros(self.num_envs, np.int64)
        self._reset_once = False

    @abc.abstractmethod
    def _simulate(self, actions: Array, stepping: NDArray[np.bool_]) -> Outcome:
        """Step some environments; what is returned for the others, and their state, will be overwritten."""

    @abc.abstractmethod
    def _take_over(self, index: int) -> None:
        """Go on from the state of an environment that was just reset."""

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or those of ``options["reset_mask"]``; as ``SyncVectorEnv.reset``."""
        if self._reset_once:  # a masked reset returns the others' observations as well
            self._env_obs = list(self._observations.copy())
        mask = (options or {}).get("reset_mask", slice(None))
        outcome = super().reset(seed=seed, options=options)
        self._elapsed[mask] = 0
        for index in np.arange(self.num_envs)[mask].tolist():
            self._take_over(index)
        self._reset_once = True
        return outcome

    def step(
        self, actions: Any
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Step all environments; as ``SyncVectorEnv.step``."""
        actions = np.asarray(actions)
        self._check_may_step(actions)
        resetting = self._autoreset_envs & (self.autoreset_mode is AutoresetMode.NEXT_STEP)
        observations, rewards, terminated = self._simulate(actions, ~resetting)
        self._elapsed += 1
        truncated = self._elapsed >= self._horizon
        infos: dict[str, Any] = {}
        if resetting.any():
            for index in np.flatnonzero(resetting).tolist():
                infos = self._begin_episode(index, observations, infos)
            rewards[resetting], terminated[resetting], truncated[resetting] = 0.0, False, False
        ended = terminated | truncated
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            for index in np.flatnonzero(ended).tolist():
                final = {"final_obs": observations[index].copy(), "final_info": {}}
                infos = self._begin_episode(index, observations, self._add_info(infos, final, index))
        # A copy, because the caller may write into what it gets.
        self._observations, self._autoreset_envs = observations.copy(), ended
        return observations, rewards, terminated, truncated, infos

    def _check_may_step(self, actions: Array) -> None:
        if not self._reset_once:
            raise gym.error.ResetNeeded("expected a reset before the first step: call reset()")
        if actions.shape != self.action_space.shape:
            raise ValueError(f"expected actions of shape {self.action_space.shape}, got {actions.shape}")
        if self.autoreset_mode is AutoresetMode.DISABLED and self._autoreset_envs.any():
            raise AssertionError("an environment that has ended must be reset before the next step")

    def _begin_episode(self, index: int, observations: Array, infos: dict[str, Any]) -> dict[str, Any]:
        observations[index], info = self.envs[index].reset()
        self._elapsed[index] = 0
        self._take_over(index)
        return self._add_info(infos, info, index)
