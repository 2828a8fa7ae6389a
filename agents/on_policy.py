"""Base class of on-policy agents: rollout collection, advantage estimation and critic-only training."""

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from agents import numpy_backend
from agents.base import AgentConfig, BaseAgent, load_adam, require_moments, save_adam
from agents.distributed import Ranks
from agents.errors import InvalidConfigError
from agents.normalize import ObservationNormalizer, ObservationPreparation, RewardScaler
from agents.pixels import ImageActorCritic, ImagePreparation, is_image_space
from agents.policy import ActorCritic, MLPActorCritic, OwnActorCritic
from agents.rollout import Batch, OnPolicyRollout, generalized_advantages
from agents.sampling import RolloutSampler


@dataclass(frozen=True)
class OnPolicyConfig(AgentConfig):
    """Hyperparameters of on-policy agents, in addition to those of :class:`~agents.base.AgentConfig`.

    Attributes:
        num_steps: number of steps per environment in each rollout.
        minibatch_size: minimum number of transitions per gradient step.
        normalize_rewards: divide rewards by the running standard deviation of the discounted return. Useful
            for true rewards because their scale depends on the environment.
        gae_lambda: GAE's trade-off between bias and variance: 0 gives one-step advantages (high bias), 1
            gives Monte Carlo advantages (high variance).
        ent_coef: entropy bonus coefficient, for entropies in nats and standardized advantages.
    """

    num_steps: int = 256
    minibatch_size: int = 64
    normalize_rewards: bool = False
    gae_lambda: float = 0.95
    ent_coef: float = 0.0

    def __post_init__(self) -> None:
        # Four steps have at least two valid transitions, the minimum for standardizing advantages.
        self._require_at_least({"num_steps": 4, "minibatch_size": 1, "ent_coef": 0})
        super().__post_init__()
        self._require_share("gae_lambda")

    @property
    def rollout_steps(self) -> int:
        """Return the number of steps per environment in each rollout."""
        return self.num_steps


class Critic(Protocol):
    """Interface for critic-only trainers, each with its own optimizer."""

    def step(self, batch: Batch, ranks: Ranks) -> float:
        """Take a gradient step, and return this rank's contribution to the minibatch loss.

        ``batch`` is this rank's part of the minibatch. The minibatch loss is computed before the step, and is
        the sum of all ranks' contributions.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return copies of Adam's step count and moments, keyed by parameter index."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the optimizer state returned by :meth:`state_dict`."""


