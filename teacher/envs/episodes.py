"""Replayable episodes: seeded resets, recording of executed actions, and replay."""

import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper
from numpy.typing import NDArray

from teacher.envs.make import make_env
from teacher.envs.recipe import EpisodeRecipe, library_versions
from teacher.envs.suites import require_recorded_versions
from teacher.envs.trajectory import Trajectory
from teacher.errors import (
    EnvironmentUnsuitableError,
    ReplayMismatchError,
    TeacherError,
    describe_exception,
    one_line,
    short_repr,
)

SEED_KEY = "episode_seed"
"""Key of the episode's seed in a reset's info dict, added by :class:`SeededResets`."""
FRAME_KEY = "frame"
"""Key of the JPEG frame in a step's info dict, added by :class:`~teacher.envs.capture.CapturedResets`."""
SUCCESS_KEY = "episode_success"
"""Key of the info dict of an episode's last step, added by :class:`SeededResets`, whose value is True if the
environment reported success in any step. It exists only if the environment's ``reports_success`` is True."""
_SEED_BOUND = 2**31  # some environments pass their seed to C code or to numpy's legacy generator
_NUMBERS = (float, int, np.floating, np.integer)
_BLOCK = 64  # steps per environment to buffer before they are added to trajectories


def episode_seeds(entropy: Sequence[int], env_index: int, num_envs: int) -> Iterator[int]:
    """Yield episode seeds for one environment indefinitely; no two environments share a seed.

    Args:
        entropy: seed entropy of the run, from which each environment derives its own random generator.
    """
    own = np.random.SeedSequence(entropy, spawn_key=(env_index,))
    generator = np.random.default_rng(own)
    while True:  # seed % num_envs == env_index, so environments share no seeds
        yield int(generator.integers(_SEED_BOUND // num_envs)) * num_envs + env_index


def declares(env: gym.Env[Any, Any], name: str) -> bool:
    """Return True if the environment or one of its wrappers has an attribute ``name`` that is true."""
    try:
        return bool(env.get_wrapper_attr(name))
    except AttributeError:
        return False


class SeededResets(gym.Wrapper[Any, Any, Any, Any]):
    """Wrapper that gives every reset a known seed, reported as ``info["episode_seed"]``.

    This must be the outermost wrapper of an environment. A reset without a seed, such as an autoreset of a
    vector environment, uses the next seed from ``seeds``.

    Raises:
        EnvironmentUnsuitableError: from :meth:`reset` and :meth:`step`, if the environment fails or returns
            values that don't match its declared spaces.
    """

    def __init__(self, env: gym.Env[Any, Any], seeds: Iterator[int]) -> None:
        super().__init__(env)
        self._seeds = seeds
        space = env.observation_space
        self._shape, self._dtype = space.shape, space.dtype
        self._reports_success = declares(env, "reports_success")
        self._succeeded = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset with a known seed; raise ValueError if given ``options``, which recipes don't store."""
        if options:
            raise ValueError(
                f"an episode that starts with reset(options={options!r}) can't be replayed; leave out options"
            )
        if seed is None:
            seed = next(self._seeds)
        self._succeeded = False
        try:
            observation, info = self.env.reset(seed=seed)
            self._check_observation(observation)
            return observation, {**info, SEED_KEY: seed}
        except TeacherError:
            raise
        except (Exception, SystemExit) as error:  # an environment may raise anything
            raise self._failure("reset", "observation and info", error) from error

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the environment; return no info but an episode's success, because infos are slow to batch."""
        try:
            observation, reward, terminated, truncated, info = self.env.step(action)
            # Fast path: the full checks run only for values that are not obviously valid.
            is_array = isinstance(observation, np.ndarray)
            if not is_array or (observation.shape, observation.dtype) != (self._shape, self._dtype):
                self._check_observation(observation)
            if not isinstance(reward, _NUMBERS):
                self._check_reward(reward)
            if self._reports_success:
                self._succeeded |= bool(info.get("success", False))
                if terminated or truncated:
                    return observation, reward, terminated, truncated, {SUCCESS_KEY: self._succeeded}
            return observation, reward, terminated, truncated, {}
        except TeacherError:
            raise
        except (Exception, SystemExit) as error:  # an environment may raise anything
            values = "observation, reward, terminated, truncated and info"
            raise self._failure("step", values, error) from error

    def _check_observation(self, observation: Any) -> None:
        if self._shape is None or self._dtype is None:
            return
        found = np.asarray(observation)
        if found.shape != self._shape or not np.can_cast(found.dtype, self._dtype, "same_kind"):
            raise EnvironmentUnsuitableError(
                f"{self._name} returned an observation of shape {found.shape} and dtype {found.dtype}, but "
                f"its observation_space declares {self._shape} and {self._dtype}; fix the environment"
            )

    def _check_reward(self, reward: Any) -> None:
        if np.ndim(reward) or not isinstance(reward, SupportsFloat):
            raise EnvironmentUnsuitableError(
                f"{self._name} returned the reward {short_repr(reward)}, which is not a number; fix the "
                "environment"
            )

    def _failure(self, method: str, values: str, error: BaseException) -> EnvironmentUnsuitableError:
        remedy = ""
        if "unpack" in str(error):  # raised by TimeLimit or a user's wrapper
            remedy = f"{method} must return {values}; "
        elif method == "reset" and _uses_options(error):
            remedy = "reset must work without options, which runs don't pass, so give them default values; "
        return EnvironmentUnsuitableError(
            f"{self._name} failed in {method}: {describe_exception(error)}; {remedy}fix the environment"
        )

    @property
    def _name(self) -> str:
        spec = self.unwrapped.spec
        return spec.id if spec else one_line(self.unwrapped)


def _uses_options(error: BaseException) -> bool:
    """Return True if the line of code that raised an error uses ``options``, as in ``options["level"]``."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and "options" in (frames[-1].line or "")


class EpisodeRecorder(VectorWrapper[Any, Any, Any, Any, Any]):
    """Vector wrapper that records every episode of environments with next-step autoreset.

    This must be the outermost wrapper, and each environment must be wrapped in :class:`SeededResets`. The
    step that only resets an environment is not recorded.

    Args:
        frozen_steps: number of steps that repeat the final observation to append to a terminated episode, as
            if it were absorbed.
        horizon: maximum number of steps in an episode; required if ``frozen_steps`` is not 0.
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        env_id: str,
        kwargs: dict[str, Any],
        frozen_steps: int = 0,
        horizon: int = 0,
    ) -> None:
        super().__init__(env)
        self._frozen_steps, self._horizon = frozen_steps, horizon
        self.env_id = env_id
        self.kwargs = kwargs
        self._running: list[Trajectory | None] = [None] * env.num_envs
        self._drained_lengths = [0] * env.num_envs
        self._ended: list[Trajectory] = []
        self._episode_counts = [0] * env.num_envs
        # Buffers (steps, num_envs, ...) of steps that are not in a trajectory yet. Observations have one more
        # row: row i is the observation before step i.
        observation_space, action_space = env.single_observation_space, env.single_action_space
        sizes = (_BLOCK + 1, env.num_envs), (_BLOCK, env.num_envs)
        self._observations = np.empty((*sizes[0], *(observation_space.shape or ())), observation_space.dtype)
        self._actions = np.empty((*sizes[1], *(action_space.shape or ())), action_space.dtype)
        self._rewards = np.empty(sizes[1], np.float64)
        self._frames: list[Sequence[bytes] | None] = []  # per step: one frame per environment
        self._filled = 0
        self._starts = [0] * env.num_envs

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environments and start a new trajectory for each."""
        observations, infos = self.env.reset(seed=seed, options=options)
        self._begin_episodes(observations, infos)
        return observations, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all environments and record the steps; actions are cast to the action space's dtype."""
        actions = np.asarray(actions).astype(self.action_space.dtype, casting="same_kind")
        if self._filled == _BLOCK:
            self._flush()
        self._actions[self._filled] = actions  # recorded first, because environments may modify their action
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        self._rewards[self._filled] = rewards
        self._filled += 1
        self._observations[self._filled] = observations
        self._frames.append(infos.get(FRAME_KEY))
        succeeded = infos.get(SUCCESS_KEY)
        for index in (terminated | truncated).nonzero()[0].tolist():
            trajectory = self._running[index]
            if trajectory is not None:
                trajectory.terminated = bool(terminated[index])
                trajectory.truncated = bool(truncated[index])
                trajectory.succeeded = None if succeeded is None else bool(succeeded[index])
                self._finish(index)
        self._begin_episodes(observations, infos)
        return observations, rewards, terminated, truncated, infos

    def drain(self) -> list[Trajectory]:
        """Return all trajectories that grew since the last call: finished ones first, then running ones.

        A running trajectory will be returned again later, as the same object. Call this regularly,
        because finished trajectories stay in memory until it is called.
        """
        self._flush()
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
            self._finish(index)
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

    def _finish(self, index: int) -> None:
        """Move an environment's trajectory to the finished list, unless :meth:`drain` returned all of it."""
        self._extend(index)
        trajectory = self._running[index]
        if trajectory is not None and trajectory.terminated and self._frozen_steps:
            trajectory.absorb(min(self._frozen_steps, self._horizon - len(trajectory)))
        if trajectory is not None and len(trajectory) > self._drained_lengths[index]:
            self._ended.append(trajectory)
        self._running[index] = None
        self._drained_lengths[index] = 0

    def _flush(self) -> None:
        """Append the buffered steps to the running trajectories, and clear the buffer."""
        for index in range(self.num_envs):
            self._extend(index)
        self._observations[0] = self._observations[self._filled]
        self._filled, self._frames = 0, []
        self._starts = [0] * self.num_envs

    def _extend(self, index: int) -> None:
        """Append the buffered steps to one environment's running trajectory, if it has one."""
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
        observation: observation before the step, in the dtype of the observation space.
    """

    env: gym.Env[Any, Any]
    observation: NDArray[Any]
    reward: float


def replay(recipe: EpisodeRecipe, env: gym.Env[Any, Any] | None = None) -> Iterator[ReplayedStep]:
    """Replay an episode, yielding a :class:`ReplayedStep` after each step.

    Args:
        env: environment made from the recipe's ID and kwargs; pass one to set a render mode, for example. If
            None, ``replay`` makes one and closes it at the end.

    Raises:
        ReplayMismatchError: the episode ends before all actions are executed, or was recorded with other
            versions of a suite's package or of MuJoCo under it.
    """
    require_recorded_versions(recipe.env_id, recipe.versions, library_versions())
    if env is None:
        with make_env(recipe.env_id, recipe.kwargs) as made:
            yield from replay(recipe, made)
        return
    dtype = env.observation_space.dtype
    observation, _ = env.reset(seed=recipe.seed)
    ended = False
    for step, action in enumerate(recipe.actions):
        if ended:
            versions = ", ".join(f"{name} {version}" for name, version in recipe.versions.items())
            raise ReplayMismatchError(
                f"the replay of {recipe.env_id} ended after {step} of {len(recipe.actions)} steps: the "
                "environment is not deterministic on this machine; the episode was recorded with these "
                f"package versions: {versions}"
            )
        before = np.array(observation, dtype)  # copied, because some environments reuse the array
        observation, reward, terminated, truncated, _ = env.step(action.copy())
        ended = terminated or truncated
        yield ReplayedStep(env, before, float(reward))
