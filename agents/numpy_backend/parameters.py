"""Flat NumPy vector that shares memory with the parameters of a torch policy."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.floating[Any]]
LinearLayers = list[tuple[Array, Array]]
"""Weight ``(outputs, inputs)`` and bias ``(outputs,)`` of each layer."""


class ParameterVector:
    """Concatenates CPU parameters into one NumPy vector, and turns the tensors into views of it.

    Args:
        tensors: parameters by name.

    Attributes:
        values: all parameters, ``(n,)``.
        gradient: gradient with respect to ``values``, ``(n,)``, written by backward passes; initially 0.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        self.values: Array = np.concatenate([tensor.detach().numpy().ravel() for tensor in tensors.values()])
        self.gradient = np.zeros_like(self.values)
        views = self.views(self.values)
        for name, tensor in tensors.items():
            tensor.data = torch.from_numpy(views[name])

    def views(self, vector: Array) -> dict[str, Array]:
        """Split a vector ``(n,)`` into views with the names and shapes of the parameters."""
        ends = np.cumsum([math.prod(shape) for shape in self._shapes.values()])
        parts = np.split(vector, ends[:-1])
        return {
            name: part.reshape(shape) for (name, shape), part in zip(self._shapes.items(), parts, strict=True)
        }

    def layers(self, network: str, vector: Array) -> LinearLayers:
        """Return the weights and biases of one network's linear layers, as views of a vector ``(n,)``."""
        views = [view for name, view in self.views(vector).items() if name.startswith(f"{network}.")]
        return list(zip(views[::2], views[1::2], strict=True))
