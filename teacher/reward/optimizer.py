"""Adam for ensembles, on all parameters flattened into one vector."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

_BETAS = (0.9, 0.999)
_EPSILON = 1e-8


class FlatParameters:
    """Flattens all of a module's parameters into one vector, and their gradients into another.

    Attributes:
        values: ``(n,)``, all parameters; the module's parameters become views of this tensor.
        gradient: ``(n,)``, all gradients; each parameter's ``grad`` becomes a view of this tensor.
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
        """Split a flat tensor ``(n,)`` into views with the parameters' shapes."""
        sizes = [shape.numel() for shape in self._shapes]
        return [part.view(shape) for part, shape in zip(torch.split(flat, sizes), self._shapes, strict=True)]

    def of_members(self, values: Tensor) -> Tensor:
        """Expand one value per member, ``(members,)``, to one value per parameter, ``(n,)``."""
        flat = torch.empty_like(self.values)
        for view in self.views(flat):
            view.view(len(values), -1).copy_(values[:, None])
        return flat


class FlatOptimizer:
    """Adam on flat parameters, so that a single call updates all layers.

    Calls the functional form, :func:`torch.optim.adam.adam`, because creating a :class:`torch.optim.Adam`
    would import torch's compiler, and that import takes longer than many fits.
    """

    def __init__(self, parameters: FlatParameters) -> None:
        self._parameters = parameters
        self._mean = torch.zeros_like(parameters.values)
        self._square = torch.zeros_like(parameters.values)
        self._steps = torch.tensor(0.0)

    @property
    def steps(self) -> int:
        """Return the number of updates already made."""
        return int(self._steps)

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Update the parameters once with Adam, using the current gradient."""
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
        """Return True if all moment estimates are finite."""
        return bool(self._mean.isfinite().all()) and bool(self._square.isfinite().all())

    def state_dict(self) -> list[dict[str, Any]]:
        """Return each parameter's step count and moment estimates, keyed as in torch's Adam."""
        means, squares = (self._parameters.views(flat.clone()) for flat in (self._mean, self._square))
        return [
            {"step": self._steps.clone(), "exp_avg": mean, "exp_avg_sq": square}
            for mean, square in zip(means, squares, strict=True)
        ]

    def load_state_dict(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Restore a state from :meth:`state_dict`; arrays are accepted in place of tensors.

        Entries for the last parameters may be missing: earlier versions saved none for parameters that never
        had a gradient.
        """
        means, squares = (self._parameters.views(flat.zero_()) for flat in (self._mean, self._square))
        for entry, mean, square in zip(state, means, squares, strict=False):
            mean.copy_(torch.as_tensor(entry["exp_avg"]).reshape_as(mean))  # reshape_as prevents broadcasting
            square.copy_(torch.as_tensor(entry["exp_avg_sq"]).reshape_as(square))
        self._steps.fill_(float(state[0]["step"]) if state else 0.0)
