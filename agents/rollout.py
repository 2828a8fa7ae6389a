"""Rollouts, the advantages estimated from them, and minibatches of their transitions."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from agents.distributed import Ranks
from agents.errors import NonFiniteError


@dataclass(frozen=True, eq=False)
class Rollout:
    """Consecutive steps of several environments; arrays are ``(num_steps, num_envs, ...)``.

    Attributes:
        observations: raw, before each step.
        actions: as sampled by the policy: unclipped for Box, counted from 0 for (Multi)Discrete.
        executed_actions: as received by the environment: clipped to the box, or counted from the space's
            ``start``, in the space's dtype.
        log_probs: of ``actions`` under the policy that sampled them.
        values: the critic's estimates for ``observations``.
        rewards: the environment's.
        terminated: the step ended its episode in a terminal state.
        truncated: the step ended its episode by a limit; the state's future return is ``bootstrap_values``.
        valid: False at the dummy transition that next-step autoreset puts between two episodes (it starts at
            the final observation of the old one, ignores the action and ends at the first of the new one).
        bootstrap_values: the critic's estimate for the episode's final observation where the step truncated
            it, else 0.
        last_values: ``(num_envs,)``, the critic's estimate for the observation after the last step.
        last_observations: ``(num_envs, *S)``, raw, after the last step; if that ended an episode, possibly
            the first of the next one.
        final_observations: ``(n, *S)``, raw, after each step that ended an episode, by time, then by
            environment.
    """

    observations: NDArray[Any]
    actions: NDArray[Any]
    executed_actions: NDArray[Any]
    log_probs: NDArray[np.floating[Any]]
    values: NDArray[np.floating[Any]]
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    bootstrap_values: NDArray[np.floating[Any]]
    last_values: NDArray[np.floating[Any]]
    last_observations: NDArray[Any]
    final_observations: NDArray[Any]

    @property
    def ended(self) -> NDArray[np.bool_]:
        """Return a mask of the last steps of episodes."""
        return self.terminated | self.truncated

    @property
    def next_observations(self) -> NDArray[Any]:
        """Return raw observations ``(num_steps, num_envs, *S)`` after each step, computed at each call.

        An episode's last step is followed by its final observation, in every autoreset mode.
        """
        following = np.concatenate([self.observations[1:], self.last_observations[None]])
        following[self.ended] = self.final_observations
        return following

    @property
    def num_valid(self) -> int:
        """Return the number of environment steps, without dummies."""
        return int(self.valid.sum())


def generalized_advantages(
    rollout: Rollout, rewards: NDArray[Any], gamma: float, gae_lambda: float
) -> NDArray[np.float64]:
    """Estimate advantages ``(num_steps, num_envs)`` by GAE (Schulman et al. 2016, eq. 11 to 16).

    The sum of eq. 16 over the TD residuals ``delta_t = r_t + gamma V(s_{t+1}) - V(s_t)`` is computed
    backward: ``A_t = delta_t + gamma lambda A_{t+1}``. It is cut at the end of each episode, where
    ``V(s_{t+1})`` is the bootstrap value after truncation and 0 after termination. Where the rollout is not
    valid, the advantage is 0.
    """
    ended = rollout.ended
    next_values = np.concatenate([rollout.values[1:], rollout.last_values[None]])
    next_values = np.where(ended, rollout.bootstrap_values, next_values)
    deltas = rewards + gamma * next_values - rollout.values
    advantages = np.zeros(rewards.shape)
    following = np.zeros(rewards.shape[1])
    for t in reversed(range(len(rewards))):
        following = deltas[t] + gamma * gae_lambda * np.where(ended[t], 0.0, following)
        advantages[t] = following
    return np.where(rollout.valid, advantages, 0.0)


class Batch(NamedTuple):
    """Transitions to train on: tensors for torch, arrays for NumPy.

    Of the ``size`` transitions that all ranks train on together, each rank has ``n``, possibly none. A single
    process has all of them.

    Attributes:
        advantages: ``(size,)``, of all ranks' transitions, because they are standardized over all of them.
        own: ``(size,)``, in NumPy, a mask of this rank's transitions; other columns are ``(n, ...)``.
    """

    observations: Any
    actions: Any
    log_probs: Any
    values: Any
    returns: Any
    advantages: Any
    own: NDArray[np.bool_]

    @property
    def size(self) -> int:
        """Return the number of transitions of all ranks."""
        return len(self.own)

    def numpy(self) -> "Batch":
        """Return the batch with arrays in place of tensors, sharing their memory."""
        *columns, own = self
        return Batch._make([*(column.numpy() for column in columns), own])

    def minibatches(self, size: int, rng: np.random.Generator) -> Iterator["Batch"]:
        """Yield the batch once in random order, in parts of at least ``size`` transitions if possible.

        Parts differ by at most one transition: dummy transitions make batch sizes vary, and a small last
        minibatch would make a noisy step. The order is shared by all ranks, so each has a random part of
        every minibatch.
        """
        *columns, advantages, own = self
        order = rng.permutation(self.size)
        advantages, own = advantages[order], own[order]
        rows = (np.cumsum(self.own) - 1)[order[own]]
        columns = [column[rows] for column in columns]
        ends = np.linspace(0, self.size, max(1, self.size // size) + 1).astype(int)
        own_ends = np.concatenate([[0], np.cumsum(own)])[ends]
        parts = zip(itertools.pairwise(ends), itertools.pairwise(own_ends), strict=True)
        for (start, end), (own_start, own_end) in parts:
            own_columns = (column[own_start:own_end] for column in columns)
            yield Batch._make([*own_columns, advantages[start:end], own[start:end]])


def standardized(advantages: Tensor) -> Tensor:
    """Scale advantages ``(size,)`` to mean 0 and unbiased standard deviation 1."""
    return (advantages - advantages.mean()) / (advantages.std() + 1e-8)


def mean_metrics(steps: Sequence[Mapping[str, Any]], ranks: Ranks) -> dict[str, float]:
    """Average the metrics of gradient steps, adding the shares of all ranks; empty without steps."""
    if not steps:
        return {}
    means = np.array([float(sum(step[name] for step in steps)) / len(steps) for name in steps[0]])
    ranks.sum(means)
    return dict(zip(steps[0], means.tolist(), strict=True))


def require_finite(what: str, array: NDArray[Any]) -> None:
    """Raise :class:`NonFiniteError` unless all of ``array`` is finite; ``what`` names it and its axes."""
    finite = np.isfinite(array)
    if not finite.all():
        index = tuple(np.argwhere(~finite)[0].tolist())
        raise NonFiniteError(f"Expected finite {what}, got {array[index]} at {index}; fix its source.")
