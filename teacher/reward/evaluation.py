"""Evaluation of a reward predictor on labels that it was not fitted to."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from agents.numerics.correlation import rank_correlation as rank_correlation  # noqa: PLC0414 (a public name)
from teacher.data.preferences import PreferenceDataset
from teacher.errors import DataError
from teacher.reward.fitting import Result
from teacher.reward.predictor import RewardPredictor
from teacher.reward.report import chance_of_first, is_right

_MARGIN_GROUPS = 4
_CERTAINTY_BOUNDS = np.linspace(0.5, 1.0, 6)


@dataclass(frozen=True)
class MarginGroup:
    """Predictor accuracy in one margin bin: pairs with similar absolute differences in true return."""

    low: float
    high: float
    pairs: int
    accuracy: float


@dataclass(frozen=True)
class CertaintyGroup:
    """One confidence bin of a reliability diagram: pairs predicted with similar confidence.

    The confidence is the larger of the two predicted preference probabilities, so it is at least 0.5.

    Attributes:
        predicted: mean confidence.
        answered: fraction of labels that agree with the prediction; ``equal`` counts as one half.
    """

    low: float
    high: float
    pairs: int
    predicted: float
    answered: float


@dataclass(frozen=True, eq=False, kw_only=True)
class Evaluation(Result):
    """Metrics of a predictor on a labeled dataset; NaN where undefined.

    The prediction for a pair is the mean of the members' probabilities.

    Attributes:
        loss: mean cross-entropy in nats; predicting 0.5 for every pair gives ln 2 = 0.69.
        accuracy: fraction of labels predicted correctly, as defined in :attr:`FitReport.accuracy`.
        rank_correlation: Spearman's rank correlation between predicted and true return differences.
        calibration_error: expected calibration error (ECE), the mean of ``|predicted - answered|`` over the
            bins in ``certainties``, each weighted by its number of pairs.
        certainties: one result per confidence bin, at most five.
        margins: one result per quantile bin of the absolute difference in true return, at most four, smallest
            first; empty if the difference is 0 for every pair.
    """

    pairs: int
    loss: float
    accuracy: float
    rank_correlation: float
    calibration_error: float
    certainties: Sequence[CertaintyGroup]
    margins: Sequence[MarginGroup]

    def to_dict(self) -> dict[str, Any]:
        """Return the metrics as a nested, JSON-serializable dict."""
        return dataclasses.asdict(self)


def evaluate(predictor: RewardPredictor, dataset: PreferenceDataset) -> Evaluation:
    """Compare the predictor's predictions with a dataset's labels; return the metrics.

    Use labels that the predictor was not fitted to, such as labels from a different run or labeler.

    Raises:
        DataError: the dataset is empty, or comes from a different environment than the predictor.
    """
    if len(dataset) == 0:
        raise DataError("can't evaluate the predictor on a dataset without labels; choose one with labels")
    predictor.require_environment(dataset)
    logits = predictor.preference_logits(dataset)
    chances = chance_of_first(torch.from_numpy(logits), predictor.config.label_noise).mean(dim=0)
    values = torch.from_numpy(np.asarray(dataset.values, np.float64))
    chance, value = chances.numpy(), values.numpy()
    right = is_right(chances, values).numpy()
    true_differences = np.asarray(dataset.true_returns[:, 0] - dataset.true_returns[:, 1], np.float64)
    certainties = _by_certainty(np.maximum(chance, 1 - chance), np.where(chance > 0.5, value, 1 - value))
    # If label and prediction are both certain, xlogy returns 0, but 0 * log(0) would be NaN.
    losses = -(torch.xlogy(values, chances) + torch.special.xlog1py(1 - values, -chances))
    return Evaluation(
        pairs=len(dataset),
        loss=float(losses.mean()),
        accuracy=float(right.mean()),
        rank_correlation=rank_correlation(logits.mean(axis=0), true_differences),
        calibration_error=sum(group.pairs * abs(group.predicted - group.answered) for group in certainties)
        / len(dataset),
        certainties=certainties,
        margins=_by_margin(np.abs(true_differences), right),
    )


def _by_certainty(predicted: NDArray[np.float64], answered: NDArray[np.float64]) -> Sequence[CertaintyGroup]:
    above = np.searchsorted(_CERTAINTY_BOUNDS, predicted, side="right")
    groups = np.clip(above, 1, len(_CERTAINTY_BOUNDS) - 1)
    return [
        CertaintyGroup(
            float(_CERTAINTY_BOUNDS[group - 1]),
            float(_CERTAINTY_BOUNDS[group]),
            int((groups == group).sum()),
            float(predicted[groups == group].mean()),
            float(answered[groups == group].mean()),
        )
        for group in np.unique(groups)
    ]


def _by_margin(margins: NDArray[np.float64], right: NDArray[np.bool_]) -> Sequence[MarginGroup]:
    if not margins.any():
        return []
    order = np.argsort(margins, kind="stable")
    return [
        MarginGroup(
            float(margins[rows].min()), float(margins[rows].max()), len(rows), float(right[rows].mean())
        )
        for rows in np.array_split(order, min(_MARGIN_GROUPS, len(margins)))
    ]
