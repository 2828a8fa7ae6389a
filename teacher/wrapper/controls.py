"""Code shared by both preference wrappers: their common methods and trainer construction."""

import contextlib
import logging
import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from teacher.data.steps import StepsBatch
from teacher.envs.capture import draw
from teacher.envs.gl import select_gl, why_no_screen, with_install_command
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
from teacher.labeling.human import HumanCollector
from teacher.reward.building import working_device
from teacher.reward.images import earns_0_after_end, with_absorbing
from teacher.reward.predictor import RewardPredictor
from teacher.wrapper.episode_check import fit_to_environment
from teacher.wrapper.prompt import PromptCollector
from teacher.wrapper.recording import SegmentRecorder, Source
from teacher.wrapper.replay import ReplayFormat
from teacher.wrapper.settings import WrapperConfig, read_settings
from teacher.wrapper.trainer import ONE_PREDICTOR, PreferenceTrainer

Space = spaces.Space[Any]

TRUE_REWARD_KEY = "true_reward"

_log = logging.getLogger("teacher.wrapper")


class Controls:
    """Base class of both preference wrappers, with the methods that control learning."""

    env: Any
    _trainer: PreferenceTrainer
    _recorders: list[SegmentRecorder]
    _wants_prediction: bool
    _closed = False

    def _join(self, trainer: PreferenceTrainer, num_envs: int) -> int:
        """Share a trainer, and record segments of ``num_envs`` environments; return this wrapper's index."""
        self._trainer, number = trainer, trainer.join()
        _end_absorbed(self.env, trainer)
        self._wants_prediction = trainer.config.predicts
        self._recorders = [
            SegmentRecorder(
                trainer.source,
                trainer.config.segment_steps,
                np.random.default_rng([trainer.config.seed, number + index]),
            )
            for index in range(num_envs)
        ]
        return number

    def _rewards(
        self, true: Any, before: Sequence[Any], actions: Any, after: Sequence[Any], terminated: Any
    ) -> NDArray[np.float64]:
        """Return the rewards for ``step`` to return, one for each environment."""
        trainer, rewards = self._trainer, np.asarray(true, np.float64)
        if not self._wants_prediction:
            return rewards
        if (predictor := trainer.predictor) is None:
            return np.zeros_like(rewards) if trainer.config.initial_reward == "zero" else rewards
        steps = StepsBatch(np.stack(before), actions, np.stack(after), np.asarray(terminated))
        return predictor.step_rewards(steps)

    def _close(self, close_env: Callable[[], Any]) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            self._trainer.leave()
        finally:
            close_env()

    def start_segment_collection(self) -> None:
        """Resume the collection of segments for comparisons."""
        for recorder in self._recorders:
            recorder.resume()

    def stop_segment_collection(self) -> None:
        """Stop collecting segments for comparisons, for example while the agent is evaluated."""
        for recorder in self._recorders:
            recorder.pause()

    def __reduce__(self) -> Any:
        """Raise :class:`ConfigError` to prevent copying and pickling, because a copy would not learn."""
        raise ConfigError(
            f"{type(self).__name__} can't be copied or sent to another process, for example by "
            f"SubprocVecEnv, because its predictor is trained in this process; {ONE_PREDICTOR}"
        )

    @property
    def trainer(self) -> PreferenceTrainer:
        """Trainer that submits comparisons and fits the predictor."""
        return self._trainer

    @property
    def using_reward_from_predictor(self) -> bool:
        """True if ``step`` currently returns predicted rewards."""
        return self._wants_prediction and self._trainer.predictor is not None

    @property
    def address(self) -> str:
        """Link for labeling and watching; empty if labels don't come from the site."""
        collector = self._trainer.learning.collector
        return collector.experiment.url if isinstance(collector, HumanCollector) else ""

    def switch_to_true_reward(self) -> None:
        """Make ``step`` return true rewards until :meth:`switch_to_predicted_reward` is called."""
        self._wants_prediction = False

    def switch_to_predicted_reward(self) -> None:
        """Make ``step`` return predicted rewards as soon as there is a predictor.

        Raises:
            DataError: there is no predictor, and none is being trained.
        """
        if self._trainer.predictor is None and not self._trainer.config.predicts:
            raise DataError(
                "there is no reward predictor, and none is being trained: pass train_reward=True or "
                "pretrained_reward_predictor_dir to the wrapper"
            )
        self._wants_prediction = True

    def save_prefs(self) -> Path:
        """Write all preferences to a file in ``log_dir``; return its path, for use as ``prefs_dir``.

        Raises:
            DataError: there are no preferences yet.
        """
        return self._trainer.save_preferences()

    def save_reward_predictor(self) -> Path:
        """Save the current predictor as a checkpoint in ``log_dir`` and return the file's path.

        Raises:
            DataError: there is no predictor yet.
        """
        return self._trainer.save_predictor()

    @property
    def predictor(self) -> RewardPredictor | None:
        """Predictor that ``step`` uses: None at first, replaced by a new object at each update."""
        return self._trainer.predictor

    def relabel(self, buffer: Any, *, scaled_actions: bool = True) -> int:
        """Replace all rewards in a Stable-Baselines3 replay buffer with the current predictor's rewards.

        A replay buffer keeps the rewards that ``step`` returned when each transition was collected. Without
        relabeling, an off-policy agent keeps learning from earlier predictors' rewards, and from the zeros
        stored before there was a predictor. Relabel whenever :attr:`predictor` is a new object. Observation
        and action wrappers must be inside this wrapper.

        Args:
            buffer: a ``ReplayBuffer`` or, if ``obs_transform_func`` converts dicts, a ``DictReplayBuffer``;
                for example ``model.replay_buffer``.
            scaled_actions: True if the buffer stores Box actions scaled to [-1, 1], as Stable-Baselines3's
                agents do; False if it stores them as executed.

        Returns:
            The number of rewards replaced.

        Raises:
            ConfigError: the buffer is not of a supported type, or lacks data that the predictor uses.
            DataError: there is no predictor yet.
        """
        predictor, spaces = self._trainer.published(), _single_spaces(self.env)
        transform = self._trainer.config.obs_transform_func
        return ReplayFormat(*spaces, transform, scaled_actions).relabel(buffer, predictor)

    def answer(self, count: int | None = None) -> int:
        """Ask the notebook user to answer up to ``count`` waiting questions; return the number answered.

        Args:
            count: maximum number of questions; None for all that wait.

        Raises:
            ConfigError: ``people`` is not ``"notebook"``.
        """
        collector = self._trainer.learning.collector
        if not isinstance(collector, PromptCollector) or self._trainer.config.people != "notebook":
            raise ConfigError('answer() needs a wrapper with synthetic_prefs=False and people="notebook"')
        return collector.answer(count)


