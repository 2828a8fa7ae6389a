"""Common base of the single and the vector wrapper: the trainer and the methods that control it."""

import contextlib
import logging
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from teacher.clips.gl import select_gl, with_install_command
from teacher.data.steps import StepsBatch
from teacher.envs.capture import why_no_screen
from teacher.envs.make import make_again
from teacher.envs.tasks import DEFAULT_FPS
from teacher.envs.transform import Flattened, are_numbers, told_flattened, transform_for
from teacher.errors import (
    ConfigError,
    DataError,
    EnvironmentUnsuitableError,
    RenderError,
    TeacherError,
    collecting,
    describe_exception,
    join_errors,
    one_line,
)
from teacher.reward.devices import working_device
from teacher.reward.predictor import RewardPredictor
from teacher.wrapper.episode_check import fit_to_environment
from teacher.wrapper.processes import ONE_PREDICTOR, require_own_agent
from teacher.wrapper.recording import Source
from teacher.wrapper.replay import ReplayFormat
from teacher.wrapper.settings import WrapperConfig, read_settings
from teacher.wrapper.trainer import PreferenceTrainer

Space = spaces.Space[Any]

TRUE_REWARD_KEY = "true_reward"

_log = logging.getLogger("teacher.wrapper")


class Controls:
    """Methods of both wrappers that control learning from preferences."""

    _trainer: PreferenceTrainer
    _wants_prediction: bool

    def __reduce__(self) -> Any:
        """Refuse to be copied or pickled, as a copy would not learn."""
        raise ConfigError(
            f"{type(self).__name__} cannot be copied or sent to another process, as SubprocVecEnv does: its "
            f"predictor is trained in this one; {ONE_PREDICTOR}"
        )

    @property
    def trainer(self) -> PreferenceTrainer:
        """The trainer that submits comparisons and fits the predictor."""
        return self._trainer

    @property
    def using_reward_from_predictor(self) -> bool:
        """True if ``step`` returns predicted rewards now."""
        return self._wants_prediction and self._trainer.predictor is not None

    @property
    def address(self) -> str:
        """Address where people label; empty if nobody does."""
        return self._trainer.address

    def switch_to_true_reward(self) -> None:
        """Make ``step`` return the environment's own reward until switched back."""
        self._wants_prediction = False

    def switch_to_predicted_reward(self) -> None:
        """Make ``step`` return predicted rewards.

        Raises:
            DataError: there is no predictor, and none is trained.
        """
        if self._trainer.predictor is None and not self._trainer.config.predicts:
            raise DataError(
                "there is no reward predictor and none is trained: pass train_reward or "
                "pretrained_reward_predictor_dir"
            )
        self._wants_prediction = True

    def save_prefs(self) -> Path:
        """Write all preferences into ``log_dir``, for use as ``prefs_dir``, and return the file's path.

        Raises:
            DataError: there are none yet.
        """
        return self._trainer.save_preferences()

    def save_reward_predictor(self) -> Path:
        """Write the current predictor to the checkpoints in ``log_dir`` and return the file's path.

        Raises:
            DataError: there is no predictor yet.
        """
        return self._trainer.save_predictor()

    @property
    def predictor(self) -> RewardPredictor | None:
        """Predictor of the rewards, a new object after each update; None before the first."""
        return self._trainer.predictor

    def relabel(self, buffer: Any, *, scaled_actions: bool = True) -> int:
        """Replace all rewards in a replay buffer of Stable-Baselines3 by those of the current predictor.

        Rewards are stored when a step is made, so without relabeling an off-policy agent keeps learning from
        rewards of earlier predictors, and from zeros before the first. Relabel whenever :attr:`predictor` is
        a new object. Takes a ``ReplayBuffer``, or with ``obs_transform_func`` a ``DictReplayBuffer``.
        Wrappers of observations or actions belong inside this one.

        Args:
            buffer: such as ``model.replay_buffer``.
            scaled_actions: True if the buffer holds Box actions scaled to [-1, 1], as Stable-Baselines3's
                agents store them; False if it holds them as executed.

        Returns:
            The number of replaced rewards.

        Raises:
            ConfigError: the buffer is of another kind, or lacks inputs of the predictor.
            DataError: there is no predictor yet.
        """
        if (predictor := self.predictor) is None:
            raise DataError(
                f"there is no reward predictor yet, only {self._trainer.answers} of "
                f"{self._trainer.config.n_initial_prefs} labels to train one; relabel later"
            )
        spaces = _single_spaces(self.env)  # type: ignore[attr-defined]  # of the wrapper that this is part of
        transform = self._trainer.config.obs_transform_func
        return ReplayFormat(*spaces, transform, scaled_actions).relabel(buffer, predictor)

    def answer(self, count: int | None = None) -> int:
        """Ask in this notebook about ``count`` waiting pairs, or all, and return the number of labels.

        Raises:
            ConfigError: ``people`` is not ``"notebook"``.
        """
        return self._trainer.answer(count)


