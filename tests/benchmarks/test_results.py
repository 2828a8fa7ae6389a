"""Test what many seeds say, the figures in documents, the site under load, and the soak's report."""

import json
import math
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from django.test import override_settings
from pytest_django.live_server_helper import LiveServer

from benchmarks import compare, figures
from benchmarks.load_client import label, step_by_step
from benchmarks.load_report import failures, ratio, table
from benchmarks.load_rows import check, fill
from benchmarks.load_servers import Teacher
from benchmarks.load_turns import Turn, quantile
from benchmarks.results import Curve, append, bootstrap, curve_steps, interval, iqm, load
from benchmarks.scaling import Crowd, CrowdSimulation, Farm, Ring, clip_waits
from benchmarks.site_load import is_right
from benchmarks.soak import main, sizes_of, slow_statements
from benchmarks.soak_report import BLOCKS, MOST_MB, programs_of, report, slope
from benchmarks.teaching_report import Row, as_markdown
from docs.result_pages import teaching_page
from tests.conftest import refusals
from tests.documents import README


def test_a_curve_averages_the_episodes_of_each_twentieth() -> None:
    curve = Curve(steps=200)
    for step, episode_return in [(1, 1.0), (10, 3.0), (11, 5.0), (200, 7.0), (204, 8.0)]:
        curve.add(step, episode_return)
    assert curve.means() == [2.0, 5.0, *[None] * 17, 7.5]
    assert curve_steps(200)[[0, 1, -1]].tolist() == [5, 15, 195]


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    append(path, {"seed": 1, "labels": 300})
    append(path, {"seed": 2, "labels": 300})
    refused = set(refusals(path, lambda: load(path), SystemExit))
    lines = (1, 2, 3)
    assert refused == {f"{path} line {line}: not a JSON object; remove the line" for line in lines}


def test_the_iqm_is_the_mean_of_the_middle_half() -> None:
    assert iqm(np.array([9.0, 1.0, 2.0, -70.0, 3.0])) == pytest.approx(2.0)
    assert iqm(np.arange(8.0)) == pytest.approx(3.5)


def test_the_interval_is_that_of_scipy() -> None:
    from scipy import stats  # takes as long to import as all else here

    values = np.random.default_rng(1).normal(100, 10, size=8)
    expected = stats.bootstrap(
        (values,),
        lambda drawn, axis: stats.trim_mean(drawn, 0.25, axis=axis),
        n_resamples=20_000,
        method="percentile",
        rng=np.random.default_rng(2),
    ).confidence_interval
    assert interval(bootstrap(values, np.random.default_rng(3))) == pytest.approx(tuple(expected), abs=0.5)


def test_results_are_kept_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    assert load(path) == []
    append(path, {"return": 1.5})
    append(path, {"return": None})
    assert load(path) == [{"return": 1.5}, {"return": None}]


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return figures.results()


@pytest.mark.parametrize("page", figures.SENTENCES)
def test_sentences_have_the_figures_of_the_results(page: str, rows: list[Row]) -> None:
    text = (figures.ROOT / page).read_text()
    assert figures.written(page, text, figures.by_name(rows)) == text


def test_the_tables_are_those_of_the_results(rows: list[Row]) -> None:
    lines = teaching_page().splitlines()
    assert [line for line in map(as_markdown, rows) if line not in lines] == []


def test_figures_on_two_pages_are_the_same() -> None:
    assert figures.differences() == []


def test_wrong_figure_is_rewritten_alone(rows: list[Row]) -> None:
    text = (figures.ROOT / figures.COMPARISON).read_text()
    found = re.search(r"On Reacher, 175 labels reach f = (\S+), and 350 reach (\d\.\d\d)", text)
    assert found is not None
    wrong = text.replace(found[0], "On Reacher, 175 labels reach f = 0.12, and\n350 reach 0.34")
    again = figures.written(figures.COMPARISON, wrong, figures.by_name(rows))
    assert again == wrong.replace("0.12", found[1]).replace("0.34", found[2])


def test_a_sentence_that_is_no_longer_on_its_page_is_noticed(rows: list[Row]) -> None:
    text = (
        (figures.ROOT / figures.COMPARISON)
        .read_text()
        .replace("On Reacher, 175 labels", "On Reacher, labels")
    )
    with pytest.raises(
        ValueError, match=r"docs/comparison.md must contain this once, not 0 times: On Reacher, 175"
    ):
        figures.written(figures.COMPARISON, text, figures.by_name(rows))


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


