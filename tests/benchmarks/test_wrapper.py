"""Test what the benchmarks of the wrapper and of clips make of their results."""

import argparse
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from benchmarks import wrapper
from benchmarks.clips import main


def result(side: str, seed: int, reached: float, labels: int = 0) -> dict[str, Any]:
    job = {"env_id": "Pendulum-v1", "algorithm": "ppo", "side": side, "seed": seed, "steps": 100_000}
    return {**job, "return": reached, "labels": labels, "curve": [float(step) for step in range(20)]}


RESULTS = [
    *(result("random", seed, -1200.0) for seed in (1, 2, 3)),
    *(result("sb3", seed, -200.0) for seed in (1, 2, 3)),
    *(result("wrapper", seed, reached, 200) for seed, reached in ((1, -300.0), (2, -250.0), (3, -700.0))),
]


def test_the_share_of_the_way_is_that_of_medians(capsys: pytest.CaptureFixture[str]) -> None:
    wrapper.print_table(RESULTS)
    said = capsys.readouterr().out
    assert "-300 (-700 to -250)" in said
    assert "0.90 (0.50 to 0.95)" in said
    assert "200" in said


def test_finished_runs_are_kept() -> None:
    options = argparse.Namespace(seeds=[3, 4], envs=["Pendulum-v1"], steps=None)
    jobs = wrapper.missing(options, RESULTS)
    assert [(job.side, job.seed, job.steps) for job in jobs] == [
        (side, 4, 100_000) for side in ("random", "sb3", "wrapper")
    ]


def test_curves_are_drawn(tmp_path: Path) -> None:
    wrapper.draw(RESULTS, tmp_path / "curves.png")
    with Image.open(tmp_path / "curves.png") as picture:
        assert min(picture.size) > 200


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
