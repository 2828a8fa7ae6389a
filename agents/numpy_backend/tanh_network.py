"""Tanh multi-layer perceptron in NumPy: forward pass, backward pass and Jacobian-vector product."""

import numpy as np

from agents.numpy_backend.parameters import Array, LinearLayers, ParameterVector


class TanhNetwork:
    """Actor or critic network: linear layers with tanh between them.

    Args:
        parameters: the policy's parameters; their gradient is written by :meth:`backward`.
        name: name prefix of the network's parameters, ``actor`` or ``critic``.
    """

    def __init__(self, parameters: ParameterVector, name: str) -> None:
        self._layers = parameters.layers(name, parameters.values)
        self._gradients = parameters.layers(name, parameters.gradient)
        self._buffers: dict[int, list[list[Array]]] = {}
        self._inputs: list[Array] = []
        self._has_slopes = False

    def forward(self, inputs: Array) -> Array:
        """Return the outputs ``(batch, outputs)`` for inputs ``(batch, inputs)``."""
        hiddens, self._slopes, self._deltas = self._buffers_for(len(inputs))
        self._inputs, self._has_slopes = [inputs], False
        for (weight, bias), hidden in zip(self._layers[:-1], hiddens, strict=True):
            np.matmul(self._inputs[-1], weight.T, out=hidden)
            np.add(hidden, bias, out=hidden)
            np.tanh(hidden, out=hidden)
            self._inputs.append(hidden)
        weight, bias = self._layers[-1]
        outputs: Array = self._inputs[-1] @ weight.T
        outputs += bias
        return outputs

    def backward(self, deltas: Array) -> None:
        """Backpropagate through the last :meth:`forward` call, and write the parameters' gradient.

        ``deltas`` is the loss gradient with respect to the outputs, ``(batch, outputs)``.
        """
        self._find_slopes()
        for index in range(len(self._layers) - 1, -1, -1):
            weight_gradient, bias_gradient = self._gradients[index]
            np.matmul(deltas.T, self._inputs[index], out=weight_gradient)
            np.add.reduce(deltas, axis=0, out=bias_gradient)
            if index:
                before, weight = self._deltas[index - 1], self._layers[index][0]
                # For an outer product, np.multiply is faster than BLAS and bitwise identical.
                (np.multiply if len(weight) == 1 else np.matmul)(deltas, weight, out=before)
                before *= self._slopes[index - 1]
                deltas = before

    def jacobian_product(self, direction: LinearLayers) -> Array:
        """Return the Jacobian-vector product ``(batch, outputs)`` at the last :meth:`forward` call's inputs.

        The Jacobian is taken with respect to the network's parameters. ``direction`` is the vector to
        multiply, as one (weight, bias) pair per layer.
        """
        self._find_slopes()
        change: Array | None = None
        for index, (weight, bias) in enumerate(direction):
            outputs = self._inputs[index] @ weight.T
            outputs += bias
            if change is not None:
                outputs += change @ self._layers[index][0].T
            if index < len(self._slopes):
                change = np.multiply(outputs, self._slopes[index], out=self._deltas[index])
        return outputs

    def _find_slopes(self) -> None:
        """Compute tanh's derivative ``1 - tanh^2`` for the hidden units of the last forward pass."""
        if not self._has_slopes:
            for hidden, slope in zip(self._inputs[1:], self._slopes, strict=True):
                np.square(hidden, out=slope)
                np.subtract(1.0, slope, out=slope)
            self._has_slopes = True

    def _buffers_for(self, size: int) -> list[list[Array]]:
        """Return reusable arrays for the hidden units, slopes and deltas of a batch of ``size`` rows.

        Batch sizes vary because dummy transitions are left out. Smaller batches use the first rows of the
        arrays allocated for the largest batch.
        """
        if size not in self._buffers:
            largest = max(self._buffers, default=-1)
            if size > largest:
                shapes = [(size, len(bias)) for _, bias in self._layers[:-1]]
                dtype = self._layers[0][0].dtype
                self._buffers = {size: [[np.empty(shape, dtype) for shape in shapes] for _ in range(3)]}
            else:
                of_largest = self._buffers[largest]
                self._buffers[size] = [[buffer[:size] for buffer in kind] for kind in of_largest]
        return self._buffers[size]