def idle_share(crowd: Crowd) -> float:
    """Compute a closed network: ``labelers`` who answer one pair at a time, and a delay, both exponential.

    The number of pairs that are not delayed is a birth-death process.
    """
    pairs = round(crowd.open_per_labeler * crowd.labelers)
    weights = [1.0]
    for there in range(pairs):
        arrive = (pairs - there) / crowd.delay
        leave = min(there + 1, crowd.labelers) / crowd.answer
        weights.append(weights[-1] * arrive / leave)
    idle = np.maximum(0, crowd.labelers - np.arange(pairs + 1))
    return float(idle @ weights / sum(weights) / crowd.labelers)


@pytest.mark.parametrize(
    ("each", "delay", "held"), [(2.0, 5.0, 3), (4.0, 10.0, 3), (4.0, 10.0, 1), (4.0, 5.0, 3)]
)
def test_labelers_are_as_idle_as_a_closed_network_says(each: float, delay: float, held: int) -> None:
    crowd = Crowd(labelers=20, open_per_labeler=each, delay=delay, held=held)
    done = CrowdSimulation(crowd, random.Random(2)).run(6000.0, warm_up=500.0)
    expected = idle_share(crowd)
    assert done.idle == pytest.approx(expected, abs=0.01)
    assert done.labels_per_second == pytest.approx(20 * (1 - expected) / crowd.answer, rel=0.02)


def test_pairs_of_labelers_who_vanish_come_back_when_their_leases_end() -> None:
    crowd = Crowd(labelers=20, open_per_labeler=8.0, vanish=0.05)
    stays, vanishes = (
        CrowdSimulation(each, random.Random(2)).run(2000.0, warm_up=500.0)
        for each in (Crowd(labelers=20, open_per_labeler=8.0), crowd)
    )
    assert vanishes.labels_per_second == pytest.approx(0.95 * stays.labels_per_second, rel=0.03)
    assert vanishes.waited[1] > crowd.lease > stays.waited[1]


@pytest.mark.parametrize("busy", [0.5, 0.8])
def test_clips_wait_as_erlangs_formula_says(busy: float) -> None:
    workers, clip = 10, 0.2
    waits = clip_waits(Farm(workers, clip, clips=busy * workers / clip, batch=1), 100_000, random.Random(2))
    load = busy * workers
    below = sum(load**k / math.factorial(k) for k in range(workers))
    full = load**workers / math.factorial(workers) / (1 - busy)
    expected = full / (below + full) * clip / (workers * (1 - busy))
    assert np.mean(waits) == pytest.approx(expected, rel=0.1)


def test_a_ring_of_hosts_adds_up_with_as_many_messages_and_bytes_as_the_estimate_says() -> None:
    hosts = 6
    numbers = np.random.default_rng(1).integers(100, size=(hosts, hosts, 5)).astype(float)  # (host, part, 5)
    sums, sent, messages = numbers.sum(axis=0), 0, 0
    for adds, first in ((True, 0), (False, 1)):  # parts are added up on their way, and then handed round
        for step in range(hosts - 1):
            before = numbers.copy()
            for host in range(hosts):
                part, following = (host + first - step) % hosts, (host + 1) % hosts
                mine = before[host, part]
                numbers[following, part] = before[following, part] + mine if adds else mine
            sent, messages = sent + before[0, 0].nbytes, messages + 1
    assert np.array_equal(numbers, np.broadcast_to(sums, numbers.shape))
    ring = Ring(hosts, message=1.0, link=10.0)
    assert ring.moved(numbers[0].nbytes) == pytest.approx(sent)
    assert ring.seconds(numbers[0].nbytes) == pytest.approx(messages + sent / 10.0)


MINUTES = np.arange(180) / 3


def noise(scale: float) -> Any:
    return np.random.default_rng(1).normal(scale=scale, size=len(MINUTES))


@pytest.mark.parametrize(
    ("an_hour", "scale", "verdict"),
    [(0.0, 0.5, "flat"), (-9.0, 0.5, "flat"), (30.0, 0.5, "grows"), (3.0, 20.0, "unclear")],
)
def test_a_slope_is_flat_or_grows_or_cannot_be_told(an_hour: float, scale: float, verdict: str) -> None:
    fitted = slope(MINUTES, 100 + an_hour * MINUTES / 60 + noise(scale))
    assert fitted is not None
    assert fitted.low < an_hour < fitted.high
    assert fitted.verdict(MOST_MB) == verdict


def test_nineteen_of_twenty_intervals_hold_the_slope_although_neighbors_are_alike() -> None:
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(400):
        drift = np.convolve(rng.normal(size=len(MINUTES) + 4), np.ones(5) / 5, mode="valid")
        fitted = slope(MINUTES, 7.0 * MINUTES / 60 + drift)
        assert fitted is not None
        held += fitted.low < 7.0 < fitted.high
    assert 360 < held < 396


