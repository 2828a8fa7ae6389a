"""The parameters of a policy as one NumPy vector."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.floating[Any]]
LinearLayers = list[tuple[Array, Array]]
"""The weight ``(outputs, inputs)`` and bias ``(outputs,)`` of each layer."""


class ParameterVector:
    """Joins parameters on the CPU into one vector, of which the tensors become views, with their gradient.

    Args:
        tensors: the parameters by name.

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

    def views(self, vector: Array) -> dict[str, Array]:
        """Return the part of a vector ``(n,)`` that belongs to each parameter, in the parameter's shape."""
        ends = np.cumsum([math.prod(shape) for shape in self._shapes.values()])
        parts = np.split(vector, ends[:-1])
        return {
            name: part.reshape(shape) for (name, shape), part in zip(self._shapes.items(), parts, strict=True)
        }

    def layers(self, network: str, vector: Array) -> LinearLayers:
        """Return the parts of a vector ``(n,)`` that belong to the linear layers of one network."""
        views = [view for name, view in self.views(vector).items() if name.startswith(f"{network}.")]
        return list(zip(views[::2], views[1::2], strict=True))
