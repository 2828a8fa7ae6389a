"""Shared part of on-policy agents: collecting rollouts, advantages, and critic refits."""

import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from agents import numpy_backend
from agents.base import AgentConfig, BaseAgent, load_adam, save_adam
from agents.distributed import Ranks
from agents.errors import InvalidConfigError, ShapeError
from agents.normalize import ObservationNormalizer, ObservationPreparation, RewardScaler
from agents.pixels import ImageActorCritic, ImagePreparation, is_image_space
from agents.policy import ActorCritic, MLPActorCritic, OwnActorCritic
from agents.rollout import Batch, Rollout, generalized_advantages, require_finite
from agents.sampling import RolloutSampler


@dataclass(frozen=True)
class OnPolicyConfig(AgentConfig):
    """Hyperparameters of on-policy agents, in addition to those of :class:`~agents.base.AgentConfig`.

    Attributes:
        gae_lambda: bias-variance trade-off of advantages: 0 is one-step, 1 Monte Carlo.
        ent_coef: entropy bonus coefficient (in nats; advantages are normalized).
    """

    gae_lambda: float = 0.95
    ent_coef: float = 0.0

    def __post_init__(self) -> None:
        # Four steps hold at least two valid transitions, which normalizing advantages needs.
        self._require_at_least({"num_steps": 4, "minibatch_size": 1, "ent_coef": 0})
        super().__post_init__()
        self._require_share("gae_lambda")


class Critic(Protocol):
    """The critic with a separate optimizer: in torch below, or in :mod:`agents.numpy_backend`."""

    def step(self, batch: Batch, ranks: Ranks) -> float:
        """Train on a minibatch, of which each rank has a part; return its share of the prior loss."""

    def state_dict(self) -> dict[str, Any]:
        """Return copies of Adam's moments by the index of the parameter."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from :meth:`state_dict`."""