def test_a_few_samples_have_no_slope() -> None:
    few = MINUTES[: 2 * BLOCKS - 1]
    assert slope(few, few) is None


def line(seconds: float, **programs: list[list[int]]) -> dict[str, Any]:
    return {"seconds": seconds, "programs": programs}


def test_processes_that_come_and_go_are_left_out_but_those_of_the_database() -> None:
    lines = [
        line(20, postgres=[[1, 1024, 5]], web=[[2, 2048, 5]]),
        line(40, postgres=[[1, 1024, 5], [7, 1024, 9]], web=[[2, 3072, 6], [3, 9999, 9]]),
        line(60, postgres=[[1, 1024, 5], [8, 1024, 9]], web=[[2, 3072, 6], [4, 9999, 9]]),
    ]
    postgres, web = programs_of(lines)
    assert (list(postgres.memory_mb), list(postgres.handles)) == ([1, 2, 2], [5, 14, 14])
    assert (list(web.memory_mb), list(web.handles), web.processes) == ([2, 3, 3], [5, 6, 6], 1)


def test_growing_program_is_named_and_plotted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines: list[dict[str, Any]] = [{"minutes": 60.0, "labelers": 20, "pace": 2.0}]
    lines += [
        line(20 * n, web=[[2, 90_000, 30 + n]], chores=[[3, 50_000 + 500 * n, 9]]) for n in range(1, 181)
    ]
    assert "grows: web's files, chores's memory" in report(lines)
    assert "the run didn't finish" in report(lines)
    results, picture = tmp_path / "soak.jsonl", tmp_path / "soak.png"
    results.write_text("".join(json.dumps(each) + "\n" for each in lines))
    assert main(["--show", "--results", str(results), "--picture", str(picture)]) == 0
    assert "flat: web's memory, chores's files" in capsys.readouterr().out
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_slow_statements_are_counted_by_text_and_by_minute() -> None:
    log = """\
2026-11-23 02:05:15.688 UTC [28616] LOG:  duration: 251.713 ms  execute _pg3_4: UPDATE counter SET n = n + 1
2026-11-23 02:05:15.688 UTC [28616] DETAIL:  Parameters: $1 = '1'
2026-11-23 02:05:59.001 UTC [28617] LOG:  duration: 900.5 ms  execute _pg3_9: UPDATE counter SET n = n + 1
2026-11-23 02:07:00.000 UTC [28617] LOG:  duration: 300 ms  statement: COMMIT
2026-11-23 02:08:00.000 UTC [28435] LOG:  checkpoint complete: write=269.655 s, sync=0.163 s
"""
    assert slow_statements(log) == {
        "slow": [[2, 900.5, "UPDATE counter SET n = n + 1"], [1, 300.0, "COMMIT"]],
        "slow_minutes": {"02:05": 2, "02:07": 1},
    }
    assert slow_statements("")["slow"] == []


def test_memory_and_open_files_of_a_program_and_its_children_are_read() -> None:
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1); input()'])"
    with (
        tempfile.TemporaryFile() as held,
        subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[held.fileno()],
        ) as process,
    ):
        assert process.stdout is not None
        process.stdout.readline()
        parent, child = sizes_of(process.pid)
        process.communicate(b"\n")
    assert parent[0] == process.pid
    assert all(1000 < memory < 500_000 for _, memory, _ in (parent, child))
    assert parent[2] >= 4
    before = sizes_of(os.getpid())[0][2]
    with tempfile.TemporaryFile():
        assert sizes_of(os.getpid())[0][2] == before + 1
    assert sizes_of(process.pid) == []


def test_ratios_are_compared_with_those_of_the_pages() -> None:
    """The README claims what the pages say."""
    found = {name: compare.published(name) for name in compare.RATIOS}
    assert found == {"PPO": 4.8, "TRPO": 3.2, "SAC": 2.6, "reward fit": 46.7, "clips": 20.4}
    readme = " ".join(README.read_text().split())
    assert f"PPO trains {int(found['PPO'])} to" in readme
    assert f"TRPO {int(found['TRPO'])} to" in readme
    assert "to 2.6 times" in readme
    costs = {side: [{"cpu": cpu}] for side, cpu in (("teacher", 0.5), ("gymnasium", 9.0))}
    assert compare.ratio_in("clips", {"pair": costs}) == 18
    assert compare.ratio_in("PPO", [{"ours": 10, "sb3": 4}]) == 2.5
    printed = "| fit | imitation / ours | **46.7 (45.1 to 47.2)** |"
    assert compare.ratio_in("reward fit", printed) == 46.7
    assert "--imitation" in str(compare.missing("reward fit", None))
