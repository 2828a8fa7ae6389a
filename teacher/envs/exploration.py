"""Exploration episodes for queries, in which the agent and a random policy take turns."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from teacher.envs.episodes import EpisodeRecorder
from teacher.envs.tasks import TaskInfo, make_vector_env
from teacher.envs.trajectory import Trajectory

Actor = Callable[[NDArray[Any]], NDArray[Any]]
"""Function that maps all environments' observations ``(num_envs, *S)`` to actions ``(num_envs, *A)``."""

_STREAM = 4  # seed stream; others are in teacher/envs/random_episodes.py and teacher/training/run.py


class Explorer:
    """Collects episodes with a random mixture of the agent's policy and a uniform random policy.

    The episodes run in separate environments. In each environment, the acting policy is sampled at the
    start, and resampled after each step with probability ``switch_prob``. Each sample is the random policy
    with probability ``random_prob``, otherwise the agent's policy. This is the exploration method of the
    ``imitation`` library, applied to each environment independently.
    """

    _observations: NDArray[Any]
    _by_chance: NDArray[np.bool_]

    def __init__(
        self, task: TaskInfo, seed: tuple[int, ...], switch_prob: float, random_prob: float, num_envs: int = 8
    ) -> None:
        self._task, self._seed, self._num_envs = task, [*seed, _STREAM], num_envs
        self._switch_prob, self._random_prob = switch_prob, random_prob
        self._random = np.random.default_rng(self._seed)
        self._envs: EpisodeRecorder | None = None

    def explore(self, act: Actor, steps: int) -> list[Trajectory]:
        """Step all environments, and return all episodes that gained steps, including unfinished ones.

        The first call makes the environments; each later call continues their episodes.

        Args:
            steps: total number of steps in all environments, rounded up to a multiple of ``num_envs``.
        """
        envs = self._envs or self._begin()
        for _ in range(math.ceil(steps / self._num_envs)):
            actions = np.array(act(self._observations))
            actions[self._by_chance] = envs.action_space.sample()[self._by_chance]
            self._observations, *_ = envs.step(actions)
            switching = self._random.random(self._num_envs) < self._switch_prob
            self._by_chance = np.where(switching, self._chosen(), self._by_chance)
        return envs.drain()

    def _begin(self) -> EpisodeRecorder:
        self._envs = make_vector_env(self._task, self._num_envs, self._seed)
        self._envs.action_space.seed(int(self._random.integers(2**31)))
        self._observations, _ = self._envs.reset()
        self._by_chance = self._chosen()
        return self._envs

    def _chosen(self) -> NDArray[np.bool_]:
        return self._random.random(self._num_envs) < self._random_prob

    def close(self) -> None:
        """Close the environments."""
        if self._envs is not None:
            self._envs.close()