def _single_spaces(env: Any) -> tuple[Space, Space]:
    """Return the observation and action space of a single environment."""
    observations = getattr(env, "single_observation_space", env.observation_space)
    return observations, getattr(env, "single_action_space", env.action_space)


def begin(
    env: Any, network: Any, settings: Mapping[str, Any], env_id: str, can_draw: bool
) -> PreferenceTrainer:
    """Return the trainer for an environment with the given keyword arguments."""
    config = read_settings(settings)
    require_own_agent(config)
    working_device(config.device)  # before making a folder
    for name in ("env_wrapper", "reward_predictor", "pref_interface"):
        logger = {"env_wrapper": "", "reward_predictor": ".predictor", "pref_interface": ".preferences"}[name]
        logging.getLogger(f"teacher.wrapper{logger}").setLevel(getattr(config, f"{name}_log_level"))
    observations, actions = _single_spaces(env)
    fps = max(1, round(env.metadata.get("render_fps") or DEFAULT_FPS))
    if config.obs_transform_func is None and is_of_parts(observations) and are_numbers(observations):
        config = replace(config, obs_transform_func=Flattened(observations))
    problems: list[TeacherError] = []
    with collecting(problems):
        seen = transformed_space(observations, config.obs_transform_func, lambda: make_again(env))
    with collecting(problems):
        episodes = fit_to_environment(config, env, env_id, fps)
    if problems:
        raise join_errors(problems)
    if isinstance(config.obs_transform_func, Flattened):
        _log.warning(told_flattened(observations, seen))
    source = Source(env_id, seen, actions, replayable=config.env_fn is not None, fps=fps)
    return PreferenceTrainer(episodes, source, can_draw, network)


def is_of_parts(space: Space) -> bool:
    """Return whether the predictor needs ``obs_transform_func`` for observations of this space."""
    return not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete)


def transformed_space(
    space: Space, function: Callable[[Any], Any] | None, make: Callable[[], Any] = lambda: None
) -> Space:
    """Return the space of transformed observations, determined by transforming one.

    Args:
        space: the observation space.
        function: the transform; None for observations as they are.
        make: makes an environment, for a real observation if the function fails on a sampled one.

    Raises:
        ConfigError: the function fails.
        EnvironmentUnsuitableError: the result is not a numeric array.
    """
    if function is None:
        if is_of_parts(space):
            name = transform_for(space)
            raise EnvironmentUnsuitableError(
                f"observations are {one_line(space)}; expected numbers: pass obs_transform_func"
                f"{'' if ':function' in name else '=' + name.replace(':', '.')}, which returns an array"
            )
        return space
    try:
        made = _made_of_one(space, function, make)
    except Exception as error:  # it may raise anything
        raise ConfigError(
            f"obs_transform_func failed on an observation: {describe_exception(error)}"
        ) from error
    if made.dtype.kind not in "fiub":
        raise EnvironmentUnsuitableError(
            f"obs_transform_func returned an array of {made.dtype}; expected a numeric array"
        )
    if made.dtype == np.uint8:
        return spaces.Box(0, 255, made.shape, np.uint8)
    return spaces.Box(-np.inf, np.inf, made.shape, np.float64 if made.dtype == np.float64 else np.float32)


def _made_of_one(space: Space, function: Callable[[Any], Any], make: Callable[[], Any]) -> NDArray[Any]:
    try:
        return np.asarray(function(deepcopy(space).sample()))
    except Exception:
        if (env := make()) is None:
            raise
        with contextlib.closing(env):
            return np.asarray(function(env.reset(seed=0)[0]))


def predict(
    predictor: RewardPredictor,
    before: NDArray[Any],
    actions: NDArray[Any],
    after: NDArray[Any],
    terminated: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """Return predicted rewards ``(n,)`` of ``n`` steps; all inputs are ``(n, ...)``."""
    return predictor.step_rewards(StepsBatch(before, actions, after, terminated))


def drawn(env: Any) -> Any:
    """Return what an environment renders. Raises :class:`RenderError` without a display or OpenGL."""
    try:
        return env.render()
    except Exception as error:  # it may raise anything
        if no_screen := why_no_screen():
            raise RenderError(no_screen) from error
        if hasattr(env.unwrapped, "mujoco_renderer"):
            try:
                select_gl()
            except RenderError as missing:
                raise RenderError(with_install_command(str(missing))) from error
        raise


def reward_before_predictor(config: WrapperConfig, true: Any) -> Any:
    """Return the reward before there is a predictor: zero or the true one, by ``initial_reward``."""
    return np.zeros_like(true)[()] if config.predicts and config.initial_reward == "zero" else true
