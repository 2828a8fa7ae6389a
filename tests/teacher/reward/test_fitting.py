"""Minibatches and the loss, against the definition in double precision for one member and pair at a time."""

import dataclasses
from functools import partial
from typing import Any
from uuid import UUID

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from teacher.data.preferences import Preference, PreferenceDataset
from teacher.reward.features import Features
from teacher.reward.fitting import Fitter, Regularizer, batch_loss, crop
from teacher.reward.loss import preference_loss, preference_slope, smoothed
from teacher.reward.network import RewardEnsemble
from teacher.reward.pairs import Pairs
from teacher.settings.options import RewardConfig
from tests.teacher.conftest import make_segment, truthful

CONFIG = RewardConfig(batch_size=8)
LOSS = partial(preference_loss, noise=CONFIG.label_noise)
FEATURES = Features(spaces.Box(-np.inf, np.inf, (3,)), spaces.Box(-1, 1, (2,), np.float32), "state,action")


@pytest.fixture
def pairs() -> Pairs:
    return some_pairs()


def some_pairs(length: int = 6) -> Pairs:
    dataset = PreferenceDataset()
    for number in range(40):
        segments = make_segment(2 * number, length=length), make_segment(2 * number + 1, length=length)
        weight, question = (1 + number % 4) / 2, UUID(int=number - number % 5 // 4)  # two preferences of some
        dataset.upsert([Preference(UUID(int=number), *segments, (number % 3) / 2, weight, question)])
    return Pairs(dataset, FEATURES, CONFIG.num_members, torch.device("cpu"))


@pytest.fixture
def network() -> RewardEnsemble:
    return RewardEnsemble(CONFIG.num_members, FEATURES.size, 16, torch.Generator().manual_seed(1))


@pytest.fixture
def fitter(network: RewardEnsemble) -> Fitter:
    return Fitter(network, CONFIG, torch.Generator().manual_seed(2))


def test_loss_is_the_weighted_mean(fitter: Fitter, network: RewardEnsemble, pairs: Pairs) -> None:
    rows = torch.tensor([[0, 3, 5, 7], [4, 4, 1, 2], [39, 20, 21, 22]])
    expected = 0.0
    for member in range(3):
        total = 0.0
        for row in rows[member].tolist():
            returns = network(pairs.inputs(torch.tensor([row])))[member, 0].sum(dim=-1).tolist()
            chosen = 0.9 / (1 + np.exp(returns[1] - returns[0])) + 0.05
            value = float(pairs.values[row])
            loss = -value * np.log(chosen) - (1 - value) * np.log(1 - chosen)
            total += float(pairs.weights[member, row]) * loss
        expected += total / float(pairs.weights[member, rows[member]].sum())
    (batch,) = fitter.minibatches(pairs, rows)
    assert batch_loss(network, batch, LOSS).item() == pytest.approx(expected, rel=1e-5)


def test_a_question_is_held_out_with_all_its_preferences(pairs: Pairs) -> None:
    counts = pairs.weights / pairs.importance
    assert pairs.labels == 32
    assert (counts == counts.round()).all()
    for number in range(4, 40, 5):
        assert counts[:, number].equal(counts[:, number - 1])
    assert len({tuple(each.tolist()) for each in counts.T}) > 10


def test_penalties_are_scaled_by_the_number_of_questions(
    fitter: Fitter, pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    scaled_by = set()
    monkeypatch.setattr(Regularizer, "apply", lambda _, __, labels: scaled_by.add(labels))
    fitter.epoch(pairs)
    assert scaled_by == {32}


def test_held_out_pairs_have_no_gradient(fitter: Fitter, network: RewardEnsemble, pairs: Pairs) -> None:
    held_out = torch.stack([(weights == 0).nonzero()[:5, 0] for weights in pairs.weights])
    trained = torch.stack([(weights > 0).nonzero()[:5, 0] for weights in pairs.weights])
    (batch,) = fitter.minibatches(pairs, torch.cat([held_out[:1], trained[1:]]))
    batch_loss(network, batch, LOSS).backward()  # type: ignore[no-untyped-call]
    for parameter in list(network.parameters())[:-1]:  # the last bias cancels in every difference
        assert parameter.grad is not None
        assert not parameter.grad[0].any()
        assert parameter.grad[1].any()


def test_epoch_takes_each_pair_once_in_random_order(fitter: Fitter, pairs: Pairs) -> None:
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
        held_out = np.average(losses[member], weights=pairs.importance.numpy() * (weights[member] == 0))
        assert float(evaluation.validation[member]) == pytest.approx(held_out, rel=1e-5)
    assert evaluation.outputs.shape == (3, 40, 2, 6)


@pytest.mark.parametrize(
    "changes",
    [{"stride": 1}, {}, {"stride": 1, "shortest_crop": 0.5}, {"shortest_crop": 0.5, "discount": 0.9}],
)
@pytest.mark.parametrize("parts", [2, 5, 100])
def test_minibatches_accumulated_have_the_gradient_of_the_whole(
    network: RewardEnsemble, parts: int, changes: dict[str, Any]
) -> None:
    pairs = some_pairs(length=24)
    rows = torch.arange(33).reshape(3, 11)
    gradients = []
    whole = dataclasses.replace(CONFIG, **changes)
    for config in (whole, dataclasses.replace(whole, accumulate=parts)):
        batches = Fitter(network, config, torch.Generator()).minibatches(pairs, rows)
        assert len(batches) == min(config.accumulate, 11)
        for batch in batches:
            batch_loss(network, batch, LOSS).backward()  # type: ignore[no-untyped-call]
        gradients.append([parameter.grad.clone() for parameter in network.parameters()])  # type: ignore[union-attr]
    for expected, accumulated in zip(*gradients, strict=True):
        torch.testing.assert_close(accumulated, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("stride", [4, 100])
def test_strides_match_on_average(network: RewardEnsemble, stride: int) -> None:
    """Each of 24 steps is in exactly one strided part, and each part has four steps or more."""
    pairs = some_pairs(length=24)
    rows = torch.arange(33).reshape(3, 11)
    config = dataclasses.replace(CONFIG, stride=stride, discount=0.9)
    whole, strided = (
        Fitter(network, each, torch.Generator().manual_seed(3))
        for each in (dataclasses.replace(config, stride=1), config)
    )
    (everything,) = whole.minibatches(pairs, rows)
    by_first: dict[float, torch.Tensor] = {}
    while len(by_first) < min(stride, 6):
        (batch,) = strided.minibatches(pairs, rows)
        by_first[float(batch.step_weights[0])] = network.logits(batch.inputs, batch.step_weights)
    expected = network.logits(everything.inputs, everything.step_weights)
    torch.testing.assert_close(torch.stack([*by_first.values()]).mean(dim=0), expected, rtol=1e-4, atol=1e-5)


def test_a_network_that_drops_out_does_so_while_it_is_fitted_alone(pairs: Pairs) -> None:
    config = dataclasses.replace(CONFIG, dropout=0.5)
    network = RewardEnsemble(3, FEATURES.size, 16, torch.Generator().manual_seed(1), dropout=0.5)
    fitter = Fitter(network, config, torch.Generator().manual_seed(2))
    everything = pairs.inputs(torch.arange(len(pairs)))
    assert (network(everything) == network(everything)).all()
    fitter.epoch(pairs)
    assert (network(everything) == network(everything)).all()
    network.train()
    assert not (network(everything) == network(everything)).all()


def test_dropout_keeps_what_units_say_on_average() -> None:
    network = RewardEnsemble(1, 2, 1000, torch.Generator().manual_seed(1), dropout=0.3)
    for parameter in network.parameters():
        parameter.data.abs_()  # without kinks
    inputs = torch.ones(1, 2)
    expected = network.eval()._hidden(inputs[None]).mean()
    network.train()
    heard = torch.stack([network._hidden(inputs[None]) for _ in range(20)])
    assert float((heard == 0).float().mean()) == pytest.approx(0.3, abs=0.01)
    assert float(heard.mean().detach()) == pytest.approx(float(expected.detach()), rel=0.1)


def test_adaptive_strength_grows_with_overfitting(network: RewardEnsemble, pairs: Pairs) -> None:
    """Labels that mean nothing: training loss falls, held-out loss does not."""
    config = dataclasses.replace(CONFIG, adapt=True, strength=1e-3, regularization="l2", learning_rate=0.01)
    fitter = Fitter(network, config, torch.Generator().manual_seed(2))
    for _ in range(100):
        fitter.epoch(pairs)
    saved = fitter.state_dict()
    assert (saved["regularizer"]["strengths"] > 2e-3).all()
    restored = Fitter(network, config, torch.Generator())
    restored.load_state_dict(saved)
    assert (restored.state_dict()["regularizer"]["strengths"] == saved["regularizer"]["strengths"]).all()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"shortest_crop": 0.5},
        {"stride": 3},
        {"label_smoothing": 0.05},
        {"dropout": 0.2},
        {"regularization": "l1"},
    ],
)
def test_every_way_of_fitting_lowers_the_loss(network: RewardEnsemble, changes: dict[str, Any]) -> None:
    config = dataclasses.replace(CONFIG, **{"strength": 1e-4, "learning_rate": 0.01, **changes})
    if config.dropout:
        network = RewardEnsemble(3, FEATURES.size, 16, torch.Generator().manual_seed(1), config.dropout)
    pairs = Pairs(truthful(60), FEATURES, 3, torch.device("cpu"))
    fitter = Fitter(network, config, torch.Generator().manual_seed(2))
    before = fitter.evaluate(pairs)
    for _ in range(20):
        fitter.epoch(pairs)
    after = fitter.evaluate(pairs)
    assert (after.validation < 0.8 * before.validation).all()
    assert (after.training < 0.8 * before.training).all()


