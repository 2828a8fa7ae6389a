"""Preference dataset converted to tensors for fitting and evaluation."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from teacher.data.preferences import PreferenceDataset, bootstrap_weights
from teacher.reward.features import Reader

BYTES_AT_ONCE = 2**28
"""Maximum size in bytes of network inputs kept in memory; larger datasets are converted in chunks."""

Standardize = Callable[[Tensor], Tensor]


class Pairs:
    """Preference dataset as tensors: network inputs, targets, and bootstrap weights.

    The network inputs of a large dataset are not kept in memory but computed for each minibatch.

    Attributes:
        labels: number of questions that the pairs come from.
        values: ``(n,)``, target probability that the first segment is preferred.
        importance: ``(n,)``, weight of each pair's loss.
        weights: ``(members, n)``, importance times how often each pair is in each member's bootstrap sample;
            0 if held out.
        true_returns: ``(n, 2)``, true returns of both segments.
        absorbing: ``(n, 2, length)``, the input ``absorbing`` as a mask; None if there is no such input.
    """

    def __init__(self, dataset: PreferenceDataset, read: Reader, members: int, device: torch.device) -> None:
        self._dataset = dataset
        self._read = read
        self._device = device
        self.labels = dataset.labels
        self.values = torch.from_numpy(dataset.values).to(device)
        self.importance = torch.from_numpy(dataset.weights).to(device)
        counts = torch.from_numpy(bootstrap_weights(dataset.questions, members)).to(device)
        self.weights = counts * self.importance
        self.true_returns = torch.from_numpy(dataset.true_returns).to(device)
        self.length = dataset.segment_length
        self._chunk = max(1, BYTES_AT_ONCE // (2 * self.length * read.bytes_per_step))
        self._kept = read(dataset.steps()).to(device) if len(self) <= self._chunk else None
        self._standardize: Standardize | None = None
        column = read.columns.get("absorbing")
        masks = () if column is None else (chunk[..., column.start] > 0 for chunk in self.chunks())
        self.absorbing = torch.cat(list(masks)) if column is not None else None

    def __len__(self) -> int:
        return len(self.values)

    def standardize(self, standardize: Standardize) -> None:
        """Set the function that :meth:`inputs` uses to convert features to network inputs."""
        self._standardize = standardize
        if self._kept is not None:  # once for the whole fit
            self._kept = standardize(self._kept)

    def inputs(self, rows: Tensor, steps: slice = slice(None)) -> Tensor:
        """Return the network inputs for the given pairs.

        If :meth:`standardize` has not been called yet, return the unstandardized features instead.

        Args:
            rows: indices of the pairs, of any shape.
            steps: slice of the steps to return from each segment.

        Returns:
            ``(*rows.shape, 2, steps, ...)``.
        """
        if self._kept is not None:
            kept = self._kept[:, :, steps]
            return kept.index_select(0, rows.flatten()).view(*rows.shape, *kept.shape[1:])
        features = self._read(self._dataset.steps(rows.cpu().numpy()))
        features = features[(*[slice(None)] * (rows.ndim + 1), steps)].to(self._device)
        return features if self._standardize is None else self._standardize(features)

    def chunks(self) -> Iterator[Tensor]:
        """Yield the network inputs for all pairs in chunks ``(pairs, 2, length, ...)`` of limited size."""
        if self._kept is not None:
            yield self._kept
            return
        for rows in torch.split(torch.arange(len(self)), self._chunk):
            yield self.inputs(rows)
