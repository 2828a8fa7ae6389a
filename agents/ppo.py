"""Proximal policy optimisation (Schulman et al. 2017), with Stable-Baselines3's semantics."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from torch import Tensor, nn

from agents.errors import InvalidConfigError, ShapeError, StateMismatchError
from agents.normalize import ObservationNormalizer, RewardScaler
from agents.policy import ActorCritic, forward
from agents.rollout import Rollout, generalized_advantages, require_finite
from agents.sampling import RolloutSampler

_STREAMS = ("rollout_rng", "minibatch_rng", "acting_rng")


@dataclass(frozen=True)
class PPOConfig:
    """Hyperparameters, named as in CleanRL.

    Attributes:
        num_steps: steps of each environment in a rollout.
        minibatch_size: transitions per gradient step, at least.
        update_epochs: passes over each rollout.
        learning_rate: of Adam.
        gamma: discount factor per step.
        gae_lambda: bias against variance in the advantages: 0 is one-step, 1 Monte Carlo.
        clip_coef: the probability ratio is clipped to ``1 - clip_coef .. 1 + clip_coef``.
        ent_coef: weight of the entropy bonus.
        vf_coef: weight of the value loss.
        max_grad_norm: gradients are scaled down to this joint norm.
        normalize_rewards: divide rewards by the running standard deviation of the discounted return; for true
            rewards, whose scale is the environment's own.
    """

    num_steps: int = 256
    minibatch_size: int = 64
    update_epochs: int = 10
    learning_rate: float = 3e-4
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip_coef: float = 0.2
    ent_coef: float = 0.0
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5
    normalize_rewards: bool = False

    def __post_init__(self) -> None:
        # Four steps hold at least two valid transitions: an advantage needs company to be normalised.
        minimums = {"num_steps": 4, "minibatch_size": 2, "update_epochs": 1, "ent_coef": 0, "vf_coef": 0}
        for name, minimum in minimums.items():
            if not getattr(self, name) >= minimum:
                raise InvalidConfigError(f"Expected {name} of at least {minimum}, got {getattr(self, name)}.")
        for name in ("learning_rate", "clip_coef", "max_grad_norm"):
            if not getattr(self, name) > 0:
                raise InvalidConfigError(f"Expected a positive {name}, got {getattr(self, name)}.")
        for name in ("gamma", "gae_lambda"):
            if not 0 <= getattr(self, name) <= 1:
                raise InvalidConfigError(f"Expected {name} between 0 and 1, got {getattr(self, name)}.")


class _Batch(NamedTuple):
    """Transitions to train on, first dimension ``n``."""

    observations: Tensor
    actions: Tensor
    log_probs: Tensor
    advantages: Tensor
    returns: Tensor


class PPO:
    """An agent that learns on vector environments: collect, update, and so on.

    All randomness comes from ``seed``: the same seed, configuration and environments give the same run.

    Raises:
        UnsupportedSpaceError: observations are no Box, or actions neither a Box of floats nor Discrete.
    """

    def __init__(
        self, envs: VectorEnv[Any, Any, Any], config: PPOConfig, seed: int, device: str = "cpu"
    ) -> None:
        self.config = config
        self.normalizer = ObservationNormalizer(envs.single_observation_space)
        self.policy = ActorCritic(
            self.normalizer.size, envs.single_action_space, torch.Generator().manual_seed(seed)
        ).to(device)
        self._parameters = list(self.policy.parameters())
        self.optimizer = torch.optim.Adam(self._parameters, lr=config.learning_rate, eps=1e-5, fused=True)
        self.reward_scaler = RewardScaler(envs.num_envs, config.gamma)
        # Apart, so that neither the number of updates nor of recorded videos changes what a rollout draws.
        self.rollout_rng, self.minibatch_rng, self.acting_rng = np.random.default_rng(seed).spawn(3)
        self.sampler = RolloutSampler(envs, self.policy, self.normalizer)
        self.total_steps = 0

    def collect(self) -> Rollout:
        """Step the environments with the present policy; the first call resets them.

        Raises:
            NonFiniteError: an environment returned a NaN or infinite observation or reward.
        """
        if not self.sampler.started:
            self.sampler.start(self.rollout_rng)
            self.reward_scaler.restart(self.sampler.envs.num_envs)
        rollout = self.sampler.collect(self.config.num_steps, self.rollout_rng)
        self.total_steps += rollout.num_valid
        return rollout

    def act(self, observations: NDArray[Any], *, deterministic: bool) -> NDArray[Any]:
        """Actions ``(batch, *act)``, as the environment takes them, for raw observations ``(batch, *obs)``.

        Does not disturb training. ``deterministic`` takes the most likely action in place of a random one.
        """
        head = self.policy.head
        outputs = forward(self.policy.actor_layers(), self.normalizer(observations))
        if not deterministic:
            outputs = outputs + head.perturbation(self.acting_rng, (len(outputs),))
        return head.executed(head.choose(outputs))

    def update(self, rollout: Rollout, rewards: NDArray[Any]) -> dict[str, float]:
        """Train on ``rollout`` with the given ``rewards`` ``(num_steps, num_envs)``.

        Dummy transitions, and whatever reward they are given, have no influence. The rollout's observations
        enter the normalisation only afterwards.

        Returns:
            Means over the last epoch of ``policy_loss``, ``value_loss``, ``entropy`` (nats), ``approx_kl``
            (nats; the third estimator of Schulman 2020, "Approximating KL Divergence") and ``clip_fraction``;
            and ``explained_variance``, the share of the returns' variance that the rollout's values foresaw.

        Raises:
            NonFiniteError: a reward is NaN or infinite; the agent is unchanged.
        """
        advantages = self._advantages(rollout, rewards)
        returns = advantages + rollout.values
        batch = self._batch(rollout, advantages, returns)
        for _ in range(self.config.update_epochs):
            steps = [self._gradient_step(minibatch) for minibatch in self._minibatches(batch)]
        self.normalizer.update(rollout.observations[rollout.valid])
        metrics = {name: torch.stack([step[name] for step in steps]).mean().item() for name in steps[0]}
        unexplained, variance = advantages[rollout.valid].var(), returns[rollout.valid].var()
        metrics["explained_variance"] = float(1.0 - unexplained / variance) if variance > 0 else 0.0
        return metrics

    def _advantages(self, rollout: Rollout, rewards: NDArray[Any]) -> NDArray[np.float64]:
        if rewards.shape != rollout.rewards.shape:
            raise ShapeError(f"Expected rewards of shape {rollout.rewards.shape}, got {rewards.shape}.")
        rewards = np.where(rollout.valid, rewards, 0.0)
        require_finite("rewards (step, environment)", rewards)
        if self.config.normalize_rewards:
            rewards = self.reward_scaler(rewards, rollout.ended, rollout.valid)
        return generalized_advantages(rollout, rewards, self.config.gamma, self.config.gae_lambda)

    def _batch(
        self, rollout: Rollout, advantages: NDArray[np.float64], returns: NDArray[np.float64]
    ) -> _Batch:
        valid, tensor = rollout.valid, self.policy.tensor
        return _Batch(
            observations=tensor(self.normalizer(rollout.observations[valid])),
            actions=tensor(rollout.actions[valid]),
            log_probs=tensor(rollout.log_probs[valid]),
            advantages=tensor(advantages[valid]),
            returns=tensor(returns[valid]),
        )

    def _minibatches(self, batch: _Batch) -> Iterator[_Batch]:
        """One pass over the batch in random order, in minibatches whose sizes differ by one at most.

        Dummy transitions make the size of a batch vary; a small last minibatch would make a noisy step.
        """
        size = len(batch.returns)
        order = torch.from_numpy(self.minibatch_rng.permutation(size)).to(batch.returns.device)
        count = max(1, size // self.config.minibatch_size)
        for columns in zip(*(column[order].tensor_split(count) for column in batch), strict=True):
            yield _Batch(*columns)

    def _gradient_step(self, minibatch: _Batch) -> dict[str, Tensor]:
        config = self.config
        log_probs, entropies, values = self.policy.evaluate(minibatch.observations, minibatch.actions)

        advantages = minibatch.advantages
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        log_ratio = log_probs - minibatch.log_probs
        ratio = log_ratio.exp()
        clipped = ratio.clamp(1 - config.clip_coef, 1 + config.clip_coef)
        policy_loss = -torch.min(advantages * ratio, advantages * clipped).mean()
        value_loss = nn.functional.mse_loss(values, minibatch.returns)
        entropy = entropies.mean()
        loss = policy_loss - config.ent_coef * entropy + config.vf_coef * value_loss

        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(self._parameters, config.max_grad_norm)
        self.optimizer.step()

        with torch.no_grad():
            approx_kl = (ratio - 1 - log_ratio).mean()
            clip_fraction = ((ratio - 1).abs() > config.clip_coef).float().mean()
        return {
            "policy_loss": policy_loss.detach(),
            "value_loss": value_loss.detach(),
            "entropy": entropy.detach(),
            "approx_kl": approx_kl,
            "clip_fraction": clip_fraction,
        }

    def state_dict(self) -> dict[str, Any]:
        """All that training continues from, as copies: nested dictionaries of arrays and JSON scalars."""
        optimizer = self.optimizer.state_dict()["state"]
        return {
            "policy": _to_arrays(self.policy.state_dict()),
            "optimizer": {str(index): _to_arrays(moments) for index, moments in optimizer.items()},
            "normalizer": self.normalizer.statistics.state_dict(),
            "reward_scaler": self.reward_scaler.state_dict(),
            "random": {name: getattr(self, name).bit_generator.state for name in _STREAMS},
            "total_steps": self.total_steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`, with new episodes in all environments.

        Raises:
            StateMismatchError: the state is of an agent with other networks; this agent is unchanged.
        """
        expected = {name: tuple(value.shape) for name, value in self.policy.state_dict().items()}
        given = {name: value.shape for name, value in state["policy"].items()}
        if expected != given:
            raise StateMismatchError(
                f"Expected a policy of shapes {expected}, got {given}; use the environment it was trained on."
            )
        self.policy.load_state_dict(_to_tensors(state["policy"]))
        moments = {int(index): _to_tensors(moments) for index, moments in state["optimizer"].items()}
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": moments, "param_groups": groups})
        self.normalizer.statistics.load_state_dict(state["normalizer"])
        self.reward_scaler.load_state_dict(state["reward_scaler"])
        for name in _STREAMS:
            getattr(self, name).bit_generator.state = state["random"][name]
        self.total_steps = int(state["total_steps"])
        self.sampler.started = False


def _to_arrays(tensors: dict[str, Tensor]) -> dict[str, NDArray[Any]]:
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in tensors.items()}


def _to_tensors(arrays: dict[str, NDArray[Any]]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
