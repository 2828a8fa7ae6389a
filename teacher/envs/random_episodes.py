"""Episodes of random actions, or of a policy, for the first questions; and a trial of replays."""

import contextlib
from collections.abc import Iterator

from teacher.envs.episodes import EpisodeRecorder, replay
from teacher.envs.exploration import Actor
from teacher.envs.tasks import TaskInfo, make_vector_env
from teacher.envs.trajectory import Trajectory
from teacher.errors import EnvironmentUnsuitableError, ReplayMismatchError, TeacherError, describe_exception

_REPLAYED_EPISODES, _REPLAYED_STEPS = 8, 60
# They keep the seeds apart from those of the run's training environments, whose others are in
# teacher/training/run.py, and from those of teacher/envs/exploration.py.
_RANDOM_STREAM = 1
_POLICY_STREAM = 3


def random_trajectories(
    task: TaskInfo, seed: int, num_envs: int = 8, workers: int = 1
) -> Iterator[Trajectory]:
    """Finished episodes of uniformly random actions, without end, in an order that only the seed decides."""
    envs = make_vector_env(task, num_envs, [seed, _RANDOM_STREAM], workers)
    envs.action_space.seed(seed)
    yield from _finished(envs, lambda _: envs.action_space.sample())


def policy_trajectories(task: TaskInfo, seed: int, act: Actor, num_envs: int = 8) -> Iterator[Trajectory]:
    """The same with the actions of a policy."""
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
    """Play the beginnings of some episodes again, as clips are made.

    Of several, because what spoils a replay is often something that one episode leaves behind for the next.

    Raises:
        EnvironmentUnsuitableError: one comes out otherwise.
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
            f"an episode of {task.env_id} comes out otherwise when it is played again, to make clips of it: "
            "pass --capture_frames to keep pictures while it is played",
            {"capture_frames": True},
        ) from error
    except TeacherError:
        raise
    except (Exception, SystemExit) as error:  # an environment may raise anything
        raise EnvironmentUnsuitableError(
            f"{task.env_id} failed when an episode was played again: {describe_exception(error)}; mend it"
        ) from error
