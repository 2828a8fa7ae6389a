"""Test how many labels are due when."""

import math
from collections.abc import Callable
from functools import partial
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from teacher.errors import ConfigError
from teacher.queries.schedules import (
    ConstantRate,
    ExponentialSchedule,
    LabelSchedule,
    RateSchedule,
    named_rate,
)
from teacher.settings.config import RateName, ScheduleName, TeachConfig
from teacher.training.parts import schedule_of

labels = st.integers(0, 2000)
rates = st.sampled_from(get_args(RateName))
MILLION = 1_000_000


def in_two_halves(progress: float) -> float:
    """A rate that jumps, and is 0 for a while."""
    return 0.0 if 0.2 < progress < 0.7 else 5.0


def test_the_formula_holds_while_training_goes_on() -> None:
    schedule = ExponentialSchedule(pretrain=75, total=300, num_timesteps=300_000)
    assert schedule.due(0, 0.0) == 75
    for step in (1, 1_000, 50_000, 150_000, 299_999):
        expected = 75 + (300 - 75) * (1 - 0.01 ** (step / 300_000))
        assert schedule.due(step, 0.0) == math.floor(expected)
    # Half way, nine tenths of the labels that the whole formula gives are asked.
    assert schedule.due(150_000, 0.0) == 75 + int(225 * 0.9)


@given(labels, labels, st.integers(1, 10**7), st.sampled_from(get_args(ScheduleName)))
@settings(max_examples=40, deadline=None)
def test_all_labels_are_due(pretrain: int, training: int, num_timesteps: int, name: ScheduleName) -> None:
    schedule: LabelSchedule = ExponentialSchedule(pretrain, pretrain + training, num_timesteps)
    if name != "exponential":
        rate = named_rate(name, num_timesteps)
        schedule = RateSchedule(pretrain, pretrain + training, num_timesteps, rate)
    assert schedule.due(0, 0.0) == pretrain
    assert schedule.due(num_timesteps, 0.0) == pretrain + training
    assert schedule.due(num_timesteps + 2047, 0.0) == pretrain + training


@given(labels, labels, st.lists(st.integers(0, 400_000), min_size=2), st.none() | rates)
@settings(max_examples=40, deadline=None)
def test_due_is_monotonic(pretrain: int, training: int, steps: list[int], name: RateName | None) -> None:
    rate = in_two_halves if name is None else named_rate(name, 300_000)
    for schedule in (
        ExponentialSchedule(pretrain, pretrain + training, 300_000),
        RateSchedule(pretrain, pretrain + training, 300_000, rate),
    ):
        due = [schedule.due(step, 0.0) for step in sorted(steps)]
        assert due == sorted(due)
        assert pretrain <= due[0]
        assert due[-1] <= pretrain + training


def test_no_label_is_taken_back_from_one_step_to_the_next() -> None:
    schedule = RateSchedule(0, 30_000, 50_000, named_rate("hyperbolic", 50_000))
    due = [schedule.due(step, 0.0) for step in range(50_001)]
    assert due == sorted(due)
    assert (due[0], due[-1]) == (0, 30_000)


@pytest.mark.parametrize("num_timesteps", [50_000, 5 * MILLION, 200 * MILLION])
@pytest.mark.parametrize(
    ("name", "rate_at_step"),
    [
        ("constant", lambda step, steps: 3.0),
        ("hyperbolic", lambda step, steps: 1 / (1 + step / steps)),
        ("inverse_quadratic", lambda step, steps: 1 / (1 + (step / steps) ** 2)),
        ("paper_mujoco", lambda step, steps: 2e6 / (step + 2e6)),
        ("paper_atari", lambda step, steps: 5e6 / (step + 5e6)),
    ],
)
def test_due_labels_are_the_integral_of_the_rate(
    name: RateName, rate_at_step: Callable[[float, int], float], num_timesteps: int
) -> None:
    from scipy.integrate import quad

    schedule = RateSchedule(100, 10_100, num_timesteps, named_rate(name, num_timesteps))
    whole, _ = quad(rate_at_step, 0, num_timesteps, args=(num_timesteps,), limit=200)
    for share in (0.001, 0.03, 0.25, 0.5, 0.8, 0.999):
        step = int(share * num_timesteps)
        so_far, _ = quad(rate_at_step, 0, step, args=(num_timesteps,), limit=200)
        assert abs(schedule.due(step, 0.0) - (100 + 10_000 * so_far / whole)) <= 1.01


