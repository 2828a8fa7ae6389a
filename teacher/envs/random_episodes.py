"""Random and policy episodes for the first queries, and a check that replay works."""

import contextlib
from collections.abc import Iterator

from teacher.envs.episodes import EpisodeRecorder, replay
from teacher.envs.exploration import Actor
from teacher.envs.tasks import TaskInfo, make_vector_env
from teacher.envs.trajectory import Trajectory
from teacher.errors import EnvironmentUnsuitableError, ReplayMismatchError, TeacherError, describe_exception

_REPLAYED_EPISODES, _REPLAYED_STEPS = 8, 60
# Streams that keep the seeds apart from those of training environments (teacher/training/run.py) and of
# exploration (teacher/envs/exploration.py).
_RANDOM_STREAM = 1
_POLICY_STREAM = 3


def random_trajectories(
    task: TaskInfo, seed: int, num_envs: int = 8, workers: int = 1
) -> Iterator[Trajectory]:
    """Yield finished episodes of uniform random actions, without end; only the seed decides their order."""
    envs = make_vector_env(task, num_envs, [seed, _RANDOM_STREAM], workers)
    envs.action_space.seed(seed)
    yield from _finished(envs, lambda _: envs.action_space.sample())


def policy_trajectories(task: TaskInfo, seed: int, act: Actor, num_envs: int = 8) -> Iterator[Trajectory]:
    """Yield finished episodes of a policy, without end."""
    yield from _finished(make_vector_env(task, num_envs, [seed, _POLICY_STREAM]), act)


def _finished(envs: EpisodeRecorder, act: Actor) -> Iterator[Trajectory]:
    try:
        observations, _ = envs.reset()
        while True:
            observations, *_ = envs.step(act(observations))
            yield from (trajectory for trajectory in envs.drain() if trajectory.finished)
    finally:
        envs.close()


def check_replay(task: TaskInfo, seed: int) -> None:
    """Replay the first steps of some episodes, as for clips.

    Uses several episodes, because replays often fail on state that one episode leaves behind for the next.

    Raises:
        EnvironmentUnsuitableError: a replay differs.
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
                    raise ReplayMismatchError("an observation differs")
    except ReplayMismatchError as error:
        raise EnvironmentUnsuitableError(
            f"replaying an episode of {task.env_id} to make clips gives a different result: "
            "pass --capture_frames to save frames during training instead",
            {"capture_frames": True},
        ) from error
    except TeacherError:
        raise
    except (Exception, SystemExit) as error:  # an environment may raise anything
        raise EnvironmentUnsuitableError(
            f"{task.env_id} failed when an episode was replayed: {describe_exception(error)}; fix it"
        ) from error
