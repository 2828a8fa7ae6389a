"""Test what the benchmarks of the wrapper, of clips and of agents' returns make of their results."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from benchmarks import agents_return, wrapper
from benchmarks.agents_return import SIDES, STEPS, Job, compare, run
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


def return_of(side: str, seed: int, reached: float, steps: int = STEPS["CartPole-v1"]) -> dict[str, Any]:
    job = {"env_id": "CartPole-v1", "algorithm": "ppo", "side": side, "seed": seed, "steps": steps}
    return {**job, "return": reached, "curve": [None, *[reached] * 19]}


@pytest.mark.parametrize("algorithm", ["ppo", "trpo"])
@pytest.mark.parametrize("side", SIDES)
def test_both_sides_train_and_are_evaluated(side: str, algorithm: str) -> None:
    outcome = run(Job("CartPole-v1", algorithm, side, seed=1, steps=2048))
    assert 15 < outcome["return"] <= 500
    assert any(point is not None and 8 < point < 200 for point in outcome["curve"])
    assert json.loads(json.dumps(outcome)) == outcome


@pytest.mark.parametrize(("shift", "verdict"), [(-50.0, "below"), (0.0, "level"), (50.0, "above")])
def test_sides_differ_if_the_interval_excludes_zero(shift: float, verdict: str) -> None:
    reached = [100.0, 110.0, 105.0, 95.0, 90.0]
    results = [return_of("theirs", seed, value) for seed, value in enumerate(reached)]
    results += [return_of("ours", seed, value + shift) for seed, value in enumerate(reached)]
    results += [return_of("ours", 9, 1e6, steps=7)]  # of another length
    comparison = compare(results, "CartPole-v1", "ppo")
    assert comparison is not None
    assert comparison.verdict == verdict
    assert comparison.iqm == {"ours": 100.0 + shift, "theirs": 100.0}
    low, high = comparison.difference
    assert low < shift < high
    assert compare(results, "CartPole-v1", "trpo") is None


def test_finished_runs_are_not_made_again_and_all_of_them_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, picture = tmp_path / "results.jsonl", tmp_path / "returns.png"
    results = [return_of(side, seed, 400.0 + seed) for side in SIDES for seed in (1, 2, 3)]
    path.write_text("".join(json.dumps(one) + "\n" for one in results))
    arguments = ["--envs", "CartPole-v1", "--algorithms", "ppo", "--seeds", "1", "2", "3"]
    files = ["--results", str(path), "--plot", str(picture)]
    monkeypatch.setattr("sys.argv", ["agents_return", *arguments, *files])
    agents_return.main()
    said = capsys.readouterr().out
    assert "402.0 [401.0, 403.0]" in said
    assert "level" in said
    assert len(path.read_text().splitlines()) == 6
    assert picture.stat().st_size > 1000
