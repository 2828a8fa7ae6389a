"""What a run must know about its environment, checked before anything starts, and how it is made."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from teacher.config import TeachConfig
from teacher.envs import batched_classic, batched_mujoco
from teacher.envs.capture import CapturedResets, prepare_drawing
from teacher.envs.episodes import EpisodeRecorder, SeededResets, episode_seeds
from teacher.envs.families import resolve_env_id
from teacher.envs.make import make_env
from teacher.envs.registry import find_spec, reason
from teacher.envs.threads import ThreadedVectorEnv
from teacher.envs.transform import FLATTEN, KWARG, has_fixed_size
from teacher.errors import EnvironmentUnsuitableError, TeacherError, one_line

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
    """

    env_id: str
    kwargs: dict[str, Any]
    fps: int
    horizon: int
    never_terminates: bool
    observation_space: Box
    action_space: ActionSpace
    captures: bool = False


def task_of(config: TeachConfig) -> TaskInfo:
    """The environment of a run; see :func:`describe_task`."""
    return describe_task(
        config.env_id, config.max_episode_steps, config.obs_transform, captures=config.capture_frames
    )


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
        obs_transform: what makes numbers of its observations; see :class:`TransformedObservations`.
        captures: keep a picture of every step.

    Raises:
        ConfigError: there is no such transform.
        EnvironmentUnsuitableError: it is unknown, cannot be made, has unsupported spaces or no episode limit.
    """
    env_id = resolve_env_id(env_id)
    spec = find_spec(env_id)
    given = {"max_episode_steps": max_episode_steps, KWARG: obs_transform}
    kwargs = {name: value for name, value in given.items() if value is not None}
    horizon = max_episode_steps or spec.max_episode_steps
    try:
        env = make_env(env_id, kwargs)
    except TeacherError:
        raise
    except gym.error.DependencyNotInstalled as error:
        why = one_line(error)
        if why.startswith("Box2D is not installed"):  # Gymnasium goes on with how to compile it
            why = "Box2D is not installed: pip install 'rl-teacher[box2d]'"
        raise EnvironmentUnsuitableError(f"{env_id} cannot be made: {why}") from error
    except (Exception, SystemExit) as error:  # an environment's constructor may raise anything
        raise EnvironmentUnsuitableError(f"{env_id} cannot be made: {reason(error)}") from error
    with contextlib.closing(env):
        observation_space, action_space = _supported_spaces(env_id, env)
        if horizon is None:
            raise EnvironmentUnsuitableError(
                f"{env_id} has no limit on the steps of an episode: --max_episode_steps is required"
            )
        return TaskInfo(
            env_id,
            kwargs,
            fps=max(1, round(env.metadata.get("render_fps") or DEFAULT_FPS)),
            horizon=horizon,
            never_terminates=_never_terminates(env),
            observation_space=observation_space,
            action_space=action_space,
            captures=captures,
        )


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


def _never_terminates(env: gym.Env[Any, Any]) -> bool:
    try:
        return bool(env.get_wrapper_attr("never_terminates"))
    except AttributeError:
        return False


def _supported_spaces(env_id: str, env: gym.Env[Any, Any]) -> tuple[Box, ActionSpace]:
    observations, actions = env.observation_space, env.action_space
    if not isinstance(observations, Box) or 0 in observations.shape:
        remedy = f"--{KWARG} {FLATTEN} puts all parts one after the other, or"
        raise EnvironmentUnsuitableError(
            f"{env_id} has observations {one_line(observations)}; expected a Box: numbers of one shape; "
            f"{remedy if has_fixed_size(observations) else 'pass'} --{KWARG} module:function, a function of "
            "your own that makes an array of them"
        )
    if isinstance(actions, Discrete | MultiDiscrete):
        return observations, actions
    if isinstance(actions, Box) and np.issubdtype(actions.dtype, np.floating):
        return observations, actions
    raise EnvironmentUnsuitableError(
        f"{env_id} has actions {one_line(actions)}; expected Discrete, MultiDiscrete or a Box of floats"
    )
