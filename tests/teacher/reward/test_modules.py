"""Networks of a user's own in the predictor."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from torch import Tensor, nn

from agents.numerics.correlation import rank_correlation
from teacher.datasets.predictor_files import load_predictor, save_predictor
from teacher.errors import ConfigError, DataError
from teacher.reward.modules import OwnEnsemble
from teacher.reward.predictor import RewardPredictor
from teacher.settings.options import RewardConfig
from tests.teacher.conftest import make_segment, truthful

SPACES = Box(-np.inf, np.inf, (3,)), Box(-1, 1, (2,), np.float32)


def linear(shape: tuple[int, ...]) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), 8), nn.BatchNorm1d(8), nn.Linear(8, 1))


def test_own_network_learns_and_round_trips(tmp_path: Path) -> None:
    config = RewardConfig(members=2, stride=1)
    predictor = RewardPredictor(*SPACES, config, seed=1, network=linear)
    predictor.fit(truthful(60), max_epochs=40)
    others = [make_segment(number) for number in range(200, 240)]
    returns = predictor.segment_returns(others)
    assert rank_correlation(returns, [segment.true_return for segment in others]) > 0.8
    save_predictor(tmp_path / "own.npz", predictor, *SPACES)
    again = load_predictor(tmp_path / "own.npz", *SPACES, network=linear)
    assert np.array_equal(again.segment_returns(others), returns)
    with pytest.raises(DataError, match="contains a predictor with custom networks; pass the function"):
        load_predictor(tmp_path / "own.npz", *SPACES)


def test_it_is_given_images_as_numbers_from_0_to_1() -> None:
    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, images: Tensor) -> Tensor:
            return self.scale * images.mean(dim=(1, 2, 3))

    ensemble = OwnEnsemble(lambda _: Mean(), (3, 4, 5), 2, torch.Generator())
    images = torch.full((7, 2, 3, 4, 5), 51, dtype=torch.uint8)
    assert torch.allclose(ensemble(ensemble.standardize(images)), torch.full((2, 7, 2), 0.2))


def test_members_begin_differently_and_alike_for_one_seed() -> None:
    ensembles = [OwnEnsemble(linear, (5,), 2, torch.Generator().manual_seed(3)) for _ in range(2)]
    steps = torch.randn(4, 5, generator=torch.Generator().manual_seed(1))
    first, second = (ensemble(steps) for ensemble in ensembles)
    assert torch.equal(first, second)
    assert not torch.allclose(first[0], first[1])


class Named(nn.Module):
    """Calls its numbers as an ensemble calls others of its own, and two of them nearly alike."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("input_std", torch.full((features,), 2.0))
        self.register_buffer("weights", torch.ones(features))
        self.values = nn.Parameter(torch.zeros(1))
        self.out = nn.Linear(features, 1)
        self.out_bias = nn.Parameter(torch.randn(1))

    def forward(self, steps: Tensor) -> Tensor:
        scaled = steps / self.get_buffer("input_std") * self.get_buffer("weights")
        rewards: Tensor = self.out(scaled) + self.values + self.out_bias
        return rewards


def test_numbers_may_have_any_name(tmp_path: Path) -> None:
    made = list[Named]()

    def make(shape: tuple[int, ...]) -> nn.Module:
        made.append(Named(shape[0]))
        return made[-1]

    ensemble = OwnEnsemble(make, (3,), 4, torch.Generator())
    steps = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
    # The first gave its numbers away.
    for network, rewards in zip(made[1:], ensemble(steps)[1:], strict=True):
        torch.testing.assert_close(rewards, network(steps).squeeze(-1))
    predictor = RewardPredictor(*SPACES, RewardConfig(members=2), seed=1, network=make)
    predictor.fit(truthful(20), max_epochs=2)
    save_predictor(tmp_path / "named.npz", predictor, *SPACES)
    again = load_predictor(tmp_path / "named.npz", *SPACES, network=make)
    segments = [make_segment(number) for number in range(200, 210)]
    assert np.array_equal(again.segment_returns(segments), predictor.segment_returns(segments))


def test_a_state_is_restored_without_making_networks_again() -> None:
    made = list[nn.Module]()

    def make(shape: tuple[int, ...]) -> nn.Module:
        made.append(nn.Linear(shape[0], 1))
        return made[-1]

    trained, copy = (RewardPredictor(*SPACES, RewardConfig(members=2), seed, network=make) for seed in (1, 2))
    trained.fit(truthful(20), max_epochs=2)
    count = len(made)
    copy.load_state_dict(trained.state_dict())
    assert len(made) == count
    segments = [make_segment(number) for number in range(200, 210)]
    expected = trained.segment_returns(segments)
    np.testing.assert_array_equal(copy.segment_returns(segments), expected)
    other = RewardPredictor(*SPACES, RewardConfig(members=2), 3, network=make).state_dict()
    with pytest.raises(DataError, match="does not match these --reward settings"):
        copy.load_state_dict(other | {"generator": 3})
    np.testing.assert_array_equal(copy.segment_returns(segments), expected)


def test_frozen_parameters_stay() -> None:
    def make(shape: tuple[int, ...]) -> nn.Module:
        return nn.Sequential(nn.Linear(shape[0], 8).requires_grad_(False), nn.Tanh(), nn.Linear(8, 1))

    predictor = RewardPredictor(*SPACES, RewardConfig(members=2), seed=1, network=make)
    before = predictor.state_dict()["network"]
    predictor.fit(truthful(20), max_epochs=2)
    after = predictor.state_dict()["network"]
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"weights.2_weight", "weights.2_bias", "input_mean", "input_std", "adapted"}


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda shape: nn.Linear(shape[0], 2), "a reward of shape"),
        (lambda shape: nn.Linear(7, 1), "RuntimeError: "),
        (lambda shape: None, "AttributeError: "),
        (lambda shape: nn.Linear(shape[0], 1).requires_grad_(False), "a module without trainable parameters"),
    ],
)
def test_modules_need_rewards(make: Callable[[tuple[int, ...]], nn.Module], found: str) -> None:
    with pytest.raises(ConfigError, match=f"custom reward network: expected .* got {found}"):
        RewardPredictor(*SPACES, RewardConfig(), seed=1, network=make)
