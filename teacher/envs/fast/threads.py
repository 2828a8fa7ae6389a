"""Vector environment that steps its environments in several threads."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import concatenate, iterate
from numpy.typing import NDArray


class ThreadedVectorEnv(SyncVectorEnv[Any, Any]):
    """``SyncVectorEnv`` that distributes its environments over ``workers`` threads.

    Threads run in parallel if the simulator, such as MuJoCo, releases the GIL. Results are the same as
    with ``SyncVectorEnv``, because environments are independent.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gym.Env[Any, Any]]],
        workers: int,
        autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP,
    ) -> None:
        super().__init__(env_fns, autoreset_mode=autoreset_mode)
        workers = min(workers, self.num_envs)
        self._shares = [range(first, self.num_envs, workers) for first in range(workers)]
        self._pool = ThreadPoolExecutor(workers, "env")

    def step(
        self, actions: Any
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Step all environments in the threads, with the same results as ``SyncVectorEnv.step``."""
        if self.autoreset_mode is AutoresetMode.DISABLED and self._autoreset_envs.any():
            raise AssertionError("an episode has ended: reset its environment before the next step")
        rows = list(iterate(self.action_space, actions))
        infos: list[list[dict[str, Any]]] = [[] for _ in rows]

        def step_share(share: range) -> None:
            for index in share:
                infos[index] = self._step_one(index, rows[index])

        list(self._pool.map(step_share, self._shares))
        return self._gathered(infos)

    def _step_one(self, index: int, action: Any) -> list[dict[str, Any]]:
        """Step or reset one environment and store the result; return its infos for the caller to batch."""
        env = self.envs[index]
        if self.autoreset_mode is AutoresetMode.NEXT_STEP and self._autoreset_envs[index]:
            self._env_obs[index], info = env.reset()
            self._rewards[index], self._terminations[index], self._truncations[index] = 0.0, False, False
            return [info]
        observation, reward, terminated, truncated, info = env.step(action)
        self._rewards[index], self._terminations[index], self._truncations[index] = (
            reward,
            terminated,
            truncated,
        )
        infos = [info]
        if self.autoreset_mode is AutoresetMode.SAME_STEP and (terminated or truncated):
            infos = [{"final_obs": observation, "final_info": info}]
            observation, info = env.reset()
            infos.append(info)
        self._env_obs[index] = observation
        return infos

    def _gathered(
        self, infos: list[list[dict[str, Any]]]
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        batched: dict[str, Any] = {}
        for index, of_one in enumerate(infos):
            for info in of_one:
                batched = self._add_info(batched, info, index)
        self._observations = concatenate(self.single_observation_space, self._env_obs, self._observations)
        self._autoreset_envs = np.logical_or(self._terminations, self._truncations)
        return (
            deepcopy(self._observations),
            self._rewards.copy(),
            self._terminations.copy(),
            self._truncations.copy(),
            batched,
        )

    def close_extras(self, **kwargs: Any) -> None:
        """Stop the threads and close the environments."""
        self._pool.shutdown()
        super().close_extras(**kwargs)