class TorchCritic:
    """Trains only the critic: layers that it shares with the actor stay unchanged."""

    def __init__(self, policy: ActorCritic, learning_rate: float) -> None:
        self._policy = policy
        self._parameters = list(policy.critic.parameters())
        self._optimizer = torch.optim.Adam(self._parameters, lr=learning_rate, eps=1e-5, fused=True)

    def step(self, batch: Batch, ranks: Ranks) -> float:
        """Take one gradient step; see :meth:`Critic.step`."""
        errors: Tensor = self._policy.values(batch.observations) - batch.returns
        loss = errors.square().sum() / batch.size
        self._optimizer.zero_grad()
        torch.autograd.backward(loss, inputs=self._parameters)
        ranks.sum_gradients(self._parameters)
        self._optimizer.step()
        return float(loss.item())

    def state_dict(self) -> dict[str, Any]:
        """Return copies of Adam's moments by the index of the parameter."""
        return save_adam(self._optimizer)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from :meth:`state_dict`."""
        load_adam(self._optimizer, state)


class OnPolicyAgent(BaseAgent):
    """Learns on vector environments from rollouts of its current policy, each of which is used once.

    Observations of ``uint8`` in two to four dimensions are images, read by a convolutional network; all
    others are flattened and normalized.

    All randomness comes from ``seed``: the same seed, configuration and environments give the same run.

    Args:
        envs: vector environment to collect from.
        config: hyperparameters.
        seed: for all randomness.
        device: of the networks.
        dtype: of the networks.
        allow_numpy: train small networks on the CPU with :mod:`agents.numpy_backend`, which is faster.

    Raises:
        UnsupportedSpaceError: observations are not a Box, or empty; or actions are neither a Box of floats,
            Discrete nor MultiDiscrete.
    """

    config: OnPolicyConfig
    policy: ActorCritic
    shares_trunk: ClassVar[bool]
    """True if actor and critic share convolutions for images."""

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

    def collect(self, on_step: Callable[[int], None] | None = None) -> Rollout:
        """Step the environments with the current policy; the first call resets them.

        Args:
            on_step: called after each step of all environments with the number of steps made.

        Raises:
            NonFiniteError: an environment returned a NaN or infinite observation or reward.
        """
        if not self.sampler.started:
            self.sampler.start(self.rollout_rng, self.ranks)
            self.reward_scaler.restart(self.sampler.envs.num_envs)
        rollout = self.sampler.collect(self.config.num_steps, self.rollout_rng, self.ranks, on_step)
        self.total_steps += int(self.ranks.gather(np.array(rollout.num_valid)).sum())
        return rollout

    def update(self, rollout: Rollout, rewards: NDArray[Any], *, critic_epochs: int = 0) -> dict[str, float]:
        """Train on ``rollout`` with the given ``rewards`` ``(num_steps, num_envs)``.

        Dummy transitions, whatever their rewards, have no influence. The rollout's observations enter the
        normalization only afterwards.

        Args:
            rollout: of the current policy.
            rewards: replace the rollout's own.
            critic_epochs: passes over the rollout that train only the critic, before it is used to estimate
                advantages: for rewards with a new meaning.

        Returns:
            The algorithm's metrics (in nats for log-probabilities and divergences), and
            ``explained_variance``, the share of the returns' variance that the rollout's values predicted.

        Raises:
            NonFiniteError: a reward is NaN or infinite; the agent is unchanged.
            DivergedError: the update made parameters NaN or infinite; the previous ones are restored, and the
                optimizer starts over.
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
        """Update the policy, and return metrics by name."""

    @abc.abstractmethod
    def _critic_alone(self) -> Critic:
        """Return the object that trains only the critic."""

    def _prepared_rewards(self, rollout: Rollout, rewards: NDArray[Any]) -> NDArray[np.float64]:
        """Return the rewards checked, 0 where the rollout is not valid, and scaled if configured."""
        if rewards.shape != rollout.rewards.shape:
            raise ShapeError(f"Expected rewards of shape {rollout.rewards.shape}, got {rewards.shape}.")
        rewards = np.where(rollout.valid, rewards, 0.0)
        require_finite("rewards (step, environment)", rewards)
        if self.config.normalize_rewards:
            rewards = self.reward_scaler(rewards, rollout.ended, rollout.valid, self.ranks)
        return rewards

    def _with_new_values(self, rollout: Rollout, rewards: NDArray[np.float64], epochs: int) -> Rollout:
        """Train only the critic; return the rollout with its new values.

        Returns bootstrap from the critic's values, so they are estimated again in each epoch.
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
        """Return the batch as arrays if the NumPy backend trains on it."""
        return batch.numpy() if self.uses_numpy else batch

    def _batch(
        self, rollout: Rollout, rewards: NDArray[np.float64]
    ) -> tuple[Batch, NDArray[np.float64], NDArray[np.float64]]:
        """Return the valid transitions to train on, and the advantages and returns of all ranks."""
        advantages = generalized_advantages(rollout, rewards, self.config.gamma, self.config.gae_lambda)
        returns = advantages + rollout.values
        valid, tensor = rollout.valid, self.policy.tensor
        all_advantages, all_returns, own = self._of_all_ranks(advantages, returns, valid)
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

    def _of_all_ranks(
        self, advantages: NDArray[np.float64], returns: NDArray[np.float64], valid: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
        """Return advantages and returns of all valid transitions, and a mask of this rank's own.

        Inputs are ``(num_steps, num_envs)``; results are ``(size,)``, by time, then environment.
        """
        gathered = self.ranks.gather(np.stack([advantages, returns, valid]))
        num_steps, num_envs = valid.shape
        # (rank, column, time, environment) to (column, time, environment of all ranks)
        columns = gathered.transpose(1, 2, 0, 3).reshape(3, num_steps, self.ranks.size * num_envs)
        of_all = columns[2].astype(bool)
        rank_of = np.arange(self.ranks.size).repeat(num_envs)
        own = np.broadcast_to(rank_of == self.ranks.rank, of_all.shape)
        return columns[0][of_all], columns[1][of_all], own[of_all]

    def state_dict(self) -> dict[str, Any]:
        """Return copies of everything that training continues from: nested dicts of arrays and scalars."""
        return {**super().state_dict(), "reward_scaler": self.reward_scaler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`, with new episodes in all environments.

        Raises:
            StateMismatchError: the state is from an agent with other networks or another algorithm; this
                agent is unchanged.
        """
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
    """Make the policy for the environments' spaces, and its observation preparation."""
    observations, actions = envs.single_observation_space, envs.single_action_space
    generator, make = torch.Generator().manual_seed(seed), config.network
    has_own_layers = (config.hidden_sizes, config.activation) != ((64, 64), "tanh")
    if has_own_layers and (make is not None or is_image_space(observations)):
        found = "images" if make is None else "a custom network"
        raise InvalidConfigError(f"hidden_sizes and activation have no effect with {found}; leave them out.")
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
