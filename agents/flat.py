"""Parameters of torch modules as one flat numpy array, and Adam on it."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.floating[Any]]
Layers = list[tuple[Array, Array]]
"""Weight ``(outputs, inputs)`` and bias ``(outputs,)`` of each layer."""

BETAS, EPSILON = (0.9, 0.999), 1e-5
"""Of Adam; the epsilon is that of Stable-Baselines3."""


class FlatParameters:
    """Parameters on the CPU, which become views of one flat array, and their gradient.

    Attributes:
        values: ``(n,)``.
        gradient: ``(n,)``.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        self.values: Array = np.concatenate([tensor.detach().numpy().ravel() for tensor in tensors.values()])
        self.gradient = np.zeros_like(self.values)
        views = self.views(self.values)
        for name, tensor in tensors.items():
            tensor.data = torch.from_numpy(views[name])

    def views(self, flat: Array) -> dict[str, Array]:
        """The parts of a flat array ``(n,)`` that belong to each parameter."""
        ends = np.cumsum([math.prod(shape) for shape in self._shapes.values()])
        parts = np.split(flat, ends[:-1])
        return {
            name: part.reshape(shape) for (name, shape), part in zip(self._shapes.items(), parts, strict=True)
        }

    def layers(self, network: str, flat: Array) -> Layers:
        """The parts of a flat array ``(n,)`` that belong to the linear layers of one network."""
        views = [view for name, view in self.views(flat).items() if name.startswith(f"{network}.")]
        return list(zip(views[::2], views[1::2], strict=True))


class Adam:
    """Adam (Kingma and Ba 2015, algorithm 1), as :class:`torch.optim.Adam` does it."""

    def __init__(self, parameters: FlatParameters) -> None:
        self._parameters = parameters
        self._mean, self._variance, self._scratch = (np.zeros_like(parameters.values) for _ in range(3))
        self._steps = 0

    def step(self, learning_rate: float) -> None:
        """Move the parameters by their gradient."""
        gradient, scratch = self._parameters.gradient, self._scratch
        self._steps += 1
        np.subtract(gradient, self._mean, out=scratch)
        scratch *= 1.0 - BETAS[0]
        self._mean += scratch
        np.square(gradient, out=scratch)
        scratch -= self._variance
        scratch *= 1.0 - BETAS[1]
        self._variance += scratch
        np.sqrt(self._variance, out=scratch)
        scratch /= math.sqrt(1.0 - BETAS[1] ** self._steps)
        scratch += EPSILON
        np.divide(self._mean, scratch, out=scratch)
        scratch *= learning_rate / (1.0 - BETAS[0] ** self._steps)
        self._parameters.values -= scratch

    def state_dict(self) -> dict[str, Any]:
        """Copies of the moments of each parameter, by its number; as :func:`agents.states.save_adam`."""
        return {
            str(index): {
                "step": np.array(self._steps, np.float32),
                "exp_avg": mean.copy(),
                "exp_avg_sq": variance.copy(),
            }
            for index, (mean, variance) in enumerate(self._moments())
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from :meth:`state_dict`."""
        for index, (mean, variance) in enumerate(self._moments()):
            moments = state.get(str(index), {"step": 0, "exp_avg": 0.0, "exp_avg_sq": 0.0})
            mean[...], variance[...] = moments["exp_avg"], moments["exp_avg_sq"]
            self._steps = int(moments["step"])

    def _moments(self) -> list[tuple[Array, Array]]:
        views = [self._parameters.views(flat).values() for flat in (self._mean, self._variance)]
        return list(zip(*views, strict=True))
