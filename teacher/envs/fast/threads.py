"""Vector environment that steps its environments in several threads."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import iterate
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
        """Step all environments in the threads, and let ``SyncVectorEnv`` collect the results."""
        if self.autoreset_mode is AutoresetMode.DISABLED and self._autoreset_envs.any():
            raise AssertionError("an episode has ended: reset its environment before the next step")
        rows, made = list(iterate(self.action_space, actions)), list[Any]([None] * self.num_envs)

        def make_share(share: range) -> None:
            for index in share:
                made[index] = self._make(index, rows[index])

        list(self._pool.map(make_share, self._shares))
        envs, self.envs = self.envs, made
        try:
            return super().step(actions)
        finally:
            self.envs = envs

    def _make(self, index: int, action: Any) -> "_Made":
        env = self.envs[index]
        if self.autoreset_mode is AutoresetMode.NEXT_STEP and self._autoreset_envs[index]:
            return _Made(None, env.reset())
        outcome = env.step(action)
        is_reset = self.autoreset_mode is AutoresetMode.SAME_STEP and (outcome[2] or outcome[3])
        return _Made(outcome, env.reset() if is_reset else None)

    def close_extras(self, **kwargs: Any) -> None:
        """Stop the threads and close the environments."""
        self._pool.shutdown()
        super().close_extras(**kwargs)


class _Made(NamedTuple):
    """Stands in for an environment whose step, reset or both were made in a thread."""

    outcome: Any
    start: Any

    def step(self, _: Any) -> Any:
        return self.outcome

    def reset(self) -> Any:
        return self.start
