"""Evaluation of a reward predictor on held-out labels."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from teacher.data.preferences import PreferenceDataset
from teacher.errors import DataError
from teacher.reward.correlation import rank_correlation
from teacher.reward.predictor import RewardPredictor
from teacher.reward.report import chance_of_first, is_right

_MARGINS = 4
_CERTAINTIES = np.linspace(0.5, 1.0, 6)


@dataclass(frozen=True)
class MarginGroup:
    """Pairs whose true returns differ by ``low`` to ``high``, and the predictor's accuracy on them."""

    low: float
    high: float
    pairs: int
    accuracy: float


@dataclass(frozen=True)
class CertaintyGroup:
    """Pairs whose predicted side has a probability between ``low`` and ``high``.

    Attributes:
        predicted: mean predicted probability of the predicted side.
        answered: share of labels for that side; ``equal`` counts one half.
    """

    low: float
    high: float
    pairs: int
    predicted: float
    answered: float


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Quality of a predictor on a dataset; NaN where there is nothing to measure.

    Attributes:
        pairs: number of pairs.
        loss: of the members' mean probability, in nats per label; a coin flip gives ln 2 = 0.69.
        accuracy: share of labels that the mean probability predicts (as in :attr:`FitReport.accuracy`).
        rank_correlation: Spearman's, between predicted and true differences of returns.
        calibration_error: mean distance between predicted and labeled shares over the groups, weighted by
            size.
        certainties: groups by predicted probability; a calibrated predictor is right as often as it predicts.
        margins: four groups of equal size by the true difference of returns; empty where all are equal.
    """

    pairs: int
    loss: float
    accuracy: float
    rank_correlation: float
    calibration_error: float
    certainties: Sequence[CertaintyGroup]
    margins: Sequence[MarginGroup]

    def to_dict(self) -> dict[str, Any]:
        """Return the results as JSON values."""
        return dataclasses.asdict(self)


def evaluate(predictor: RewardPredictor, dataset: PreferenceDataset) -> Evaluation:
    """Compare the predictor's predictions with a dataset's labels.

    Use labels that the predictor was not fitted to, such as those of another run or labeler.

    Raises:
        DataError: the dataset is empty or from another environment.
    """
    if len(dataset) == 0:
        raise DataError("expected labels to evaluate on, got none")
    predictor.require_environment(dataset)
    logits = predictor.preference_logits(dataset)
    chances = chance_of_first(torch.from_numpy(logits), predictor.config.label_noise).mean(dim=0)
    values = torch.from_numpy(np.asarray(dataset.values, np.float64))
    chance, value = chances.numpy(), values.numpy()
    right = is_right(chances, values).numpy()
    true_differences = np.asarray(dataset.true_returns[:, 0] - dataset.true_returns[:, 1], np.float64)
    certainties = _by_certainty(np.maximum(chance, 1 - chance), np.where(chance > 0.5, value, 1 - value))
    # xlogy gives 0 where label and prediction are both certain; 0 * log(0) would be NaN.
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
    groups = np.clip(np.searchsorted(_CERTAINTIES, predicted, side="right"), 1, len(_CERTAINTIES) - 1)
    return [
        CertaintyGroup(
            float(_CERTAINTIES[group - 1]),
            float(_CERTAINTIES[group]),
            int((groups == group).sum()),
            float(predicted[groups == group].mean()),
            float(answered[groups == group].mean()),
        )
        for group in np.unique(groups)
    ]


def _by_margin(margins: NDArray[np.float64], right: NDArray[np.bool_]) -> Sequence[MarginGroup]:
    """Return groups from the smallest margins to the largest; empty if the true returns are unknown."""
    if not margins.any():
        return []
    order = np.argsort(margins, kind="stable")
    return [
        MarginGroup(
            float(margins[rows].min()), float(margins[rows].max()), len(rows), float(right[rows].mean())
        )
        for rows in np.array_split(order, min(_MARGINS, len(margins)))
    ]
