"""Wrapper that learns the reward of a Gymnasium vector environment from preferences."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import iterate
from numpy.typing import NDArray

from teacher.data.segments import Segment
from teacher.envs.capture import jpeg
from teacher.envs.episodes import SEED_KEY, SeededResets, episode_seeds
from teacher.errors import ConfigError
from teacher.settings.checks import COUNT, SEED, whole_number
from teacher.wrapper.controls import TRUE_REWARD_KEY, Controls, begin, drawn
from teacher.wrapper.recording import Step


def replayable(
    env_fn: Callable[[], gym.Env[Any, Any]], num_envs: int, seed: int = 1
) -> list[Callable[[], gym.Env[Any, Any]]]:
    """Return environment factories for a vector environment whose episodes can be replayed.

    Vector environments autoreset without a seed, so their episodes normally can't be replayed for clips. The
    environments made here draw a seed for each autoreset and report it in that reset's info. Their ``step``
    returns an empty info dict.

    Args:
        seed: determines the seeds of all episodes.

    Raises:
        ConfigError: ``num_envs`` or ``seed`` is invalid.
    """

    num_envs = whole_number(num_envs, "num_envs", COUNT)
    seed = whole_number(seed, "seed", SEED)

    def maker(index: int) -> Callable[[], gym.Env[Any, Any]]:
        return lambda: SeededResets(env_fn(), episode_seeds([seed], index, num_envs))

    return [maker(index) for index in range(num_envs)]


class HumanPreferencesVectorWrapper(Controls, VectorWrapper[Any, Any, Any, Any, Any]):
    """Learns a vector environment's reward from preferences and returns it from ``step``.

    Works with any Gymnasium vector environment in any autoreset mode::

        envs = HumanPreferencesVectorWrapper(gym.make_vec("Pendulum-v1", 8), segment_length=50)

    Arguments, methods and errors are the same as in :class:`HumanPreferencesEnvWrapper`.
    ``infos["true_reward"]`` is an array of true rewards, shape ``(num_envs,)``. If you pass ``env_fn``, make
    the environments with :func:`replayable`.
    """

    def __init__(
        self, env: VectorEnv[Any, Any, Any], reward_predictor_network: Any = None, **settings: Any
    ) -> None:
        super().__init__(env)
        self._join(begin(env, reward_predictor_network, settings), self.num_envs)
        self._mode = env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        self._observations: list[Any] = []
        self._ended = np.zeros(self.num_envs, np.bool_)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or only those selected by ``options["reset_mask"]``."""
        observations, infos = self.env.reset(seed=seed, options=options)
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, np.bool_))
        self._observations = self._each(observations)
        self._begin(mask, infos)
        self._ended &= ~mask
        return observations, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all environments; return predicted rewards, and put the true ones into ``infos``."""
        trainer = self._trainer
        executed = np.array(actions, self.action_space.dtype)
        actions = executed.copy() if trainer.source.replayable else actions
        before = [np.array(one) for one in self._observations]  # environments may overwrite them
        observations, true, terminated, truncated, infos = self.env.step(actions)
        real = ~self._ended if self._mode is AutoresetMode.NEXT_STEP else np.ones_like(self._ended)
        ended = terminated | truncated
        first = self._each(observations)
        after = list(first)
        if self._mode is AutoresetMode.SAME_STEP:  # the observation starts the next episode
            for index in ended.nonzero()[0]:
                after[index] = trainer.transform(infos["final_obs"][index])
        trainer.steps += int(real.sum())
        frames: Any = drawn(self.env) if trainer.wants_frames else None
        segments: list[Segment] = []
        for index in real.nonzero()[0].tolist():
            flags = bool(terminated[index]), bool(truncated[index])
            frame = None if frames is None else jpeg(frames[index])
            step = Step(executed[index], after[index], float(true[index]), *flags, frame)
            segments += self._recorders[index].add(step)
            if ended[index]:
                trainer.episodes.note(self._recorders[index].steps, terminated=bool(terminated[index]))
        trainer.give(segments)
        self._observations = first
        if self._mode is not AutoresetMode.DISABLED:
            self._begin(ended if self._mode is AutoresetMode.SAME_STEP else ~real, infos)
        self._ended = ended
        rewards = self._rewards(true, before, executed, after, terminated)
        info = {TRUE_REWARD_KEY: true, f"_{TRUE_REWARD_KEY}": np.ones(self.num_envs, np.bool_)}
        return observations, np.where(real, rewards, 0.0), terminated, truncated, {**infos, **info}

    def _begin(self, mask: NDArray[np.bool_], infos: dict[str, Any]) -> None:
        """Start recording new episodes in the environments selected by ``mask``.

        Raises:
            ConfigError: clips are rendered by replay, but an environment does not report its reset seed.
        """
        for index in np.asarray(mask).nonzero()[0].tolist():
            seed = None
            if self._trainer.source.replayable:
                if not infos.get(f"_{SEED_KEY}", np.zeros(self.num_envs, np.bool_))[index]:
                    raise ConfigError(
                        "env_fn: these environments don't report the seeds of their resets, so episodes "
                        "can't be replayed; make them with teacher.wrapper.replayable(env_fn, num_envs)"
                    )
                seed = int(infos[SEED_KEY][index])
            self._recorders[index].begin(self._observations[index], seed)

    def _each(self, observations: Any) -> list[Any]:
        each: Iterator[Any] = iterate(self.observation_space, observations)
        return [self._trainer.transform(one) for one in each]

    def close(self, **kwargs: Any) -> None:
        """Close the environments, stop training the predictor, and stop submitting comparisons.

        Raises:
            BackgroundError: label collection or training has failed in the background thread.
        """
        self._close(partial(super().close, **kwargs))
