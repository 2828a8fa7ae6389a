"""Preference dataset as network inputs."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from teacher.data.preferences import PreferenceDataset, bootstrap_weights
from teacher.reward.features import Reader

BYTES_AT_ONCE = 2**28
"""Limit for network inputs kept in memory; larger datasets are read in parts."""

Standardise = Callable[[Tensor], Tensor]


class Pairs:
    """A preference dataset as tensors: pairs of segments, targets, and each member's weights.

    Inputs of a large dataset are not kept in memory, but computed for each minibatch.

    Attributes:
        length: steps of each segment.
        values: ``(n,)``.
        weights: ``(members, n)``.
        true_returns: ``(n, 2)``, by the environment's reward.
    """

    def __init__(self, dataset: PreferenceDataset, read: Reader, members: int, device: torch.device) -> None:
        self._dataset = dataset
        self._read = read
        self._device = device
        self.values = torch.from_numpy(dataset.values).to(device)
        self.weights = torch.from_numpy(bootstrap_weights(dataset.ids, members)).to(device)
        self.true_returns = torch.from_numpy(dataset.true_returns).to(device)
        self.length = dataset.segment_length
        self._chunk = max(1, BYTES_AT_ONCE // (2 * self.length * read.bytes_per_step))
        self._kept = read(dataset.steps()).to(device) if len(self) <= self._chunk else None
        self._standardize: Standardise | None = None

    def __len__(self) -> int:
        return len(self.values)

    def standardize(self, standardize: Standardise) -> None:
        """Use ``standardize`` to turn features into network inputs from now on."""
        self._standardize = standardize
        if self._kept is not None:  # once for the whole fit
            self._kept = standardize(self._kept)

    def inputs(self, rows: Tensor, steps: slice = slice(None)) -> Tensor:
        """Return network inputs for some steps of the pairs in ``rows``, ``(*rows.shape, 2, steps, ...)``.

        Before :meth:`standardize` is called, these are features.
        """
        if self._kept is not None:
            kept = self._kept[:, :, steps]
            return kept.index_select(0, rows.flatten()).view(*rows.shape, *kept.shape[1:])
        features = self._read(self._dataset.steps(rows.cpu().numpy()))
        features = features[(*[slice(None)] * (rows.ndim + 1), steps)].to(self._device)
        return features if self._standardize is None else self._standardize(features)

    def chunks(self) -> Iterator[Tensor]:
        """Yield the network inputs of all pairs in parts that fit into memory, ``(rows, 2, length, ...)``."""
        if self._kept is not None:
            yield self._kept
            return
        for rows in torch.split(torch.arange(len(self)), self._chunk):
            yield self.inputs(rows)
