"""The parameters of an ensemble as one tensor, and torch's Adam on it."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

_BETAS = (0.9, 0.999)
_EPSILON = 1e-8


class FlatParameters:
    """Joins all parameters of a module, and their gradients, in one tensor each.

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
        """Return the parts of a tensor like ``values`` in the shapes of the parameters."""
        sizes = [shape.numel() for shape in self._shapes]
        return [part.view(shape) for part, shape in zip(torch.split(flat, sizes), self._shapes, strict=True)]

    def of_members(self, values: Tensor) -> Tensor:
        """Return each member's value ``(members,)`` at each of its parameters, ``(n,)``."""
        flat = torch.empty_like(self.values)
        for view in self.views(flat):
            view.view(len(values), -1).copy_(values[:, None])
        return flat


class FlatOptimizer:
    """Moves flat parameters by :func:`torch.optim.adam.adam`, in a few calls however many layers there are.

    The function is the arithmetic of :class:`torch.optim.Adam`, whose constructor would import torch's
    compiler: that takes longer than many a fit.
    """

    def __init__(self, parameters: FlatParameters) -> None:
        self._parameters = parameters
        self._mean = torch.zeros_like(parameters.values)
        self._square = torch.zeros_like(parameters.values)
        self._steps = torch.tensor(0.0)

    @property
    def steps(self) -> int:
        """The number of steps taken so far."""
        return int(self._steps)

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Take one step down the gradient."""
        adam(
            [self._parameters.values],
            [self._parameters.gradient],
            [self._mean],
            [self._square],
            max_exp_avg_sqs=[],
            state_steps=[self._steps],
            foreach=False,
            amsgrad=False,
            beta1=_BETAS[0],
            beta2=_BETAS[1],
            lr=learning_rate,
            weight_decay=0.0,
            eps=_EPSILON,
            maximize=False,
        )

    def is_sound(self) -> bool:
        """Return whether all moments are finite."""
        return bool(self._mean.isfinite().all()) and bool(self._square.isfinite().all())

    def state_dict(self) -> list[dict[str, Any]]:
        """Return the moments and the count of steps for each parameter, named as torch does."""
        means, squares = (self._parameters.views(flat.clone()) for flat in (self._mean, self._square))
        return [
            {"step": self._steps.clone(), "exp_avg": mean, "exp_avg_sq": square}
            for mean, square in zip(means, squares, strict=True)
        ]

    def load_state_dict(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Continue from :meth:`state_dict`; arrays will do for tensors.

        Parameters at the end may be missing: those that never had a gradient once had no entry.
        """
        means, squares = (self._parameters.views(flat.zero_()) for flat in (self._mean, self._square))
        for entry, mean, square in zip(state, means, squares, strict=False):
            mean.copy_(torch.as_tensor(entry["exp_avg"]).reshape_as(mean))  # not to be spread out over it
            square.copy_(torch.as_tensor(entry["exp_avg_sq"]).reshape_as(square))
        self._steps.fill_(float(state[0]["step"]) if state else 0.0)
