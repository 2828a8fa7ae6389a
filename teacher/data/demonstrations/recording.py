"""Recording of demonstrations by an expert, which can be an agent, a model or any function."""

from collections.abc import Callable
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from numpy.typing import NDArray

from teacher.data.demonstrations.episodes import Demonstrations
from teacher.data.steps import fits_float32, readable_part
from teacher.envs.episodes import episode_seeds
from teacher.envs.trajectory import Trajectory
from teacher.errors import ConfigError, DataError, EnvironmentUnsuitableError, one_line
from teacher.settings.checks import COUNT, SEED, whole_number

Controller = Callable[[Any], Any]
"""Function that maps one observation to one action."""


class Actor(Protocol):
    """Protocol for experts that are RL-Teacher agents, such as :class:`agents.PPO`."""

    def act(self, observations: NDArray[Any], *, deterministic: bool) -> NDArray[Any]:
        """Return actions for a batch of raw observations."""


class Model(Protocol):
    """Protocol for experts that are Stable-Baselines3 models, recurrent or not."""

    def predict(
        self, observation: Any, *, state: Any, episode_start: NDArray[np.bool_], deterministic: bool
    ) -> tuple[Any, Any]:
        """Return the action for one observation, and the new recurrent state."""


def record_demonstrations(
    expert: Actor | Model | Controller,
    env: gym.Env[Any, Any],
    n_episodes: int,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Demonstrations:
    """Record complete episodes of an expert.

    An episode's final step is dropped if its next observation isn't finite.

    Args:
        expert: an RL-Teacher agent, a Stable-Baselines3 model, or a function that maps one raw observation
            to one action. Agents and models act deterministically. A model whose environment is wrapped in
            ``VecNormalize`` receives normalized observations.
        env: a single (non-vector) environment that nothing else is using; its episodes must eventually
            terminate or be truncated.
        progress: function called after each episode with the number of episodes recorded.

    Raises:
        EnvironmentUnsuitableError: the observation or action space is not a Box, Discrete or MultiDiscrete.
        ConfigError: the expert's type is not supported, ``n_episodes`` is not a positive integer, or the
            seed is invalid.
        DataError: the expert returned an invalid action, or the environment returned NaN or infinity.
    """
    for what, space in (("observation", env.observation_space), ("action", env.action_space)):
        if not isinstance(space, Box | Discrete | MultiDiscrete):
            raise EnvironmentUnsuitableError(
                f"the {what} space must be a Box, Discrete or MultiDiscrete, not {one_line(space)}; "
                "wrap the environment to convert it"
            )
    n_episodes = whole_number(n_episodes, "n_episodes", COUNT)
    seeds, episodes = episode_seeds([whole_number(seed, "seed", SEED)], 0, 1), []
    for count in range(1, n_episodes + 1):
        episodes.append(_play(_controller(expert), env, next(seeds)))
        if progress is not None:
            progress(count)
    return Demonstrations.of(episodes)


def _controller(expert: Actor | Model | Controller) -> Controller:
    """Return a policy function for one episode; a model's recurrent state is freshly initialized."""
    act, predict = getattr(expert, "act", None), getattr(expert, "predict", None)
    if act is not None:
        return lambda observation: act(np.asarray(observation)[None], deterministic=True)[0]
    if predict is not None:
        return _ModelController(expert)
    if callable(expert):
        return expert
    raise ConfigError(
        f"the expert must be callable or have an act() or predict() method; got {type(expert).__name__}"
    )


class _ModelController:
    """Chooses actions for one episode with a Stable-Baselines3 model, carrying over recurrent state."""

    def __init__(self, model: Any) -> None:
        self._model = model
        find_normalizer = getattr(model, "get_vec_normalize_env", lambda: None)
        self._normalizer = find_normalizer()
        self._state: Any = None
        self._starts = True

    def __call__(self, observation: Any) -> Any:
        if self._normalizer is not None:
            observation = self._normalizer.normalize_obs(observation)
        action, self._state = self._model.predict(
            observation, state=self._state, episode_start=np.array([self._starts]), deterministic=True
        )
        self._starts = False
        return action


def _play(controller: Controller, env: gym.Env[Any, Any], seed: int) -> Trajectory:
    """Record one episode, dropping the final step if its next observation isn't finite."""
    obs: list[NDArray[Any]] = []
    actions: list[NDArray[Any]] = []
    rewards: list[float] = []
    observation, _ = env.reset(seed=seed)
    ended = terminated = False
    while not ended:
        # Copy, because some environments reuse the array.
        obs.append(np.array(observation, env.observation_space.dtype))
        _require_finite("observation", obs[-1], seed, len(rewards))
        action = _executable(controller(observation), env.action_space)
        actions.append(np.array(action))
        observation, reward, terminated, truncated, _ = env.step(action)
        rewards.append(float(reward))
        ended = terminated or truncated
        if not ended:
            _require_finite("reward", rewards[-1], seed, len(rewards))
    last = np.array(observation, env.observation_space.dtype)
    # Some environments end an episode because their state became NaN or infinite; drop that step.
    if fits_float32(last).all():
        _require_finite("reward", rewards[-1], seed, len(rewards))
    elif len(obs) == 1:
        _require_finite("observation", last, seed, 1)
    observations, executed = (
        np.stack(rows).reshape(len(rows), *((1,) if isinstance(space, Discrete) else space.shape or ()))
        for rows, space in (([*obs, last], env.observation_space), (actions, env.action_space))
    )
    return readable_part(Trajectory.from_arrays(observations, executed, np.array(rewards), terminated))


def _require_finite(what: str, value: Any, seed: int, step: int) -> None:
    if not fits_float32(np.asarray(value)).all():
        raise DataError(
            f"the environment returned the {what} {one_line(value)} at step {step} of the episode with seed "
            f"{seed}; numbers must be finite, with magnitude at most 3.4e38"
        )


def _executable(action: Any, space: gym.Space[Any]) -> Any:
    """Convert an expert's action to ``space``'s dtype and shape, and clip it if ``space`` is a Box."""
    array = np.asarray(action)
    if array.dtype.kind in "fiub" and array.size == np.prod(space.shape or ()) and np.isfinite(array).all():
        array = array.reshape(space.shape or ())
        if isinstance(space, Box):
            return np.asarray(array.clip(space.low, space.high), space.dtype)
        if isinstance(space, MultiDiscrete):
            chosen = array.astype(space.dtype)
            if (chosen == array).all() and space.contains(chosen):
                return chosen
        elif int(array) == array and space.contains(int(array)):
            return int(array)
    raise DataError(
        f"the expert returned {one_line(action)}, which is not a valid action in {one_line(space)}"
    )