moderate = st.floats(-15, 15)
shares = st.floats(0, 1)
noises = st.floats(0, 0.9)


def loss_and_gradient(logit: float, value: float, noise: float) -> tuple[float, float]:
    logits = torch.tensor([logit], dtype=torch.float64, requires_grad=True)
    loss = preference_loss(logits, torch.tensor([value], dtype=torch.float64), noise)
    loss.sum().backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    return loss.item(), logits.grad.item()


def slope_by_hand(logit: float, value: float, noise: float) -> float:
    logits, values = (torch.tensor([number], dtype=torch.float64) for number in (logit, value))
    return preference_slope(logits, values, noise).item()


@given(moderate, shares, noises)
def test_it_is_the_mixture_of_bradley_terry_and_chance(logit: float, value: float, noise: float) -> None:
    sigmoid = 1 / (1 + np.exp(-logit))
    first = (1 - noise) * sigmoid + noise / 2
    second = (1 - noise) * (1 - sigmoid) + noise / 2
    slope = (1 - noise) * sigmoid * (1 - sigmoid)
    loss, gradient = loss_and_gradient(logit, value, noise)
    assert loss == pytest.approx(-(value * np.log(first) + (1 - value) * np.log(second)), abs=1e-9)
    assert gradient == pytest.approx(-value * slope / first + (1 - value) * slope / second, abs=1e-9)
    assert slope_by_hand(logit, value, noise) == pytest.approx(gradient, abs=1e-9)