def test_any_function_of_progress_may_be_the_rate() -> None:
    schedule = RateSchedule(10, 110, 1000, in_two_halves)
    due = [schedule.due(step, 0.0) for step in (0, 99, 201, 450, 699, 851, 1000)]
    assert due == [10, 29, 50, 50, 50, 80, 110]


def test_a_rate_may_be_whole_numbers() -> None:
    whole, real = (
        RateSchedule(0, 100, 1000, rate) for rate in (lambda p: 1 + 2 * (p > 0.5), lambda p: 0.5 + (p > 0.5))
    )
    due = [whole.due(step, 0.0) for step in (105, 450, 501, 910)]
    assert due == [real.due(step, 0.0) for step in (105, 450, 501, 910)]
    assert due == [5, 22, 25, 86]


@pytest.mark.parametrize("rate", [lambda p: 0.0, lambda p: p - 0.5, lambda p: math.nan, lambda p: math.inf])
def test_a_rate_that_says_nothing_is_refused_at_once(rate: Callable[[float], float]) -> None:
    with pytest.raises(ConfigError, match=r"finite and never negative.*got") as refusal:
        RateSchedule(0, 10, 1000, rate)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("rate", "says"), [(lambda p: 1 / p, "ZeroDivisionError"), (lambda p: None, "TypeError")]
)
def test_a_rate_that_fails_is_refused_at_once(rate: Callable[[float], float], says: str) -> None:
    with pytest.raises(ConfigError, match=f"the label rate function failed.*{says}") as refusal:
        RateSchedule(0, 10, 1000, rate)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("pretrain", [-1, 20])
def test_no_more_labels_before_training_than_in_all(pretrain: int) -> None:
    for make in (ExponentialSchedule, partial(RateSchedule, rate=lambda progress: 1.0)):
        with pytest.raises(ConfigError, match=rf"pretrain: expected 0 to total \(10\); got {pretrain}"):
            make(pretrain, 10, 100)


@pytest.mark.parametrize(("seconds", "asked"), [(0.0, 0), (2.9, 0), (3.0, 1), (60.0, 20), (3600.0, 1200)])
def test_the_constant_rate_is_one_label_every_three_seconds(seconds: float, asked: int) -> None:
    assert ConstantRate(pretrain=175).due(123_456, seconds) == 175 + asked


@pytest.mark.parametrize("period", [0.0, -3.0, math.nan])
def test_a_constant_rate_has_a_period(period: float) -> None:
    with pytest.raises(ConfigError, match="period: expected more than 0 seconds"):
        ConstantRate(0, period)


def test_a_run_is_given_the_schedule_that_its_settings_name() -> None:
    def of(**settings: object) -> object:
        common = {"env_id": "Hopper-v5", "predictor": "human", "name": "x", "num_timesteps": 2 * MILLION}
        return schedule_of(TeachConfig(**{**common, **settings}))  # type: ignore[arg-type]

    assert of() == ConstantRate(175)
    assert of(n_labels=400) == of(n_labels=400, schedule="exponential")
    assert of(n_labels=400) == ExponentialSchedule(100, 400, 2 * MILLION)
    paper = of(n_labels=700, schedule="paper_mujoco")
    assert isinstance(paper, RateSchedule)
    assert paper.due(0, 0.0) == 175
    assert paper.due(MILLION, 0.0) == 175 + int(525 * math.log(1.5) / math.log(2))


@pytest.mark.parametrize("total", [7, 100, 1000, 9973])
def test_an_even_rate_makes_each_label_due_with_its_step(total: int) -> None:
    schedule = RateSchedule(0, total, total, lambda progress: 1.0)
    assert [schedule.due(step, 0.0) for step in range(total + 1)] == list(range(total + 1))
