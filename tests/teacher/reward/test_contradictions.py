"""The share of labels that contradict predictions on held-out labels."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

from teacher.reward.contradictions import find_contradictions


def labels_with(
    mistakes: float, count: int, spread: float, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Logits of a predictor, and labels of which a share is wrong."""
    random = np.random.default_rng(seed)
    logits = spread * random.normal(size=count)
    labels = random.random(count) < expit(logits)
    return logits, (labels ^ (random.random(count) < mistakes)).astype(np.float64)


@pytest.mark.parametrize("mistakes", [0.0, 0.1, 0.2, 0.3, 0.4])
def test_the_estimate_is_the_share_of_mistakes(mistakes: float) -> None:
    logits, labels = labels_with(mistakes, 20_000, spread=10)
    found = find_contradictions(torch.from_numpy(logits), torch.from_numpy(labels))
    assert found is not None
    assert found.share == pytest.approx(mistakes, abs=0.015)
    assert found.at_least <= found.share <= found.at_least + 0.03


@pytest.mark.parametrize("seed", range(3))
def test_the_estimate_maximizes_the_likelihood(seed: int) -> None:
    logits, labels = labels_with(0.25, 500, spread=6, seed=seed)

    def loss(parameters: NDArray[np.float64]) -> float:
        scale, wrong = np.exp(parameters[0]), 0.5 * expit(parameters[1])
        chance = wrong + (1 - 2 * wrong) * expit(scale * logits * (2 * labels - 1))
        return float(-np.log(chance).sum())

    best = minimize(loss, [0.0, 0.0], method="Nelder-Mead")
    found = find_contradictions(torch.from_numpy(logits), torch.from_numpy(labels))
    assert found is not None
    assert found.share == pytest.approx(0.5 * expit(best.x[1]), abs=0.02)


def test_fewer_than_at_least_are_rare() -> None:
    below = 0
    for seed in range(200):
        logits, labels = labels_with(0.25, 300, spread=6, seed=seed)
        found = find_contradictions(torch.from_numpy(logits), torch.from_numpy(labels))
        assert found is not None
        below += found.at_least > 0.25
    assert 2 <= below <= 20


def test_close_calls_contradict_nothing() -> None:
    logits, labels = labels_with(0.25, 300, spread=0.3)
    found = find_contradictions(torch.from_numpy(logits), torch.from_numpy(labels))
    assert found is not None
    assert found.at_least == 0


def test_ties_are_no_mistakes() -> None:
    logits, labels = labels_with(0.2, 400, spread=8)
    expected = find_contradictions(torch.from_numpy(logits), torch.from_numpy(labels))
    with_ties = [np.concatenate([logits, np.full(100, 9.0)]), np.concatenate([labels, np.full(100, 0.5)])]
    assert find_contradictions(*map(torch.from_numpy, with_ties)) == expected
    assert find_contradictions(torch.zeros(1000), torch.full((1000,), 0.5)) is None


def test_few_labels_give_no_estimate() -> None:
    logits, labels = (torch.from_numpy(values) for values in labels_with(0.2, 50, spread=8))
    assert find_contradictions(logits[:49], labels[:49]) is None
    assert find_contradictions(logits, labels) is not None


def test_extreme_returns_give_finite_estimates() -> None:
    logits = torch.tensor([1e30, -1e30] * 50)
    found = find_contradictions(logits, torch.tensor([1.0, 1.0] * 50))
    assert found is not None
    assert found.share == pytest.approx(0.49)
