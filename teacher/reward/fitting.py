"""Fitting the ensemble to preferences: minibatches of whole pairs, all members at once."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from teacher.options import RewardConfig
from teacher.preferences import PreferenceDataset, bootstrap_weights
from teacher.reward.features import Features
from teacher.reward.loss import discounts, preference_loss
from teacher.reward.network import RewardNetwork

_EVALUATION_BATCH = 256
_CHECK_EVERY = 10  # updates; looking at all pairs after each would cost as much as the updates
_BYTES_AT_ONCE = 2**28  # of a dataset's features
_LEAST_GAIN = 1e-3  # nats; smaller gains would keep a fit to clear-cut answers going for ever


class Pairs:
    """A dataset as the network sees it: rows of two segments, their values, and each member's weights.

    What the network reads of a large dataset is not kept, but made anew for each minibatch.

    Attributes:
        values: ``(n,)``.
        weights: ``(members, n)``.
    """

    def __init__(
        self, dataset: PreferenceDataset, features: Features, members: int, device: torch.device
    ) -> None:
        self._dataset = dataset
        self._features = features
        self._device = device
        self.values = torch.from_numpy(dataset.values).to(device)
        self.weights = torch.from_numpy(bootstrap_weights(dataset.ids, members)).to(device)
        bytes_per_pair = 2 * dataset.segment_length * features.size * torch.float32.itemsize
        self._chunk = max(1, _BYTES_AT_ONCE // bytes_per_pair)
        self._kept = features(dataset.steps()).to(device) if len(self) <= self._chunk else None

    def __len__(self) -> int:
        return len(self.values)

    def features(self, rows: Tensor) -> Tensor:
        """``(*rows.shape, 2, length, inputs)``."""
        if self._kept is not None:
            return self._kept[rows]
        return self._features(self._dataset.steps(rows.cpu().numpy())).to(self._device)

    def chunks(self) -> Iterator[Tensor]:
        """The features of all pairs in parts that fit into memory, each ``(rows, 2, length, inputs)``."""
        if self._kept is not None:
            yield self._kept
            return
        for rows in torch.split(torch.arange(len(self)), self._chunk):
            yield self.features(rows)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What the members say about every pair.

    Attributes:
        outputs: ``(members, n, 2, length)``, the raw reward of each step.
        logits: ``(members, n)``.
        losses: ``(members, n)``.
        training: ``(members,)``, the weighted mean loss of the pairs each member is trained on.
        validation: ``(members,)``, the mean loss of the pairs held out from it; NaN where there are none.
    """

    outputs: Tensor
    logits: Tensor
    losses: Tensor
    training: Tensor
    validation: Tensor


