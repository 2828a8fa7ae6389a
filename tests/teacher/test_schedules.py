"""How many labels are due when."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from teacher.schedules import ConstantRate, ExponentialSchedule

labels = st.integers(0, 2000)


def test_the_formula_holds_while_training_goes_on() -> None:
    schedule = ExponentialSchedule(pretrain=75, total=300, num_timesteps=300_000)
    assert schedule.due(0, 0.0) == 75
    for step in (1, 1_000, 50_000, 150_000, 299_999):
        expected = 75 + (300 - 75) * (1 - 0.01 ** (step / 300_000))
        assert schedule.due(step, 0.0) == math.floor(expected)
    # Half way, nine tenths of the labels that the whole formula gives are asked.
    assert schedule.due(150_000, 0.0) == 75 + int(225 * 0.9)


@given(labels, labels, st.integers(1, 10**7))
def test_exactly_all_labels_are_due_at_the_end(pretrain: int, training: int, num_timesteps: int) -> None:
    schedule = ExponentialSchedule(pretrain, pretrain + training, num_timesteps)
    assert schedule.due(num_timesteps, 0.0) == pretrain + training
    assert schedule.due(num_timesteps + 2047, 0.0) == pretrain + training


@given(labels, labels, st.lists(st.integers(0, 400_000), min_size=2))
def test_due_never_falls_nor_leaves_its_bounds(pretrain: int, training: int, steps: list[int]) -> None:
    schedule = ExponentialSchedule(pretrain, pretrain + training, 300_000)
    due = [schedule.due(step, 0.0) for step in sorted(steps)]
    assert due == sorted(due)
    assert pretrain <= due[0]
    assert due[-1] <= pretrain + training


@pytest.mark.parametrize(("seconds", "asked"), [(0.0, 0), (2.9, 0), (3.0, 1), (60.0, 20), (3600.0, 1200)])
def test_the_constant_rate_is_one_label_every_three_seconds(seconds: float, asked: int) -> None:
    assert ConstantRate(pretrain=175).due(123_456, seconds) == 175 + asked
