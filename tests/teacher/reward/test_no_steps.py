"""No steps have no rewards, whatever a predictor reads; an episode of none is one of them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete, Space

from teacher.data.steps import StepsBatch
from teacher.envs.trajectory import Trajectory
from teacher.reward.predictor import RewardPredictor
from teacher.settings.options import RewardConfig

VECTORS = Box(-np.inf, np.inf, (3,)), Box(-1, 1, (2,), np.float32)
IMAGES, STACKS = (Box(0, 255, (*stack, 16, 16), np.uint8) for stack in ((3,), (2, 3)))
ALL = "state,action,next_state,terminated"


class NeedsRows(torch.nn.Module):
    """A module that makes nothing of nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows @ self.weight / rows.abs().max()


@pytest.mark.parametrize(
    ("spaces", "settings", "network"),
    [
        (VECTORS, {}, None),
        (VECTORS, {"inputs": ALL}, None),
        (VECTORS, {"features": "even", "uncertainty_bonus": 1.0}, None),
        (VECTORS, {"normalization": "running"}, None),
        ((Discrete(4), MultiDiscrete([2, 3])), {"inputs": ALL}, None),
        ((Box(-1, 1, ()), Box(-1, 1, (2, 2))), {"inputs": ALL}, None),
        ((IMAGES, Discrete(3)), {"inputs": "state,next_state"}, None),
        ((STACKS, Discrete(3)), {"inputs": None}, None),
        (VECTORS, {"inputs": "state"}, lambda _: NeedsRows()),
    ],
)
@pytest.mark.parametrize("batch", [(0,), (4, 0), (0, 4)])
def test_the_array_is_empty_and_has_the_shape_of_the_batch(
    spaces: tuple[Space[Any], Space[Any]],
    settings: dict[str, Any],
    network: Callable[[tuple[int, ...]], torch.nn.Module] | None,
    batch: tuple[int, ...],
) -> None:
    config = RewardConfig(**{"members": 2, "hidden": 4, **settings})
    model = RewardPredictor(*spaces, config, seed=1, network=network)
    states, actions = (np.empty((*batch, *(space.shape or ())), space.dtype) for space in spaces)
    rewards = model.rewards(states, actions, states, np.zeros(batch, np.bool_))
    assert rewards.shape == batch
    assert rewards.dtype == np.float64
    steps = StepsBatch(states, actions, states, np.zeros(batch, np.bool_))
    assert model.member_rewards(steps).shape == (2, *batch)


def test_an_episode_without_a_step_has_none() -> None:
    model = RewardPredictor(*VECTORS, RewardConfig(inputs=ALL), seed=1)
    episode = Trajectory.from_arrays(np.ones((1, 3)), np.ones((0, 2)), np.zeros(0))
    assert model.step_rewards(episode).shape == (0,)


def test_none_of_them_count_where_rewards_are_normalized_by_those_in_use() -> None:
    model = RewardPredictor(*VECTORS, RewardConfig(normalization="running", model="network"), seed=1)
    states = np.random.default_rng(1).normal(size=(9, 3))
    some, none = (StepsBatch(rows, np.ones((len(rows), 2)), rows) for rows in (states, states[:0]))
    model.follow(none)
    model.follow(some)
    before = model.step_rewards(some)
    model.follow(none)
    np.testing.assert_array_equal(model.step_rewards(some), before)
    assert before.std() == pytest.approx(0.05)
