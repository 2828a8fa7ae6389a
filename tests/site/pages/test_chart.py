"""Test where the curves go."""

import math

import pytest

from human_feedback_site.feedback.pages.live import line_chart, nice_ticks, short_number


def test_curve_spans_first_to_last_value() -> None:
    chart = line_chart([(0, 0.0), (50, 5.0), (100, 10.0)])
    assert chart is not None
    assert chart.path == "M0.0 1000.0L500.0 500.0L1000.0 0.0"
    assert chart.end == (100.0, 0.0)
    assert chart.latest == "10"


def test_ticks_are_at_their_values() -> None:
    chart = line_chart([(0, 0.0), (200, 10.0)])
    assert chart is not None
    assert [(tick.position, tick.text) for tick in chart.y_ticks] == [
        (100.0, "0"),
        (80.0, "2"),
        (60.0, "4"),
        (40.0, "6"),
        (20.0, "8"),
        (0.0, "10"),
    ]
    assert [(tick.position, tick.text) for tick in chart.x_ticks] == [
        (0.0, "0"),
        (25.0, "50"),
        (50.0, "100"),
        (75.0, "150"),
        (100.0, "200"),
    ]


@pytest.mark.parametrize("points", [[(0, 3.0)], [(10, 3.0), (20, 3.0)], [(10, 0.0), (20, 0.0)], [(0, -4.0)]])
def test_flat_curve_is_inside_the_plot(points: list[tuple[float, float]]) -> None:
    chart = line_chart(points)
    assert chart is not None
    assert 0 < chart.end[1] < 100
    assert len(chart.y_ticks) > 1


@pytest.mark.parametrize("values", [[], [math.nan], [math.inf, -math.inf]])
def test_no_curve_without_finite_values(values: list[float]) -> None:
    assert line_chart(list(enumerate(values))) is None


def test_non_finite_values_are_left_out() -> None:
    assert line_chart([(0, 1.0), (1, math.nan), (2, 2.0)]) == line_chart([(0, 1.0), (2, 2.0)])


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (-3.2, 7.9), (98, 1040), (0.0012, 0.0019), (-5e6, -1e6), (1e9, 3e9)]
)
def test_ticks_are_round_evenly_spaced_and_enclose_values(low: float, high: float) -> None:
    ticks = nice_ticks(low, high, 5)
    step = ticks[1] - ticks[0]
    slack = step * 1e-6  # of floating-point numbers
    assert ticks[0] - slack <= low < ticks[0] + step
    assert ticks[-1] - step < high <= ticks[-1] + slack
    assert 3 <= len(ticks) <= 8
    mantissa = step / 10 ** math.floor(math.log10(step) + 1e-9)
    assert min(abs(mantissa - round_step) for round_step in (1, 2, 5)) < 1e-6


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.05, "0.05"),
        (-3, "-3"),
        (999, "999"),
        (999.9, "1k"),
        (1040, "1.04k"),
        (-350_000, "-350k"),
        (1.2e6, "1.2M"),
        (5e9, "5G"),
        (0.30000000000000004, "0.3"),
    ],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert short_number(value) == text
