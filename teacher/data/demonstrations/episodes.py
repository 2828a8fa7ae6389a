"""In-memory demonstrations, and their split into training and validation sets."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from teacher.envs.trajectory import Trajectory
from teacher.errors import ConfigError, DataError, pluralize
from teacher.settings.checks import COUNT, SEED, whole_number

Space = spaces.Space[Any]
Pairs = tuple[NDArray[Any], NDArray[Any]]
"""Pair of observations ``(n, *S)`` and actions ``(n, *A)`` for the same steps."""


@dataclass(frozen=True, eq=False)
class Demonstrations:
    """Complete demonstrated episodes, concatenated into arrays of ``n`` steps.

    ``S`` is the shape of one observation and ``A`` of one action; a Discrete space has shape ``(1,)`` here.

    Attributes:
        obs: raw observations before each step, ``(n, *S)``.
        actions: executed actions, ``(n, *A)``.
        rewards: the environment's rewards, ``(n,)``.
        episode_returns: undiscounted return of each episode, ``(episodes,)``.
        episode_starts: True at the first step of each episode, ``(n,)``.
        final_obs: raw observation after each episode's last step, ``(episodes, *S)``; None if unknown.
        terminated: True for terminated episodes, False for truncated ones, ``(episodes,)``; None if unknown.
    """

    obs: NDArray[Any]
    actions: NDArray[Any]
    rewards: NDArray[np.float64]
    episode_returns: NDArray[np.float64]
    episode_starts: NDArray[np.bool_]
    final_obs: NDArray[Any] | None = None
    terminated: NDArray[np.bool_] | None = None

    @classmethod
    def of(cls, episodes: Sequence[Trajectory]) -> "Demonstrations":
        """Build demonstrations from episodes of at least one step each."""
        ended = [episode.terminated for episode in episodes]
        starts = np.concatenate([np.arange(len(episode)) == 0 for episode in episodes])
        return cls(
            np.concatenate([episode.observations for episode in episodes]),
            np.concatenate([episode.actions for episode in episodes]),
            np.concatenate([episode.true_rewards for episode in episodes]),
            np.array([episode.true_return for episode in episodes]),
            starts,
            np.stack([episode.final_observation for episode in episodes]),
            None if None in ended else np.array(ended, np.bool_),
        )

    def __len__(self) -> int:
        return len(self.obs)

    def summary(self) -> str:
        """Return a one-line summary: the number of episodes and steps, and statistics of the returns."""
        returns = self.episode_returns
        return (
            f"{pluralize(len(returns), 'episode')}, {pluralize(len(self), 'step')}, "
            f"return {returns.mean():.1f} +- {returns.std():.1f} ({returns.min():.1f} to {returns.max():.1f})"
        )

    def limited(self, episodes: int) -> "Demonstrations":
        """Return only the first ``episodes`` episodes. Raise :class:`DataError` if there are fewer."""
        if not 1 <= episodes <= len(self.episode_returns):
            raise DataError(
                f"traj_limitation must be between 1 and {len(self.episode_returns)}, the number of episodes, "
                f"not {episodes}; record more episodes or request fewer"
            )
        steps = [*np.flatnonzero(self.episode_starts), len(self)][episodes]
        return Demonstrations(
            self.obs[:steps],
            self.actions[:steps],
            self.rewards[:steps],
            self.episode_returns[:episodes],
            self.episode_starts[:steps],
            None if self.final_obs is None else self.final_obs[:episodes],
            None if self.terminated is None else self.terminated[:episodes],
        )

    def next_obs(self) -> NDArray[Any] | None:
        """Return the observations after each step, ``(n, *S)``; None if final observations are unknown."""
        if self.final_obs is None:
            return None
        following = np.roll(self.obs, -1, axis=0)
        following[np.roll(self.episode_starts, -1)] = self.final_obs
        return following

    def terminations(self) -> NDArray[np.bool_] | None:
        """Return a mask of the steps at which an episode terminated, ``(n,)``; None if unknown."""
        if self.terminated is None:
            return None
        ends = np.roll(self.episode_starts, -1)  # mask of last steps
        ends[ends] = self.terminated
        return ends

    def split(
        self, train_fraction: float = 0.7, batch_size: int = 64, seed: int = 0, *, shuffle: bool = True
    ) -> "Split":
        """Randomly split the episodes into a training set and a validation set.

        Args:
            train_fraction: fraction of episodes to train on, rounded so that each set gets at least one
                episode; 1 leaves the validation set empty.
            batch_size: minimum number of steps per minibatch; a smaller training set is a single minibatch.
            shuffle: shuffle the training steps before each epoch.

        Raises:
            ConfigError: a value is out of range.
            DataError: there is only one episode, and ``train_fraction`` is below 1.
        """
        if not 0 < train_fraction <= 1:
            raise ConfigError(f"train_fraction must be above 0 and at most 1, not {train_fraction}")
        batch_size = whole_number(batch_size, "batch_size", COUNT)
        episodes, rng = len(self.episode_returns), np.random.default_rng(whole_number(seed, "seed", SEED))
        if train_fraction == 1:
            for_training = np.ones(episodes, bool)
        elif episodes == 1:
            raise DataError("a single episode cannot be split; pass train_fraction=1 or record more episodes")
        else:
            count = min(max(round(train_fraction * episodes), 1), episodes - 1)
            for_training = rng.permutation(episodes) < count
        steps = for_training[np.cumsum(self.episode_starts) - 1]
        train, validation = ((self.obs[chosen], self.actions[chosen]) for chosen in (steps, ~steps))
        return Split(train, validation, batch_size, rng if shuffle else None)


def demonstrated_episodes(
    demonstrations: Demonstrations, observation_space: Space, action_space: Space
) -> Iterator[Trajectory]:
    """Yield each demonstrated episode as a trajectory.

    If final observations are unknown, each episode's last step is left out.

    Raises:
        DataError: the observations or actions don't have the shape that their space requires.
    """
    bounds = [*np.flatnonzero(demonstrations.episode_starts), len(demonstrations)]
    try:
        states = demonstrations.obs.reshape(-1, *(observation_space.shape or ()))
        actions = demonstrations.actions.reshape(-1, *(action_space.shape or ()))
        if not len(states) == len(actions) == len(demonstrations):
            raise ValueError
    except ValueError as error:
        shapes = demonstrations.obs.shape[1:], demonstrations.actions.shape[1:]
        raise DataError(
            f"the demonstrations' observation shape {shapes[0]} and action shape {shapes[1]} do not match "
            f"the observation space {observation_space} and the action space {action_space}"
        ) from error
    ends = demonstrations.terminated
    for number, (start, stop) in enumerate(itertools.pairwise(bounds)):
        seen, terminated = states[start:stop], None if ends is None else bool(ends[number])
        if demonstrations.final_obs is None:
            terminated = False  # the last step is left out
        else:
            seen = np.concatenate([seen, demonstrations.final_obs[number].reshape(1, *states.shape[1:])])
        steps = slice(start, start + len(seen) - 1)
        yield Trajectory.from_arrays(seen, actions[steps], demonstrations.rewards[steps], terminated)


class Split:
    """Demonstrations split into training minibatches and a validation set."""

    def __init__(
        self, train: Pairs, validation: Pairs, batch_size: int, rng: np.random.Generator | None
    ) -> None:
        self.train = train
        self.validation = validation
        self._batch_size = batch_size
        self._rng = rng

    def epoch(self) -> Iterator[NDArray[np.intp]]:
        """Yield one epoch's minibatches as row indices into ``train``; their sizes differ by at most one."""
        size = len(self.train[0])
        order = np.arange(size) if self._rng is None else self._rng.permutation(size)
        yield from np.array_split(order, max(1, size // self._batch_size))