@given(moderate, st.sampled_from([0.0, 1.0]), noises)
def test_it_agrees_with_torch_distributions(logit: float, value: float, noise: float) -> None:
    components = torch.distributions.Bernoulli(
        logits=torch.tensor([logit, 0.0], dtype=torch.float64), validate_args=True
    )
    weights = torch.distributions.Categorical(probs=torch.tensor([1 - noise, noise], dtype=torch.float64))
    mixture = torch.distributions.MixtureSameFamily(weights, components)
    expected = -mixture.log_prob(torch.tensor(value, dtype=torch.float64))  # type: ignore[no-untyped-call]
    assert loss_and_gradient(logit, value, noise)[0] == pytest.approx(float(expected), abs=1e-9)


@given(st.floats(-1e4, 1e4), shares, noises)
def test_loss_is_symmetric(logit: float, value: float, noise: float) -> None:
    loss, gradient = loss_and_gradient(logit, value, noise)
    swapped_loss, swapped_gradient = loss_and_gradient(-logit, 1 - value, noise)
    assert swapped_loss == pytest.approx(loss)
    assert swapped_gradient == pytest.approx(-gradient)


@pytest.mark.parametrize("logit", [-1e4, -200.0, -40.0])
def test_without_noise_a_confidently_wrong_prediction_keeps_its_full_gradient(logit: float) -> None:
    loss, gradient = loss_and_gradient(logit, 1.0, 0.0)
    assert loss == pytest.approx(-logit)
    assert gradient == pytest.approx(-1.0)
    assert slope_by_hand(logit, 1.0, 0.0) == pytest.approx(-1.0)


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("noise", [0.0, 1e-300, 1e-46, 1e-37, 0.1])
@pytest.mark.parametrize("logit", [-1e30, -300.0, 0.0, 300.0, 1e30])
def test_extreme_predictions_stay_finite(logit: float, noise: float, value: float) -> None:
    logits = torch.tensor(logit, requires_grad=True)
    loss = preference_loss(logits, torch.tensor(value), noise)
    loss.backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert loss.isfinite()
    assert logits.grad.isfinite()
    torch.testing.assert_close(preference_slope(logits.detach(), torch.tensor(value), noise), logits.grad)


