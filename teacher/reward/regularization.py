"""What keeps the reward networks from fitting every label: weight decay or a penalty, fixed or adapted."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from teacher.reward.optimizer import FlatParameters
from teacher.settings.options import RewardConfig

PENALTIES: Mapping[str, float] = {"l1": 0.003, "l2": 0.02}
"""How strong a penalty is where none is wanted in particular; decay is as strong as its network says."""

_RATIOS = (1.1, 1.5)  # Christiano et al. 2017, section 2.2.3
_FACTOR = 1.1
_FURTHEST = 100.0
_LABELS = 100  # that the configured strength is meant for
_MOST_DECAY = 0.1  # of a parameter in one update


class Regularizer:
    """Pulls parameters to zero before each step of the optimizer.

    ``weight_decay`` shrinks them by ``learning_rate * strength`` (AdamW: Loshchilov, Hutter 2019); ``l1`` or
    ``l2`` adds ``strength`` times the sum of their absolute values or of their squares to each member's loss.

    The given strength is that for 100 labels, and in inverse proportion to the root of their number for
    others, which is how the best strengths of whole runs were found to fall (docs/fitting.md).

    Attributes:
        strengths: ``(members,)``, for 100 labels; they change where the configuration says ``adapt``.
    """

    def __init__(self, config: RewardConfig, strength: float, parameters: FlatParameters) -> None:
        self._config = config
        self._strength = strength
        self._parameters = parameters
        self.strengths = torch.full((config.members,), strength, dtype=torch.float64)

    def apply(self, learning_rate: float, labels: int) -> None:
        """Change the gradient, or the parameters themselves, in a fit to so many labels."""
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
        """Strengthen it for members that overfit, and weaken it for those that could fit better.

        The paper keeps the validation loss between 1.1 and 1.5 times the training loss, without saying how.
        Here each member's strength goes by 10 % at a time, and no further than to a hundred times more or
        less than given. Nothing changes for a member without held-out pairs.

        Args:
            training: ``(members,)``, mean loss of the pairs a member is trained on.
            validation: ``(members,)``, mean loss of those held out from it; NaN where there are none.
        """
        ratio = (validation / training).cpu()
        self.strengths[ratio > _RATIOS[1]] *= _FACTOR
        self.strengths[ratio < _RATIOS[0]] /= _FACTOR
        self.strengths.clamp_(self._strength / _FURTHEST, self._strength * _FURTHEST)

    def state_dict(self) -> dict[str, Any]:
        """The strengths."""
        return {"strengths": self.strengths.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Read back :meth:`state_dict`; arrays will do for tensors."""
        self.strengths.copy_(torch.as_tensor(state["strengths"]))
