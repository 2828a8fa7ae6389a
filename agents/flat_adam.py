"""Adam on parameters that are joined into one tensor, which takes one kernel call per step."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from agents.base import to_arrays
from agents.errors import StateMismatchError

_BETAS = (0.9, 0.999)
_EPSILON = 1e-8


def join_parameters(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Copy parameters into one tensor ``(n,)``, and make each parameter a view of it."""
    values = torch.cat([parameter.detach().flatten() for parameter in parameters])
    for parameter, view in zip(parameters, _views(values, parameters), strict=True):
        parameter.data = view
    return values


def _views(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Split a flat tensor into views with the shapes of the tensors in ``like``."""
    parts = torch.split(flat, [tensor.numel() for tensor in like])
    return [part.view(tensor.shape) for part, tensor in zip(parts, like, strict=True)]


class FlatAdam:
    """Joins parameters and their gradients into one tensor each, and updates them with Adam.

    Calls the functional form, :func:`torch.optim.adam.adam`, because creating a :class:`torch.optim.Adam`
    would import torch's compiler, which takes a second.

    Args:
        parameters: parameters on one device, of one dtype. They become views of one tensor.
        learning_rate: Adam's learning rate.

    Attributes:
        values: all parameters, ``(n,)``.
        gradients: gradient of each parameter, in its shape: views of one tensor, to be written in place.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], learning_rate: float) -> None:
        self.values = join_parameters(parameters)
        self._learning_rate = learning_rate
        self._gradient, self._mean, self._square = (torch.zeros_like(self.values) for _ in range(3))
        self.gradients = _views(self._gradient, parameters)
        self._steps = torch.tensor(0.0, device=self.values.device)

    @torch.no_grad()
    def step(self) -> None:
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
            lr=self._learning_rate,
            weight_decay=0.0,
            eps=_EPSILON,
            maximize=False,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the moments, as arrays, and the number of steps."""
        return {**to_arrays({"mean": self._mean, "square": self._square}), "steps": int(self._steps)}

    def require_state(self, state: Mapping[str, Any]) -> None:
        """Raise :class:`StateMismatchError` if a state of :meth:`state_dict` doesn't fit these parameters."""
        if any(np.shape(state[name]) != self.values.shape for name in ("mean", "square")):
            raise StateMismatchError(
                "The saved optimizer state doesn't fit this agent; use the environment, algorithm and "
                "network settings that it was saved with."
            )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by :meth:`state_dict`."""
        self._mean.copy_(torch.from_numpy(state["mean"]))
        self._square.copy_(torch.from_numpy(state["square"]))
        self._steps.fill_(state["steps"])

    def reset(self) -> None:
        """Set the moments and the number of steps to 0."""
        for tensor in (self._mean, self._square, self._steps):
            tensor.zero_()
