"""Rewards with a learned potential, against their definition."""

from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from teacher.data.preferences import Preference, PreferenceDataset
from teacher.data.segments import Segment
from teacher.reward.features import Features
from teacher.reward.predictor import RewardPredictor
from teacher.reward.shaping import ShapedEnsemble
from teacher.settings.options import RewardConfig

MakeSegment = Callable[..., Segment]
INPUTS = "state,action,next_state,terminated"
SPACES = spaces.Box(-np.inf, np.inf, (3,)), spaces.Box(-1, 1, (2,), np.float32)
CONFIG = RewardConfig(inputs=INPUTS, shaping=0.9, hidden=8)
STEPS = (5, 2, 6)


@pytest.fixture(params=["plain", "even"])
def network(request: pytest.FixtureRequest) -> ShapedEnsemble:
    generator, even = torch.Generator().manual_seed(1), request.param == "even"
    return ShapedEnsemble(Features(*SPACES, INPUTS), CONFIG, 0.9, generator, even=even).double()


def features(*shape: int) -> Tensor:
    """State, action, next state, and an end of the episode now and then."""
    random = torch.Generator().manual_seed(2)
    numbers = torch.randn(*shape, 9, generator=random, dtype=torch.float64)
    numbers[..., -1] = (numbers[..., -1] > 1).double()
    return numbers


def expected_rewards(network: ShapedEnsemble, steps: Tensor) -> Tensor:
    before, after = (
        network.potential(network.potential.standardize(states))
        for states in (steps[..., :3], steps[..., 5:8])
    )
    plain: Tensor = network.reward(network.reward.standardize(steps))
    shaped: Tensor = plain + 0.9 * after * (1 - steps[..., -1]) - before
    return shaped


def test_the_reward_is_shaped_by_the_discounted_gain_in_potential(network: ShapedEnsemble) -> None:
    steps = features(*STEPS)
    rewards = network(network.standardize(steps))
    assert rewards.shape == (3, *STEPS)
    torch.testing.assert_close(rewards, expected_rewards(network, steps))


def test_logits_are_differences_of_its_returns(network: ShapedEnsemble) -> None:
    steps, weights = features(3, *STEPS), torch.rand(6, dtype=torch.float64)
    returns = torch.stack([expected_rewards(network, steps[member])[member] for member in range(3)]) @ weights
    logits = network.logits(network.standardize(steps), weights)
    torch.testing.assert_close(logits, returns[..., 0] - returns[..., 1])


def test_new_statistics_do_not_change_the_function(network: ShapedEnsemble) -> None:
    steps = features(*STEPS).clamp(-3, 3)  # within the limit of squares
    for part in (network.reward, network.potential):  # but for logarithms, which only nearly keep it
        part.weights[0].data[:, 2 * len(part.input_mean) :] = 0
    before = network(network.standardize(steps))
    network.adapt([3 * steps + 1])
    torch.testing.assert_close(network(network.standardize(steps)), before)
    assert not (network.potential.input_mean == 0).any()


def test_without_discount_returns_keep_the_potential_of_both_ends_only(network: ShapedEnsemble) -> None:
    network._discount = 1.0
    steps = features(7)
    steps[:, -1] = 0
    steps[:-1, 5:8] = steps[1:, :3]
    shaped = network(network.standardize(steps)).sum(dim=-1)
    plain = network.reward(network.reward.standardize(steps)).sum(dim=-1)
    ends = network.potential(network.potential.standardize(torch.stack([steps[0, :3], steps[-1, 5:8]])))
    torch.testing.assert_close(shaped - plain, ends[:, 1] - ends[:, 0])


def test_a_shaped_predictor_learns_and_goes_on_from_its_state(make_segment: MakeSegment) -> None:
    dataset = PreferenceDataset()
    for number in range(60):
        first, second = make_segment(2 * number), make_segment(2 * number + 1)
        value = float(first.true_return > second.true_return)
        dataset.upsert([Preference(UUID(int=number), first, second, value)])
    models = [RewardPredictor(*SPACES, replace(CONFIG, features="plain"), seed) for seed in (1, 2)]
    before = models[0].fit(dataset, max_epochs=0)
    report = models[0].fit(dataset, max_epochs=60)
    assert report.validation_loss < 0.9 * before.validation_loss
    models[1].load_state_dict(models[0].state_dict())
    assert models[0].fit(dataset) == models[1].fit(dataset)


def test_a_predictor_may_choose_squares_and_logarithms() -> None:
    """An earlier run that chose them goes on with the settings that it was begun with."""
    even, auto = (RewardPredictor(*SPACES, replace(CONFIG, features=name), 1) for name in ("even", "auto"))
    state = even.state_dict()
    assert state["network"]["reward.weights.0"].shape[1] == 3 * 9
    auto.load_state_dict({name: value for name, value in state.items() if name not in ("model", "tried")})
    assert auto.features == "even"
    steps, actions = np.random.default_rng(0).normal(size=(2, 20, 3)), np.zeros((20, 2))
    expected, found = (
        model.rewards(steps[0], actions, steps[1], np.zeros(20, bool)) for model in (even, auto)
    )
    np.testing.assert_array_equal(found, expected)
