"""Wrapper that learns the reward of a single Gymnasium environment from preferences."""

import logging
from collections.abc import Iterator
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium.utils import RecordConstructorArgs

from teacher.envs.capture import jpeg
from teacher.envs.episodes import episode_seeds
from teacher.envs.text import TextFrames
from teacher.errors import ConfigError, Topics
from teacher.wrapper.controls import TRUE_REWARD_KEY, Controls, begin, drawn
from teacher.wrapper.recording import Step
from teacher.wrapper.trainer import OPEN, PreferenceTrainer

_log = logging.getLogger("teacher.wrapper")

SAME_AS = "same_as"
"""Keyword argument used only in a ``spec``: the name of the trainer to share, if it is still open."""
_MAX_BESIDE = 1024  # maximum environments that share a trainer; each draws different seeds


class HumanPreferencesEnvWrapper(Controls, gym.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Learns a reward function from preferences, and returns the predicted reward from ``step``.

    Works with any library that steps a Gymnasium environment::

        env = HumanPreferencesEnvWrapper(gym.make("Pendulum-v1"), segment_length=50, log_dir="drlhp_logs")
        PPO("MlpPolicy", env).learn(100_000)
        env.close()

    ``step`` returns the predicted reward as soon as there is a predictor; ``info["true_reward"]`` is always
    the environment's own reward.

    To share the predictor of an open wrapper, call the wrapper's :meth:`beside` or make an environment from
    the wrapper's ``spec``.

    Args:
        env: the environment to wrap; observations that are not numeric need ``obs_transform_func``.
        reward_predictor_network: function that makes a custom ``torch.nn.Module`` for an input shape; None
            for the default networks.
        settings: fields of :class:`~teacher.wrapper.settings.WrapperConfig`.

    Raises:
        ConfigError: an argument is unknown or invalid.
        EnvironmentUnsuitableError: the observation or action space is not supported, or random episodes end
            early or are shorter than a segment. If random episodes can't be run, ``step`` raises this
            error when one of the agent's first episodes is unsuitable.
        DataError: the files in ``prefs_dir`` or ``pretrained_reward_predictor_dir`` can't be read or don't
            match the environment.
        BackgroundError: label collection or training failed; raised by ``step`` and ``close``.
    """

    def __init__(self, env: gym.Env[Any, Any], reward_predictor_network: Any = None, **settings: Any) -> None:
        if env.render_mode == "ansi" and not settings.get("synthetic_prefs", True):
            env = TextFrames(env)
        super().__init__(env)
        trainer: PreferenceTrainer | None = OPEN.get(settings.pop(SAME_AS, ""))
        if trainer is None:
            trainer = begin(env, reward_predictor_network, settings)
        again = {"reward_predictor_network": reward_predictor_network, **settings, SAME_AS: trainer.name}
        RecordConstructorArgs.__init__(self, _disable_deepcopy=True, **again)
        self._start(trainer)

    def beside(self, env: gym.Env[Any, Any]) -> "HumanPreferencesEnvWrapper":
        """Wrap another environment of the same agent, sharing this wrapper's trainer and predictor.

        For libraries that step several environments:
        ``DummyVecEnv([lambda: first, lambda: first.beside(env)])``. Learning continues until all wrappers
        that share the trainer are closed.

        Raises:
            ConfigError: ``env`` has different observation or action spaces.
        """
        spaces = self.env.observation_space, self.env.action_space
        if (env.observation_space, env.action_space) != spaces:
            raise ConfigError(
                f"beside() needs an environment with the spaces {spaces[0]} and {spaces[1]}, but this one "
                f"has {env.observation_space} and {env.action_space}"
            )
        wrapper = type(self).__new__(type(self))
        gym.Wrapper.__init__(wrapper, env)
        RecordConstructorArgs.__init__(wrapper, _disable_deepcopy=True, **self._saved_kwargs)
        wrapper._start(self._trainer)
        return wrapper

    def _start(self, trainer: PreferenceTrainer) -> None:
        number = self._join(trainer, 1)
        (self._recorder,) = self._recorders
        self._seeds: Iterator[int] = episode_seeds([trainer.config.seed], number, _MAX_BESIDE)
        self._observation: Any = None
        self._warned = Topics()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environment and start recording an episode.

        If ``seed`` is None and clips are rendered by replay, the wrapper chooses a seed.
        """
        if self._trainer.source.replayable and seed is None:
            seed = next(self._seeds)
        observation, info = self.env.reset(seed=seed, options=options)
        self._observation = self._trainer.transform(observation)
        self._recorder.begin(self._observation, seed)
        if options and self._trainer.source.replayable:
            self._recorder.leave()
            if self._warned.is_new("options"):
                _log.warning(
                    "episodes that start with reset(options=...) can't be replayed, so no labels are "
                    "requested for them; leave out env_fn, and make the environment with "
                    "render_mode='rgb_array'"
                )
        return observation, info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the environment; return the predicted reward, and put the true one into ``info``."""
        trainer = self._trainer
        executed = np.array(action, self.action_space.dtype)  # copied, because environments may modify it
        action = executed.copy()[()] if trainer.source.replayable else action
        before = np.array(self._observation)  # copied, because environments may overwrite it
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._observation = trainer.transform(observation)
        trainer.steps += 1
        frame = jpeg(drawn(self.env)) if trainer.wants_frames else None
        true = float(reward)
        step = Step(executed, self._observation, true, terminated, truncated, frame)
        trainer.give(self._recorder.add(step))
        if terminated or truncated:
            trainer.episodes.note(self._recorder.steps, terminated=terminated)
        rewards = self._rewards([true], [before], executed[None], [self._observation], [terminated])
        return observation, float(rewards[0]), terminated, truncated, {**info, TRUE_REWARD_KEY: true}

    def close(self) -> None:
        """Close the environment; the last wrapper to close also stops labeling and training.

        Raises:
            BackgroundError: label collection or training has failed in the background thread.
        """
        self._close(self.env.close)
