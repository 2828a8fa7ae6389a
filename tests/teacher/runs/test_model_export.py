"""Inputs for the check of exported models."""

import numpy as np
from gymnasium.spaces import Box

from teacher.runs.model_export import CHECKED_INPUTS, random_inputs
from tests.models import AGENTS


def test_random_inputs_are_in_the_space_and_not_near_its_bounds_if_these_are_huge() -> None:
    largest = np.finfo(np.float32).max
    low, high = np.array([-largest, -np.inf, 2000, 0], np.float32), np.array([largest, 1, 3000, np.inf])
    drawn = random_inputs(Box(low, high.astype(np.float32)), seed=1)
    assert drawn.shape == (CHECKED_INPUTS, 4)
    assert drawn.dtype == np.float32
    assert np.abs(drawn[:, [0, 1, 3]]).max() < 100
    assert drawn[:, 2].min() > 2000
    assert drawn[:, 2].std() > 100


def test_drawing_does_not_change_the_space() -> None:
    for case in AGENTS.values():
        space = case.action_space
        space.seed(7)
        expected = space.sample()
        space.seed(7)
        random_inputs(space, seed=1)
        np.testing.assert_array_equal(space.sample(), expected)
