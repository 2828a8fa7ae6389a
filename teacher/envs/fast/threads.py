"""Vector environment that steps its environments in several threads."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.vector import SyncVectorEnv
from gymnasium.vector.utils import iterate
from numpy.typing import NDArray


class ThreadedVectorEnv(SyncVectorEnv[Any, Any]):
    """``SyncVectorEnv`` that distributes its environments over ``workers`` threads.

    Threads run in parallel if the simulator, such as MuJoCo, releases the GIL. Results are the same as
    with ``SyncVectorEnv``, because environments are independent.
    """

    def __init__(self, env_fns: Sequence[Callable[[], gym.Env[Any, Any]]], workers: int) -> None:
        super().__init__(env_fns)
        workers = min(workers, self.num_envs)
        self._shares = [range(first, self.num_envs, workers) for first in range(workers)]
        self._pool = ThreadPoolExecutor(workers, "env")

    def step(
        self, actions: Any
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Step all environments in the threads, and let ``SyncVectorEnv`` collect the results."""
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
        return _Made(env.reset() if self._autoreset_envs[index] else env.step(action))

    def close_extras(self, **kwargs: Any) -> None:
        """Stop the threads and close the environments."""
        self._pool.shutdown()
        super().close_extras(**kwargs)


class _Made(NamedTuple):
    """Stands in for an environment whose step or reset was made in a thread."""

    outcome: Any

    def step(self, _: Any) -> Any:
        return self.outcome

    def reset(self) -> Any:
        return self.outcome
