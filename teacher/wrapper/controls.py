"""What the wrappers of one environment and of several have in common: a trainer behind them, and controls."""

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
    """The methods by which a program controls learning from preferences, whatever it wraps."""

    _trainer: PreferenceTrainer
    _wants_prediction: bool

    def __reduce__(self) -> Any:
        """Refuse to be copied or sent to another process, which would learn nothing there."""
        raise ConfigError(
            f"{type(self).__name__} cannot be copied or sent to another process, as SubprocVecEnv does: its "
            f"predictor is trained in this one; {ONE_PREDICTOR}"
        )

    @property
    def trainer(self) -> PreferenceTrainer:
        """What asks and learns."""
        return self._trainer

    @property
    def using_reward_from_predictor(self) -> bool:
        """Whether ``step`` returns predicted rewards now."""
        return self._wants_prediction and self._trainer.predictor is not None

    @property
    def address(self) -> str:
        """Where people label; empty where nobody does."""
        return self._trainer.address

    def switch_to_true_reward(self) -> None:
        """Return the environment's own reward from the next step on, until switched back."""
        self._wants_prediction = False

    def switch_to_predicted_reward(self) -> None:
        """Return predicted rewards from the next step on.

        Raises:
            DataError: there is no predictor yet, and none has to come.
        """
        if self._trainer.predictor is None and not self._trainer.config.predicts:
            raise DataError(
                "there is no reward predictor and none is trained: pass train_reward or "
                "pretrained_reward_predictor_dir"
            )
        self._wants_prediction = True

    def save_prefs(self) -> Path:
        """Write all preferences into ``log_dir``; the file, which ``prefs_dir`` reads.

        Raises:
            DataError: there is none yet.
        """
        return self._trainer.save_preferences()

    def save_reward_predictor(self) -> Path:
        """Write the predictor that is used now among its checkpoints in ``log_dir``; the file.

        Raises:
            DataError: there is none yet.
        """
        return self._trainer.save_predictor()

    @property
    def predictor(self) -> RewardPredictor | None:
        """What rewards are predicted with now, another object whenever it was trained on; None before."""
        return self._trainer.predictor

    def relabel(self, buffer: Any, *, scaled_actions: bool = True) -> int:
        """Give all steps in a replay buffer of Stable-Baselines3 the rewards that are predicted for them now.

        Rewards are stored when a step is made, so an agent that learns from old steps would else go on
        learning from what earlier predictors said, and from the 0 before there was one. Do it whenever
        :attr:`predictor` is another one. It takes a ``ReplayBuffer``, or a ``DictReplayBuffer`` where there
        is an ``obs_transform_func``. Wrappers of observations or actions belong inside this one.

        Args:
            buffer: such as ``model.replay_buffer``.
            scaled_actions: whether actions of a Box lie in [-1, 1] there, as Stable-Baselines3's agents store
                them; False where they are stored as they are executed.

        Returns:
            How many rewards were replaced.

        Raises:
            ConfigError: it is another kind of buffer, or does not hold what the predictor reads.
            DataError: there is no predictor yet.
        """
        if (predictor := self.predictor) is None:
            raise DataError(
                f"there is no reward predictor yet, only {self._trainer.answers} of "
                f"{self._trainer.config.n_initial_prefs} answers to train one; relabel later"
            )
        spaces = _single_spaces(self.env)  # type: ignore[attr-defined]  # of the wrapper that this is part of
        transform = self._trainer.config.obs_transform_func
        return ReplayFormat(*spaces, transform, scaled_actions).relabel(buffer, predictor)

    def answer(self, count: int | None = None) -> int:
        """Ask here, with ``people="notebook"``, about ``count`` waiting pairs or all; how many were answered.

        Raises:
            ConfigError: answers are given elsewhere.
        """
        return self._trainer.answer(count)


def _single_spaces(env: Any) -> tuple[Space, Space]:
    """Of observations and actions of one environment."""
    observations = getattr(env, "single_observation_space", env.observation_space)
    return observations, getattr(env, "single_action_space", env.action_space)


def begin(
    env: Any, network: Any, settings: Mapping[str, Any], env_id: str, can_draw: bool
) -> PreferenceTrainer:
    """The trainer that keyword arguments ask for, of an environment's single spaces."""
    config = read_settings(settings)
    require_own_agent(config)
    working_device(config.device)  # before a folder is made
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
    """Return whether the predictor cannot read observations as they are."""
    return not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete)


def transformed_space(
    space: Space, function: Callable[[Any], Any] | None, make: Callable[[], Any] = lambda: None
) -> Space:
    """The space of what a function makes of observations, found out by trying it.

    Args:
        space: of observations.
        function: None where they are read as they are.
        make: another environment, for a real observation where the function knows nothing of a drawn one.

    Raises:
        ConfigError: the function fails.
        EnvironmentUnsuitableError: what there is then is no array of numbers.
    """
    if function is None:
        if is_of_parts(space):
            name = transform_for(space)
            raise EnvironmentUnsuitableError(
                f"observations are {one_line(space)}; expected numbers: pass obs_transform_func"
                f"{'' if ':function' in name else '=' + name.replace(':', '.')}, which makes a vector or an "
                "image of one"
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
            f"obs_transform_func made {made.dtype} of an observation; expected an array of numbers"
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
    """Predicted rewards of steps of a few environments: all ``(n, ...)``, to ``(n,)``."""
    return predictor.step_rewards(StepsBatch(before, actions, after, terminated))


def drawn(env: Any) -> Any:
    """What an environment draws. Raises :class:`RenderError` where a screen is missing, or OpenGL."""
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
    """What is returned where predicted rewards are wanted and there is no predictor yet."""
    return np.zeros_like(true)[()] if config.predicts and config.initial_reward == "zero" else true
