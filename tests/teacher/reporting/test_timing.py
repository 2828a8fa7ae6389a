"""The rate of training and the time left, without the time that is waited for people."""

import math
from pathlib import Path

import pytest

from teacher.reporting.timing import PROGRESS_NAME, ProgressFile, RoundTimer, read_progress


class Clock:
    """Shows what it is set to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_waiting_is_not_training_time(clock: Clock) -> None:
    pace = RoundTimer(waited=7.0, clock=clock)
    pace.tick(1000)  # of a run that is resumed
    assert math.isnan(pace.steps_per_second)
    with pace.waiting():
        clock.now += 3600
    clock.now += 10
    pace.tick(3000)
    assert pace.steps_per_second == pytest.approx(200)
    assert pace.seconds_left(13_000) == pytest.approx(50)
    assert pace.waited == 3607
    with pace.waiting():
        clock.now += 60
    assert pace.seconds_left(13_000) == pytest.approx(50)
    assert pace.waited == 3667
    assert pace.seconds_left(2000) == 0


def test_the_rate_is_that_of_the_last_twenty_rounds(clock: Clock) -> None:
    pace = RoundTimer(clock=clock)
    pace.tick(0)
    for number in range(1, 41):
        clock.now += 10 if number <= 20 else 1  # slow at first
        pace.tick(100 * number)
    assert pace.steps_per_second == pytest.approx(100)
    assert pace.seconds_left(5000) == pytest.approx(10)


def test_an_interrupted_wait_counts(clock: Clock) -> None:
    pace = RoundTimer(clock=clock)

    def wait() -> None:
        with pace.waiting():
            clock.now += 5
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wait()
    assert pace.waited == 5


@pytest.mark.parametrize(("left", "read"), [(12.5, 12.5), (math.nan, None)])
def test_progress_is_readable_during_training(tmp_path: Path, left: float, read: float | None) -> None:
    assert read_progress(tmp_path) == (0, None)
    told = ProgressFile(tmp_path)
    told.write(300, left)
    assert read_progress(tmp_path) == (300, read)
    told.write(301, left)  # too soon
    assert read_progress(tmp_path) == (300, read)


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", '{"step": "x"}', '{"step": 3}', '{"step": 1e999, "seconds_left": 1}']
)
def test_damaged_timing_is_ignored(tmp_path: Path, damage: str) -> None:
    (tmp_path / PROGRESS_NAME).write_text(damage)
    assert read_progress(tmp_path) == (0, None)
