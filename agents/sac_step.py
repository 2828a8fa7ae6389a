"""Hyperparameters of soft actor-critic and its gradient steps (Haarnoja et al. 2018, arXiv 1812.05905)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from agents.base import AgentConfig
from agents.errors import InvalidConfigError, StateMismatchError
from agents.numerics.adam import FlatAdam, FlatParameters
from agents.policy import Activation
from agents.squashed_gaussian import SquashedActorCritic


class EntropyCoefficient(NamedTuple):
    """Entropy coefficient: a number, learned or fixed."""

    initial: float
    is_learned: bool

    @classmethod
    def of(cls, setting: float | str) -> "EntropyCoefficient":
        """Read ``SACConfig.ent_coef``; raise :class:`InvalidConfigError` if it is not one of its values."""
        kind, _, number = str(setting).rpartition("auto")
        try:
            initial = float(number.removeprefix("_") or 1.0)
        except ValueError:
            initial = math.nan
        if kind or not 0 < initial < math.inf:
            raise InvalidConfigError(
                f"ent_coef must be a positive number, auto, or auto_ followed by one, not {setting!r}."
            )
        return cls(initial, is_learned=str(setting).startswith("auto"))


@dataclass(frozen=True)
class SACConfig(AgentConfig):
    """SAC hyperparameters in addition to :class:`~agents.base.AgentConfig`, named as in Stable-Baselines3.

    Attributes:
        learning_rate: Adam's learning rate for actor, critics and entropy coefficient.
        buffer_size: maximum number of transitions in the replay buffer.
        learning_starts: number of transitions to collect with uniform random actions before the first update.
        batch_size: number of transitions per gradient step.
        tau: weight of the critics in each update of the target critics.
        train_freq: number of steps per environment between updates.
        gradient_steps: number of gradient steps per update; -1 for one per transition collected.
        ent_coef: entropy coefficient (temperature): a number, ``auto`` to learn it from an initial value of
            1, or ``auto_0.1`` to learn it from an initial value of 0.1.
        target_entropy: entropy, in nats, that a learned entropy coefficient aims at, of actions scaled to
            -1 to 1. None: minus the number of action components.
        target_update_interval: number of gradient steps between updates of the target critics.
    """

    learning_rate: float = 3e-4
    buffer_size: int = 1_000_000
    learning_starts: int = 100
    batch_size: int = 256
    tau: float = 0.005
    train_freq: int = 1
    gradient_steps: int = 1
    ent_coef: float | str = "auto"
    target_entropy: float | None = None
    target_update_interval: int = 1
    normalize_observations: bool = False
    hidden_sizes: tuple[int, ...] = (256, 256)
    activation: Activation = "relu"

    def __post_init__(self) -> None:
        super().__post_init__()
        counts = ("buffer_size", "batch_size", "train_freq", "target_update_interval")
        self._require_at_least({**dict.fromkeys(counts, 1), "learning_starts": 0, "gradient_steps": -1})
        self._require_positive("learning_rate", "tau")
        self._require_share("tau")
        EntropyCoefficient.of(self.ent_coef)
        if self.network is not None:
            raise InvalidConfigError(
                "SAC supports no custom network; use hidden_sizes and activation, or PPO or TRPO."
            )

    @property
    def rollout_steps(self) -> int:
        """Return the number of steps per environment in each rollout."""
        return self.train_freq


class Minibatch(NamedTuple):
    """Tensors of ``n`` transitions.

    Attributes:
        observations: prepared observations, ``(n, observation_size)``.
        actions: squashed actions, ``(n, action_size)``.
        next_observations: prepared observations after the steps, ``(n, observation_size)``.
        rewards: rewards, ``(n,)``.
        terminated: 1.0 where the step ended its episode in a terminal state, else 0.0, ``(n,)``.
    """

    observations: Tensor
    actions: Tensor
    next_observations: Tensor
    rewards: Tensor
    terminated: Tensor


class SACStep:
    """Takes gradient steps on SAC's three losses."""

    def __init__(self, policy: SquashedActorCritic, config: SACConfig) -> None:
        self._policy, self._config = policy, config
        coefficient = EntropyCoefficient.of(config.ent_coef)
        start = torch.tensor(math.log(coefficient.initial)).to(next(policy.parameters()))
        self.log_ent_coef, self._learns_ent_coef = nn.Parameter(start), coefficient.is_learned
        self._target_entropy = (
            -float(policy.head.size) if config.target_entropy is None else config.target_entropy
        )
        self._critic = FlatAdam(FlatParameters(policy.critic.parameters()))
        self._actor = FlatAdam(FlatParameters(policy.actor.parameters()))
        self._ent_coef = FlatAdam(FlatParameters([self.log_ent_coef]))
        self._target = FlatParameters(policy.target.parameters()).values
        self._optimizers = {"critic": self._critic, "actor": self._actor, "ent_coef": self._ent_coef}
        self._steps = 0

    def __call__(self, batch: Minibatch, noise: Tensor) -> dict[str, Tensor]:
        """Take one gradient step on each loss, in Stable-Baselines3's order, and return metrics.

        Args:
            noise: standard Gaussian noise ``(2, n, action_size)``, for actions and next actions.
        """
        self._steps += 1
        return self._take(batch, noise, self._steps % self._config.target_update_interval == 0)

    def _take(self, batch: Minibatch, noise: Tensor, updates_target: bool) -> dict[str, Tensor]:
        """Take the step; update the target critics if ``updates_target`` is True."""
        config = self._config
        actions, log_probs = self._policy.head.sample(self._policy.actor(batch.observations), noise[0])
        entropy = -log_probs.detach().mean()
        ent_coef = self.log_ent_coef.detach().exp()
        if self._learns_ent_coef:  # eq. 18, with respect to the logarithm of the coefficient as in SB3
            self._ent_coef.parameters.gradients[0].copy_(entropy - self._target_entropy)
            self._ent_coef.step(config.learning_rate)

        with torch.no_grad():  # soft Bellman targets, eq. 2 and 3
            next_outputs = self._policy.actor(batch.next_observations)
            next_actions, next_log_probs = self._policy.head.sample(next_outputs, noise[1])
            next_q = self._policy.target(batch.next_observations, next_actions).amin(0)
            next_values = next_q - ent_coef * next_log_probs
            targets = batch.rewards + config.gamma * (1 - batch.terminated) * next_values
        # Minimize the squared Bellman errors of both critics, eq. 5.
        errors = self._policy.critic(batch.observations, batch.actions) - targets
        loss = 0.5 * errors.square().mean(1).sum()
        metrics = {"critic_loss": self._descend(loss, self._policy.critic, self._critic)}
        # Maximize the Q-value plus entropy bonus of the sampled actions, eq. 7.
        q = self._policy.critic(batch.observations, actions).amin(0)
        metrics["actor_loss"] = self._descend(
            (ent_coef * log_probs - q).mean(), self._policy.actor, self._actor
        )
        if updates_target:
            self._target.lerp_(self._critic.parameters.values, config.tau)
        return metrics | {"ent_coef": ent_coef, "entropy": entropy}

    def _descend(self, loss: Tensor, module: nn.Module, optimizer: FlatAdam) -> Tensor:
        """Take one step of Adam on a module's parameters alone; return the loss before the step."""
        gradients = torch.autograd.grad(loss, list(module.parameters()))
        torch._foreach_copy_(optimizer.parameters.gradients, gradients)
        optimizer.step(self._config.learning_rate)
        return loss.detach()

    def reset_critic_optimizer(self) -> None:
        """Reset the moments of the critics' optimizer."""
        self._critic.reset()

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the entropy coefficient, the optimizers' states and the number of steps."""
        optimizers = {name: optimizer.state_dict() for name, optimizer in self._optimizers.items()}
        return {**optimizers, "log_ent_coef": self.log_ent_coef.item(), "steps": self._steps}

    def require_state(self, state: Mapping[str, Any]) -> None:
        """Raise :class:`StateMismatchError` if a state is not one of :meth:`state_dict` for this policy."""
        if not self._optimizers.keys() <= state.keys():
            raise StateMismatchError("The saved state is not SAC's; use the algorithm that saved it.")
        for name, optimizer in self._optimizers.items():
            if not optimizer.fits(state[name]):
                raise StateMismatchError(
                    "The saved optimizer state doesn't fit this agent; use the environment, algorithm and "
                    "network settings that it was saved with."
                )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by :meth:`state_dict`; an empty one resets the optimizers only."""
        if not state:
            for optimizer in self._optimizers.values():
                optimizer.reset()
            return
        for name, optimizer in self._optimizers.items():
            optimizer.load_state_dict(state[name])
        self.log_ent_coef.data.fill_(state["log_ent_coef"])
        self._steps = int(state["steps"])
