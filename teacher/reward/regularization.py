"""Regularization of the reward networks: weight decay or a penalty, fixed or adaptive."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from agents.numerics.adam import FlatParameters
from teacher.settings.options import RewardConfig

PENALTIES: Mapping[str, float] = {"l1": 0.003, "l2": 0.02}
"""Default strength of each loss penalty; for weight decay, the network's ``strength`` is the default."""

_RATIOS = (1.1, 1.5)  # target range of held-out / training loss (Christiano et al. 2017, section 2.2.3)
_FACTOR = 1.1  # factor by which one call of adapt() changes a strength
_FURTHEST = 100.0  # maximum factor between an adapted strength and the configured one
_LABELS = 100  # number of labels for which strengths are specified
_MOST_DECAY = 0.1  # maximum fraction by which weight decay shrinks a parameter in one update


class Regularizer:
    """Applies weight decay, or an L1 or L2 penalty, before each optimizer step.

    ``weight_decay`` is decoupled weight decay, as in AdamW (Loshchilov and Hutter 2019): it multiplies
    parameters by ``1 - learning_rate * strength``. ``l1`` and ``l2`` add ``strength`` times the sum of the
    parameters' absolute values or squares to each member's loss.

    Strengths are specified for 100 labels and scaled by ``sqrt(100 / labels)``, because the best strength was
    proportional to ``1 / sqrt(labels)`` in experiments (docs/fitting.md).

    Attributes:
        strengths: ``(members,)``, each member's strength at 100 labels; fixed unless ``config.adapt`` is set.
    """

    def __init__(self, config: RewardConfig, strength: float, parameters: FlatParameters) -> None:
        self._config = config
        self._strength = strength
        self._parameters = parameters
        self.strengths = torch.full((config.num_members,), strength, dtype=torch.float64)

    def apply(self, learning_rate: float, labels: int) -> None:
        """Decay the parameters, or add the penalty's gradient; ``labels`` is the fit's number of labels."""
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
        """Return the strength of each parameter, ``(n,)``, or the one that all have."""
        if not self._config.adapt:
            return self._strength
        flat = torch.empty_like(self._parameters.values)
        for view in self._parameters.views(flat):
            view.view(len(self.strengths), -1).copy_(self.strengths[:, None])
        return flat

    def adapt(self, training: Tensor, validation: Tensor) -> None:
        """Increase the strength for members that overfit, and decrease it for members that underfit.

        Christiano et al. (2017) keep the held-out loss between 1.1 and 1.5 times the training loss, but do
        not say how. Here, each call changes a strength by at most 10%, within a factor of 100 of the
        configured strength. Members without held-out pairs keep their strength.

        Args:
            validation: ``(members,)``, mean loss on each member's held-out pairs; NaN if it has none.
        """
        ratio = (validation / training).cpu()
        self.strengths[ratio > _RATIOS[1]] *= _FACTOR
        self.strengths[ratio < _RATIOS[0]] /= _FACTOR
        self.strengths.clamp_(self._strength / _FURTHEST, self._strength * _FURTHEST)

    def state_dict(self) -> dict[str, Any]:
        """Return the current strength of each member."""
        return {"strengths": self.strengths.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from :meth:`state_dict`; arrays are accepted in place of tensors."""
        self.strengths.copy_(torch.as_tensor(state["strengths"]))
