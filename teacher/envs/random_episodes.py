"""Episodes of a random or given policy, for a run's first queries, and a check that replay works."""

import contextlib
import itertools
from collections.abc import Callable, Iterator

from teacher.envs.episodes import EpisodeRecorder, replay
from teacher.envs.exploration import Actor
from teacher.envs.tasks import TaskInfo, make_vector_env
from teacher.envs.trajectory import Trajectory
from teacher.errors import EnvironmentUnsuitableError, ReplayMismatchError, TeacherError, describe_exception

_REPLAYED_EPISODES, _REPLAYED_STEPS = 8, 60
# Seed streams, distinct from those of training environments (teacher/training/run.py) and of exploration
# (teacher/envs/exploration.py).
_RANDOM_STREAM = 1
_POLICY_STREAM = 3


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


def check_capture(task: TaskInfo, seed: int) -> None:
    """Check that a frame can be captured.

    Raises:
        EnvironmentUnsuitableError: the environment can't be rendered.
    """
    with contextlib.closing(make_vector_env(task, 1, [seed, _RANDOM_STREAM])) as envs:
        envs.action_space.seed(seed)
        envs.reset()
        envs.step(envs.action_space.sample())


def check_replay(task: TaskInfo, seed: int) -> None:
    """Check that replaying the first steps of several episodes reproduces their observations.

    One episode is not enough, because replay often fails due to state carried over from the previous episode.

    Raises:
        EnvironmentUnsuitableError: a replayed observation differs, or the environment fails.
    """
    with contextlib.closing(make_vector_env(task, 1, [seed, _RANDOM_STREAM])) as envs:
        envs.action_space.seed(seed)
        for _ in range(_REPLAYED_EPISODES):
            envs.reset()
            for _ in range(_REPLAYED_STEPS):
                envs.step(envs.action_space.sample())
        trajectories = envs.drain()
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
