"""Adam optimizer for a flat NumPy parameter vector."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from agents.numpy_backend.parameters import Array, ParameterVector

BETAS = (0.9, 0.999)
EPSILON = 1e-5
"""Adam's epsilon; matches Stable-Baselines3's default rather than torch's (1e-8)."""


class Adam:
    """Adam (Kingma and Ba 2015, algorithm 1), with the same arithmetic as :class:`torch.optim.Adam`."""

    def __init__(self, parameters: ParameterVector) -> None:
        self._parameters = parameters
        self._mean, self._variance, self._scratch = (np.zeros_like(parameters.values) for _ in range(3))
        self._steps = 0

    def step(self, learning_rate: float) -> None:
        """Update the parameters in place from their current gradient."""
        gradient, scratch = self._parameters.gradient, self._scratch
        self._steps += 1
        # Update both moments: m += (1 - beta1) (g - m) and v += (1 - beta2) (g^2 - v).
        np.subtract(gradient, self._mean, out=scratch)
        scratch *= 1.0 - BETAS[0]
        self._mean += scratch
        np.square(gradient, out=scratch)
        scratch -= self._variance
        scratch *= 1.0 - BETAS[1]
        self._variance += scratch
        # Subtract learning_rate * m_hat / (sqrt(v_hat) + epsilon), with bias-corrected moments.
        np.sqrt(self._variance, out=scratch)
        scratch /= math.sqrt(1.0 - BETAS[1] ** self._steps)
        scratch += EPSILON
        np.divide(self._mean, scratch, out=scratch)
        scratch *= learning_rate / (1.0 - BETAS[0] ** self._steps)
        self._parameters.values -= scratch

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the step count and moments, keyed by parameter index.

        The format matches that of :func:`agents.base.save_adam`.
        """
        return {
            str(index): {
                "step": np.array(self._steps, np.float32),
                "exp_avg": mean.copy(),
                "exp_avg_sq": variance.copy(),
            }
            for index, (mean, variance) in enumerate(self._moments())
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by :meth:`state_dict`; an empty dict resets the optimizer."""
        for index, (mean, variance) in enumerate(self._moments()):
            moments = state.get(str(index), {"step": 0, "exp_avg": 0.0, "exp_avg_sq": 0.0})
            mean[...], variance[...] = moments["exp_avg"], moments["exp_avg_sq"]
            self._steps = int(moments["step"])

    def _moments(self) -> list[tuple[Array, Array]]:
        views = [self._parameters.views(vector).values() for vector in (self._mean, self._variance)]
        return list(zip(*views, strict=True))
