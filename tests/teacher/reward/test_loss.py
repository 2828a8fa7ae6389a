"""The likelihood of preferences, against its definition in double precision, and temporal crops."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from teacher.reward.fitting import crop
from teacher.reward.loss import preference_loss, preference_slope, smoothed

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
