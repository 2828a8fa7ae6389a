"""Episodes of random actions, or of a policy, for the first questions; and a trial of the environment."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from statistics import median

from teacher.envs.episodes import EpisodeRecorder, Trajectory, replay
from teacher.envs.exploration import Actor
from teacher.envs.tasks import TaskInfo, make_vector_env
from teacher.errors import (
    EnvironmentUnsuitableError,
    ReplayMismatchError,
    TeacherError,
    counted,
    described,
)

TRIAL_EPISODES = 50
_REPLAYED_EPISODES, _REPLAYED_STEPS = 8, 60
_LONG_ENOUGH_SHARE = 0.2
# They keep the seeds apart from those of the run's training environments, whose others are in teacher/run.py,
# and from those of teacher/envs/exploration.py.
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


def check_random_episodes(
    task: TaskInfo,
    segment_length: int,
    *,
    seed: int,
    allow_variable_horizon: bool,
    tell: Callable[[int], None] = lambda tried: None,
) -> None:
    """Try 50 random episodes and refuse an environment that labels cannot teach.

    Args:
        task: the environment.
        segment_length: steps of a segment.
        seed: decides the episodes.
        allow_variable_horizon: accept episodes that end before the horizon.
        tell: called with the number of episodes tried, from 0.

    Raises:
        EnvironmentUnsuitableError: too few episodes are as long as a segment, or some end early.
    """
    if task.never_terminates:
        check_episode_lengths([task.horizon] * TRIAL_EPISODES, segment_length)
        return
    plain = replace(task, captures=False)
    if allow_variable_horizon:  # then only whether a segment fits matters, and long episodes take minutes
        steps = min(task.horizon, segment_length)
        plain = replace(plain, horizon=steps, kwargs={**task.kwargs, "max_episode_steps": steps})
    lengths: list[int] = []
    tell(0)
    for trajectory in islice(random_trajectories(plain, seed), TRIAL_EPISODES):
        lengths.append(len(trajectory))
        tell(len(lengths))
    check_episode_lengths(lengths, segment_length)
    if not allow_variable_horizon:
        check_fixed_horizon(task, lengths)


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
            "pass --capture_frames to keep pictures while it is played"
        ) from error
    except TeacherError:
        raise
    except (Exception, SystemExit) as error:  # an environment may raise anything
        raise EnvironmentUnsuitableError(
            f"{task.env_id} failed when an episode was played again: {described(error)}; mend it"
        ) from error


def check_episode_lengths(lengths: Sequence[int], segment_length: int) -> None:
    """Raise :class:`EnvironmentUnsuitableError` where under a fifth of the episodes fit a segment."""
    long_enough = sum(length >= segment_length for length in lengths)
    if long_enough >= _LONG_ENOUGH_SHARE * len(lengths):
        return
    middle = int(median(lengths))
    raise EnvironmentUnsuitableError(
        f"a segment of {counted(segment_length, 'step')} fits into {long_enough} of {len(lengths)} random "
        f"episodes, whose median length is {middle}: pass --segment_steps {middle} or less"
    )


def check_fixed_horizon(task: TaskInfo, lengths: Sequence[int]) -> None:
    """Raise :class:`EnvironmentUnsuitableError` where an episode ended before the horizon."""
    early = sum(length < task.horizon for length in lengths)
    if early:
        raise EnvironmentUnsuitableError(
            f"{early} of {len(lengths)} random episodes of {task.env_id} end before step {task.horizon}, and "
            "the length of an episode leaks the reward: pass --allow_variable_horizon to accept that"
        )
