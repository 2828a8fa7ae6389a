"""Demonstrations in memory: whole episodes, and their split for behavior cloning."""

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
"""Observations ``(n, *S)`` and actions ``(n, *A)``."""


@dataclass(frozen=True, eq=False)
class Demonstrations:
    """Whole episodes, concatenated; ``n`` steps in total. A Discrete space has the shape ``(1,)``.

    Attributes:
        obs: ``(n, *S)``, raw, before each step.
        actions: ``(n, *A)``, as executed by the environment.
        rewards: ``(n,)``, the environment's.
        episode_returns: ``(episodes,)``, undiscounted sums of rewards.
        episode_starts: ``(n,)``, True at the first step of each episode.
        final_obs: ``(episodes, *S)``, after the last step of each episode; None if unknown.
        terminated: ``(episodes,)``, True where the environment, not a time limit, ended the episode; None if
            unknown.
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
        """Concatenate these episodes, each of one step or more."""
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
        """Return one line with the number of episodes and steps, and the returns."""
        returns = self.episode_returns
        return (
            f"{pluralize(len(returns), 'episode')}, {pluralize(len(self), 'step')}, "
            f"return {returns.mean():.1f} +- {returns.std():.1f} ({returns.min():.1f} to {returns.max():.1f})"
        )

    def limited(self, episodes: int) -> "Demonstrations":
        """Return the first ``episodes`` episodes. Raise :class:`DataError` if there are fewer."""
        if not 1 <= episodes <= len(self.episode_returns):
            raise DataError(
                f"expected a traj_limitation of 1 to {len(self.episode_returns)}, the number of episodes, "
                f"got {episodes}; record more episodes, or request fewer"
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
        """Return the observations after each step, ``(n, *S)``; None if final ones are unknown."""
        if self.final_obs is None:
            return None
        following = np.roll(self.obs, -1, axis=0)
        following[np.roll(self.episode_starts, -1)] = self.final_obs
        return following

    def terminations(self) -> NDArray[np.bool_] | None:
        """Return a mask of the steps that terminated an episode, ``(n,)``; None if unknown."""
        if self.terminated is None:
            return None
        ends = np.roll(self.episode_starts, -1)  # the last step of each
        ends[ends] = self.terminated
        return ends

    def split(
        self, train_fraction: float = 0.7, batch_size: int = 64, seed: int = 0, *, shuffle: bool = True
    ) -> "Split":
        """Split the episodes at random into training and validation sets.

        Args:
            train_fraction: share of training episodes, rounded, with at least one episode in each set; 1
                leaves the validation set empty.
            batch_size: minimum transitions per minibatch (if there are that many).
            seed: for the split and for the order of minibatches.
            shuffle: draw minibatches in random order, a new one in each epoch.

        Raises:
            ConfigError: a value is out of range.
            DataError: a single episode cannot be split.
        """
        if not 0 < train_fraction <= 1:
            raise ConfigError(f"expected a train_fraction above 0 and up to 1, got {train_fraction}")
        batch_size = whole_number(batch_size, "batch_size", COUNT)
        episodes, rng = len(self.episode_returns), np.random.default_rng(whole_number(seed, "seed", SEED))
        if train_fraction == 1:
            for_training = np.ones(episodes, bool)
        elif episodes == 1:
            raise DataError("a single episode cannot be split: pass a train_fraction of 1, or record more")
        else:
            count = min(max(round(train_fraction * episodes), 1), episodes - 1)
            for_training = rng.permutation(episodes) < count
        steps = for_training[np.cumsum(self.episode_starts) - 1]
        train, validation = ((self.obs[chosen], self.actions[chosen]) for chosen in (steps, ~steps))
        return Split(train, validation, batch_size, rng if shuffle else None)


def demonstrated_episodes(
    demonstrations: Demonstrations, observation_space: Space, action_space: Space
) -> Iterator[Trajectory]:
    """Yield the demonstrated episodes, without the last step if the final observation is unknown.

    Raises:
        DataError: the demonstrations do not fit these spaces.
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
            f"expected demonstrations of {observation_space} and {action_space}, got shapes {shapes}"
        ) from error
    ends = demonstrations.terminated
    for number, (start, stop) in enumerate(itertools.pairwise(bounds)):
        seen, terminated = states[start:stop], None if ends is None else bool(ends[number])
        if demonstrations.final_obs is None:
            terminated = False  # the terminal step is dropped
        else:
            seen = np.concatenate([seen, demonstrations.final_obs[number].reshape(1, *states.shape[1:])])
        steps = slice(start, start + len(seen) - 1)
        yield Trajectory.from_arrays(seen, actions[steps], demonstrations.rewards[steps], terminated)


class Split:
    """Demonstrations split into training minibatches and a validation set.

    Attributes:
        train: for training.
        validation: of other episodes; may be empty.
    """

    def __init__(
        self, train: Pairs, validation: Pairs, batch_size: int, rng: np.random.Generator | None
    ) -> None:
        self.train = train
        self.validation = validation
        self._batch_size = batch_size
        self._rng = rng

    def epoch(self) -> Iterator[NDArray[np.intp]]:
        """Yield row indices of ``train``, each once, in minibatches whose sizes differ by at most one."""
        size = len(self.train[0])
        order = np.arange(size) if self._rng is None else self._rng.permutation(size)
        yield from np.array_split(order, max(1, size // self._batch_size))