def _single_spaces(env: Any) -> tuple[Space, Space]:
    observations = getattr(env, "single_observation_space", env.observation_space)
    return observations, getattr(env, "single_action_space", env.action_space)


def begin(env: Any, network: Any, settings: Mapping[str, Any]) -> PreferenceTrainer:
    """Create the trainer for an environment from the wrapper's keyword arguments.

    Also set the log levels, and choose or check the segment length by running random episodes.

    Args:
        network: function that makes a custom network; None for the default networks.
    """
    config = read_settings(settings)
    env_id = type(env.unwrapped).__name__ if env.spec is None else env.spec.id
    _require_own_agent(config)
    working_device(config.device)  # fails before log_dir is created
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
    replayable = config.env_fn is not None
    absorbs, horizon = bool(_attribute(env, "absorbs")), None
    if absorbs:
        reward, is_new = with_absorbing(config.reward, seen), config.pretrained_reward_predictor_dir is None
        horizon = _attribute(env, "horizon") if is_new and earns_0_after_end(reward) else None
        episodes.config = replace(episodes.config, allow_variable_horizon=True)
    source = Source(env_id, seen, actions, replayable, fps, absorbs, horizon)
    return PreferenceTrainer(episodes, source, env.render_mode == "rgb_array", network)


def _require_own_agent(config: WrapperConfig) -> None:
    """Raise an error if a predictor would be trained in a worker process that only steps environments.

    Stable-Baselines3, Gymnasium and Tianshou workers are recognized by their ``daemon`` flag.
    """
    is_worker = multiprocessing.parent_process() is not None and multiprocessing.current_process().daemon
    if is_worker and (config.train_reward or config.collect_prefs) and not config.own_agent:
        raise ConfigError(
            "a wrapper in a worker process, such as one of SubprocVecEnv or AsyncVectorEnv, would train a "
            f"separate predictor in each process: {ONE_PREDICTOR}; pass own_agent=True if this process "
            "trains its own agent, as in a multiprocessing.Pool"
        )


