"""Stepping of vector environments with a policy."""

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
    """One step of all environments; the fields are those of :class:`Rollout`."""

    observations: NDArray[Any]
    actions: NDArray[Any]
    executed_actions: NDArray[Any]
    rewards: NDArray[Any]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]


class RolloutSampler:
    """Collects rollouts, each of which continues where the last one stopped.

    Valid transitions are the same in every vector autoreset mode. In next-step mode, the step after an
    episode's last is a dummy, marked as not ``valid``. In same-step mode, the episode's final observation is
    taken from the infos. With autoreset disabled, the sampler resets the environments whose episodes ended.
    """

    def __init__(
        self, envs: VectorEnv[Any, Any, Any], policy: ActorCritic, normalizer: ObservationPreparation
    ) -> None:
        if "autoreset_mode" not in envs.metadata:
            raise UnsupportedEnvironmentError(
                "Expected a vector environment with metadata['autoreset_mode'], "
                f"got {one_line(envs)}; set it."
            )
        self.autoreset_mode = AutoresetMode(envs.metadata["autoreset_mode"])
        self.envs = envs
        self.policy = policy
        self.normalizer = normalizer
        self.started = False
        """True while the environments are within episodes; set to False to reset them on the next rollout."""

    def start(self, rng: np.random.Generator, ranks: Ranks = ALONE) -> None:
        """Start a new episode in every environment, seeded from ``rng``."""
        seed = int(rng.integers(2**31)) + ranks.rank * self.envs.num_envs  # environment i takes seed + i
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
        """Make ``num_steps`` steps of every environment with actions drawn from ``rng``.

        The noise of all ranks' environments is drawn, because ``rng`` is in the same state on each rank.
        ``on_step`` is called with the number of steps made after each.

        Raises:
            NonFiniteError: an environment returned an observation or a reward that is NaN or infinite.
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
        """Step the environments; return the final observation where an episode ended."""
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
        # Check now, because the policy would make actions of it that environments reject with other messages.
        require_finite(_OBSERVATIONS, self._observations)
        return after, rewards, terminated, truncated

    def _rollout(self, steps: _Step, was_ended: NDArray[np.bool_], final: NDArray[Any]) -> Rollout:
        """Check rewards, and add what only training needs, in one batch: log-probabilities and values.

        Args:
            steps: stacked, time-major.
            was_ended: ``(num_envs,)``, True if the previous step ended the episode.
            final: ``(n, *obs)``, final observations of the episodes that ended, by time, then environment.
        """
        shape = steps.rewards.shape
        rewards = steps.rewards.astype(np.float64, copy=False)
        if not np.isfinite(rewards).all():
            for of_step in rewards:
                require_finite("rewards (environment)", of_step)
        # The dummy is the step after an episode's last.
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
        """Return the rollout with the current critic's values."""
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
        """Return ``bootstrap_values`` and ``last_values`` for these observations after steps."""
        cut_off = truncated & ~terminated
        later = np.concatenate([last, final[cut_off[terminated | truncated]]])
        values = self.policy.values(self._inputs(later)).cpu().numpy()
        bootstrap_values = np.zeros(truncated.shape, values.dtype)
        bootstrap_values[cut_off] = values[len(last) :]
        return bootstrap_values, values[: len(last)]

    def _inputs(self, observations: NDArray[Any]) -> Tensor:
        return self.policy.tensor(self.normalizer(observations))
