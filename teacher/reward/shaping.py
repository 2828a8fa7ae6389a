"""Reward ensemble with learned potential-based shaping (Ng, Harada, Russell 1999)."""

from collections.abc import Iterable

import torch
from torch import Tensor

from teacher.reward.features import Features
from teacher.reward.network import RewardEnsemble, RewardNetwork
from teacher.settings.options import RewardConfig


class ShapedEnsemble(RewardNetwork):
    """Ensemble with potential-based reward shaping (Ng et al. 1999).

    It predicts ``reward + discount * potential(next state) - potential(state)``. Reward and potential are
    separate networks, trained together.

    The potential can explain labels that depend on the state in which a segment starts or ends, without
    changing the optimal policy. After a terminal step, the potential is 0. The design follows
    imitation's ``BasicShapedRewardNet``.

    Args:
        features: reader whose inputs include ``state``, ``next_state`` and ``terminated``.
        config: settings of the predictor: members, hidden units and dropout.
        discount: discount factor of the next state's potential.
        generator: random generator for initial parameters and dropout masks.
        even: True to add squares and logarithms of features as inputs.
    """

    def __init__(
        self,
        features: Features,
        config: RewardConfig,
        discount: float,
        generator: torch.Generator,
        *,
        even: bool,
    ) -> None:
        super().__init__()
        self._discount = discount
        self._state, self._next_state = features.columns["state"], features.columns["next_state"]
        size = self._state.stop - self._state.start
        members, hidden, dropout = config.num_members, config.hidden, config.dropout
        self.reward = RewardEnsemble(members, features.size, hidden, generator, dropout, even)
        self.potential = RewardEnsemble(members, size, hidden, generator, dropout, even)
        self.strength = self.reward.strength
        self._sizes = [self.reward.size, self.potential.size, self.potential.size, 1]
        with torch.no_grad():
            self.potential.biases[-1].zero_()  # logits() ignores it, so it would stay random

    def standardize(self, features: Tensor) -> Tensor:
        """Return both networks' standardized inputs and ``terminated``, concatenated into one tensor."""
        return torch.cat(
            [
                self.reward.standardize(features),
                self.potential.standardize(features[..., self._state]),
                self.potential.standardize(features[..., self._next_state]),
                features[..., -1:],
            ],
            dim=-1,
        )

    def adapt(self, features: Iterable[Tensor]) -> None:
        """Update the input statistics from chunks of features, without changing the outputs.

        The potential network standardizes both states with the statistics of ``state``.
        """
        self.reward.adapt(features)
        self.potential.restandardize(self.reward.input_mean[self._state], self.reward.input_std[self._state])

    def recenter(self, moved: Tensor) -> None:
        """Adjust both networks so that subtracting ``moved`` from features does not change the outputs."""
        self.reward.recenter(moved)
        self.potential.recenter(moved[self._state])

    def flatten(self) -> None:
        """Set the last layers of both networks to zero so that every step gets reward 0."""
        self.reward.flatten()
        self.potential.flatten()

    def forward(self, inputs: Tensor) -> Tensor:
        """Return each member's raw rewards, including shaping: ``(members, *batch)``."""
        steps, before, after, ended = torch.split(inputs, self._sizes, dim=-1)
        shaping = self._next_discount(ended) * self.potential(after) - self.potential(before)
        rewards: Tensor = self.reward(steps) + shaping
        return rewards

    def logits(self, inputs: Tensor, step_weights: Tensor) -> Tensor:
        """Return each member's preference logit: the first segment's shaped return minus the second's."""
        steps, before, after, ended = torch.split(inputs, self._sizes, dim=-1)
        gained = self.potential.logits(after, step_weights * self._next_discount(ended))
        return self.reward.logits(steps, step_weights) + gained - self.potential.logits(before, step_weights)

    def _next_discount(self, ended: Tensor) -> Tensor:
        """Return the next state potential's discount factor, ``(*batch,)``; 0 after a terminal step."""
        return self._discount * (1 - ended.squeeze(-1))
