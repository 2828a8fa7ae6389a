"""Replayable episodes: seeded resets, recording of executed actions, and replay."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from numpy.typing import NDArray

from teacher.envs.make import make_env
from teacher.envs.recipe import EpisodeRecipe
from teacher.envs.trajectory import Trajectory
from teacher.errors import (
    EnvironmentUnsuitableError,
    ReplayMismatchError,
    TeacherError,
    describe_exception,
    one_line,
)

SEED_KEY = "episode_seed"
"""Key of a reset's info under which :class:`SeededResets` stores the seed."""
FRAME_KEY = "frame"
"""Key of a step's info for a frame of its result, as JPEG bytes; see :mod:`teacher.envs.capture`."""
_SEED_BOUND = 2**31  # some environments pass their seed to C code or to numpy's legacy generator
_NUMBERS = (float, int, np.floating, np.integer)
_BLOCK = 64  # steps buffered for all environments before they are added to trajectories


def episode_seeds(entropy: Sequence[int], env_index: int, num_envs: int) -> Iterator[int]:
    """Yield one environment's episode seeds, without end; no other environment gets any of them.

    Args:
        entropy: the run's entropy, from which each environment spawns its own.
        env_index: index of the environment.
        num_envs: number of environments that share the entropy.
    """
    own = np.random.SeedSequence(entropy, spawn_key=(env_index,))
    generator = np.random.default_rng(own)
    while True:  # the remainder modulo num_envs is the environment's own
        yield int(generator.integers(_SEED_BOUND // num_envs)) * num_envs + env_index


class SeededResets(gym.Wrapper[Any, Any, Any, Any]):
    """Outermost wrapper of one environment: every reset has a known seed, as ``info["episode_seed"]``.

    Vector environments reset their environments without a seed. Such a reset takes the next seed of
    ``seeds``; a reset with a seed keeps it.

    Raises:
        EnvironmentUnsuitableError: from :meth:`reset` and :meth:`step`, if the environment fails in them or
            returns something other than it declares.
    """

    def __init__(self, env: gym.Env[Any, Any], seeds: Iterator[int]) -> None:
        super().__init__(env)
        self._seeds = seeds
        space = env.observation_space
        self._shape, self._dtype = space.shape, space.dtype

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset with a known seed. Options are refused, because recipes do not store them."""
        if options:
            raise ValueError(f"expected a reset without options, got {options!r}: it could not be replayed")
        if seed is None:
            seed = next(self._seeds)
        try:
            observation, info = self.env.reset(seed=seed)
            self._check_observation(observation)
            return observation, {**info, SEED_KEY: seed}
        except TeacherError:
            raise
        except (Exception, SystemExit) as error:  # an environment may raise anything
            raise self._failure("reset", "observation and info", error) from error

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step, and drop the info, which is not used and slow to batch."""
        try:
            observation, reward, terminated, truncated, _ = self.env.step(action)
            # Fast path for valid values; the full checks run only for others.
            if not isinstance(observation, np.ndarray) or observation.shape != self._shape:
                self._check_observation(observation)
            if not isinstance(reward, _NUMBERS):
                self._check_reward(reward)
            return observation, reward, terminated, truncated, {}
        except TeacherError:
            raise
        except (Exception, SystemExit) as error:  # an environment may raise anything
            values = "observation, reward, terminated, truncated and info"
            raise self._failure("step", values, error) from error

    def _check_observation(self, observation: Any) -> None:
        """Raise :class:`EnvironmentUnsuitableError` unless the observation fits its declared space."""
        if self._shape is None or self._dtype is None:
            return
        found = np.asarray(observation)
        if found.shape != self._shape or not np.can_cast(found.dtype, self._dtype, "same_kind"):
            raise EnvironmentUnsuitableError(
                f"expected observations {self._shape} of {self._dtype} from {self._name}, as declared, got "
                f"{found.shape} of {found.dtype}; fix it"
            )

    def _check_reward(self, reward: Any) -> None:
        if np.ndim(reward) or not isinstance(reward, SupportsFloat):
            raise EnvironmentUnsuitableError(
                f"expected a number as the reward from {self._name}, got {one_line(repr(reward))}; fix it"
            )

    def _failure(self, method: str, values: str, error: BaseException) -> EnvironmentUnsuitableError:
        returned_others = "unpack" in str(error)  # raised by TimeLimit or a user's wrapper
        remedy = f"expected {values} from {method}; fix it" if returned_others else "fix it"
        return EnvironmentUnsuitableError(
            f"{self._name} failed in {method}: {describe_exception(error)}; {remedy}"
        )

    @property
    def _name(self) -> str:
        spec = self.unwrapped.spec
        return spec.id if spec else one_line(self.unwrapped)


class EpisodeRecorder(VectorWrapper[Any, Any, Any, Any, Any]):
    """Outermost vector wrapper: records every episode, in any autoreset mode.

    Each environment must be wrapped in :class:`SeededResets`. The dummy transition of next-step autoreset,
    which ignores its action and starts a new episode, is not part of any trajectory.

    Args:
        env: the vector environment.
        env_id: as passed to ``make_env`` for each environment; stored in recipes.
        kwargs: further arguments of ``make_env``, JSON values only.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], env_id: str, kwargs: dict[str, Any]) -> None:
        super().__init__(env)
        self.env_id = env_id
        self.kwargs = kwargs
        self._running: list[Trajectory | None] = [None] * env.num_envs
        self._drained_lengths = [0] * env.num_envs
        self._ended: list[Trajectory] = []
        self._episode_counts = [0] * env.num_envs
        self._reset_in_step = env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
        # Buffered steps that are not in a trajectory yet, by step, then environment. Observations have one
        # more row: a step's observation is written before the step.
        observation_space, action_space = env.single_observation_space, env.single_action_space
        sizes = (_BLOCK + 1, env.num_envs), (_BLOCK, env.num_envs)
        self._observations = np.empty((*sizes[0], *(observation_space.shape or ())), observation_space.dtype)
        self._actions = np.empty((*sizes[1], *(action_space.shape or ())), action_space.dtype)
        self._rewards = np.empty(sizes[1], np.float64)
        self._frames: list[Sequence[bytes] | None] = []  # per step, for all environments
        self._filled = 0
        self._starts = [0] * env.num_envs

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environments; each one that is reset starts a new trajectory."""
        observations, infos = self.env.reset(seed=seed, options=options)
        self._begin_episodes(observations, infos)
        return observations, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all environments with actions of the space's dtype, and record the steps."""
        actions = np.asarray(actions).astype(self.action_space.dtype, casting="same_kind")
        if self._filled == _BLOCK:
            self._deal_out()
        self._actions[self._filled] = actions  # recorded first, because environments may modify their action
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        self._rewards[self._filled] = rewards
        self._filled += 1
        self._observations[self._filled] = observations
        self._frames.append(infos.get(FRAME_KEY))
        for index in (terminated | truncated).nonzero()[0].tolist():
            trajectory = self._running[index]
            if trajectory is not None:
                trajectory.terminated = bool(terminated[index])
                trajectory.truncated = bool(truncated[index])
                if self._reset_in_step:  # the returned observation starts the next episode
                    self._observations[self._filled, index] = infos["final_obs"][index]
                self._set_aside(index)
        self._begin_episodes(observations, infos)
        return observations, rewards, terminated, truncated, infos

    def drain(self) -> list[Trajectory]:
        """Return the trajectories that grew since the last call, finished or not, in the order they started.

        A trajectory that keeps growing is returned again, as the same object. Call this regularly: finished
        trajectories are kept until then.
        """
        self._deal_out()
        running = [
            trajectory
            for index, trajectory in enumerate(self._running)
            if trajectory is not None and len(trajectory) > self._drained_lengths[index]
        ]
        for trajectory in running:
            self._drained_lengths[trajectory.env_index] = len(trajectory)
        drained, self._ended = self._ended + running, []
        return drained

    def _begin_episodes(self, observations: NDArray[Any], infos: dict[str, Any]) -> None:
        if SEED_KEY not in infos:
            return
        for index in np.flatnonzero(infos[f"_{SEED_KEY}"]).tolist():
            self._set_aside(index)
            self._running[index] = Trajectory(
                self.env_id,
                self.kwargs,
                int(infos[SEED_KEY][index]),
                env_index=index,
                episode_index=self._episode_counts[index],
            )
            self._episode_counts[index] += 1
            self._observations[self._filled, index] = observations[index]
            self._starts[index] = self._filled

    def _set_aside(self, index: int) -> None:
        """Remove the running trajectory of an environment; it ended, or was cut off by a reset."""
        self._extend(index)
        trajectory = self._running[index]
        if trajectory is not None and len(trajectory) > self._drained_lengths[index]:
            self._ended.append(trajectory)
        self._running[index] = None
        self._drained_lengths[index] = 0

    def _deal_out(self) -> None:
        """Add the buffered steps to the running trajectories, and clear the buffer."""
        for index in range(self.num_envs):
            self._extend(index)
        self._observations[0] = self._observations[self._filled]
        self._filled, self._frames = 0, []
        self._starts = [0] * self.num_envs

    def _extend(self, index: int) -> None:
        """Add the buffered steps to one environment's running trajectory, if it has one."""
        trajectory, start, stop = self._running[index], self._starts[index], self._filled
        if trajectory is not None:
            trajectory.extend(
                self._observations[start : stop + 1, index],
                self._actions[start:stop, index],
                self._rewards[start:stop, index],
                [frames[index] for frames in self._frames[start:stop] if frames is not None],
            )


@dataclass(frozen=True)
class ReplayedStep:
    """One step of a replay.

    Attributes:
        env: the environment after the step, ready to be rendered.
        observation: before the step, in the dtype of the observation space, as in a trajectory.
        reward: the environment's.
    """

    env: gym.Env[Any, Any]
    observation: NDArray[Any]
    reward: float


def replay(recipe: EpisodeRecipe, env: gym.Env[Any, Any] | None = None) -> Iterator[ReplayedStep]:
    """Replay an episode, step by step.

    Args:
        recipe: the episode.
        env: an environment made from the recipe's id and kwargs, for instance with a render mode; if None,
            one is made, and closed at the end.

    Raises:
        ReplayMismatchError: the episode ends before all actions are executed.
    """
    if env is None:
        with make_env(recipe.env_id, recipe.kwargs) as made:
            yield from replay(recipe, made)
        return
    dtype = env.observation_space.dtype
    observation, _ = env.reset(seed=recipe.seed)
    ended = False
    for step, action in enumerate(recipe.actions):
        if ended:
            raise ReplayMismatchError(
                f"the replay of {recipe.env_id} ended after {step} of {len(recipe.actions)} steps: the "
                f"environment is not deterministic here; it was recorded with {dict(recipe.versions)}"
            )
        before = np.array(observation, dtype)  # copy: some environments reuse the array
        observation, reward, terminated, truncated, _ = env.step(action.copy())
        ended = terminated or truncated
        yield ReplayedStep(env, before, float(reward))
