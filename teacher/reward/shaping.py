"""Potential-based shaping (Ng, Harada, Russell 1999), learned along with the reward."""

from collections.abc import Iterable

import torch
from torch import Tensor

from teacher.reward.features import Features
from teacher.reward.network import RewardEnsemble, RewardNetwork
from teacher.settings.options import RewardConfig


class ShapedEnsemble(RewardNetwork):
    """Members whose reward is r + discount * potential(next state) - potential(state).

    What labels say about where a segment starts or ends can go into the potential, which does not change the
    optimal policy. The potential after a terminal step is 0. As imitation's ``BasicShapedRewardNet``.

    Args:
        features: with ``state``, ``next_state`` and ``terminated``.
        config: members, hidden units, dropout and feature set.
        discount: of the potential.
        generator: draws the initial parameters.
    """

    def __init__(
        self, features: Features, config: RewardConfig, discount: float, generator: torch.Generator
    ) -> None:
        super().__init__()
        self._discount = discount
        self._state, self._next_state = features.columns["state"], features.columns["next_state"]
        size = self._state.stop - self._state.start
        members, hidden, dropout = config.members, config.hidden, config.dropout
        even = config.features == "even"
        self.reward = RewardEnsemble(members, features.size, hidden, generator, dropout, even)
        self.potential = RewardEnsemble(members, size, hidden, generator, dropout, even)
        self.strength = self.reward.strength
        self._sizes = [self.reward.size, self.potential.size, self.potential.size, 1]
        with torch.no_grad():
            self.potential.biases[-1].zero_()  # logits leave it out, so it would never be trained

    def standardize(self, features: Tensor) -> Tensor:
        """Return inputs of the reward and of the potential before and after the step, and ``terminated``."""
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
        """See :meth:`RewardNetwork.adapt`; next states are assumed to be distributed like states."""
        self.reward.adapt(features)
        self.potential.restandardize(self.reward.input_mean[self._state], self.reward.input_std[self._state])

    def recenter(self, moved: Tensor) -> None:
        """See :meth:`RewardNetwork.recenter`."""
        self.reward.recenter(moved)
        self.potential.recenter(moved[self._state])

    def flatten(self) -> None:
        """See :meth:`RewardNetwork.flatten`."""
        self.reward.flatten()
        self.potential.flatten()

    def forward(self, inputs: Tensor) -> Tensor:
        """See :meth:`RewardNetwork.forward`."""
        steps, before, after, ended = torch.split(inputs, self._sizes, dim=-1)
        shaping = self._lasting(ended) * self.potential(after) - self.potential(before)
        rewards: Tensor = self.reward(steps) + shaping
        return rewards

    def logits(self, inputs: Tensor, step_weights: Tensor) -> Tensor:
        """See :meth:`RewardNetwork.logits`."""
        steps, before, after, ended = torch.split(inputs, self._sizes, dim=-1)
        gained = self.potential.logits(after, step_weights * self._lasting(ended))
        return self.reward.logits(steps, step_weights) + gained - self.potential.logits(before, step_weights)

    def _lasting(self, ended: Tensor) -> Tensor:
        """Return the discount, or 0 where the episode terminated: ``(*batch, 1)`` to ``(*batch,)``."""
        return self._discount * (1 - ended.squeeze(-1))
