"""Fitting of a reward ensemble to preferences, all members at once, in minibatches of pairs."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isnan, nan
from typing import Any

import torch
from torch import Tensor

from agents.numerics.adam import FlatAdam, FlatParameters
from teacher.reward.loss import PreferenceLoss, discounts, preference_loss, smoothed
from teacher.reward.network import RewardNetwork
from teacher.reward.pairs import Pairs
from teacher.settings.options import RewardConfig

_EVALUATION_BATCH = 64  # pairs per forward pass without gradients
_CHECK_EVERY = 10  # updates between convergence checks, each of which costs about as much as an update
_FEWEST_STEPS = 4  # steps of a segment used in one update; fewer give a poor estimate of its return
_LEAST_GAIN = 1e-3  # nats; smaller improvements do not count, or a fit to noise-free labels would never end

Progress = Callable[[int], None]
"""Callback that is called with the number of updates already made in the current fit."""


@dataclass(frozen=True, eq=False)
class Result:
    """Base of frozen dataclasses, defined with ``eq=False``, in which NaN equals NaN.

    Otherwise a result with NaN would not equal a copy, and from Python 3.13 on not even itself.
    """

    def __eq__(self, other: object) -> bool:
        """Return True if ``other`` has the same class and the same values."""
        if not isinstance(other, Result) or type(self) is not type(other):
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        """Return the same number for equal results."""
        return hash(self._values())

    def _values(self) -> tuple[object, ...]:
        # A tuple equals another with the same NaN object.
        values = (getattr(self, field.name) for field in dataclasses.fields(self))
        return tuple(nan if isinstance(value, float) and isnan(value) else value for value in values)


@dataclass(frozen=True, kw_only=True)
class FitBudget:
    """Stopping criterion of a fit: a fixed number of epochs if ``updates`` is None, otherwise convergence.

    Attributes:
        epochs: number of epochs (passes over all pairs); ignored if ``updates`` is set.
        updates: maximum number of updates in a fit to convergence; None to fit for exactly ``epochs`` epochs.
    """

    epochs: int = 0
    updates: int | None = None

    @property
    def is_empty(self) -> bool:
        """Return True if no update is allowed."""
        return (self.epochs if self.updates is None else self.updates) == 0


@dataclass(frozen=True, eq=False)
class FitResult(Result):
    """Work done by one fit.

    Attributes:
        updates: optimizer steps made, or Newton steps of all members.
        dropped: share of a member's training labels that it left out because it contradicts them, averaged
            over the members; NaN if the models leave out none.
    """

    updates: int
    dropped: float = nan


@dataclass(frozen=True, eq=False)
class PairEvaluation:
    """Predictions and losses of each member on all ``n`` pairs of a dataset.

    Attributes:
        outputs: ``(members, n, 2, length)``, the raw reward of each step, before normalization.
        logits: ``(members, n)``, the predicted return of the first segment minus the second's.
        losses: ``(members, n)``, in nats.
        training: ``(members,)``, mean loss on each member's training pairs, weighted by ``Pairs.weights``.
        validation: ``(members,)``, mean loss on each member's held-out pairs, weighted by importance; NaN if
            it has none.
    """

    outputs: Tensor
    logits: Tensor
    losses: Tensor
    training: Tensor
    validation: Tensor


@dataclass(frozen=True, eq=False)
class PairBatch:
    """A minibatch of training pairs, with different pairs for each member.

    Attributes:
        inputs: ``(members, pairs, 2, length, ...)``, standardized network inputs.
        step_weights: weight of each step's reward in its segment's return; broadcasts to
            ``(members, pairs, 2, length)``.
        values: ``(members, pairs)``, target probability that the first segment is preferred.
        weights: ``(members, pairs)``, weight of each pair's loss.
    """

    inputs: Tensor
    step_weights: Tensor
    values: Tensor
    weights: Tensor


def batch_loss(network: RewardNetwork, batch: PairBatch, loss: PreferenceLoss) -> Tensor:
    """Return the weighted sum of all pairs' losses."""
    logits = network.logits(batch.inputs, batch.step_weights)
    return (batch.weights * loss(logits, batch.values)).sum()


