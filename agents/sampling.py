"""Collects rollouts by stepping vector environments with a policy."""

from collections.abc import Callable
from dataclasses import fields, replace
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
from agents.rollout import OnPolicyRollout, Rollout, require_finite

_OBSERVATIONS = "observations (environment, component)"


Choose = Callable[[int, NDArray[Any]], tuple[NDArray[Any], NDArray[Any]]]
"""Function of a step's index and observations that returns actions as sampled and as executed."""


class _Step(NamedTuple):
    """One step of all environments; the fields are described in :class:`~agents.rollout.OnPolicyRollout`."""

    observations: NDArray[Any]
    actions: NDArray[Any]
    executed_actions: NDArray[Any]
    rewards: NDArray[Any]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]


class StepSampler:
    """Steps vector environments; episodes continue from one rollout to the next.

    All vector autoreset modes give the same valid transitions:

    - Next-step mode: the step after an episode's last step is a dummy, marked as not ``valid``.
    - Same-step mode: an episode's final observation is read from the infos.
    - Autoreset disabled: the sampler resets the environments whose episodes have ended.
    """

    def __init__(self, envs: VectorEnv[Any, Any, Any]) -> None:
        if "autoreset_mode" not in envs.metadata:
            raise UnsupportedEnvironmentError(
                f"The vector environment {one_line(envs)} has no metadata['autoreset_mode']; set it to a "
                "gymnasium.vector.AutoresetMode."
            )
        self.autoreset_mode = AutoresetMode(envs.metadata["autoreset_mode"])
        self.envs = envs
        self.started = False
        """True after :meth:`start`. Agents set it to False to start new episodes at their next rollout."""

    def start(self, rng: np.random.Generator, ranks: Ranks = ALONE) -> None:
        """Reset all environments with a seed drawn from ``rng``."""
        seed = int(rng.integers(2**31)) + ranks.rank * self.envs.num_envs  # environment i uses seed + i
        self._observations, _ = self.envs.reset(seed=seed)
        require_finite(_OBSERVATIONS, self._observations)
        self._ended = np.zeros(self.envs.num_envs, dtype=bool)
        self.started = True

    def steps(
        self, num_steps: int, choose: Choose, on_step: Callable[[int], None] | None = None
    ) -> tuple[Rollout, NDArray[Any]]:
        """Step every environment ``num_steps`` times; return the rollout and the actions as sampled.

        Args:
            on_step: called after each step of the vector environment with the number of steps that each
                environment has taken in this rollout.

        Raises:
            NonFiniteError: an environment returned a NaN or infinite observation or reward.
        """
        was_ended = self._ended
        steps: list[_Step] = []
        final = [np.asarray(self._observations)[:0]]
        for t in range(num_steps):
            before = np.array(self._observations)
            actions, executed = choose(t, before)
            after, rewards, terminated, truncated = self._step(executed)
            steps.append(_Step(before, actions, executed, rewards, terminated, truncated))
            if self._ended.any():
                final.append(after[self._ended])
            if on_step is not None:
                on_step(t + 1)
        stacked = _Step(*map(np.array, zip(*steps, strict=True)))
        rewards = stacked.rewards.astype(np.float64, copy=False)
        if not np.isfinite(rewards).all():
            for step_rewards in rewards:
                require_finite("rewards (environment)", step_rewards)
        # In next-step mode, the step after an episode's last step is a dummy.
        dummy = np.vstack([was_ended, (stacked.terminated | stacked.truncated)[:-1]])
        dummy &= self.autoreset_mode is AutoresetMode.NEXT_STEP
        columns = stacked._replace(rewards=rewards)._asdict()
        actions = columns.pop("actions")
        rollout = Rollout(
            **columns,
            valid=~dummy,
            last_observations=np.array(self._observations),
            final_observations=np.concatenate(final),
        )
        return rollout, actions

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


class RolloutSampler(StepSampler):
    """Collects rollouts with a policy and its critic."""

    def __init__(
        self, envs: VectorEnv[Any, Any, Any], policy: ActorCritic, normalizer: ObservationPreparation
    ) -> None:
        super().__init__(envs)
        self.policy = policy
        self.normalizer = normalizer

    def collect(
        self,
        num_steps: int,
        rng: np.random.Generator,
        ranks: Ranks = ALONE,
        on_step: Callable[[int], None] | None = None,
    ) -> OnPolicyRollout:
        """Step every environment ``num_steps`` times with actions sampled from the policy.

        Args:
            rng: generator for the action noise, in the same state on all ranks. Each rank draws the noise for
                all ranks' environments and uses its own part.

        Raises:
            NonFiniteError: an environment returned a NaN or infinite observation or reward.
        """
        head, actor = self.policy.head, self.policy.actor_function()
        num_envs = self.envs.num_envs
        noise = head.perturbation(rng, (num_steps, ranks.size * num_envs))
        noise = noise[:, ranks.rank * num_envs : (ranks.rank + 1) * num_envs]

        def choose(t: int, observations: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
            actions = head.choose(actor(self.normalizer(observations)) + noise[t])
            return actions, head.executed(actions)

        return self._evaluated(*self.steps(num_steps, choose, on_step))

    def _evaluated(self, rollout: Rollout, actions: NDArray[Any]) -> OnPolicyRollout:
        """Compute log-probabilities and values of a rollout in one batch."""
        shape = rollout.rewards.shape
        with torch.no_grad():
            log_probs, _, values = self.policy.evaluate(
                self._inputs(rollout.observations).flatten(0, 1),
                self.policy.tensor(actions).flatten(0, 1),
            )
        bootstrap_values, last_values = self._later_values(
            rollout.last_observations, rollout.final_observations, rollout.terminated, rollout.truncated
        )
        return OnPolicyRollout(
            **{field.name: getattr(rollout, field.name) for field in fields(rollout)},
            actions=actions,
            log_probs=log_probs.cpu().numpy().reshape(shape),
            values=values.cpu().numpy().reshape(shape),
            bootstrap_values=bootstrap_values,
            last_values=last_values,
        )

    def revalued(self, rollout: OnPolicyRollout) -> OnPolicyRollout:
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