def test_with_noise_no_single_answer_costs_more_than_one_given_by_chance() -> None:
    assert loss_and_gradient(-1e4, 1.0, 0.1) == pytest.approx((-np.log(0.05), 0.0))


def test_equal_is_best_where_the_returns_are_equal() -> None:
    assert loss_and_gradient(0.0, 0.5, 0.1) == pytest.approx((np.log(2), 0.0))
    assert loss_and_gradient(3.0, 0.5, 0.1)[1] > 0
    assert loss_and_gradient(-3.0, 0.5, 0.1)[1] < 0


@pytest.mark.parametrize("smoothing", [0.1, 0.3])
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_smoothed_labels_are_best_at_a_finite_difference(value: float, smoothing: float) -> None:
    target = smoothed(torch.tensor(value, dtype=torch.float64), smoothing).item()
    best = np.log((1 - smoothing) / smoothing) * (1 if value else -1)
    assert loss_and_gradient(best, target, 0.0)[1] == pytest.approx(0, abs=1e-9)
    assert loss_and_gradient(2 * best, target, 0.0)[1] * best > 0
    assert loss_and_gradient(best / 2, target, 0.0)[1] * best < 0


def test_smoothing_leaves_equal_as_it_is_and_nothing_is_smoothed_by_nothing() -> None:
    assert smoothed(torch.tensor(0.5), 0.2).item() == pytest.approx(0.5)
    values = torch.tensor([0.0, 0.3, 1.0])
    assert (smoothed(values, 0.0) == values).all()


SHAPE = (3, 400)


def crops(step_weights: torch.Tensor, shortest: float) -> torch.Tensor:
    return crop(step_weights, SHAPE, shortest, torch.Generator().manual_seed(1))


def test_a_crop_is_one_stretch_of_one_length_in_both_segments() -> None:
    counted = crops(torch.ones(10), 0.5) > 0
    lengths = counted.sum(dim=-1)
    assert counted.shape == (*SHAPE, 2, 10)
    assert (lengths[..., 0] == lengths[..., 1]).all()
    begins = (counted & ~torch.roll(counted, 1, dims=-1)).sum(dim=-1) + counted.all(dim=-1).long()
    wraps = counted[..., 0] & counted[..., -1] & ~counted.all(dim=-1)
    assert (begins == 1).all()
    assert not wraps.any()


def test_all_lengths_and_places_that_are_allowed_come_up_and_no_others() -> None:
    counted = crops(torch.ones(10), 0.5) > 0
    lengths = counted.sum(dim=-1)
    assert set(lengths.flatten().tolist()) == {5, 6, 7, 8, 9, 10}
    starts = counted.float().argmax(dim=-1)
    assert set(starts[lengths == 5].tolist()) == {0, 1, 2, 3, 4, 5}
    assert (starts[..., 0] != starts[..., 1]).any()


def test_a_crop_is_discounted_from_its_own_beginning() -> None:
    weights = 0.5 ** torch.arange(6)
    for segment in crops(weights, 0.5).flatten(0, 2):
        counted = segment[segment > 0]
        assert (counted == weights[: len(counted)]).all()


def test_shares_of_one_step_or_less_give_crops_of_one_step() -> None:
    assert (crops(torch.ones(3), 0.01) > 0).sum(dim=-1).min() == 1
