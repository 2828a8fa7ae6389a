"""Adam and regularization on flat parameters, against torch's own optimizers."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from agents.numerics.adam import FlatAdam, FlatParameters
from teacher.reward.regularization import Regularizer
from teacher.settings.options import RewardConfig

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
