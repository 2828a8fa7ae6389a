"""Collects rollouts by stepping vector environments with a policy."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray
from torch import Tensor

from agents.distributed import ALONE, Ranks
from agents.errors import UnsupportedEnvironmentError, one_line
from agents.normalize import ObservationPreparation
from agents.policy import ActorCritic
from agents.rollout import Rollout, require_finite

_OBSERVATIONS = "observations (environment, component)"


class _Step(NamedTuple):
    """One step of all environments; the fields are described in :class:`Rollout`."""

    observations: NDArray[Any]
    actions: NDArray[Any]
    executed_actions: NDArray[Any]
    rewards: NDArray[Any]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]


class RolloutSampler:
    """Collects rollouts from vector environments; episodes continue from one rollout to the next.

    All vector autoreset modes give the same valid transitions:

    - Next-step mode: the step after an episode's last step is a dummy, marked as not ``valid``.
    - Same-step mode: an episode's final observation is read from the infos.
    - Autoreset disabled: the sampler resets the environments whose episodes have ended.
    """

    def __init__(
        self, envs: VectorEnv[Any, Any, Any], policy: ActorCritic, normalizer: ObservationPreparation
    ) -> None:
        if "autoreset_mode" not in envs.metadata:
            raise UnsupportedEnvironmentError(
                f"The vector environment {one_line(envs)} has no metadata['autoreset_mode']; set it to a "
                "gymnasium.vector.AutoresetMode."
            )
        self.autoreset_mode = AutoresetMode(envs.metadata["autoreset_mode"])
        self.envs = envs
        self.policy = policy
        self.normalizer = normalizer
        self.started = False
        """True after :meth:`start`. Agents set it to False to start new episodes at their next rollout."""

    def start(self, rng: np.random.Generator, ranks: Ranks = ALONE) -> None:
        """Reset all environments with a seed drawn from ``rng``."""
        seed = int(rng.integers(2**31)) + ranks.rank * self.envs.num_envs  # environment i uses seed + i
        self._observations, _ = self.envs.reset(seed=seed)
        require_finite(_OBSERVATIONS, self._observations)
        self._ended = np.zeros(self.envs.num_envs, dtype=bool)
        self.started = True

    def collect(
        self,
        num_steps: int,
        rng: np.random.Generator,
        ranks: Ranks = ALONE,
        on_step: Callable[[int], None] | None = None,
    ) -> Rollout:
        """Step every environment ``num_steps`` times with actions sampled from the policy.

        Args:
            num_steps: number of steps per environment.
            rng: generator for the action noise, in the same state on all ranks. Each rank draws the noise for
                all ranks' environments and uses its own part.
            ranks: process group for distributed training.
            on_step: callback invoked after each vector environment step. Its argument is the number of steps
                per environment taken so far in this rollout.

        Raises:
            NonFiniteError: an environment returned a NaN or infinite observation or reward.
        """
        head, actor = self.policy.head, self.policy.actor_function()
        num_envs, was_ended = self.envs.num_envs, self._ended
        noise = head.perturbation(rng, (num_steps, ranks.size * num_envs))
        noise = noise[:, ranks.rank * num_envs : (ranks.rank + 1) * num_envs]
        steps: list[_Step] = []
        final = [np.asarray(self._observations)[:0]]
        for t in range(num_steps):
            before = np.array(self._observations)
            actions = head.choose(actor(self.normalizer(before)) + noise[t])
            executed = head.executed(actions)
            after, rewards, terminated, truncated = self._step(executed)
            steps.append(_Step(before, actions, executed, rewards, terminated, truncated))
            if self._ended.any():
                final.append(after[self._ended])
            if on_step is not None:
                on_step(t + 1)
        return self._rollout(
            _Step(*map(np.array, zip(*steps, strict=True))), was_ended, np.concatenate(final)
        )

    def _step(
        self, actions: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_], NDArray[np.bool_]]:
        """Step the environments. If autoreset is disabled, reset those whose episodes ended.

        Returns:
            Observations after the step, rewards, terminated and truncated. In every autoreset mode, the
            observation after an episode's last step is the episode's final one.
        """
        self._observations, rewards, terminated, truncated, infos = self.envs.step(actions)
        self._ended = terminated | truncated
        after = self._observations
        if self.autoreset_mode is not AutoresetMode.NEXT_STEP and self._ended.any():
            after = np.array(after)
            if self.autoreset_mode is AutoresetMode.SAME_STEP:
                after[self._ended] = np.stack(infos["final_obs"][self._ended])
            else:
                self._observations, _ = self.envs.reset(options={"reset_mask": self._ended})
            require_finite(_OBSERVATIONS, after)
        # Check before acting: NaN actions would make environments fail with misleading messages.
        require_finite(_OBSERVATIONS, self._observations)
        return after, rewards, terminated, truncated

    def _rollout(self, steps: _Step, was_ended: NDArray[np.bool_], final: NDArray[Any]) -> Rollout:
        """Check rewards, compute log-probabilities and values in one batch, and return the rollout.

        Args:
            steps: all steps, stacked into arrays of shape ``(num_steps, num_envs, ...)``.
            was_ended: ``(num_envs,)``, True if the step before this rollout ended an episode.
            final: ``(n, *obs)``, final observations of the episodes that ended, ordered by time step, then
                environment.
        """
        shape = steps.rewards.shape
        rewards = steps.rewards.astype(np.float64, copy=False)
        if not np.isfinite(rewards).all():
            for step_rewards in rewards:
                require_finite("rewards (environment)", step_rewards)
        # In next-step mode, the step after an episode's last step is a dummy.
        dummy = np.vstack([was_ended, (steps.terminated | steps.truncated)[:-1]])
        dummy &= self.autoreset_mode is AutoresetMode.NEXT_STEP
        with torch.no_grad():
            log_probs, _, values = self.policy.evaluate(
                self._inputs(steps.observations).flatten(0, 1),
                self.policy.tensor(steps.actions).flatten(0, 1),
            )
        last = np.array(self._observations)
        bootstrap_values, last_values = self._later_values(last, final, steps.terminated, steps.truncated)
        return Rollout(
            **steps._replace(rewards=rewards)._asdict(),
            valid=~dummy,
            log_probs=log_probs.cpu().numpy().reshape(shape),
            values=values.cpu().numpy().reshape(shape),
            bootstrap_values=bootstrap_values,
            last_values=last_values,
            last_observations=last,
            final_observations=final,
        )

    def revalued(self, rollout: Rollout) -> Rollout:
        """Return a copy of the rollout with all values recomputed by the current critic."""
        with torch.no_grad():
            values = self.policy.values(self._inputs(rollout.observations).flatten(0, 1)).cpu().numpy()
        bootstrap_values, last_values = self._later_values(
            rollout.last_observations, rollout.final_observations, rollout.terminated, rollout.truncated
        )
        return replace(
            rollout,
            values=values.reshape(rollout.values.shape),
            bootstrap_values=bootstrap_values,
            last_values=last_values,
        )

    @torch.no_grad()
    def _later_values(
        self,
        last: NDArray[Any],
        final: NDArray[Any],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Compute ``bootstrap_values`` and ``last_values`` of a rollout in one batch.

        Args:
            last: observations after the last step, ``(num_envs, *obs)``.
            final: final observations of the episodes that ended, ``(n, *obs)``.
            terminated: mask ``(num_steps, num_envs)``.
            truncated: mask ``(num_steps, num_envs)``.
        """
        cut_off = truncated & ~terminated
        later = np.concatenate([last, final[cut_off[terminated | truncated]]])
        values = self.policy.values(self._inputs(later)).cpu().numpy()
        bootstrap_values = np.zeros(truncated.shape, values.dtype)
        bootstrap_values[cut_off] = values[len(last) :]
        return bootstrap_values, values[: len(last)]

    def _inputs(self, observations: NDArray[Any]) -> Tensor:
        return self.policy.tensor(self.normalizer(observations))
