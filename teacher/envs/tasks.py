"""Properties of a run's environment, checked before anything starts, and its construction."""

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
"""Frame rate of clips if the environment has none."""

ActionSpace = Box | Discrete | MultiDiscrete


@dataclass(frozen=True)
class TaskInfo:
    """An environment that a run can use.

    Attributes:
        env_id: as registered, or ``module:Env-v0``; together with ``kwargs``, enough to make it anywhere.
        kwargs: arguments of ``gymnasium.make``, JSON values only.
        fps: frames per second of a clip, with one frame per environment step.
        horizon: maximum steps of an episode.
        never_terminates: declared by some environments; False means unknown.
        observation_space: of one environment: numbers of any shape; uint8 with two to four dimensions are
            images.
        action_space: of one environment: numbers of any shape, or one or several choices.
        captures: keep a frame of every step, because episodes cannot be replayed.
        flattened: the environment's own observation space, if it is flattened without a request.
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
    """Make an environment once, and return its properties if a run can use it.

    Args:
        env_id: any registered Gymnasium id, an old name, or ``module:Env-v0``.
        max_episode_steps: episode limit to use if the environment has none, or to replace it.
        obs_transform: converts observations to arrays; see :class:`TransformedObservations`. By default,
            observations other than a Box of numbers are flattened if they have a fixed size.
        captures: keep a frame of every step.

    Raises:
        ConfigError: the transform does not exist.
        EnvironmentUnsuitableError: it is unknown, cannot be made, or has unsupported spaces or no step limit.
    """
    given = {"max_episode_steps": max_episode_steps, KWARG: obs_transform}
    kwargs = {name: value for name, value in given.items() if value is not None}
    return examine(env_id, kwargs, captures=captures).task


@dataclass(frozen=True)
class Examined:
    """Properties of an environment found by making it once.

    Attributes:
        env_id: as registered, or ``module:Env-v0``.
        kwargs: arguments of ``gymnasium.make``.
        horizon: maximum steps of an episode; None without a limit.
        never_terminates: declared by the environment.
        fps: frames per second of a clip.
        refusals: reasons why a run cannot use it as is.
        without_ends: variants that never end early.
        found: properties for a run, if the spaces are supported; assumes a limit of 1,000 steps if there is
            none.
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
        """Return the properties for a run. Raise :class:`EnvironmentUnsuitableError` if it can't be used."""
        if self.found is None or self.refusals:
            raise join_errors(self.refusals)
        return self.found


def examine(env_id: str, kwargs: dict[str, Any], *, captures: bool = False) -> Examined:
    """Make an environment once, and find out whether a run can use it.

    Args:
        env_id: any registered Gymnasium id, an old name, or ``module:Env-v0``.
        kwargs: arguments of :func:`~teacher.envs.make.make_env`.
        captures: keep a frame of every step.

    Raises:
        ConfigError: the transform does not exist.
        EnvironmentUnsuitableError: the environment is unknown or cannot be made.
    """
    env_id = resolve_env_id(env_id)
    limit = kwargs.get("max_episode_steps") or find_spec(env_id).max_episode_steps
    refusals: list[EnvironmentUnsuitableError] = []
    if limit is None:
        refusals.append(
            EnvironmentUnsuitableError(
                f"{env_id} has no step limit per episode: --max_episode_steps is required",
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
        if why.startswith("Box2D is not installed"):  # Gymnasium's message continues with how to compile it
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
    """Make the environments of a run, each with its own seeds, recorded so that episodes can be replayed.

    Args:
        task: the environment.
        num_envs: number of environments.
        seed: the run's seed, or several numbers for independent sets of environments in a run.
        workers: threads that step them; does not affect results.
        autoreset_mode: as in Gymnasium.
        part: ``(p, of)``: these are the p-th ``num_envs`` of ``of * num_envs`` environments in total.

    Raises:
        ValueError: frames are to be captured in same-step autoreset, which does not show the final step.
    """
    if task.captures and autoreset_mode is AutoresetMode.SAME_STEP:
        raise ValueError("expected next-step autoreset, or none, to capture frames, got same-step")
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
                f"--{KWARG} {transform}, a function that converts them to an array",
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
