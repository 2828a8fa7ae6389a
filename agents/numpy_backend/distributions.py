"""Action distributions and their derivatives in NumPy, as counterparts of :mod:`agents.policy`."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agents.heads import GaussianHead, Head
from agents.numpy_backend.parameters import Array, ParameterVector


class GaussianDistribution:
    """Diagonal Gaussian action distribution: log-probabilities, entropy, KL divergence and gradients.

    :meth:`entropy`, :meth:`backward` and :meth:`fisher_product` use the results of the last :meth:`log_probs`
    call.

    Args:
        log_std: log standard deviations, ``(action_size,)``; may be updated in place between calls.
        gradient: output array ``(action_size,)`` for the gradient with respect to ``log_std``.
    """

    def __init__(self, log_std: Array, gradient: Array) -> None:
        self._log_std, self._gradient = log_std, gradient

    def log_probs(self, means: Array, actions: Array) -> Array:
        """Return log-probabilities ``(batch,)`` of ``actions``, given ``means`` ``(batch, action_size)``."""
        self._inverse_std = np.exp(-self._log_std)
        self._standardized = (actions.reshape(means.shape) - means) * self._inverse_std
        self._log_scale = np.add.reduce(self._log_std) + 0.5 * len(self._log_std) * math.log(2 * math.pi)
        log_probs: Array = -0.5 * np.einsum("ij,ij->i", self._standardized, self._standardized)
        log_probs -= self._log_scale
        return log_probs

    def entropy(self, size: int) -> float:
        """Return this rank's contribution to the mean entropy: its sum of entropies divided by ``size``.

        ``size`` is the total batch size over all ranks.
        """
        share = len(self._standardized) / size
        return share * (float(self._log_scale) + 0.5 * len(self._log_std))

    def backward(self, by_log_probs: Array, by_entropy: float, size: int) -> Array:
        """Return the loss gradient with respect to the means, ``(batch, action_size)``.

        The gradient with respect to the log standard deviations is written to ``gradient``.

        Args:
            by_log_probs: loss gradient with respect to the result of :meth:`log_probs`.
            by_entropy: loss gradient with respect to the result of :meth:`entropy`.
            size: total batch size over all ranks.
        """
        weighted = by_log_probs[:, None] * self._standardized
        np.einsum("ij,ij->j", weighted, self._standardized, out=self._gradient)
        self._gradient += by_entropy * (len(weighted) / size) - np.add.reduce(by_log_probs)
        by_means: Array = weighted * self._inverse_std
        return by_means

    def fisher_product(self, change: Array, direction: Mapping[str, Array], size: int) -> Array:
        """Compute this rank's contribution to the batch-averaged Fisher-vector product.

        Args:
            change: directional derivative of the means (Jacobian-vector product), ``(batch, action_size)``.
            direction: the vector in parameter space, keyed by parameter name; only ``head.log_std`` is used.
            size: total batch size over all ranks, by which this rank's sum is divided.

        Returns:
            The product with respect to the means, ``(batch, action_size)``, to be backpropagated. The
            product with respect to the log standard deviations is written to ``gradient``.
        """
        np.multiply(direction["head.log_std"], 2.0 * len(change) / size, out=self._gradient)
        by_means: Array = change * (np.square(self._inverse_std) / size)
        return by_means

    def snapshot(self, means: Array) -> tuple[Array, ...]:
        """Return the parameters of the current distributions, to pass to :meth:`kl` later."""
        return means, self._log_std.copy()

    def kl(self, old: tuple[Array, ...], means: Array) -> Array:
        """Return the KL divergences ``KL(current || old)``, ``(batch,)``, in nats."""
        old_means, old_log_std = old
        log_ratio = self._log_std - old_log_std
        standardized = (means - old_means) * np.exp(-old_log_std)
        kl: Array = (0.5 * (np.exp(2.0 * log_ratio) + np.square(standardized) - 1.0) - log_ratio).sum(1)
        return kl


class CategoricalDistribution:
    """Categorical action distribution: log-probabilities, entropy, KL divergence and gradients.

    :meth:`entropy`, :meth:`backward` and :meth:`fisher_product` use the results of the last :meth:`log_probs`
    call.
    """

    def log_probs(self, logits: Array, actions: NDArray[np.integer[Any]]) -> Array:
        """Return the log-probabilities ``(batch,)`` of ``actions``, given ``logits`` ``(batch, choices)``."""
        self._all = _log_softmax(logits)
        self._chosen = (np.arange(len(actions)), actions)
        chosen: Array = self._all[self._chosen]
        return chosen

    def entropy(self, size: int) -> float:
        """Return the same as :meth:`GaussianDistribution.entropy`."""
        return float(-(np.exp(self._all) * self._all).sum(1).sum() / size)

    def backward(self, by_log_probs: Array, by_entropy: float, size: int) -> Array:
        """Return the loss gradient with respect to the logits ``(batch, choices)``."""
        probs = np.exp(self._all)
        by_logits: Array = -by_log_probs[:, None] * probs
        by_logits[self._chosen] += by_log_probs
        if by_entropy:
            entropies = -(probs * self._all).sum(1, keepdims=True)
            by_logits -= (by_entropy / size) * probs * (self._all + entropies)
        return by_logits

    def fisher_product(self, change: Array, direction: Mapping[str, Array], size: int) -> Array:
        """Compute this rank's contribution to the batch-averaged Fisher-vector product, ``(batch, choices)``.

        ``direction`` is ignored, because the distribution has no parameters besides the logits.
        """
        weighted = np.exp(self._all) * change
        weighted -= np.exp(self._all) * np.add.reduce(weighted, axis=1, keepdims=True)
        weighted /= size
        return weighted

    def snapshot(self, logits: Array) -> tuple[Array, ...]:
        """Return the parameters of the current distributions, to pass to :meth:`kl` later."""
        return (_log_softmax(logits),)

    def kl(self, old: tuple[Array, ...], logits: Array) -> Array:
        """Return the KL divergences ``KL(current || old)``, ``(batch,)``, in nats."""
        log_probs = _log_softmax(logits)
        kl: Array = (np.exp(log_probs) * (log_probs - old[0])).sum(1)
        return kl


Distribution = GaussianDistribution | CategoricalDistribution


def distribution_of(head: Head, parameters: ParameterVector) -> Distribution:
    """Return the NumPy distribution that corresponds to a policy's action head.

    A Gaussian distribution's log standard deviations and their gradient are views into ``parameters``. The
    policy must be supported by the NumPy backend (see :func:`agents.numpy_backend.supports`).
    """
    if isinstance(head, GaussianHead):
        values, gradients = (parameters.views(each) for each in (parameters.values, parameters.gradient))
        return GaussianDistribution(values["head.log_std"], gradients["head.log_std"])
    return CategoricalDistribution()


def _log_softmax(logits: Array) -> Array:
    shifted: Array = logits - np.maximum.reduce(logits, axis=1, keepdims=True)
    shifted -= np.log(np.add.reduce(np.exp(shifted), axis=1, keepdims=True))
    return shifted
