"""Checks of a run's environment before training, and construction of its vector environment."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from gymnasium.vector import SyncVectorEnv

from teacher.envs.capture import CapturedResets, prepare_drawing
from teacher.envs.episodes import EpisodeRecorder, SeededResets, declares, episode_seeds
from teacher.envs.families import resolve_env_id
from teacher.envs.fast import batched_mujoco
from teacher.envs.fast.threads import ThreadedVectorEnv
from teacher.envs.horizon import KWARG as FIXED
from teacher.envs.make import make_env
from teacher.envs.registry import find_spec, reason
from teacher.envs.transform import (
    ANY_TRANSFORM,
    FLATTEN,
    KWARG,
    TransformedObservations,
    are_numbers,
    transform_for,
)
from teacher.envs.trial import LIMIT, TRIAL_STEPS, WithoutEnds, without_ends
from teacher.errors import EnvironmentUnsuitableError, TeacherError, join_errors, one_line

DEFAULT_FPS = 30
"""Frames per second of clips if the environment's metadata does not specify ``render_fps``."""

ActionSpace = Box | Discrete | MultiDiscrete


@dataclass(frozen=True)
class TaskInfo:
    """Properties of an environment that is suitable for a run.

    Attributes:
        env_id: Gymnasium ID, or ``module:Env-v0``; together with ``kwargs``, enough to make the environment
            on any machine.
        kwargs: arguments of :func:`~teacher.envs.make.make_env`, JSON values only.
        fps: frames per second of clips, with one frame per environment step.
        never_terminates: True if the environment declares that it never terminates, otherwise False.
        observation_space: observation space of a single environment, a Box of any shape; uint8 arrays with
            two to four dimensions are treated as images.
        captures: True to capture a frame of every step, because episodes can't be replayed.
        flattened: the original observation space as a one-line string if observations are flattened
            automatically because no transform was given; otherwise None.
        reports_success: True if the environment declares that ``info["success"]`` of a step says whether its
            task is solved, otherwise False.
        frozen_steps: number of steps by which an absorbed episode continues after its end in a vector
            environment; None to continue until ``horizon``.
        terminates: True if only the recorded episode continues, while the vector environment terminates it.
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
    reports_success: bool = False
    frozen_steps: int | None = None
    terminates: bool = False


def describe_task(
    env_id: str,
    max_episode_steps: int | None = None,
    obs_transform: str | None = None,
    *,
    captures: bool = False,
) -> TaskInfo:
    """Make an environment once to determine the properties that a run needs.

    Args:
        max_episode_steps: step limit per episode; None to use the environment's own limit.
        obs_transform: name of a transform for :class:`TransformedObservations`. If None, observations from
            spaces other than Box are flattened if they are numeric and have a fixed size.

    Raises:
        ConfigError: the transform does not exist.
        EnvironmentUnsuitableError: the environment is unknown, can't be made, or has unsupported spaces or no
            step limit.
    """
    given = {"max_episode_steps": max_episode_steps, KWARG: obs_transform}
    kwargs = {name: value for name, value in given.items() if value is not None}
    return examine(env_id, kwargs, captures=captures).task


@dataclass(frozen=True)
class Examined:
    """Properties of an environment, found by making it once, even if a run can't use it.

    Attributes:
        found: the properties. If there is no step limit, ``found.horizon`` is 1,000.
        horizon: maximum number of steps in an episode; None if there is no limit.
        is_supported: True if a run supports the types of the spaces.
        refusals: errors that prevent a run from using the environment; empty if there are none.
        implied: ``make_env`` arguments that were not given, but follow from the environment: the step limit
            that it enforces itself, and the transform for MiniGrid's observations.
    """

    found: TaskInfo
    horizon: int | None
    is_supported: bool
    refusals: Sequence[EnvironmentUnsuitableError]
    without_ends: WithoutEnds
    implied: Mapping[str, Any] = field(default_factory=dict)

    @property
    def task(self) -> TaskInfo:
        """Return the environment's :class:`TaskInfo`.

        Raises:
            EnvironmentUnsuitableError: a run can't use the environment; the message lists all reasons.
        """
        if self.refusals:
            raise join_errors(self.refusals)
        return self.found


def examine(env_id: str, kwargs: dict[str, Any], *, captures: bool = False) -> Examined:
    """Make an environment once, and return its properties and any reasons why a run can't use it.

    Raises:
        ConfigError: the transform does not exist.
        EnvironmentUnsuitableError: the environment is unknown or can't be made.
    """
    env_id = resolve_env_id(env_id)
    spec = find_spec(env_id)
    if spec.entry_point is None:
        raise EnvironmentUnsuitableError(
            f"{env_id} is registered only as a vector environment (vector_entry_point), but teach needs "
            "single ones: register an entry_point too, or in Python pass gymnasium.make_vec(...) to "
            "HumanPreferencesVectorWrapper"
        )
    given, limit = kwargs, kwargs.get("max_episode_steps") or spec.max_episode_steps
    refusals: list[EnvironmentUnsuitableError] = []
    if limit is None:
        refusals.append(
            EnvironmentUnsuitableError(
                f"{env_id} has no step limit per episode: pass --max_episode_steps",
                {"max_episode_steps": LIMIT},
            )
        )
        kwargs = {name: value for name, value in kwargs.items() if name != FIXED}
    env = _made(env_id, kwargs)
    with contextlib.closing(env):
        declared = env.observation_space
        if implied := _implied(env, has_limit=limit is not None):
            return replace(examine(env_id, {**given, **implied}, captures=captures), implied=implied)
        if KWARG not in kwargs and not isinstance(declared, Box) and are_numbers(declared):
            kwargs = {**kwargs, KWARG: FLATTEN}
            env = TransformedObservations(env, FLATTEN)
        observations, actions = env.observation_space, env.action_space
        refusals += _refused_spaces(env_id, observations, actions)
        found = TaskInfo(
            env_id,
            kwargs,
            fps=max(1, round(env.metadata.get("render_fps") or DEFAULT_FPS)),
            horizon=limit or LIMIT,
            never_terminates=declares(env, "never_terminates"),
            observation_space=cast(Box, observations),
            action_space=cast(ActionSpace, actions),
            captures=captures,
            flattened=None if env.observation_space is declared else one_line(declared),
            reports_success=declares(env, "reports_success"),
        )
        known = isinstance(observations, Box) and isinstance(actions, Box | Discrete | MultiDiscrete)
        return Examined(found, limit, known, refusals, without_ends(env_id, env))


def _implied(env: gym.Env[Any, Any], *, has_limit: bool) -> dict[str, Any]:
    """Return the arguments in :attr:`Examined.implied`."""
    implied: dict[str, Any] = {}
    if not has_limit:
        limits = [getattr(env.unwrapped, name, None) for name in ("max_steps", "max_episode_steps")]
        own = [int(each) for each in limits if isinstance(each, int | np.integer) and 1 < each <= TRIAL_STEPS]
        implied = {"max_episode_steps": own[0]} if own else {}
    transform = transform_for(env.observation_space)
    return implied if transform == ANY_TRANSFORM else {**implied, KWARG: transform}


def _made(env_id: str, kwargs: dict[str, Any]) -> gym.Env[Any, Any]:
    try:
        return make_env(env_id, kwargs)
    except TeacherError:
        raise
    except gym.error.DependencyNotInstalled as error:
        why = one_line(error)
        if why.startswith("Box2D is not installed"):  # its message goes on to explain how to compile Box2D
            why = "Box2D is not installed: pip install 'rl-teacher[box2d]'"
        raise EnvironmentUnsuitableError(f"can't make {env_id}: {why}") from error
    except (Exception, SystemExit) as error:  # an environment's constructor may raise anything
        raise EnvironmentUnsuitableError(f"can't make {env_id}: {reason(error)}") from error


def make_vector_env(
    task: TaskInfo,
    num_envs: int,
    seed: int | Sequence[int],
    workers: int = 1,
    part: tuple[int, int] = (0, 1),
) -> EpisodeRecorder:
    """Make a run's vector environment, which records its episodes so that they can be replayed.

    Args:
        seed: seed of the run. To get an independent seed stream, for example for evaluation environments,
            pass a list such as ``[seed, 1]``.
        workers: number of threads that step the environments; does not affect results.
        part: ``(index, count)`` of this vector environment if a run is split across ``count`` vector
            environments, each with ``num_envs`` environments; no two parts share an episode seed.
    """
    before, total = part[0] * num_envs, part[1] * num_envs
    entropy = np.random.SeedSequence(seed).generate_state(4).tolist()

    def make(index: int) -> SeededResets:
        if task.captures:
            prepare_drawing()
        env = make_env(task.env_id, task.kwargs, "rgb_array" if task.captures else None)
        if task.frozen_steps is not None:
            env.set_wrapper_attr("max_frozen_steps", task.frozen_steps)
            env.set_wrapper_attr("terminates", task.terminates)
        seeds = episode_seeds(entropy, before + index, total)
        return CapturedResets(env, seeds) if task.captures else SeededResets(env, seeds)

    makers = [lambda index=index: make(index) for index in range(num_envs)]
    envs: SyncVectorEnv[Any, Any]
    if not task.captures and batched_mujoco.supports(task.env_id, task.kwargs):
        envs = batched_mujoco.BatchedMujoco(makers, workers)
    elif workers > 1 and not (task.captures and task.env_id.startswith("dm_control/")):
        # DMControl's OpenGL contexts belong to the thread that made them.
        envs = ThreadedVectorEnv(makers, workers)
    else:
        envs = SyncVectorEnv(makers)
    added = task.frozen_steps if task.terminates else None
    return EpisodeRecorder(envs, task.env_id, task.kwargs, added or 0, task.horizon)


def _refused_spaces(
    env_id: str, observations: gym.Space[Any], actions: gym.Space[Any]
) -> list[EnvironmentUnsuitableError]:
    refusals = []
    if not isinstance(observations, Box) or 0 in observations.shape:
        refusals.append(
            EnvironmentUnsuitableError(
                f"{env_id} has the observation space {one_line(observations)}, which a run can't use: pass "
                f"--{KWARG} {ANY_TRANSFORM}, a function that converts observations to a numeric array",
                {KWARG: ANY_TRANSFORM},
            )
        )
    is_box = isinstance(actions, Box) and np.issubdtype(actions.dtype, np.floating)
    if not is_box and not isinstance(actions, Discrete | MultiDiscrete):
        refusals.append(
            EnvironmentUnsuitableError(
                f"{env_id} has the action space {one_line(actions)}; only Discrete, MultiDiscrete and "
                "floating-point Box spaces are supported"
            )
        )
    return refusals
