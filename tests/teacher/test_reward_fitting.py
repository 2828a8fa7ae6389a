"""Minibatches and their loss, against the definition written out for one member and pair at a time."""

from collections.abc import Callable
from uuid import UUID

import numpy as np
import pytest
import torch
from gymnasium import spaces

from teacher.options import RewardConfig
from teacher.preferences import Preference, PreferenceDataset
from teacher.reward.features import Features
from teacher.reward.fitting import Fitter, Pairs
from teacher.reward.network import RewardEnsemble
from teacher.segments import Segment

MakeSegment = Callable[..., Segment]
CONFIG = RewardConfig(batch_size=8)
FEATURES = Features(
    spaces.Box(-np.inf, np.inf, (3,)), spaces.Box(-1, 1, (2,), np.float32), ("state", "action")
)


@pytest.fixture
def pairs(make_segment: MakeSegment) -> Pairs:
    dataset = PreferenceDataset()
    for number in range(40):
        segments = make_segment(2 * number), make_segment(2 * number + 1)
        dataset.upsert([Preference(UUID(int=number), *segments, (number % 3) / 2)])
    return Pairs(dataset, FEATURES, CONFIG.members, torch.device("cpu"))


@pytest.fixture
def network() -> RewardEnsemble:
    return RewardEnsemble(CONFIG.members, FEATURES.size, 16, torch.Generator().manual_seed(1))


@pytest.fixture
def fitter(network: RewardEnsemble) -> Fitter:
    return Fitter(network, CONFIG, torch.Generator().manual_seed(2))


def test_the_loss_is_each_members_weighted_mean(
    fitter: Fitter, network: RewardEnsemble, pairs: Pairs
) -> None:
    rows = torch.tensor([[0, 3, 5, 7], [4, 4, 1, 2], [39, 20, 21, 22]])
    expected = 0.0
    for member in range(3):
        total = 0.0
        for row in rows[member].tolist():
            returns = (
                network(network.standardise(pairs.features(torch.tensor(row))))[member].sum(dim=-1).tolist()
            )
            chosen = 0.9 / (1 + np.exp(returns[1] - returns[0])) + 0.05
            value = float(pairs.values[row])
            loss = -value * np.log(chosen) - (1 - value) * np.log(1 - chosen)
            total += float(pairs.weights[member, row]) * loss
        expected += total / float(pairs.weights[member, rows[member]].sum())
    assert fitter.loss(pairs, rows).item() == pytest.approx(expected, rel=1e-5)


def test_held_out_pairs_have_no_gradient(fitter: Fitter, network: RewardEnsemble, pairs: Pairs) -> None:
    held_out = torch.stack([(weights == 0).nonzero()[:5, 0] for weights in pairs.weights])
    trained = torch.stack([(weights > 0).nonzero()[:5, 0] for weights in pairs.weights])
    fitter.loss(pairs, torch.cat([held_out[:1], trained[1:]])).backward()  # type: ignore[no-untyped-call]
    for parameter in list(network.parameters())[:-1]:  # the last bias cancels in every difference
        assert parameter.grad is not None
        assert not parameter.grad[0].any()
        assert parameter.grad[1].any()


def test_an_epoch_takes_each_training_pair_once_and_in_another_order_each_time(
    fitter: Fitter, pairs: Pairs
) -> None:
    epochs = [torch.cat(list(fitter._batches(pairs.weights)), dim=1) for _ in range(2)]
    assert not (epochs[0] == epochs[1]).all()
    for rows in epochs:
        for member, weights in enumerate(pairs.weights):
            training = (weights > 0).nonzero()[:, 0].tolist()
            taken = rows[member].tolist()
            assert sorted(taken[: len(training)]) == training
            assert not weights[taken[len(training) :]].any()


def test_batches_are_as_even_as_can_be(fitter: Fitter, pairs: Pairs) -> None:
    sizes = [rows.shape[1] for rows in fitter._batches(pairs.weights)]
    assert max(sizes) <= CONFIG.batch_size
    assert max(sizes) - min(sizes) <= 1


def test_an_evaluation_tells_training_from_held_out(fitter: Fitter, pairs: Pairs) -> None:
    evaluation = fitter.evaluate(pairs)
    weights, losses = pairs.weights.numpy(), evaluation.losses.numpy()
    for member in range(3):
        expected = np.average(losses[member], weights=weights[member])
        assert float(evaluation.training[member]) == pytest.approx(expected, rel=1e-5)
        held_out = losses[member][weights[member] == 0]
        assert float(evaluation.validation[member]) == pytest.approx(held_out.mean(), rel=1e-5)
    assert evaluation.outputs.shape == (3, 40, 2, 6)