class Fitter:
    """Fits a reward network to preferences, for a number of epochs or until convergence.

    Args:
        network: the network to fit, in place.
        loss: loss of the preferences; None for :func:`~teacher.reward.loss.preference_loss`.
    """

    def __init__(
        self,
        network: RewardNetwork,
        config: RewardConfig,
        generator: torch.Generator,
        loss: PreferenceLoss | None = None,
    ) -> None:
        self._network = network
        self._loss = loss or partial(preference_loss, noise=config.label_noise)
        self._config = config
        self._learning_rate = network.LEARNING_RATE if config.learning_rate is None else config.learning_rate
        self._generator = generator
        self._parameters = FlatParameters(network.parameters())
        self._optimizer = FlatAdam(self._parameters)
        by_default = PENALTIES.get(config.regularization, network.strength)
        strength = by_default if config.strength is None else config.strength
        self._regularizer = Regularizer(config, strength, self._parameters)
        network.eval()
        # Page faults account for 40% of the fitting time on a CPU unless malloc keeps freed memory. It keeps
        # blocks up to the size of the largest one freed so far, or 32 MiB; this one is never written to, so
        # it uses no physical memory.
        torch.empty(8_000_000, dtype=torch.float32)

    def fit(self, pairs: Pairs, effort: FitBudget, progress: Progress | None = None) -> FitResult:
        """Fit for the budget's epochs or until convergence."""
        if effort.updates is not None:
            return FitResult(self._converge(pairs, effort.updates, progress))
        updates = 0
        for _ in range(effort.epochs):
            updates = self.epoch(pairs, progress=progress, before=updates)
        return FitResult(updates)

    def epoch(
        self,
        pairs: Pairs,
        max_updates: int | None = None,
        progress: Progress | None = None,
        before: int = 0,
    ) -> int:
        """Train each member on its own training pairs for one epoch.

        Args:
            max_updates: stop after this many updates; None for a full epoch.
            progress: called after each update with the number of updates in this fit, including ``before``.

        Returns:
            ``before`` plus the number of updates made.
        """
        batches = self._batches(pairs.weights)[:max_updates]
        self._network.train()
        for made, rows in enumerate(batches, before + 1):
            self._parameters.gradient.zero_()
            for batch in self.minibatches(pairs, rows):
                batch_loss(self._network, batch, self._loss).backward()  # type: ignore[no-untyped-call]
            self._regularizer.apply(self._learning_rate, pairs.labels)
            self._optimizer.step(self._learning_rate)
            if progress is not None:
                progress(made)
        self._network.eval()
        if self._config.adapt and batches:
            evaluation = self.evaluate(pairs)
            self._regularizer.adapt(evaluation.training, evaluation.validation)
        return before + len(batches)

    def minibatches(self, pairs: Pairs, rows: Tensor) -> Sequence[PairBatch]:
        """Split one update's minibatch into ``accumulate`` micro-batches for gradient accumulation.

        The micro-batch losses add up to the minibatch loss, which is the sum of the members' weighted mean
        losses. Held-out pairs have weight 0 and do not contribute to the gradient.

        Args:
            rows: ``(members, batch)``, indices of each member's pairs.
        """
        weights = pairs.weights.gather(1, rows)
        total = weights.sum(dim=1, keepdim=True)
        weights = weights / torch.where(total > 0, total, 1)
        targets = self._targets(pairs)[rows]
        steps, step_weights = self._draw_steps(pairs, rows)
        parts = min(self._config.accumulate, rows.shape[1])

        def split(of_pairs: Tensor) -> Sequence[Tensor]:
            return of_pairs.tensor_split(parts, dim=1)

        # With random crops, every pair has its own step weights, which are split as well.
        of_steps = split(step_weights) if step_weights.ndim > 1 else [step_weights] * parts
        return [
            PairBatch(pairs.inputs(some, steps), *others)
            for some, *others in zip(split(rows), of_steps, split(targets), split(weights), strict=True)
        ]

    def _draw_steps(self, pairs: Pairs, rows: Tensor) -> tuple[slice, Tensor]:
        """Randomly choose which steps of each segment an update uses.

        Returns:
            The slice of the chosen steps, and their weights in the segment's return.
        """
        step_weights, steps = self._step_weights(pairs), slice(None)
        if self._config.shortest_crop < 1:
            members, size = rows.shape
            step_weights = crop(step_weights, (members, size), self._config.shortest_crop, self._generator)
        stride = min(self._config.stride, pairs.length // _FEWEST_STEPS)
        if stride > 1:  # use every ``stride``-th step, with ``stride`` times the weight
            first = int(torch.randint(stride, (), generator=self._generator))
            steps = slice(first, None, stride)
            step_weights = step_weights[..., steps] * stride
        return steps, step_weights

    def _targets(self, pairs: Pairs) -> Tensor:
        return smoothed(pairs.values, self._config.label_smoothing)

    def _step_weights(self, pairs: Pairs) -> Tensor:
        """Return the discount factor of each step in a segment's return, ``(length,)``."""
        return discounts(pairs.length, self._config.discount).to(pairs.values)

    def _batches(self, weights: Tensor) -> Sequence[Tensor]:
        """Return an epoch's minibatches as index tensors of shape ``(members, batch)``, in random order.

        Members with fewer training pairs are padded with held-out pairs, which have weight 0 and so don't
        affect the loss.
        """
        order = torch.rand(weights.shape, generator=self._generator).to(weights.device)
        rows = _weighted_rows(weights, order)
        return rows.tensor_split(-(-rows.shape[1] // self._config.batch_size), dim=1) if rows.numel() else ()

    def _converge(self, pairs: Pairs, max_updates: int, progress: Progress | None = None) -> int:
        """Fit with early stopping on held-out losses, then restore each member's best parameters.

        The fit stops once no member has improved for ``patience`` updates, or after ``max_updates``. For a
        member without held-out pairs, the training loss is used instead.
        """
        learned = self._network.learned()
        kept = [tensor.detach().clone() for tensor in learned]
        held_out = held_out_weights(pairs)
        validation_weights = torch.where(held_out.any(dim=1, keepdim=True), held_out, pairs.weights)
        best = self._mean_losses(pairs, validation_weights)
        updates = stale = 0
        while stale < self._config.patience and updates < max_updates:
            made = self._some_epochs(pairs, max_updates - updates)
            if made == 0:  # every member holds out all pairs
                break
            updates += made
            score = self._mean_losses(pairs, validation_weights)
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
        """Train for whole epochs until a convergence check is due; return the number of updates made."""
        wanted = min(_CHECK_EVERY, max_updates)
        updates = made = self.epoch(pairs, max_updates)
        while made and updates < wanted:
            made = self.epoch(pairs, max_updates - updates)
            updates += made
        return updates

    @torch.no_grad()
    def _mean_losses(self, pairs: Pairs, weights: Tensor) -> Tensor:
        """Return each member's mean loss ``(members,)`` over the pairs, weighted by ``weights``."""
        losses = []
        rows = _weighted_rows(weights, torch.zeros_like(weights))
        for chunk in torch.split(rows, _EVALUATION_BATCH, dim=1):
            logits = self._network.logits(pairs.inputs(chunk), self._step_weights(pairs))
            losses.append(self._loss(logits, self._targets(pairs)[chunk]))
        return weighted_mean(torch.cat(losses, dim=1), weights.gather(1, rows))

    @torch.no_grad()
    def evaluate(self, pairs: Pairs) -> PairEvaluation:
        """Return the predictions and losses of each member on all pairs."""
        rows = torch.arange(len(pairs), device=pairs.values.device)
        # Allocated before the chunks are computed. Otherwise small tensors would end up in the memory of
        # freed chunks, the next chunk would not fit there, and memory would grow with the number of pairs.
        outputs = pairs.values.new_empty((len(pairs.weights), len(pairs), 2, pairs.length))
        for chunk in torch.split(rows, _EVALUATION_BATCH):
            outputs[:, chunk] = self._network(pairs.inputs(chunk))
        returns = outputs @ self._step_weights(pairs)
        logits = returns[..., 0] - returns[..., 1]
        losses = self._loss(logits, self._targets(pairs))
        training, validation = (
            weighted_mean(losses, weights) for weights in (pairs.weights, held_out_weights(pairs))
        )
        return PairEvaluation(outputs, logits, losses, training, validation)

    @property
    def has_begun(self) -> bool:
        """Return True if at least one update was made, in this or an earlier fit."""
        return self._optimizer.steps > 0

    def is_sound(self) -> bool:
        """Return True if all parameters and the optimizer's moments are finite."""
        return bool(self._parameters.values.isfinite().all()) and self._optimizer.is_finite()

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state and, if ``config.adapt`` is set, the regularization strengths."""
        state: dict[str, Any] = {"optimizer": list(self._optimizer.torch_state().values())}
        if self._config.adapt:
            state["regularizer"] = self._regularizer.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from :meth:`state_dict`; arrays are accepted in place of tensors."""
        self._optimizer.load_torch_state(state["optimizer"])
        if self._config.adapt:
            self._regularizer.load_state_dict(state["regularizer"])


def _weighted_rows(weights: Tensor, order: Tensor) -> Tensor:
    """Return the indices of each member's pairs with nonzero weight, ``(members, n)``.

    The indices are in ascending order of the sort keys ``order``, ``(members, pairs)``. Members with fewer
    such pairs than other members are padded with pairs of weight 0.
    """
    rows = torch.where(weights > 0, order, torch.inf).argsort(dim=1)
    return rows[:, : int((weights > 0).sum(dim=1).max())]


def held_out_weights(pairs: Pairs) -> Tensor:
    """Return the importance of each member's held-out pairs, and 0 for the others, ``(members, n)``."""
    return (pairs.weights == 0) * pairs.importance


def weighted_mean(values: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted mean over the last dimension; NaN if all weights are 0."""
    return (values * weights).sum(dim=-1) / weights.sum(dim=-1)


def crop(step_weights: Tensor, pairs: tuple[int, int], shortest: float, generator: torch.Generator) -> Tensor:
    """Return step weights that crop each segment at random; both crops of a pair have the same length.

    This is the temporal cropping of SURF (Park et al. 2022, section 4.2), which assumes that a label for
    two segments is also valid for crops of them. Each segment's crop has its own random start. The first step
    of a crop gets the weight of the segment's first step, so discounting restarts there.

    Args:
        step_weights: ``(length,)``, the weight of each step of an uncropped segment.
        pairs: shape of the batch of pairs, ``(members, pairs per member)``.
        shortest: minimum crop length as a fraction of the segment's length; all lengths from the minimum to
            the full length are equally likely.

    Returns:
        Step weights ``(*pairs, 2, length)``, which are 0 for steps outside the crops.
    """
    length = len(step_weights)
    least = max(1, round(shortest * length))
    lengths = torch.randint(least, length + 1, (*pairs, 1), generator=generator)
    room = length - lengths + 1
    starts = torch.randint(2**40, (*pairs, 2), generator=generator) % room
    since = torch.arange(length) - starts.unsqueeze(-1)
    inside = (since >= 0) & (since < lengths.unsqueeze(-1))
    return (step_weights.cpu()[since.clamp(min=0)] * inside).to(step_weights)


PENALTIES: Mapping[str, float] = {"l1": 0.003, "l2": 0.02}
"""Default strength of each loss penalty; for weight decay, the network's ``strength`` is the default."""

_RATIOS = (1.1, 1.5)  # target range of held-out / training loss (Christiano et al. 2017, section 2.2.3)
_FACTOR = 1.1  # factor by which one call of adapt() changes a strength
_FURTHEST = 100.0  # maximum factor between an adapted strength and the configured one
_LABELS = 100  # number of labels for which strengths are specified
_MOST_DECAY = 0.1  # maximum fraction by which weight decay shrinks a parameter in one update


class Regularizer:
    """Applies weight decay, or an L1 or L2 penalty, before each optimizer step.

    ``weight_decay`` is decoupled weight decay, as in AdamW (Loshchilov and Hutter 2019): it multiplies
    parameters by ``1 - learning_rate * strength``. ``l1`` and ``l2`` add ``strength`` times the sum of the
    parameters' absolute values or squares to each member's loss.

    Strengths are specified for 100 labels and scaled by ``sqrt(100 / labels)``, because the best strength was
    proportional to ``1 / sqrt(labels)`` in experiments (docs/fitting.md).

    Attributes:
        strengths: ``(members,)``, each member's strength at 100 labels; fixed unless ``config.adapt`` is set.
    """

    def __init__(self, config: RewardConfig, strength: float, parameters: FlatParameters) -> None:
        self._config = config
        self._strength = strength
        self._parameters = parameters
        self.strengths = torch.full((config.num_members,), strength, dtype=torch.float64)

    def apply(self, learning_rate: float, labels: int) -> None:
        """Decay the parameters, or add the penalty's gradient; ``labels`` is the fit's number of labels."""
        values, gradient = self._parameters.values, self._parameters.gradient
        strength = self._of_parameters() * (_LABELS / labels) ** 0.5
        match self._config.regularization:
            case "weight_decay":
                decay = torch.as_tensor(learning_rate * strength, dtype=values.dtype, device=values.device)
                values.mul_(1 - decay.clamp(max=_MOST_DECAY))
            case "l1":
                gradient.add_(values.sign().mul_(strength))
            case "l2":
                gradient.add_(values * (2 * strength))

    def _of_parameters(self) -> Tensor | float:
        """Return the strength of each parameter, ``(n,)``, or the one that all have."""
        if not self._config.adapt:
            return self._strength
        flat = torch.empty_like(self._parameters.values)
        for view in self._parameters.views(flat):
            view.view(len(self.strengths), -1).copy_(self.strengths[:, None])
        return flat

    def adapt(self, training: Tensor, validation: Tensor) -> None:
        """Increase the strength for members that overfit, and decrease it for members that underfit.

        Christiano et al. (2017) keep the held-out loss between 1.1 and 1.5 times the training loss, but do
        not say how. Here, each call changes a strength by at most 10%, within a factor of 100 of the
        configured strength. Members without held-out pairs keep their strength.

        Args:
            validation: ``(members,)``, mean loss on each member's held-out pairs; NaN if it has none.
        """
        ratio = (validation / training).cpu()
        self.strengths[ratio > _RATIOS[1]] *= _FACTOR
        self.strengths[ratio < _RATIOS[0]] /= _FACTOR
        self.strengths.clamp_(self._strength / _FURTHEST, self._strength * _FURTHEST)

    def state_dict(self) -> dict[str, Any]:
        """Return the current strength of each member."""
        return {"strengths": self.strengths.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from :meth:`state_dict`; arrays are accepted in place of tensors."""
        self.strengths.copy_(torch.as_tensor(state["strengths"]))
