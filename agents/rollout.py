"""One rollout as time-major arrays, and the estimation of advantages from it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agents.errors import NonFiniteError


@dataclass(frozen=True, eq=False)
class Rollout:
    """Consecutive steps of several environments; arrays are ``(num_steps, num_envs, ...)``.

    Attributes:
        observations: raw, each before its step.
        actions: as the policy sampled them: unclipped for Box, counted from 0 for (Multi)Discrete.
        executed_actions: as the environment received them: clipped to the box, or counted from the space's
            ``start``, in the space's dtype.
        log_probs: of ``actions`` under the policy that sampled them.
        values: the critic's estimate for ``observations``.
        rewards: the environment's own.
        terminated: the step ended its episode in a state without future.
        truncated: the step ended its episode by a limit; the state's future is worth ``bootstrap_values``.
        valid: False at the dummy transition that next-step autoreset puts between two episodes (it starts at
            the last observation of the old one, ignores the action and ends at the first of the new one).
        bootstrap_values: the critic's estimate for the episode's final observation where the step truncated
            it, else 0.
        last_values: ``(num_envs,)``, the critic's estimate for the observation after the last step.
        last_observations: ``(num_envs, *S)``, raw, after the last step; where that ended an episode, perhaps
            the next one's first.
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
        """True at the last step of an episode."""
        return self.terminated | self.truncated

    @property
    def next_observations(self) -> NDArray[Any]:
        """``(num_steps, num_envs, *S)``, raw, after each step; made anew at each call.

        An episode's last step is followed by its final observation, in every autoreset mode.
        """
        following = np.concatenate([self.observations[1:], self.last_observations[None]])
        following[self.ended] = self.final_observations
        return following

    @property
    def num_valid(self) -> int:
        """Environment steps really made."""
        return int(self.valid.sum())


def generalized_advantages(
    rollout: Rollout, rewards: NDArray[Any], gamma: float, gae_lambda: float
) -> NDArray[np.float64]:
    """Generalized advantage estimation (Schulman et al. 2016, equation 16), shape ``(num_steps, num_envs)``.

    The chain is cut at the end of each episode; there the next value is the bootstrap value after truncation
    and 0 after termination. Where the rollout is not valid the advantage is 0.
    """
    ended = rollout.ended
    next_values = np.concatenate([rollout.values[1:], rollout.last_values[None]])
    next_values = np.where(ended, rollout.bootstrap_values, next_values)
    errors = rewards + gamma * next_values - rollout.values
    advantages = np.zeros(rewards.shape)
    following = np.zeros(rewards.shape[1])
    for t in reversed(range(len(rewards))):
        following = errors[t] + gamma * gae_lambda * np.where(ended[t], 0.0, following)
        advantages[t] = following
    return np.where(rollout.valid, advantages, 0.0)


def require_finite(what: str, array: NDArray[Any]) -> None:
    """Raise :class:`NonFiniteError` unless all of ``array`` is finite; ``what`` names it and its axes."""
    finite = np.isfinite(array)
    if not finite.all():
        index = tuple(np.argwhere(~finite)[0].tolist())
        raise NonFiniteError(f"Expected finite {what}, got {array[index]} at {index}; mend what made it.")
