"""The benchmark of clips runs, and counts what the rendering processes use."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.clips import main

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("repeats", ["0", "-1", "many"])
def test_repeats_that_measure_nothing_are_refused(
    repeats: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["clips.py", "--repeats", repeats])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    expected = f"error: argument --repeats: must be a whole number of at least 1, not '{repeats}'"
    assert capsys.readouterr().err.endswith(f"{expected}\n")


def test_our_side_is_measured_from_recipe_to_store(tmp_path: Path) -> None:
    results, picture = tmp_path / "results.json", tmp_path / "clips.png"
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks.clips", "--quick", "--sides", "teacher"),
            *("--json", str(results), "--picture", str(picture)),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "2 workers / 1 worker" in ended.stdout
    measured = json.loads(results.read_text())
    first, (pair,) = measured["first"]["teacher"], measured["pair"]["teacher"]
    # This process alone, which only asks and uploads, uses a third of that.
    assert 0.06 < pair["cpu"] < first["cpu"]
    assert measured["quality"]["teacher"]["luma"] > 38
    assert {workers: len(costs) for workers, costs in measured["throughput"].items()} == {"1": 1, "2": 1}
    assert picture.read_bytes().startswith(b"\x89PNG")
