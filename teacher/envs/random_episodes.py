"""Episodes of a random or given policy, or of both in turns, for queries, and a check that replay works."""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from teacher.envs.episodes import EpisodeRecorder, replay
from teacher.envs.tasks import TaskInfo, make_vector_env
from teacher.envs.trajectory import Trajectory
from teacher.errors import EnvironmentUnsuitableError, ReplayMismatchError, TeacherError, describe_exception

_REPLAYED_EPISODES, _REPLAYED_STEPS = 8, 60
# Seed streams, distinct from that in teacher/training/builder.py.
_RANDOM_STREAM, _POLICY_STREAM, _EXPLORATION_STREAM = 1, 3, 4

Actor = Callable[[NDArray[Any]], NDArray[Any]]
"""Function that maps all environments' observations ``(num_envs, *S)`` to actions ``(num_envs, *A)``."""
Tell = Callable[[int], None]


def random_trajectories(
    task: TaskInfo, seed: int, num_envs: int = 8, workers: int = 1, tell: Tell = lambda steps: None
) -> Iterator[Trajectory]:
    """Yield an endless stream of complete episodes from a uniform random policy.

    Args:
        workers: number of threads that step the environments; it does not affect the episodes.
        tell: progress callback, called after each step with the total number of steps so far.
    """
    envs = make_vector_env(task, num_envs, [seed, _RANDOM_STREAM], workers)
    envs.action_space.seed(seed)
    yield from _finished(envs, lambda _: envs.action_space.sample(), tell)


def policy_trajectories(
    task: TaskInfo, seed: int, act: Actor, num_envs: int = 8, tell: Tell = lambda steps: None
) -> Iterator[Trajectory]:
    """Yield an endless stream of complete episodes from the policy ``act``."""
    yield from _finished(make_vector_env(task, num_envs, [seed, _POLICY_STREAM]), act, tell)


def _finished(envs: EpisodeRecorder, act: Actor, tell: Tell) -> Iterator[Trajectory]:
    try:
        observations, _ = envs.reset()
        for step in itertools.count(1):
            observations, *_ = envs.step(act(observations))
            tell(step * envs.num_envs)
            yield from (trajectory for trajectory in envs.drain() if trajectory.finished)
    finally:
        envs.close()


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
        self._task, self._seed, self._num_envs = task, [*seed, _EXPLORATION_STREAM], num_envs
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


def random_steps(task: TaskInfo, seed: int, steps: int = 1, episodes: int = 1) -> list[Trajectory]:
    """Return the first steps of several episodes with random actions, in one environment."""
    with contextlib.closing(make_vector_env(task, 1, [seed, _RANDOM_STREAM])) as envs:
        envs.action_space.seed(seed)
        for _ in range(episodes):
            envs.reset()
            for _ in range(steps):
                envs.step(envs.action_space.sample())
        return envs.drain()


def check_replay(task: TaskInfo, seed: int) -> None:
    """Check that replaying the first steps of several episodes reproduces their observations.

    One episode is not enough, because replay often fails due to state carried over from the previous episode.

    Raises:
        EnvironmentUnsuitableError: a replayed observation differs, or the environment fails.
    """
    trajectories = random_steps(task, seed, _REPLAYED_STEPS, _REPLAYED_EPISODES)
    try:
        for trajectory in trajectories:
            for step, recorded in zip(replay(trajectory.recipe()), trajectory.observations, strict=True):
                if step.observation.tobytes() != recorded.tobytes():
                    raise ReplayMismatchError("a replayed observation differs from the recorded one")
    except ReplayMismatchError as error:
        raise EnvironmentUnsuitableError(
            f"replaying an episode of {task.env_id} gives different observations, so clips can't be rendered "
            "by replay: pass --capture_frames to save frames during training instead",
            {"capture_frames": True},
        ) from error
    except TeacherError:
        raise
    except (Exception, SystemExit) as error:  # an environment may raise anything
        raise EnvironmentUnsuitableError(
            f"replaying an episode of {task.env_id} failed: {describe_exception(error)}; fix the environment"
        ) from error