class TorchCritic:
    """Trains only the critic; layers shared with the actor stay unchanged."""

    def __init__(self, policy: ActorCritic, learning_rate: float) -> None:
        self._policy = policy
        self._parameters = list(policy.critic.parameters())
        self._optimizer = torch.optim.Adam(self._parameters, lr=learning_rate, eps=1e-5, fused=True)

    def step(self, batch: Batch, ranks: Ranks) -> float:
        """Take a gradient step as :meth:`Critic.step` says."""
        errors: Tensor = self._policy.values(batch.observations) - batch.returns
        loss = errors.square().sum() / batch.size
        self._optimizer.zero_grad()
        torch.autograd.backward(loss, inputs=self._parameters)
        ranks.sum_gradients(self._parameters)
        self._optimizer.step()
        return float(loss.item())

    def state_dict(self) -> dict[str, Any]:
        """Return copies of Adam's step count and moments, keyed by parameter index."""
        return save_adam(self._optimizer)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the optimizer state returned by :meth:`state_dict`."""
        load_adam(self._optimizer, state)


class OnPolicyAgent(BaseAgent):
    """Base class of on-policy agents.

    Each rollout of the current policy is used for one policy update and then discarded.

    ``uint8`` observations with two to four dimensions are treated as images and get a convolutional network.
    All other observations are flattened and normalized.

    Runs are reproducible: the same seed, configuration and environments give the same results.

    Args:
        seed: seed for all of the agent's random numbers, including the initial network weights.
        allow_numpy: use the faster :mod:`agents.numpy_backend` for networks that it supports.

    Raises:
        InvalidConfigError: the hyperparameters don't fit the environments. Also raised if the custom actor
            isn't a torch module, raises an exception, or returns outputs of the wrong shape.
        UnsupportedEnvironmentError: the environment doesn't declare its autoreset mode.
        UnsupportedSpaceError: the observation space is not a Box, or the action space is not Discrete,
            MultiDiscrete or a floating-point Box. Spaces of zero size are not supported either.
    """

    config: OnPolicyConfig
    policy: ActorCritic
    shares_trunk: ClassVar[bool]
    """True if actor and critic share convolutional layers for images."""

    def __init__(
        self,
        envs: VectorEnv[Any, Any, Any],
        config: OnPolicyConfig,
        seed: int,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        *,
        allow_numpy: bool = True,
    ) -> None:
        normalizer, policy = _preparation_and_policy(envs, config, seed, share_trunk=self.shares_trunk)
        super().__init__(policy.to(device, dtype), normalizer, seed)
        self.config = config
        self.uses_numpy = allow_numpy and numpy_backend.supports(self.policy)
        self.reward_scaler = RewardScaler(envs.num_envs, config.gamma)
        self.sampler = RolloutSampler(envs, self.policy, self.normalizer)

    def collect(self, on_step: Callable[[int], None] | None = None) -> OnPolicyRollout:
        """Collect a rollout with the current policy. The first call resets the environments.

        Args:
            on_step: callback invoked after each vector environment step. Its argument is the number of steps
                per environment taken so far in this rollout.

        Raises:
            NonFiniteError: an environment returned a NaN or infinite observation or reward.
        """
        if not self.sampler.started:
            self.sampler.start(self.rollout_rng, self.ranks)
            self.reward_scaler.restart(self.sampler.envs.num_envs)
        rollout = self.sampler.collect(self.config.num_steps, self.rollout_rng, self.ranks, on_step)
        self.total_steps += int(self.ranks.gather(np.array(rollout.num_valid)).sum())
        return rollout

    def update(
        self, rollout: OnPolicyRollout, rewards: NDArray[Any], *, critic_epochs: int = 0
    ) -> dict[str, float]:
        """Train on ``rollout`` with the given ``rewards`` ``(num_steps, num_envs)``.

        Dummy transitions and their rewards are ignored. The rollout's observations are added to the
        normalization statistics after the update.

        Args:
            rollout: rollout collected with the current policy.
            critic_epochs: number of critic-only training epochs to run before advantages are estimated.
                Useful after the reward function has changed.

        Returns:
            The algorithm's metrics (divergences and entropies in nats), and ``explained_variance``: the
            fraction of the returns' variance that the critic's values explain.

        Raises:
            ShapeError: ``rewards`` doesn't have the shape of the rollout's rewards; the agent is unchanged.
            NonFiniteError: a reward is NaN or infinite; the agent is unchanged.
            DivergedError: the update made parameters NaN or infinite. The previous parameters are restored,
                and the optimizer is reset.
        """
        rewards = self._prepared_rewards(rollout, rewards)
        before = parameters_to_vector(self.policy.parameters()).detach()  # a copy
        if critic_epochs:
            rollout = self._with_new_values(rollout, rewards, critic_epochs)
        valid = rollout.valid
        batch, advantages, returns = self._batch(rollout, rewards)
        metrics = self._train(batch)
        self._require_finite_parameters(before)
        self.normalizer.update(rollout.observations[valid], self.ranks)
        unexplained, variance = advantages.var(), returns.var()
        metrics["explained_variance"] = float(1.0 - unexplained / variance) if variance > 0 else 0.0
        return metrics

    @abc.abstractmethod
    def _train(self, batch: Batch) -> dict[str, float]:
        """Update the policy and critic on ``batch``, and return metrics keyed by name."""

    @property
    @abc.abstractmethod
    def _optimized(self) -> Sequence[Tensor]:
        """Return the parameters that the optimizer updates."""

    def _require_optimizer_state(self, state: Mapping[str, Any]) -> None:
        require_moments(state, self._optimized)

    @abc.abstractmethod
    def _critic_alone(self) -> Critic:
        """Return a trainer that updates only the critic."""

    def _prepared_rewards(self, rollout: OnPolicyRollout, rewards: NDArray[Any]) -> NDArray[np.float64]:
        """Check ``rewards``, set them to 0 at dummy transitions, and scale them if configured."""
        rewards = rollout.checked(rewards)
        if self.config.normalize_rewards:
            rewards = self.reward_scaler(rewards, rollout.ended, rollout.valid, self.ranks)
        return rewards

    def _with_new_values(
        self, rollout: OnPolicyRollout, rewards: NDArray[np.float64], epochs: int
    ) -> OnPolicyRollout:
        """Train only the critic for ``epochs`` epochs, and return the rollout with recomputed values.

        The value targets are bootstrapped from the critic, so they are recomputed every epoch.
        """
        critic = self._critic_alone()
        for _ in range(epochs):
            batch, _, _ = self._batch(rollout, rewards)
            batch = self._to_backend(batch)
            for minibatch in batch.minibatches(self.config.minibatch_size, self.minibatch_rng):
                critic.step(minibatch, self.ranks)
            rollout = self.sampler.revalued(rollout)
        return rollout

    def _to_backend(self, batch: Batch) -> Batch:
        """Return ``batch``, with its tensors converted to arrays if the NumPy backend is used."""
        return batch.numpy() if self.uses_numpy else batch

    def _batch(
        self, rollout: OnPolicyRollout, rewards: NDArray[np.float64]
    ) -> tuple[Batch, NDArray[np.float64], NDArray[np.float64]]:
        """Return this rank's batch, and the advantages and returns of all ranks' valid transitions."""
        advantages = generalized_advantages(rollout, rewards, self.config.gamma, self.config.gae_lambda)
        returns = advantages + rollout.values
        valid, tensor = rollout.valid, self.policy.tensor
        all_advantages, all_returns, own = self._gather_all_ranks(advantages, returns, valid)
        batch = Batch(
            observations=tensor(self.normalizer(rollout.observations[valid])),
            actions=tensor(rollout.actions[valid]),
            log_probs=tensor(rollout.log_probs[valid]),
            values=tensor(rollout.values[valid]),
            returns=tensor(returns[valid]),
            advantages=tensor(all_advantages),
            own=own,
        )
        return batch, all_advantages, all_returns

    def _gather_all_ranks(
        self, advantages: NDArray[np.float64], returns: NDArray[np.float64], valid: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
        """Gather all ranks' advantages and returns, with a mask of this rank's transitions.

        The arguments are this rank's, with shape ``(num_steps, num_envs)``.

        Returns:
            Advantages and returns of all ranks' valid transitions, and a mask of this rank's transitions.
            Each has shape ``(size,)`` and is ordered by time step, then environment.
        """
        gathered = self.ranks.gather(np.stack([advantages, returns, valid]))
        num_steps, num_envs = valid.shape
        # (rank, column, time, environment) to (column, time, environment of all ranks)
        columns = gathered.transpose(1, 2, 0, 3).reshape(3, num_steps, self.ranks.size * num_envs)
        all_valid = columns[2].astype(bool)
        rank_of = np.arange(self.ranks.size).repeat(num_envs)
        own = np.broadcast_to(rank_of == self.ranks.rank, all_valid.shape)
        return columns[0][all_valid], columns[1][all_valid], own[all_valid]

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the full training state as nested dicts of arrays and scalars."""
        return {**super().state_dict(), "reward_scaler": self.reward_scaler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state as :meth:`BaseAgent.load_state_dict` does; :meth:`collect` starts new episodes."""
        super().load_state_dict(state)
        self.reward_scaler.load_state_dict(state["reward_scaler"])
        self.sampler.started = False


def _preparation_and_policy(
    envs: VectorEnv[Any, Any, Any],
    config: OnPolicyConfig,
    seed: int,
    *,
    share_trunk: bool,
) -> tuple[ObservationPreparation, ActorCritic]:
    observations, actions = envs.single_observation_space, envs.single_action_space
    generator, make = torch.Generator().manual_seed(seed), config.network
    has_own_layers = (config.hidden_sizes, config.activation) != ((64, 64), "tanh")
    if has_own_layers and (make is not None or is_image_space(observations)):
        found = "image observations" if make is None else "a custom network"
        raise InvalidConfigError(
            f"hidden_sizes and activation have no effect with {found}; remove these settings."
        )
    if is_image_space(observations):
        images = ImagePreparation(observations)
        if make is not None:
            return images, OwnActorCritic(images.image_shape, actions, make, seed)
        return images, ImageActorCritic(images.image_shape, actions, generator, share_trunk=share_trunk)
    normalizer = ObservationNormalizer(observations, learns=config.normalize_observations)
    if make is not None:
        return normalizer, OwnActorCritic((normalizer.size,), actions, make, seed)
    sizes = config.hidden_sizes, config.activation
    return normalizer, MLPActorCritic(normalizer.size, actions, generator, *sizes)
