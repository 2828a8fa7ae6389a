"""Metrics, the rate of training and the time left, without the time that is waited for people."""

import io
import math
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from agents.numerics.correlation import correlation, rank_correlation
from teacher.reporting.console import progress, waiting
from teacher.reporting.metrics import BEHAVIOR_TAG, SUCCESS_TAG, Metrics
from teacher.reporting.timing import PROGRESS_NAME, ProgressFile, RoundTimer, read_progress


def ranks(values: list[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Average ranks, by counting."""
    return np.array([sum(w < v for w in values) + sum(w == v for w in values) / 2 for v in values])


def test_correlations_follow_their_definitions() -> None:
    from scipy import stats

    a, b = [3.0, 1.0, 4.0, 1.0, 5.0], [2.0, 7.0, 1.0, 8.0, 2.0]
    covariance = np.mean((np.array(a) - np.mean(a)) * (np.array(b) - np.mean(b)))
    assert correlation(a, b) == pytest.approx(covariance / (np.std(a) * np.std(b)))
    assert rank_correlation(a, b) == pytest.approx(np.corrcoef(ranks(a), ranks(b))[0, 1])
    assert rank_correlation(a, b) == pytest.approx(stats.spearmanr(a, b)[0])
    assert correlation(a, b) == pytest.approx(stats.pearsonr(a, b)[0])


@pytest.mark.parametrize(
    ("a", "b"), [([], []), ([1, 2], [2, 1]), ([1, 1, 1], [1, 2, 3]), ([1, 2, 3], [0, 0, 0])]
)
def test_a_correlation_that_means_nothing_is_nan(a: list[float], b: list[float]) -> None:
    assert math.isnan(correlation(a, b))
    assert math.isnan(rank_correlation(a, b))


def test_values_reach_tensorboard_under_their_tags_and_nan_does_not(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path, 1000, 0, Console(quiet=True))
    metrics.log(100, {"predictor/loss": 0.5, "predictor/correlation": float("nan")})
    metrics.log(200, {"predictor/loss": 0.25})
    metrics.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    assert events.Tags()["scalars"] == ["predictor/loss"]
    assert [(event.step, event.value) for event in events.Scalars("predictor/loss")] == [
        (100, 0.5),
        (200, 0.25),
    ]


def test_a_resumed_run_hides_the_steps_that_a_crash_took_back(tmp_path: Path) -> None:
    killed = Metrics(tmp_path, 1000, 0, Console(quiet=True))
    for step in (100, 200, 300):
        killed.log(step, {"predictor/loss": step})
    killed.close()
    (events,) = tmp_path.glob("*tfevents*")
    events.rename(re.sub(r"tfevents\.\d+", "tfevents.1", str(events)))  # TensorBoard reads the oldest first
    resumed = Metrics(tmp_path, 1000, 200, Console(quiet=True))
    resumed.log(250, {"predictor/loss": 0.0})
    resumed.close()
    scalars = EventAccumulator(str(tmp_path)).Reload().Scalars("predictor/loss")
    assert [event.step for event in scalars] == [100, 200, 250]


def shown(tmp_path: Path, values: dict[str, float], *, people: bool) -> dict[str, str]:
    """The last line on the console, by the titles above it."""
    said = io.StringIO()
    metrics = Metrics(tmp_path, 4000, 0, Console(file=said, width=200), people=people)
    metrics.log(2000, values)
    metrics.close()
    header, line = (re.split(r"\s{2,}", text.strip()) for text in said.getvalue().splitlines())
    return dict(zip(header, line, strict=True))


TIMES = {"time/steps_per_second": 1234.5, "time/seconds_left": 3725.0}
VALUES = {
    "agent/true_reward_per_episode": 12.5,
    "labels/asked": 3,
    "predictor/accuracy": 0.75,
    "predictor/rank_correlation": 0.5,
    "predictor/fresh_accuracy": math.nan,
    "time/seconds_waited": 61.0,
    **TIMES,
}


def test_the_console_shows_rate_and_time_left(tmp_path: Path) -> None:
    alone = {"steps": "2,000", "return": "12.5", "steps/s": "1,234", "left": "1:02:05"}
    assert shown(tmp_path, {"agent/true_reward_per_episode": 12.5, **TIMES}, people=False) == alone
    labels = {"answered": "-", "asked": "3", "due": "-", "loss": "-", "accuracy": "75%"}
    assert shown(tmp_path, VALUES, people=False) == {**alone, **labels, "rank corr": "0.50"}


@pytest.mark.parametrize(("rate", "shown_as"), [(0.25, "25%"), (math.nan, "-")])
def test_success_rate_is_beside_the_return(tmp_path: Path, rate: float, shown_as: str) -> None:
    values = {**VALUES, SUCCESS_TAG: rate}
    for people, expected in ((False, ["return", "success"]), (True, ["env return", "success"])):
        found = shown(tmp_path, values, people=people)
        assert [title for title in found if title in expected] == expected
        assert found["success"] == shown_as


def test_with_people_the_environments_own_return_comes_last_under_its_name(tmp_path: Path) -> None:
    found = shown(tmp_path, {**VALUES, BEHAVIOR_TAG: 0.25}, people=True)
    assert list(found) == [
        *("steps", "behavior", "answered", "asked", "due", "loss", "accuracy", "fresh acc"),
        *("steps/s", "left", "waited", "env return"),
    ]
    assert (found["fresh acc"], found["waited"], found["env return"]) == ("-", "0:01:01", "12.5")


@pytest.mark.parametrize("people", [False, True])
def test_lines_fit_the_terminal_also_after_it_is_resized(tmp_path: Path, *, people: bool) -> None:
    said = io.StringIO()
    console = Console(file=said, width=160, soft_wrap=True)
    metrics = Metrics(tmp_path, 10_000, 0, console, people=people)
    widths = (160, 80, 60)
    for step, width in enumerate(widths, 1):
        console.width = width
        metrics.log(1000 * step, {**VALUES, BEHAVIOR_TAG: 0.25, SUCCESS_TAG: 0.5})
    metrics.close()
    lines = said.getvalue().splitlines()
    assert len(lines) == 2 * len(widths)  # with new titles for each width
    for width, titles, values in zip(widths, lines[::2], lines[1::2], strict=True):
        assert len(titles) == len(values) <= width
        assert {"steps", "answered"} <= set(titles.split())
        assert "return" in titles
    assert ("loss" in lines[0], "loss" in lines[2], "behavior" in lines[2]) == (True, False, True)


ADDRESS = "http://192.168.178.112:8000/j/1-2-ajs4-k7f3m2p9qx"


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (40, "33/33 pretraining labels"),
        (80, f"33/33 pretraining labels {ADDRESS}"),
        (110, rf"33/33 pretraining labels [━╸╺]{{27}} [\d:-]+ {ADDRESS}"),
        (160, rf"33/33 pretraining labels [━╸╺]{{40}} [\d:-]+ {ADDRESS}"),
    ],
)
def test_a_progress_bar_starts_with_the_count_and_has_room_for_the_address(width: int, expected: str) -> None:
    said = io.StringIO()
    console = Console(file=said, width=width, force_terminal=True, color_system=None)
    with progress(console, "pretraining labels", 33, ADDRESS) as show:
        show(33)
        console.file = said = io.StringIO()
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said.getvalue()).split("\n")
    assert re.fullmatch(expected, lines[0].strip("\r ")), lines


@pytest.mark.parametrize(
    ("width", "more"), [(60, "  (Ctrl-C exits)"), (80, f"  {ADDRESS}"), (110, f"  {ADDRESS}  (Ctrl-C exits)")]
)
def test_a_status_line_has_what_fits(width: int, more: str) -> None:
    said = io.StringIO()
    with waiting(Console(file=said, width=width, force_terminal=True)) as show:
        show("waiting for 12 labels", ADDRESS, "(Ctrl-C exits)")
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said.getvalue())
    assert f"waiting for 12 labels{more}\n" in text.replace("\r", "").replace(" \n", "\n")


def test_short_rollouts_do_not_flood_the_console(tmp_path: Path) -> None:
    said = io.StringIO()
    metrics = Metrics(tmp_path, 2600, 0, Console(file=said, width=200))
    for step in range(256, 2817, 256):
        metrics.log(step, {"agent/true_reward_per_episode": 1.0})
    metrics.close()
    assert [line.split()[0] for line in said.getvalue().splitlines()[1:]] == [
        "256",
        "1,280",
        "2,304",
        "2,816",
    ]
    scalars = EventAccumulator(str(tmp_path)).Reload().Scalars("agent/true_reward_per_episode")
    assert len(scalars) == 11


def test_without_a_terminal_waiting_is_told_once_not_twice_a_second() -> None:
    said = io.StringIO()
    console = Console(file=said, width=200)
    with waiting(console) as show:
        for needed in (3, 3, 2):
            show(f"waiting for {needed}")
    with progress(console, "answers", 4) as show_progress:
        for answered in range(5):
            show_progress(answered)
    assert said.getvalue().splitlines() == ["waiting for 3", "0 of 4 answers"]


@pytest.mark.parametrize("terminal", [False, True])
def test_short_waits_are_silent(terminal: bool) -> None:
    said = io.StringIO()
    console = Console(file=said, width=200, force_terminal=terminal)
    with waiting(console, after=60.0) as show:
        show("step 1 of 2")
    assert said.getvalue() == ""
    with waiting(console, after=0.0) as show:
        show("step 2 of 2")
    assert "step 2 of 2" in said.getvalue()


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
