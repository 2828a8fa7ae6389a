"""Networks of a user's own in the predictor."""

from collections.abc import Callable
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from torch import Tensor, nn

from teacher.errors import ConfigError, DataError
from teacher.metrics import rank_correlation
from teacher.options import RewardConfig
from teacher.predictor_files import load_predictor, save_predictor
from teacher.preferences import Preference, PreferenceDataset
from teacher.reward.modules import OwnEnsemble
from teacher.reward.predictor import RewardPredictor
from teacher.segments import Segment

MakeSegment = Callable[..., Segment]
SPACES = Box(-np.inf, np.inf, (3,)), Box(-1, 1, (2,), np.float32)


def linear(shape: tuple[int, ...]) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), 8), nn.BatchNorm1d(8), nn.Linear(8, 1))


def dataset(make_segment: MakeSegment, count: int) -> PreferenceDataset:
    dataset = PreferenceDataset()
    for number in range(count):
        first, second = make_segment(2 * number), make_segment(2 * number + 1)
        value = float(first.true_return > second.true_return)
        dataset.upsert([Preference(uuid5(NAMESPACE_URL, str(number)), first, second, value)])
    return dataset


def test_a_network_of_ones_own_learns_and_comes_back_from_a_file(
    make_segment: MakeSegment, tmp_path: Path
) -> None:
    config = RewardConfig(members=2, stride=1)
    predictor = RewardPredictor(*SPACES, config, seed=1, network=linear)
    predictor.fit(dataset(make_segment, 60), max_epochs=40)
    others = [make_segment(number) for number in range(200, 240)]
    returns = predictor.segment_returns(others)
    assert rank_correlation(returns, [segment.true_return for segment in others]) > 0.8
    save_predictor(tmp_path / "own.npz", predictor, *SPACES)
    again = load_predictor(tmp_path / "own.npz", *SPACES, network=linear)
    assert np.array_equal(again.segment_returns(others), returns)
    with pytest.raises(DataError, match="predictor with its own network; pass the function"):
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
    assert torch.allclose(ensemble(ensemble.standardise(images)), torch.full((2, 7, 2), 0.2))


def test_members_begin_differently_and_alike_for_one_seed() -> None:
    ensembles = [OwnEnsemble(linear, (5,), 2, torch.Generator().manual_seed(3)) for _ in range(2)]
    steps = torch.randn(4, 5, generator=torch.Generator().manual_seed(1))
    first, second = (ensemble(steps) for ensemble in ensembles)
    assert torch.equal(first, second)
    assert not torch.allclose(first[0], first[1])


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda shape: nn.Linear(shape[0], 2), "a reward of shape"),
        (lambda shape: nn.Linear(7, 1), "RuntimeError: "),
        (lambda shape: None, "AttributeError: "),
    ],
)
def test_what_gives_no_reward_is_refused(make: Callable[[tuple[int, ...]], nn.Module], found: str) -> None:
    with pytest.raises(ConfigError, match=f"the predictor's network: expected .* got {found}"):
        RewardPredictor(*SPACES, RewardConfig(), seed=1, network=make)


def test_a_flat_start_is_refused() -> None:
    with pytest.raises(ConfigError, match="flat_start: not with a network of your own"):
        RewardPredictor(*SPACES, RewardConfig(flat_start=True), seed=1, network=linear)
