"""The ensemble as one network, against its members as networks of their own and torch's optimizers."""

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from agents.numerics.adam import FlatAdam, FlatParameters
from teacher.reward.fitting import Regularizer
from teacher.reward.network import RewardEnsemble
from teacher.settings.options import RewardConfig
from tests.models import PREDICTORS, PredictorCase


@pytest.fixture
def ensemble() -> RewardEnsemble:
    return RewardEnsemble(members=3, inputs=5, hidden=16, generator=torch.Generator().manual_seed(1)).double()


def features(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def member(ensemble: RewardEnsemble, index: int) -> nn.Sequential:
    """Build the network from torch's own layers."""
    layers: list[nn.Module] = []
    for weight, bias in zip(ensemble.weights, ensemble.biases, strict=True):
        linear = nn.Linear(weight.shape[1], weight.shape[2], dtype=torch.float64)
        linear.weight.data = weight.data[index].T.clone()
        linear.bias.data = bias.data[index, 0].clone()
        layers += [linear, nn.LeakyReLU()]
    return nn.Sequential(*layers[:-1])


def test_each_member_is_a_network_of_its_own(ensemble: RewardEnsemble) -> None:
    inputs = features(4, 7)
    outputs = ensemble(inputs)
    assert outputs.shape == (3, 4, 7)
    for index in range(3):
        torch.testing.assert_close(outputs[index], member(ensemble, index)(inputs).squeeze(-1))


def test_many_steps_are_rewarded_in_parts(ensemble: RewardEnsemble, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = features(5, 7)
    whole = ensemble(inputs)
    monkeypatch.setattr("teacher.reward.network._ROWS_AT_ONCE", 8)
    torch.testing.assert_close(ensemble(inputs), whole)
    assert ensemble(inputs[:0]).shape == (3, 0, 7)


def test_gradients_of_one_member_leave_the_others_alone(ensemble: RewardEnsemble) -> None:
    inputs = features(6)
    alone = member(ensemble, 1)
    ensemble(inputs)[1].sum().backward()
    alone(inputs).sum().backward()
    for weight, expected in zip(ensemble.weights, list(alone.parameters())[::2], strict=True):
        assert weight.grad is not None
        torch.testing.assert_close(weight.grad[1].T, expected.grad)
        assert not weight.grad[0].any()
        assert not weight.grad[2].any()


def test_members_begin_different(ensemble: RewardEnsemble) -> None:
    outputs = ensemble(features(50))
    assert torch.corrcoef(outputs).abs().triu(diagonal=1).max() < 0.9


def test_logits_are_weighted_return_differences_per_member(ensemble: RewardEnsemble) -> None:
    inputs = features(3, 4, 2, 6)
    weights = torch.rand(6, dtype=torch.float64)
    returns = torch.stack([ensemble(inputs[index])[index] for index in range(3)]) @ weights
    torch.testing.assert_close(ensemble.logits(inputs, weights), returns[..., 0] - returns[..., 1])


@pytest.mark.parametrize(("name", "change"), [("ensemble", (-1.0, 0.5)), ("even", (-0.2, 1.5))])
def test_new_input_statistics_do_not_change_the_function(
    request: pytest.FixtureRequest, name: str, change: tuple[float, float]
) -> None:
    ensemble, inputs = request.getfixturevalue(name), features(20)
    ensemble.weights[0].data[:, 10:] = 0  # of the logarithms, where they are read
    before = ensemble(ensemble.standardize(inputs))
    for mean, std in [(0.3, 2.0), change]:
        ensemble.restandardize(inputs.mean(0) + mean, inputs.std(0) * std)
        torch.testing.assert_close(ensemble(ensemble.standardize(inputs)), before)


def test_an_untrained_network_sees_as_much_of_what_varies_far_from_0(ensemble: RewardEnsemble) -> None:
    near, far = copy.deepcopy(ensemble), copy.deepcopy(ensemble)
    steps = features(50)
    offset = torch.tensor([1e6, 0.0, -1e6, 0.0, 0.0], dtype=torch.float64)
    near.adapt([steps + offset.clamp(-100, 100)])
    far.adapt([steps + offset])
    expected = near(near.standardize(steps + offset.clamp(-100, 100)))
    torch.testing.assert_close(far(far.standardize(steps + offset)), expected, rtol=1e-3, atol=1e-3)


def test_statistics_of_parts_are_those_of_the_whole(ensemble: RewardEnsemble) -> None:
    """Also where an input is far from 0, never varies, or a part is one step."""
    whole = features(300) * torch.tensor([1.0, 1e-3, 40.0, 0.0, 2.0]) + torch.tensor([0, 0, 1e3, 7.0, -3.0])
    ensemble.adapt(part.reshape(-1, 1, 5) for part in torch.split(whole, [1, 200, 99]))
    expected = whole.numpy().std(axis=0)
    torch.testing.assert_close(ensemble.input_mean, whole.mean(dim=0), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(
        ensemble.input_std, torch.from_numpy(expected).where(whole[0] != 7, 1.0), rtol=1e-6, atol=1e-6
    )


@pytest.fixture
def even() -> RewardEnsemble:
    return RewardEnsemble(3, 5, 16, torch.Generator().manual_seed(1), even=True).double()


def test_squares_and_logarithms_are_read_beside_the_features(even: RewardEnsemble) -> None:
    even.restandardize(torch.full((5,), 1.0), torch.full((5,), 2.0))
    read = even.standardize(torch.tensor([1.0, 3.0, -3.0, 0.0, 1e30], dtype=torch.float64))
    standardized = [0.0, 1.0, -2.0, -0.5, 10.0]
    squares = [0.0, 1.0, 4.0, 0.25, 10.0]
    logarithms = [math.log(size**2 + 0.01) for size in (0.5, 1.5, 1.5, 0.0)] + [10.0]
    expected = torch.tensor([*standardized, *squares, *logarithms], dtype=torch.float64)
    torch.testing.assert_close(read, expected)
    assert len(read) == even.size


def test_new_statistics_barely_change_logarithmic_features(even: RewardEnsemble) -> None:
    inputs = features(20).sign() * features(20, seed=1).abs().clamp(1, 2)
    even.weights[0].data[:, :10] = 0
    before = even(even.standardize(inputs))
    for mean, std in [(0.5, 1.4), (0.0, 0.8)]:
        even.restandardize(torch.full((5,), mean), torch.full((5,), std))
        torch.testing.assert_close(even(even.standardize(inputs)), before, rtol=0, atol=5e-3)


def test_inputs_are_limited_to_ten_standard_deviations(ensemble: RewardEnsemble) -> None:
    ensemble.restandardize(torch.full((5,), 2.0), torch.full((5,), 0.1))
    at_limit, beyond = torch.full((5,), 3.0), torch.full((5,), 1e6)
    torch.testing.assert_close(ensemble.standardize(beyond), ensemble.standardize(at_limit))
    assert not torch.allclose(ensemble.standardize(at_limit), ensemble.standardize(torch.full((5,), 2.9)))


@pytest.mark.parametrize("case", PREDICTORS.values(), ids=PREDICTORS)
def test_it_predicts_the_same_rewards(case: PredictorCase) -> None:
    predictor, steps = case.predictor(), case.steps(20)
    module = predictor.portable()
    assert set(module.inputs) == predictor.inputs
    with torch.no_grad():
        found = module(*(torch.from_numpy(steps[name]) for name in module.inputs))
    expected = predictor.rewards(*steps.values())
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)
    assert expected.std() > 1e-4  # not the same reward everywhere


LEARNING_RATE = 0.01


class Cubes(nn.Module):
    """Three members' parameters."""

    def __init__(self) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(1)
        self.matrix = nn.Parameter(torch.randn(3, 4, 2, generator=random, dtype=torch.float64))
        self.bias = nn.Parameter(torch.randn(3, 1, 2, generator=random, dtype=torch.float64))

    def forward(self) -> Tensor:
        return (self.matrix**3).sum() + self.bias.cos().sum() * 10


def ours(steps: int, labels: int = 100, **settings: Any) -> Cubes:
    module = Cubes()
    parameters = FlatParameters(module.parameters())
    config = RewardConfig(**{"strength": 0.0, **settings})
    optimizer, regularizer = (
        FlatAdam(parameters),
        Regularizer(config, config.strength or 0.0, parameters),
    )
    for _ in range(steps):
        parameters.gradient.zero_()
        module().backward()
        regularizer.apply(LEARNING_RATE, labels)
        optimizer.step(LEARNING_RATE)
    return module


def torchs(steps: int, *, decay: float = 0.0, l1: float = 0.0, l2: float = 0.0) -> Cubes:
    module = Cubes()
    optimizer = torch.optim.AdamW(module.parameters(), lr=LEARNING_RATE, weight_decay=decay)
    for _ in range(steps):
        optimizer.zero_grad()
        penalty = sum(l1 * p.abs().sum() + l2 * p.square().sum() for p in module.parameters())
        (module() + penalty).backward()
        optimizer.step()
    return module


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {}),
        ({"strength": 2.0}, {"decay": 2.0}),
        ({"regularization": "l1", "strength": 0.7}, {"l1": 0.7}),
        ({"regularization": "l2", "strength": 0.7}, {"l2": 0.7}),
        ({"strength": 2.0, "adapt": True}, {"decay": 2.0}),
        ({"regularization": "l2", "strength": 0.7, "adapt": True}, {"l2": 0.7}),
    ],
)
def test_parameters_go_where_torch_takes_them(settings: dict[str, Any], expected: dict[str, float]) -> None:
    for found, wanted in zip(
        ours(30, **settings).parameters(), torchs(30, **expected).parameters(), strict=True
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("regularization", ["weight_decay", "l1", "l2"])
def test_strength_falls_with_the_root_of_the_number_of_labels(regularization: str) -> None:
    for labels, strength in ((400, 1.0), (100, 2.0), (25, 4.0)):
        found = ours(5, labels, regularization=regularization, strength=2.0)
        wanted = ours(5, regularization=regularization, strength=strength)
        for each, other in zip(found.parameters(), wanted.parameters(), strict=True):
            torch.testing.assert_close(each, other, rtol=1e-12, atol=0)


def test_no_update_takes_more_than_a_tenth_of_a_parameter() -> None:
    module, before = Cubes(), Cubes()
    Regularizer(RewardConfig(), 2.0, FlatParameters(module.parameters())).apply(LEARNING_RATE, labels=1)
    for each, other in zip(module.parameters(), before.parameters(), strict=True):
        torch.testing.assert_close(each, 0.9 * other, rtol=1e-12, atol=0)


def test_a_saved_optimizer_goes_on_exactly() -> None:
    module = ours(0)
    parameters = FlatParameters(module.parameters())
    optimizer = FlatAdam(parameters)
    for step in range(6):
        if step == 3:
            state = optimizer.torch_state()
            optimizer = FlatAdam(parameters)
            optimizer.load_torch_state(state.values())
        parameters.gradient.zero_()
        module().backward()
        optimizer.step(LEARNING_RATE)
    for found, wanted in zip(module.parameters(), torchs(6).parameters(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


def test_torch_optimizer_states_load() -> None:
    theirs, module = Cubes(), Cubes()
    optimizer = torch.optim.AdamW(theirs.parameters(), weight_decay=0.0, lr=LEARNING_RATE)
    (theirs.matrix**3).sum().backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    restored = FlatAdam(FlatParameters(module.parameters()))
    restored.load_torch_state(optimizer.state_dict()["state"].values())
    matrix, bias = restored.torch_state().values()
    saved = optimizer.state_dict()["state"][0]
    assert float(matrix["step"]) == float(saved["step"]) == 1.0
    np.testing.assert_array_equal(matrix["exp_avg"], saved["exp_avg"])
    np.testing.assert_array_equal(matrix["exp_avg_sq"], saved["exp_avg_sq"])
    assert not bias["exp_avg"].any()


def test_the_strength_follows_each_members_ratio_of_losses_and_not_too_far() -> None:
    regularizer = Regularizer(RewardConfig(adapt=True), 2.0, FlatParameters(Cubes().parameters()))
    training = torch.tensor([1.0, 1.0, 1.0])
    regularizer.adapt(training, torch.tensor([1.6, 1.3, 1.0]))
    assert regularizer.strengths.tolist() == pytest.approx([2.2, 2.0, 2.0 / 1.1])
    regularizer.adapt(training, torch.tensor([torch.nan, 1.3, 1.0]))
    assert regularizer.strengths.tolist() == pytest.approx([2.2, 2.0, 2.0 / 1.21])
    for _ in range(200):
        regularizer.adapt(training, torch.tensor([9.0, 9.0, 0.1]))
    assert regularizer.strengths.tolist() == pytest.approx([200.0, 200.0, 0.02])


def test_a_strength_of_a_member_is_that_of_all_its_parameters() -> None:
    module, before = Cubes(), Cubes()
    regularizer = Regularizer(RewardConfig(adapt=True), 1.0, FlatParameters(module.parameters()))
    regularizer.strengths.copy_(torch.tensor([1.0, 2.0, 3.0]))
    regularizer.apply(LEARNING_RATE, labels=100)
    for found, old in zip(module.parameters(), before.parameters(), strict=True):
        for member in range(3):
            expected = old[member] * (1 - LEARNING_RATE * (member + 1))
            torch.testing.assert_close(found[member], expected, rtol=1e-12, atol=0)
