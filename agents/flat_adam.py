"""Adam on parameters that are joined into one tensor, which takes one kernel call per step."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn
from torch.optim.adam import adam

_BETAS = (0.9, 0.999)
_EPSILON = 1e-8


class FlatAdam:
    """Joins parameters and their gradients into one tensor each, and updates them with Adam.

    The arithmetic is that of :class:`torch.optim.Adam`. Gradients are views of one tensor, to be
    written in place.

    Args:
        parameters: parameters on one device, of one dtype. They become views of one tensor.

    Attributes:
        values: all parameters, ``(n,)``.
        gradients: gradient of each parameter, in its shape.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        shapes = [parameter.shape for parameter in parameters]
        sizes = [parameter.numel() for parameter in parameters]
        self.values = torch.cat([parameter.detach().flatten() for parameter in parameters])
        self._gradient = torch.zeros_like(self.values)
        parts = zip(torch.split(self._gradient, sizes), shapes, strict=True)
        self.gradients = [part.view(shape) for part, shape in parts]
        for parameter, part, shape in zip(parameters, torch.split(self.values, sizes), shapes, strict=True):
            parameter.data = part.view(shape)
        self._mean, self._square = torch.zeros_like(self.values), torch.zeros_like(self.values)
        self._steps = torch.tensor(0.0, device=self.values.device)

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Take one step with the current :attr:`gradients`."""
        adam(
            [self.values],
            [self._gradient],
            [self._mean],
            [self._square],
            max_exp_avg_sqs=[],
            state_steps=[self._steps],
            fused=True,
            amsgrad=False,
            beta1=_BETAS[0],
            beta2=_BETAS[1],
            lr=learning_rate,
            weight_decay=0.0,
            eps=_EPSILON,
            maximize=False,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the moments, as arrays, and the number of steps."""
        return {
            "mean": self._mean.cpu().numpy().copy(),
            "square": self._square.cpu().numpy().copy(),
            "steps": int(self._steps),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by :meth:`state_dict`; an empty one resets the moments."""
        for name, tensor in (("mean", self._mean), ("square", self._square)):
            array: NDArray[Any] | None = state.get(name)
            tensor.zero_() if array is None else tensor.copy_(torch.from_numpy(array))
        self._steps.fill_(state.get("steps", 0))