def _attribute(env: Any, name: str) -> Any:
    """Return an attribute of an environment, or of a vector environment's first one; None if it has none."""
    if not isinstance(env, VectorEnv):
        return env.get_wrapper_attr(name) if env.has_wrapper_attr(name) else None
    inner: Any = env.unwrapped
    has_it = hasattr(inner, "call") and inner.call("has_wrapper_attr", name)[0]
    return inner.get_attr(name)[0] if has_it else None


def _end_absorbed(env: Any, trainer: PreferenceTrainer) -> None:
    """Make absorbed episodes end where no more segments are cut, or earlier if recorders go on."""
    if not trainer.source.absorbs:
        return
    inner: Any = env.unwrapped if isinstance(env, VectorEnv) else env
    change = inner.set_attr if isinstance(env, VectorEnv) else inner.set_wrapper_attr
    change("max_frozen_steps", trainer.config.segment_steps)
    change("terminates", trainer.source.horizon is not None)


def is_of_parts(space: Space) -> bool:
    """Return True if observations in this space need ``obs_transform_func`` (dicts or text, for example)."""
    return not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete)


def transformed_space(
    space: Space, function: Callable[[Any], Any] | None, make: Callable[[], Any] = lambda: None
) -> Space:
    """Return the space of transformed observations, found by transforming one observation.

    Args:
        make: function that creates an environment, or returns None if it can't. If the transform fails on a
            random sample from the space, it is applied to this environment's first observation instead.
    """
    if function is None:
        if is_of_parts(space):
            name = transform_for(space)
            raise EnvironmentUnsuitableError(
                f"observations in {one_line(space)} are not numeric arrays: pass obs_transform_func"
                f"{'' if ':function' in name else '=' + name.replace(':', '.')}, a function that converts "
                "them to arrays"
            )
        return space
    try:
        made = _transform_one(space, function, make)
    except Exception as error:  # user code may raise anything
        raise ConfigError(
            f"obs_transform_func failed on an observation: {describe_exception(error)}"
        ) from error
    if made.dtype.kind not in "fiub":
        raise EnvironmentUnsuitableError(
            f"obs_transform_func returned an array of dtype {made.dtype}; it must return a numeric array"
        )
    if made.dtype == np.uint8:
        return spaces.Box(0, 255, made.shape, np.uint8)
    return spaces.Box(-np.inf, np.inf, made.shape, np.float64 if made.dtype == np.float64 else np.float32)


def _transform_one(space: Space, function: Callable[[Any], Any], make: Callable[[], Any]) -> NDArray[Any]:
    """Transform a sample from the space or, if that fails, an observation from ``make``'s environment."""
    try:
        return np.asarray(function(deepcopy(space).sample()))
    except Exception:
        if (env := make()) is None:
            raise
        with contextlib.closing(env):
            return np.asarray(function(env.reset(seed=0)[0]))


def drawn(env: Any) -> Any:
    """Render an environment and return the result."""
    try:
        return draw(env)
    except Exception as error:  # an environment may raise anything
        if no_screen := why_no_screen():
            raise RenderError(no_screen) from error
        if hasattr(env.unwrapped, "mujoco_renderer"):
            try:
                select_gl()
            except RenderError as missing:
                raise RenderError(with_install_command(str(missing))) from error
        raise
