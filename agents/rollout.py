"""Rollouts, advantage estimation and minibatches."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from agents.distributed import Ranks
from agents.errors import NonFiniteError, ShapeError


@dataclass(frozen=True, eq=False)
class Rollout:
    """Consecutive steps of several environments; arrays are ``(num_steps, num_envs, ...)`` unless noted.

    Attributes:
        observations: raw observations before each step.
        executed_actions: actions as passed to the environment: within the bounds for Box, starting at the
            space's ``start`` for Discrete and MultiDiscrete, in the space's dtype.
        rewards: the environment's rewards.
        terminated: True if the step ended its episode in a terminal state.
        truncated: True if the step ended its episode by truncation, for example at a time limit.
        valid: False at dummy transitions. Next-step autoreset inserts a dummy transition between episodes:
            the environment ignores the action, and moves from the old episode's final observation to the new
            episode's first observation.
        last_observations: raw observations after the last step, ``(num_envs, *shape)``, where ``shape`` is
            the shape of one observation. After the end of an episode, this may be the next episode's first
            observation.
        final_observations: raw final observations of the episodes that ended in this rollout,
            ``(n, *shape)``, ordered by time step, then environment.
    """

    observations: NDArray[Any]
    executed_actions: NDArray[Any]
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    last_observations: NDArray[Any]
    final_observations: NDArray[Any]

    @property
    def ended(self) -> NDArray[np.bool_]:
        """Return a mask that is True at the last step of each episode."""
        return self.terminated | self.truncated

    @property
    def next_observations(self) -> NDArray[Any]:
        """Return the raw observations after each step, ``(num_steps, num_envs, *shape)``, as a new array.

        In every autoreset mode, the observation after an episode's last step is that episode's final one.
        """
        following = np.concatenate([self.observations[1:], self.last_observations[None]])
        following[self.ended] = self.final_observations
        return following

    @property
    def num_valid(self) -> int:
        """Return the number of valid (not dummy) transitions."""
        return int(self.valid.sum())

    def checked(self, rewards: NDArray[Any]) -> NDArray[Any]:
        """Return rewards ``(num_steps, num_envs)`` for this rollout, set to 0 at dummy transitions.

        Raises:
            ShapeError: the shape doesn't match the rollout.
            NonFiniteError: a reward of a valid transition is NaN or infinite.
        """
        if rewards.shape != self.rewards.shape:
            raise ShapeError(
                f"Expected rewards of shape {self.rewards.shape}, got {rewards.shape}; pass one reward "
                "per step and environment."
            )
        rewards = np.where(self.valid, rewards, 0.0)
        require_finite("rewards (step, environment)", rewards)
        return rewards


@dataclass(frozen=True, eq=False)
class OnPolicyRollout(Rollout):
    """Rollout with what the policy and critic that collected it computed.

    Attributes:
        actions: actions as sampled by the policy: not clipped for Box, starting at 0 for Discrete and
            MultiDiscrete.
        log_probs: log-probabilities of ``actions`` under the policy that sampled them.
        values: the critic's estimates for ``observations``.
        bootstrap_values: the critic's estimate for the final observation of an episode truncated at this
            step; 0 at all other steps.
        last_values: the critic's estimates for ``last_observations``, ``(num_envs,)``.
    """

    actions: NDArray[Any]
    log_probs: NDArray[np.floating[Any]]
    values: NDArray[np.floating[Any]]
    bootstrap_values: NDArray[np.floating[Any]]
    last_values: NDArray[np.floating[Any]]


def generalized_advantages(
    rollout: OnPolicyRollout, rewards: NDArray[Any], gamma: float, gae_lambda: float
) -> NDArray[np.float64]:
    """Estimate advantages ``(num_steps, num_envs)`` with GAE (Schulman et al. 2016, eqs. 11-16).

    The sum in eq. 16 is computed recursively, backward in time: ``A_t = delta_t + gamma lambda A_{t+1}``,
    with TD residuals ``delta_t = r_t + gamma V(s_{t+1}) - V(s_t)``. At the end of an episode, ``A_{t+1}`` is
    0, and ``V(s_{t+1})`` is the bootstrap value after truncation and 0 after termination. Dummy transitions
    have an advantage of 0.
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
    """Valid transitions to train on, as tensors (torch) or arrays (NumPy backend).

    The batch has ``size`` transitions in total, of which this rank has ``n``; ``n`` differs between ranks and
    may be 0. The fields contain this rank's transitions, ``(n, ...)``, except for ``advantages`` and ``own``.

    Attributes:
        advantages: advantages of the transitions of all ranks, ``(size,)``. Each rank needs all of them to
            standardize advantages over the whole batch or minibatch.
        own: NumPy mask of this rank's transitions among those of all ranks, ``(size,)``.
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
        """Return the total number of transitions across all ranks."""
        return len(self.own)

    def numpy(self) -> "Batch":
        """Return the batch with NumPy arrays that share the tensors' memory."""
        *columns, own = self
        return Batch._make([*(column.numpy() for column in columns), own])

    def minibatches(self, size: int, rng: np.random.Generator) -> Iterator["Batch"]:
        """Yield shuffled minibatches of at least ``size`` transitions that together cover the batch once.

        Sizes differ by at most one transition, because a small last minibatch would give a noisy gradient
        step. A batch of fewer than ``size`` transitions is yielded whole. ``rng`` must be in the same state
        on all ranks, so that they draw the same minibatches; each rank yields only its own transitions of
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
    """Standardize advantages ``(size,)`` to mean 0 and standard deviation 1 (with Bessel's correction)."""
    return (advantages - advantages.mean()) / (advantages.std() + 1e-8)


def mean_metrics(steps: Sequence[Mapping[str, Any]], ranks: Ranks) -> dict[str, float]:
    """Average each metric over the gradient steps and sum the averages over all ranks.

    Returns an empty dict if there are no steps."""
    if not steps:
        return {}
    means = np.array([float(sum(step[name] for step in steps)) / len(steps) for name in steps[0]])
    ranks.sum(means)
    return dict(zip(steps[0], means.tolist(), strict=True))


def require_finite(what: str, array: NDArray[Any]) -> None:
    """Raise :class:`NonFiniteError` if ``array`` has a NaN or infinite element.

    ``what`` describes the array and its axes in the message, for example ``rewards (step, environment)``.
    """
    finite = np.isfinite(array)
    if not finite.all():
        index = tuple(np.argwhere(~finite)[0].tolist())
        raise NonFiniteError(
            f"Expected finite {what}, got {array[index]} at {index}; fix the environment or data that it "
            "came from."
        )
