"""Adam on parameters that are joined into one tensor, in one kernel call per step."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

BETAS = (0.9, 0.999)


class FlatParameters:
    """Joins parameters into one tensor, and their gradients into another.

    Args:
        parameters: parameters on one device, of one dtype. Each becomes a view of ``values``.

    Attributes:
        values: all parameters, ``(n,)``.
        gradient: the gradient of ``values``, ``(n,)``; initially 0.
        gradients: the ``grad`` of each parameter: views of ``gradient``.
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        parameters = list(parameters)
        self._shapes = [parameter.shape for parameter in parameters]
        self.values = torch.cat([parameter.detach().flatten() for parameter in parameters])
        self.gradient = torch.zeros_like(self.values)
        self.gradients = self.views(self.gradient)
        views = self.views(self.values)
        for parameter, value, gradient in zip(parameters, views, self.gradients, strict=True):
            parameter.data, parameter.grad = value, gradient

    def views(self, flat: Tensor) -> list[Tensor]:
        """Split a tensor ``(n,)`` into views with the parameters' shapes."""
        sizes = [shape.numel() for shape in self._shapes]
        return [part.view(shape) for part, shape in zip(torch.split(flat, sizes), self._shapes, strict=True)]


class FlatAdam:
    """Adam (Kingma and Ba 2015, algorithm 1) for :class:`FlatParameters`.

    Calls the kernel behind ``torch.optim.Adam(fused=True)``: creating that optimizer would import torch's
    compiler, which takes a second, and each of its steps takes three times as long for a small network.

    Args:
        epsilon: added to the square root of the second moment.
    """

    def __init__(self, parameters: FlatParameters, *, epsilon: float = 1e-8) -> None:
        self.parameters, self._epsilon = parameters, epsilon
        self._mean, self._square = (torch.zeros_like(parameters.values) for _ in range(2))
        self._steps = torch.tensor(0.0, device=parameters.values.device)

    @property
    def steps(self) -> int:
        """Return the number of updates already made."""
        return int(self._steps)

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Update the parameters once with their current gradient."""
        self._steps.add_(1)
        torch._fused_adam_(
            [self.parameters.values],
            [self.parameters.gradient],
            [self._mean],
            [self._square],
            [],  # maximums of the second moments, of AMSGrad
            [self._steps],
            lr=learning_rate,
            beta1=BETAS[0],
            beta2=BETAS[1],
            weight_decay=0.0,
            eps=self._epsilon,
            amsgrad=False,
            maximize=False,
        )

    def is_finite(self) -> bool:
        """Return True if all moments are finite."""
        return bool(self._mean.isfinite().all()) and bool(self._square.isfinite().all())

    def reset(self) -> None:
        """Set the moments and the number of steps to 0."""
        for tensor in (self._mean, self._square, self._steps):
            tensor.zero_()

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the moments, as arrays ``(n,)``, and the number of steps."""
        mean, square = (moment.cpu().numpy().copy() for moment in (self._mean, self._square))
        return {"mean": mean, "square": square, "steps": self.steps}

    def fits(self, state: Mapping[str, Any]) -> bool:
        """Return True if a state of :meth:`state_dict` has as many parameters."""
        return all(np.shape(state[name]) == self._mean.shape for name in ("mean", "square"))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by :meth:`state_dict`."""
        self._mean.copy_(torch.as_tensor(state["mean"]))
        self._square.copy_(torch.as_tensor(state["square"]))
        self._steps.fill_(state["steps"])

    def torch_state(self) -> dict[str, Any]:
        """Return copies of each parameter's moments and number of steps, keyed by its index.

        The entries have the keys of torch's Adam.
        """
        means, squares = (self.parameters.views(flat) for flat in (self._mean, self._square))
        return {
            str(index): {
                "step": np.array(self.steps, np.float32),
                "exp_avg": mean.cpu().numpy().copy(),
                "exp_avg_sq": square.cpu().numpy().copy(),
            }
            for index, (mean, square) in enumerate(zip(means, squares, strict=True))
        }

    def load_torch_state(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Restore the entries of :meth:`torch_state`, in order; tensors are accepted in place of arrays.

        Moments that are missing for the last parameters are set to 0; all of them, if there are no entries.
        """
        self.reset()
        means, squares = (self.parameters.views(flat) for flat in (self._mean, self._square))
        for entry, mean, square in zip(entries, means, squares, strict=False):
            mean.copy_(torch.as_tensor(entry["exp_avg"]).reshape_as(mean))  # reshape_as prevents broadcasting
            square.copy_(torch.as_tensor(entry["exp_avg_sq"]).reshape_as(square))
            self._steps.fill_(float(entry["step"]))
