"""The soak's report: what grows is told from what does not, and what is measured is there."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.soak import main, sizes_of, slow_statements
from benchmarks.soak_report import BLOCKS, MOST_MB, programs_of, report, slope

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