class Fitter:
    """The network's optimizer and the ways to use it.

    Args:
        network: fitted in place.
        config: see :class:`RewardConfig`.
        generator: draws the minibatches.
    """

    def __init__(self, network: RewardNetwork, config: RewardConfig, generator: torch.Generator) -> None:
        self._network = network
        self._config = config
        self._generator = generator
        self._device = next(network.parameters()).device
        self._optimizer = torch.optim.AdamW(
            network.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay, fused=True
        )
        _keep_freed_memory()

    def epoch(self, pairs: Pairs, max_updates: int | None = None) -> int:
        """Take each member once through its training pairs; returns the number of updates made."""
        batches = self._batches(pairs.weights)[:max_updates]
        for rows in batches:
            self._optimizer.zero_grad()
            self.loss(pairs, rows).backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
        return len(batches)

    def loss(self, pairs: Pairs, rows: Tensor) -> Tensor:
        """Sum over members of the weighted mean loss of their ``rows``, ``(members, batch)``.

        A held-out pair has weight 0, so no gradient.
        """
        inputs = self._network.standardise(pairs.features(rows))
        logits = self._network.logits(inputs, self._step_weights(inputs.shape[3]))
        losses = preference_loss(logits, pairs.values[rows], self._config.label_noise)
        weights = pairs.weights.gather(1, rows)
        return ((weights * losses).sum(dim=1) / weights.sum(dim=1).clamp(min=1)).sum()

    def _step_weights(self, length: int) -> Tensor:
        return discounts(length, self._config.discount).to(self._device)

    def _batches(self, weights: Tensor) -> Sequence[Tensor]:
        """Each member's training pairs in random order, in batches ``(members, b)`` as even as can be.

        Members differ in how many pairs they train on; the shorter ones are filled up with held-out pairs,
        which weigh nothing.
        """
        order = torch.rand(weights.shape, generator=self._generator).to(weights.device)
        rows = torch.where(weights > 0, order, torch.inf).argsort(dim=1)
        longest = int((weights > 0).sum(dim=1).max())
        if longest == 0:
            return ()
        return rows[:, :longest].tensor_split(-(-longest // self._config.batch_size), dim=1)

    def converge(self, pairs: Pairs, max_updates: int, progress: Callable[[int], None] | None = None) -> int:
        """Fit until no member gets better on what it does not train on; leave each at its best.

        A member from which nothing is held out is judged by its training loss. Returns the number of updates.
        """
        learned = self._network.learned()
        kept = [tensor.detach().clone() for tensor in learned]
        best = _score(self.evaluate(pairs))
        updates = stale = 0
        while stale < self._config.patience and updates < max_updates:
            made = self._some_epochs(pairs, max_updates - updates)
            if made == 0:  # no member trains on any of these pairs
                break
            updates += made
            score = _score(self.evaluate(pairs))
            better = score < best - _LEAST_GAIN
            best = torch.where(better, score, best)
            for tensor, keep in zip(learned, kept, strict=True):
                keep[better] = tensor.detach()[better]
            stale = 0 if better.any() else stale + made
            if progress is not None:
                progress(updates)
        with torch.no_grad():
            for tensor, keep in zip(learned, kept, strict=True):
                tensor.copy_(keep)
        return updates

    def _some_epochs(self, pairs: Pairs, max_updates: int) -> int:
        """So many epochs that checking the fit after them is worth its time; returns the updates made."""
        wanted = min(_CHECK_EVERY, max_updates)
        updates = made = self.epoch(pairs, max_updates)
        while made and updates < wanted:
            made = self.epoch(pairs, max_updates - updates)
            updates += made
        return updates

    @torch.no_grad()
    def evaluate(self, pairs: Pairs) -> Evaluation:
        """All pairs, by all members."""
        rows = torch.arange(len(pairs), device=pairs.values.device)
        chunks = torch.split(rows, _EVALUATION_BATCH)
        standardise = self._network.standardise
        outputs = torch.cat([self._network(standardise(pairs.features(chunk))) for chunk in chunks], dim=1)
        returns = outputs @ self._step_weights(outputs.shape[-1])
        logits = returns[..., 0] - returns[..., 1]
        losses = preference_loss(logits, pairs.values, self._config.label_noise)
        held_out = (pairs.weights == 0).float()
        return Evaluation(outputs, logits, losses, _mean(losses, pairs.weights), _mean(losses, held_out))

    def state_dict(self) -> dict[str, Any]:
        """Moments and step counts of the optimizer, one entry per parameter."""
        entries = self._optimizer.state_dict()["state"].values()
        return {"optimizer": [{name: value.clone() for name, value in entry.items()} for entry in entries]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Read back :meth:`state_dict`; arrays will do for tensors."""
        entries = {
            index: {name: torch.as_tensor(value) for name, value in entry.items()}
            for index, entry in enumerate(state["optimizer"])
        }
        self._optimizer.load_state_dict({**self._optimizer.state_dict(), "state": entries})


def _keep_freed_memory() -> None:
    """Let freed memory stay with the process; without it, 40 % of a fit on the CPU is page faults.

    glibc's malloc returns memory to the system, or keeps it, by the size of the largest block freed so far.
    This one, just below the size up to which it adapts (32 MiB), is never touched, so it costs nothing.
    """
    torch.empty(8_000_000, dtype=torch.float32)


def _mean(values: Tensor, weights: Tensor) -> Tensor:
    """Weighted mean over the last dimension; NaN where all weights are 0."""
    return (values * weights).sum(dim=-1) / weights.sum(dim=-1)


def _score(evaluation: Evaluation) -> Tensor:
    return torch.where(evaluation.validation.isnan(), evaluation.training, evaluation.validation)
