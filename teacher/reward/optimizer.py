"""Adam on all parameters of a network at once, which lie in one flat tensor."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

_BETAS = (0.9, 0.999)
_EPSILON = 1e-8


class FlatParameters:
    """All parameters of a module, and their gradients, as one tensor each.

    Attributes:
        values: ``(n,)``; the module's parameters are views of it from now on.
        gradient: ``(n,)``; so are their gradients.
    """

    def __init__(self, module: nn.Module) -> None:
        parameters = list(module.parameters())
        self._shapes = [parameter.shape for parameter in parameters]
        self.values = torch.cat([parameter.detach().flatten() for parameter in parameters])
        self.gradient = torch.zeros_like(self.values)
        for parameter, value, gradient in zip(
            parameters, self.views(self.values), self.views(self.gradient), strict=True
        ):
            parameter.data = value
            parameter.grad = gradient

    def views(self, flat: Tensor) -> Sequence[Tensor]:
        """A tensor like ``values`` in the shapes of the parameters."""
        sizes = [shape.numel() for shape in self._shapes]
        return [part.view(shape) for part, shape in zip(torch.split(flat, sizes), self._shapes, strict=True)]

    def of_members(self, values: Tensor) -> Tensor:
        """Each member's value ``(members,)`` at each of its parameters, ``(n,)``."""
        flat = torch.empty_like(self.values)
        for view in self.views(flat):
            view.view(len(values), -1).copy_(values[:, None])
        return flat


class Adam:
    """Adam (Kingma, Ba 2015) on flat parameters, in a few calls however many layers there are.

    torch's own would import its compiler, which takes longer than many a fit.

    Attributes:
        steps: taken so far.
    """

    def __init__(self, parameters: FlatParameters) -> None:
        self._parameters = parameters
        self._mean = torch.zeros_like(parameters.values)
        self._square = torch.zeros_like(parameters.values)
        self.steps = 0

    def step(self, learning_rate: float) -> None:
        """Take one step down the gradient."""
        gradient = self._parameters.gradient
        self.steps += 1
        self._mean.lerp_(gradient, 1 - _BETAS[0])
        self._square.mul_(_BETAS[1]).addcmul_(gradient, gradient, value=1 - _BETAS[1])
        mean_share, square_share = (1 - beta**self.steps for beta in _BETAS)
        deviation = self._square.sqrt().div_(square_share**0.5).add_(_EPSILON)
        self._parameters.values.addcdiv_(self._mean, deviation, value=-learning_rate / mean_share)

    def is_sound(self) -> bool:
        """Whether all moments are finite."""
        return bool(self._mean.isfinite().all()) and bool(self._square.isfinite().all())

    def state_dict(self) -> list[dict[str, Any]]:
        """Moments and the count of steps for each parameter, named as torch does."""
        means, squares = (self._parameters.views(flat.clone()) for flat in (self._mean, self._square))
        return [
            {"step": torch.tensor(float(self.steps)), "exp_avg": mean, "exp_avg_sq": square}
            for mean, square in zip(means, squares, strict=True)
        ]

    def load_state_dict(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Read back :meth:`state_dict`; arrays will do for tensors.

        Parameters at the end may be missing: those that never had a gradient once had no entry.
        """
        means, squares = (self._parameters.views(flat.zero_()) for flat in (self._mean, self._square))
        for entry, mean, square in zip(state, means, squares, strict=False):
            mean.copy_(torch.as_tensor(entry["exp_avg"]).reshape_as(mean))  # not to be spread out over it
            square.copy_(torch.as_tensor(entry["exp_avg_sq"]).reshape_as(square))
        self.steps = int(state[0]["step"]) if state else 0
