"""What a run must know about its environment, checked before anything starts, and how it is made."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from teacher.envs.capture import CapturedResets, prepare_drawing
from teacher.envs.early_ends import WithoutEnds, without_ends
from teacher.envs.episodes import EpisodeRecorder, SeededResets, episode_seeds
from teacher.envs.families import resolve_env_id
from teacher.envs.fast import batched_classic, batched_mujoco
from teacher.envs.fast.threads import ThreadedVectorEnv
from teacher.envs.horizon import KWARG as FIXED
from teacher.envs.make import make_env
from teacher.envs.registry import find_spec, reason
from teacher.envs.transform import (
    FLATTEN,
    KWARG,
    TransformedObservations,
    are_numbers,
    transform_for,
)
from teacher.envs.trial import LIMIT, never_terminates
from teacher.errors import EnvironmentUnsuitableError, TeacherError, join_errors, one_line

DEFAULT_FPS = 30
"""Of an environment that names no frame rate."""

ActionSpace = Box | Discrete | MultiDiscrete


@dataclass(frozen=True)
class TaskInfo:
    """An environment that a run can use.

    Attributes:
        env_id: as registered, or ``module:Env-v0``; with ``kwargs`` enough to make it again anywhere.
        kwargs: arguments of ``gymnasium.make``, JSON values only.
        fps: frames per second of a clip; one frame is one environment step.
        horizon: most steps of an episode.
        never_terminates: some environments say so; False means that only trying tells.
        observation_space: of one environment: numbers of any shape; bytes of two to four dimensions are
            images.
        action_space: of one environment: numbers of any shape, or one or several choices.
        captures: whether a picture of every step is kept, because episodes cannot be played again.
        flattened: the environment's own observations, where they are flattened without being asked.
    """

    env_id: str
    kwargs: dict[str, Any]
    fps: int
    horizon: int
    never_terminates: bool
    observation_space: Box
    action_space: ActionSpace
    captures: bool = False
    flattened: str | None = None


def describe_task(
    env_id: str,
    max_episode_steps: int | None = None,
    obs_transform: str | None = None,
    *,
    captures: bool = False,
) -> TaskInfo:
    """Find out whether a run can use an environment, by making it once.

    Args:
        env_id: any registered Gymnasium id, an old name, or ``module:Env-v0``.
        max_episode_steps: limit of an episode, where the environment has none or another is wanted.
        obs_transform: what makes numbers of its observations; see :class:`TransformedObservations`. Without
            it those that are no Box of numbers are flattened, where they have a fixed size.
        captures: keep a picture of every step.

    Raises:
        ConfigError: there is no such transform.
        EnvironmentUnsuitableError: it is unknown, cannot be made, has unsupported spaces or no episode limit.
    """
    given = {"max_episode_steps": max_episode_steps, KWARG: obs_transform}
    kwargs = {name: value for name, value in given.items() if value is not None}
    return examine(env_id, kwargs, captures=captures).task


@dataclass(frozen=True)
class Examined:
    """What making an environment once says of it.

    Attributes:
        env_id: as registered, or ``module:Env-v0``.
        kwargs: arguments of ``gymnasium.make``.
        horizon: most steps of an episode; None where there is no limit.
        never_terminates: whether it says so itself.
        fps: frames per second of a clip.
        refusals: why a run cannot use it so.
        without_ends: what never ends early in its place.
        found: what a run must know, where its spaces will do; without a limit, with one of 1,000 steps.
    """

    env_id: str
    kwargs: dict[str, Any]
    horizon: int | None
    never_terminates: bool
    fps: int
    refusals: Sequence[EnvironmentUnsuitableError]
    without_ends: WithoutEnds
    found: TaskInfo | None

    @property
    def task(self) -> TaskInfo:
        """What a run must know. Raises :class:`EnvironmentUnsuitableError` where it cannot use it."""
        if self.found is None or self.refusals:
            raise join_errors(self.refusals)
        return self.found


def examine(env_id: str, kwargs: dict[str, Any], *, captures: bool = False) -> Examined:
    """Make an environment once, and find out whether a run can use it.

    Args:
        env_id: any registered Gymnasium id, an old name, or ``module:Env-v0``.
        kwargs: arguments of :func:`~teacher.envs.make.make_env`.
        captures: keep a picture of every step.

    Raises:
        ConfigError: there is no such transform.
        EnvironmentUnsuitableError: it is unknown or cannot be made.
    """
    env_id = resolve_env_id(env_id)
    limit = kwargs.get("max_episode_steps") or find_spec(env_id).max_episode_steps
    refusals: list[EnvironmentUnsuitableError] = []
    if limit is None:
        refusals.append(
            EnvironmentUnsuitableError(
                f"{env_id} has no limit on the steps of an episode: --max_episode_steps is required",
                {"max_episode_steps": LIMIT},
            )
        )
    making = {name: value for name, value in kwargs.items() if limit is not None or name != FIXED}
    env = _made(env_id, making)
    with contextlib.closing(env):
        declared = env.observation_space
        if KWARG not in kwargs and not isinstance(declared, Box) and are_numbers(declared):
            kwargs = {**kwargs, KWARG: FLATTEN}
            env = TransformedObservations(env, FLATTEN)
        observations, actions = env.observation_space, env.action_space
        refusals += _refused_spaces(env_id, observations, actions)
        found, fps = None, max(1, round(env.metadata.get("render_fps") or DEFAULT_FPS))
        if isinstance(observations, Box) and isinstance(actions, Box | Discrete | MultiDiscrete):
            found = TaskInfo(
                env_id,
                kwargs,
                fps=fps,
                horizon=limit or LIMIT,
                never_terminates=never_terminates(env),
                observation_space=observations,
                action_space=actions,
                captures=captures,
                flattened=None if env.observation_space is declared else one_line(declared),
            )
        return Examined(
            env_id,
            making,
            limit,
            never_terminates(env),
            fps,
            refusals,
            without_ends(env_id, env),
            found,
        )


def _made(env_id: str, kwargs: dict[str, Any]) -> gym.Env[Any, Any]:
    try:
        return make_env(env_id, kwargs)
    except TeacherError:
        raise
    except gym.error.DependencyNotInstalled as error:
        why = one_line(error)
        if why.startswith("Box2D is not installed"):  # Gymnasium goes on with how to compile it
            why = "Box2D is not installed: pip install 'rl-teacher[box2d]'"
        raise EnvironmentUnsuitableError(f"{env_id} cannot be made: {why}") from error
    except (Exception, SystemExit) as error:  # an environment's constructor may raise anything
        raise EnvironmentUnsuitableError(f"{env_id} cannot be made: {reason(error)}") from error


def make_vector_env(
    task: TaskInfo,
    num_envs: int,
    seed: int | Sequence[int],
    workers: int = 1,
    autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP,
    part: tuple[int, int] = (0, 1),
) -> EpisodeRecorder:
    """The environments of a run, each with its own seeds, recorded so that every episode can be replayed.

    Args:
        task: what to make.
        num_envs: how many.
        seed: the run's, or several numbers where one run needs several independent sets of environments.
        workers: threads that step them; results do not depend on it.
        autoreset_mode: as in Gymnasium.
        part: ``(p, of)``: these are the p-th ``num_envs`` of ``of * num_envs`` environments in all.

    Raises:
        ValueError: pictures are to be captured in another autoreset mode than those that show a last step.
    """
    if task.captures and autoreset_mode is AutoresetMode.SAME_STEP:
        raise ValueError("expected next-step autoreset, or none, to capture pictures, got same-step")
    before, total = part[0] * num_envs, part[1] * num_envs
    entropy = np.random.SeedSequence(seed).generate_state(4).tolist()

    def make(index: int) -> SeededResets:
        seeds = episode_seeds(entropy, before + index, total)
        if task.captures:
            prepare_drawing()
            return CapturedResets(make_env(task.env_id, task.kwargs, render_mode="rgb_array"), seeds)
        return SeededResets(make_env(task.env_id, task.kwargs), seeds)

    makers = [lambda index=index: make(index) for index in range(num_envs)]
    envs: SyncVectorEnv[Any, Any]
    is_plain = not task.captures
    if is_plain and batched_mujoco.supports(task.env_id, task.kwargs):
        envs = batched_mujoco.BatchedMujoco(makers, workers, autoreset_mode)
    elif is_plain and batched_classic.supports(task.env_id, task.kwargs):
        envs = batched_classic.BatchedCartPole(makers, autoreset_mode)
    elif workers > 1:
        envs = ThreadedVectorEnv(makers, workers, autoreset_mode)
    else:
        envs = SyncVectorEnv(makers, autoreset_mode=autoreset_mode)
    return EpisodeRecorder(envs, task.env_id, task.kwargs)


def _refused_spaces(
    env_id: str, observations: gym.Space[Any], actions: gym.Space[Any]
) -> list[EnvironmentUnsuitableError]:
    refusals, transform = [], transform_for(observations)
    if not isinstance(observations, Box) or 0 in observations.shape:
        refusals.append(
            EnvironmentUnsuitableError(
                f"{env_id} has observations {one_line(observations)}; expected numbers of one shape: pass "
                f"--{KWARG} {transform}, a function that makes an array of them",
                {KWARG: transform},
            )
        )
    is_box = isinstance(actions, Box) and np.issubdtype(actions.dtype, np.floating)
    if not is_box and not isinstance(actions, Discrete | MultiDiscrete):
        refusals.append(
            EnvironmentUnsuitableError(
                f"{env_id} has actions {one_line(actions)}; expected Discrete, MultiDiscrete or a "
                "Box of floats"
            )
        )
    return refusals
