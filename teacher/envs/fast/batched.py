"""Base class of vector environments that step all their environments at once with numpy.

Results are bit-identical to those of ``SyncVectorEnv``. :mod:`~teacher.envs.fast.batched_mujoco` has the
subclass for MuJoCo.
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
    """Results of one step of ``n`` environments; each array has ``n`` rows."""

    observations: Array
    rewards: Array
    terminated: Array


def plain_entry_point(env_id: str, kwargs: Mapping[str, Any]) -> str | None:
    """Return the entry point of the class that ``make_env`` would instantiate, or None.

    None means that the environment can't be batched: it is not registered, it has additional wrappers or no
    step limit, or ``kwargs`` has arguments other than the step limit.
    """
    spec = gym.registry.get(resolve_env_id(env_id))
    if spec is None or spec.additional_wrappers or set(kwargs) - {"max_episode_steps"}:
        return None
    horizon = kwargs.get("max_episode_steps", spec.max_episode_steps)
    return plain_class(spec) if horizon is not None and horizon > 0 else None


class BatchedVectorEnv(SyncVectorEnv[Any, Any], abc.ABC):
    """``SyncVectorEnv`` that steps all its environments at once, without calling their ``step`` methods.

    The environments must all have the same ID, which :func:`plain_entry_point` must accept. Resets still go
    through the environments and their wrappers.

    Args:
        env_fns: functions that each make one environment with ``make_env``, optionally wrapped in
            ``SeededResets``.
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
        """Step the environments selected by the mask ``stepping``; the caller ignores the other rows."""

    @abc.abstractmethod
    def _take_over(self, index: int) -> None:
        """Copy a freshly reset environment's state into the batched state arrays."""

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or only those selected by ``options["reset_mask"]``."""
        if self._reset_once:  # a masked reset also returns the others' observations
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
        """Step all environments at once, with the same results as ``SyncVectorEnv.step``."""
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
        # Copy, because the caller may modify the returned array.
        self._observations, self._autoreset_envs = observations.copy(), ended
        return observations, rewards, terminated, truncated, infos

    def _check_may_step(self, actions: Array) -> None:
        if not self._reset_once:
            raise gym.error.ResetNeeded("call reset() before the first step()")
        if actions.shape != self.action_space.shape:
            raise ValueError(f"actions must have shape {self.action_space.shape}, not {actions.shape}")
        if self.autoreset_mode is AutoresetMode.DISABLED and self._autoreset_envs.any():
            raise AssertionError("an episode has ended: reset its environment before the next step")

    def _begin_episode(self, index: int, observations: Array, infos: dict[str, Any]) -> dict[str, Any]:
        observations[index], info = self.envs[index].reset()
        self._elapsed[index] = 0
        self._take_over(index)
        return self._add_info(infos, info, index)
