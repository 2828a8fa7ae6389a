"""The benchmark of the site under load, short: a few labelers use up a few pairs, through HTTP."""

import pytest
from django.test import override_settings
from pytest_django.live_server_helper import LiveServer

from benchmarks.load_client import label, step_by_step
from benchmarks.load_report import failures, ratio, table
from benchmarks.load_rows import check, fill
from benchmarks.load_servers import Teacher
from benchmarks.load_turns import Turn, quantile
from benchmarks.site_load import is_right


@pytest.mark.django_db(transaction=True)
@override_settings(WHITENOISE_AUTOREFRESH=True)
def test_labelers_who_do_not_think_use_everything_up(live_server: LiveServer) -> None:
    cookies = fill(12, 4, 2, history=False)
    dialect = Teacher(live_server.url)
    assert list(step_by_step(dialect, cookies[0], 1)) == ["next", "save"]
    tally = label(dialect, cookies, 60, lambda tally: tally.labels == 23)
    assert not tally.failures
    assert set(tally.pairs.values()) <= {1, 2}
    assert len(tally.next_s) == len(tally.save_s) == tally.labels == 23
    found = check()
    assert is_right(found, overlap=2), found
    assert not is_right(found, overlap=1)


@pytest.mark.django_db(transaction=True)
@override_settings(WHITENOISE_AUTOREFRESH=True)
def test_at_a_pace_a_labeler_does_not_ask_again_before_it_is_time(live_server: LiveServer) -> None:
    cookies = fill(12, 2, 1, history=False)
    tally = label(Teacher(live_server.url), cookies, 60, lambda tally: tally.labels > 0, pace=1e6)
    assert (tally.saved, tally.empty) == (
        {0: 1},
        0,
    )  # the second one's turn comes half a million seconds later


@pytest.mark.django_db(transaction=True)
def test_requests_that_fail_are_counted(live_server: LiveServer) -> None:
    nobody = ["sessionid=nobody00; csrftoken=x"]
    tally = label(Teacher(live_server.url), nobody, 60, lambda tally: bool(tally.failures))
    assert set(tally.failures) == {"next 401"}
    assert tally.labels == 0


def test_ratios_are_medians_over_the_rounds() -> None:
    dialect = Teacher("http://127.0.0.1")
    turns = []
    for labels in (10, 20, 90):
        for side, times in (("slow", 1), ("fast", 3)):
            tally = label(dialect, [], 0)
            tally.saved[0], tally.seconds = labels * times, 1.0
            turns.append(Turn(side, 8, tally, site_cpu_s=1.0, database_cpu_s=0.5, memory_mb=100.0))
    assert ratio(turns, "labels/s", "fast", "slow", 8) == pytest.approx(3.0)
    assert "| labels/s | 20 (10 to 90) | 60 (30 to 270) |" in table(turns)
    assert failures(turns) == []
    assert quantile([1.0, 2.0, 3.0], 0.5) == 2.0
