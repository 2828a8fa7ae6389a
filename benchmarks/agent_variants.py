"""Variants of SAC that :mod:`benchmarks.changing_reward` compares; none of them is an option of ``teach``."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from agents.ppo import PPO
from agents.replay import ReplayBuffer, Transitions
from agents.rollout import Rollout
from agents.sac import SAC
from agents.sac_step import EntropyCoefficient, SACStep
from agents.squashed_gaussian import SquashedActorCritic, TwinCritic

RESET_EVERY = 40_000  # environment steps; leaves the last 20,000 of 100,000 and 50,000 of 250,000 undisturbed
NEWEST = 10_000  # transitions: the newest ten episodes of DMControl, as in QPA
EXTRA_STEPS = 500  # gradient steps after each change of the reward


class LayerNormCritic(TwinCritic):
    """Twin critics with layer normalization, without gain and bias, before each activation."""

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return both Q-values ``(2, batch)`` of prepared observations and squashed actions."""
        inputs = torch.cat([observations, actions], 1)
        joined = torch.addmm(self.biases[0].flatten(), inputs, self.weights[0].flatten(1))
        hidden = self._activated(joined.view(len(inputs), 2, -1).transpose(0, 1))
        for weight, bias in list(zip(self.weights, self.biases, strict=True))[1:-1]:
            hidden = self._activated(torch.baddbmm(bias, hidden, weight))
        values: Tensor = (hidden * self.weights[-1]).sum(2) + self.biases[-1].squeeze(2)
        return values

    def _activated(self, units: Tensor) -> Tensor:
        activated: Tensor = self._activate(functional.layer_norm(units, units.shape[-1:]))
        return activated


class LayerNormSAC(SAC):
    """SAC with layer normalization in the critics, as in DroQ, BRO and SimbaV2; gradients by autograd."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options, allow_fast=False)
        sizes = [self.normalizer.shape[0] + self.policy.head.size, *self.config.hidden_sizes]
        for name in ("critic", "target"):
            critic = LayerNormCritic(sizes, self.config.activation, torch.Generator())
            critic.load_state_dict(getattr(self.policy, name).state_dict())
            setattr(self.policy, name, critic.requires_grad_(requires_grad=name == "critic"))
        self._step = SACStep(self.policy, self.config)


class AutogradSAC(SAC):
    """SAC with gradients by autograd: the same agent as :class:`SAC`, to compare processor time with."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options, allow_fast=False)


class ResetSAC(SAC):
    """SAC that draws new networks every ``RESET_EVERY`` steps, and keeps its replay buffer.

    See Nikishin et al. 2022, "The Primacy Bias in Deep Reinforcement Learning".
    """

    def update(self, rollout: Rollout, rewards: NDArray[Any], *, critic_epochs: int = 0) -> dict[str, float]:
        """Reset if a multiple of ``RESET_EVERY`` was passed, then train as SAC does."""
        before = self.total_steps - rollout.num_valid
        if before // RESET_EVERY < self.total_steps // RESET_EVERY:
            sizes = self.config.hidden_sizes, self.config.activation
            space, size = self.policy.head.space, self.normalizer.shape[0]
            new = SquashedActorCritic(size, space, self._generator, *sizes)
            self.policy.load_state_dict(new.state_dict())
            self._step.load_state_dict({})
            self._step.log_ent_coef.data.fill_(math.log(EntropyCoefficient.of(self.config.ent_coef).initial))
        return super().update(rollout, rewards, critic_epochs=critic_epochs)


class MixedBuffer(ReplayBuffer):
    """Replay buffer that draws every second transition from the ``NEWEST`` ones."""

    def sample(self, size: int, rng: np.random.Generator) -> Transitions:
        """Return copies of ``size`` transitions drawn with replacement."""
        rows = rng.integers(len(self), size=size)
        ages = rng.integers(min(NEWEST, len(self)), size=len(rows[::2]))
        rows[::2] = (self.added - 1 - ages) % self.capacity
        return Transitions(*(column[rows] for column in self._columns))


class MixedReplaySAC(SAC):
    """SAC with half of each minibatch from the newest episodes, as in QPA (Hu et al. 2024)."""

    def __init__(self, envs: Any, *arguments: Any, **options: Any) -> None:
        super().__init__(envs, *arguments, **options)
        spaces = envs.single_observation_space, envs.single_action_space
        self.buffer = MixedBuffer(*spaces, self.buffer.capacity, self.buffer.folder)


class ExtraStepsSAC(SAC):
    """SAC that takes ``EXTRA_STEPS`` more gradient steps after each change of the reward."""

    _extra = 0

    def relabel(self, rewards_of: Any) -> None:
        """Replace the rewards of all stored transitions, and take the steps after the next update."""
        super().relabel(rewards_of)
        self._extra = EXTRA_STEPS

    def update(self, rollout: Rollout, rewards: NDArray[Any], *, critic_epochs: int = 0) -> dict[str, float]:
        """Train as SAC does, then take the extra steps."""
        metrics = super().update(rollout, rewards, critic_epochs=critic_epochs)
        if self._extra and metrics:
            self._take_extra()
            self._extra = 0
        return metrics

    def _take_extra(self) -> None:
        self._train(self._extra, explores=False)


class CriticRefitSAC(ExtraStepsSAC):
    """SAC that takes ``EXTRA_STEPS`` gradient steps of the critics only after each change of the reward."""

    def _take_extra(self) -> None:
        actor = {name: values.clone() for name, values in self.policy.actor.state_dict().items()}
        state = self._step.state_dict()
        for _ in range(0, self._extra, self.config.train_freq):
            self._train(self.config.train_freq, explores=False)
            self.policy.actor.load_state_dict(actor)
        kept = ("critic", "steps")
        self._step.load_state_dict({**state, **{name: self._step.state_dict()[name] for name in kept}})


@dataclass(frozen=True)
class Variant:
    """One agent.

    Attributes:
        title: name in tables.
        kind: class of the agent.
        settings: hyperparameters that differ from the defaults of ``teach``.
    """

    title: str
    kind: type[SAC] | type[PPO] = SAC
    settings: Mapping[str, Any] = field(default_factory=dict)


VARIANTS: Mapping[str, Variant] = {
    "default": Variant("SAC"),
    "autograd": Variant("SAC by autograd", AutogradSAC),
    "layer-norm": Variant("SAC, layer norm in critics", LayerNormSAC),
    "two-updates": Variant("SAC, 2 updates per step", settings={"gradient_steps": 64}),
    "layer-norm-two-updates": Variant(
        "SAC, layer norm, 2 updates per step", LayerNormSAC, {"gradient_steps": 64}
    ),
    "resets": Variant("SAC, resets", ResetSAC),
    "normalized": Variant("SAC, normalized observations", settings={"normalize_observations": True}),
    "mixed-replay": Variant("SAC, mixed replay", MixedReplaySAC),
    "extra-steps": Variant("SAC, 500 steps after each change", ExtraStepsSAC),
    "critic-refit": Variant("SAC, 500 critic steps after each change", CriticRefitSAC),
    "ppo": Variant("PPO", PPO),
}
