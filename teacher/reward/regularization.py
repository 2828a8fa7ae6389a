"""Regularization of the reward networks: weight decay or a penalty, fixed or adaptive."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from teacher.reward.optimizer import FlatParameters
from teacher.settings.options import RewardConfig

PENALTIES: Mapping[str, float] = {"l1": 0.003, "l2": 0.02}
"""Default strength of each penalty; the default of weight decay is the network's ``strength``."""

_RATIOS = (1.1, 1.5)  # Christiano et al. 2017, section 2.2.3
_FACTOR = 1.1
_FURTHEST = 100.0
_LABELS = 100  # at which the configured strength applies
_MOST_DECAY = 0.1  # of a parameter in one update


class Regularizer:
    """Shrinks parameters before each optimizer step.

    ``weight_decay`` shrinks them by ``learning_rate * strength`` (AdamW: Loshchilov, Hutter 2019); ``l1`` or
    ``l2`` adds ``strength`` times the sum of their absolute values or squares to each member's loss.

    The given strength applies at 100 labels and scales with 1/sqrt(labels), as the best strengths of whole
    runs did (docs/fitting.md).

    Attributes:
        strengths: ``(members,)``, at 100 labels; they change if the configuration says ``adapt``.
    """

    def __init__(self, config: RewardConfig, strength: float, parameters: FlatParameters) -> None:
        self._config = config
        self._strength = strength
        self._parameters = parameters
        self.strengths = torch.full((config.members,), strength, dtype=torch.float64)

    def apply(self, learning_rate: float, labels: int) -> None:
        """Regularize the gradient, or the parameters directly, in a fit to ``labels`` labels."""
        values, gradient = self._parameters.values, self._parameters.gradient
        strength = self._of_parameters() * (_LABELS / labels) ** 0.5
        match self._config.regularization:
            case "weight_decay":
                decay = torch.as_tensor(learning_rate * strength, dtype=values.dtype, device=values.device)
                values.mul_(1 - decay.clamp(max=_MOST_DECAY))
            case "l1":
                gradient.add_(values.sign().mul_(strength))
            case "l2":
                gradient.add_(values * (2 * strength))

    def _of_parameters(self) -> Tensor | float:
        if self._config.adapt:
            return self._parameters.of_members(self.strengths)
        return self._strength

    def adapt(self, training: Tensor, validation: Tensor) -> None:
        """Increase the strength of members that overfit, and decrease it for those that underfit.

        The paper keeps the validation loss between 1.1 and 1.5 times the training loss, without saying how.
        Here each member's strength changes by 10 % at a time, to at most 100 times more or less than given.
        Members without held-out pairs keep theirs.

        Args:
            training: ``(members,)``, mean loss of each member's training pairs.
            validation: ``(members,)``, mean loss of its held-out pairs; NaN if there are none.
        """
        ratio = (validation / training).cpu()
        self.strengths[ratio > _RATIOS[1]] *= _FACTOR
        self.strengths[ratio < _RATIOS[0]] /= _FACTOR
        self.strengths.clamp_(self._strength / _FURTHEST, self._strength * _FURTHEST)

    def state_dict(self) -> dict[str, Any]:
        """Return the strengths."""
        return {"strengths": self.strengths.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`; accepts arrays in place of tensors."""
        self.strengths.copy_(torch.as_tensor(state["strengths"]))
