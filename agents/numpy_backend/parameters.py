"""Flat NumPy vector that shares memory with the parameters of a torch policy."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agents.numerics.adam import BETAS, FlatAdam, FlatParameters

_EPSILON = 1e-5
"""Adam's epsilon for on-policy agents, as in Stable-Baselines3; torch's default is 1e-8."""

Array = NDArray[np.floating[Any]]
LinearLayers = list[tuple[Array, Array]]
"""Weight ``(outputs, inputs)`` and bias ``(outputs,)`` of each layer."""


class ParameterVector:
    """Concatenates CPU parameters into one NumPy vector, and turns the tensors into views of it.

    Attributes:
        flat: the same parameters and gradient as torch tensors.
        values: all parameters, ``(n,)``.
        gradient: gradient with respect to ``values``, ``(n,)``, written by backward passes; initially 0.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._names = list(tensors)
        self.flat = FlatParameters(tensors.values())
        self.values: Array = self.flat.values.numpy()
        self.gradient: Array = self.flat.gradient.numpy()

    def views(self, vector: Array) -> dict[str, Array]:
        """Split a vector ``(n,)`` into views with the names and shapes of the parameters."""
        views = self.flat.views(torch.from_numpy(vector))
        return {name: view.numpy() for name, view in zip(self._names, views, strict=True)}

    def layers(self, network: str, vector: Array) -> LinearLayers:
        """Return the weights and biases of one network's linear layers, as views of a vector ``(n,)``."""
        views = [view for name, view in self.views(vector).items() if name.startswith(f"{network}.")]
        return list(zip(views[::2], views[1::2], strict=True))


class NumpyAdam(FlatAdam):
    """:class:`FlatAdam` in NumPy: a call of torch among NumPy's operations takes twice as long."""

    def __init__(self, parameters: ParameterVector) -> None:
        super().__init__(parameters.flat, epsilon=_EPSILON)
        self._values, self._gradient = parameters.values, parameters.gradient
        self._views = self._mean.numpy(), self._square.numpy(), self._steps.numpy()
        self._scratch = np.zeros_like(parameters.values)

    def step(self, learning_rate: float) -> None:
        """Update the parameters once with their current gradient."""
        (mean, square, steps), scratch = self._views, self._scratch
        steps += 1
        # Update both moments: m += (1 - beta1) (g - m) and v += (1 - beta2) (g^2 - v).
        np.subtract(self._gradient, mean, out=scratch)
        scratch *= 1.0 - BETAS[0]
        mean += scratch
        np.square(self._gradient, out=scratch)
        scratch -= square
        scratch *= 1.0 - BETAS[1]
        square += scratch
        # Subtract learning_rate * m_hat / (sqrt(v_hat) + epsilon), with bias-corrected moments.
        np.sqrt(square, out=scratch)
        scratch /= math.sqrt(1.0 - BETAS[1] ** float(steps))
        scratch += _EPSILON
        np.divide(mean, scratch, out=scratch)
        scratch *= learning_rate / (1.0 - BETAS[0] ** float(steps))
        self._values -= scratch
