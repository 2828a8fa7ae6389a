"""The benchmark of returns trains both sides alike, keeps what it has, and judges as it says."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.agents_return import ALGORITHMS, SIDES, STEPS, Job, compare, run

ROOT = Path(__file__).parents[2]


def result(side: str, seed: int, reached: float, steps: int = STEPS["CartPole-v1"]) -> dict[str, Any]:
    job = {"env_id": "CartPole-v1", "algorithm": "ppo", "side": side, "seed": seed, "steps": steps}
    return {**job, "return": reached, "curve": [None, *[reached] * 19]}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("side", SIDES)
def test_both_sides_train_and_are_evaluated(side: str, algorithm: str) -> None:
    outcome = run(Job("CartPole-v1", algorithm, side, seed=1, steps=2048))
    assert 15 < outcome["return"] <= 500
    assert any(point is not None and 8 < point < 200 for point in outcome["curve"])
    assert json.loads(json.dumps(outcome)) == outcome


@pytest.mark.parametrize(("shift", "verdict"), [(-50.0, "below"), (0.0, "level"), (50.0, "above")])
def test_sides_differ_where_the_interval_of_the_difference_leaves_zero_out(
    shift: float, verdict: str
) -> None:
    reached = [100.0, 110.0, 105.0, 95.0, 90.0]
    results = [result("theirs", seed, value) for seed, value in enumerate(reached)]
    results += [result("ours", seed, value + shift) for seed, value in enumerate(reached)]
    results += [result("ours", 9, 1e6, steps=7)]  # of another length
    comparison = compare(results, "CartPole-v1", "ppo")
    assert comparison is not None
    assert comparison.verdict == verdict
    assert comparison.iqm == {"ours": 100.0 + shift, "theirs": 100.0}
    low, high = comparison.difference
    assert low < shift < high
    assert compare(results, "CartPole-v1", "trpo") is None


def test_finished_runs_are_not_made_again_and_all_of_them_are_shown(tmp_path: Path) -> None:
    path, picture = tmp_path / "results.jsonl", tmp_path / "returns.png"
    results = [result(side, seed, 400.0 + seed) for side in SIDES for seed in (1, 2, 3)]
    path.write_text("".join(json.dumps(one) + "\n" for one in results))
    arguments = ["--envs", "CartPole-v1", "--algorithms", "ppo", "--seeds", "1", "2", "3"]
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks.agents_return", *arguments),
            *("--results", str(path), "--plot", str(picture)),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
    )
    assert ended.returncode == 0, ended.stderr
    assert "402.0 [401.0, 403.0]" in ended.stdout
    assert "level" in ended.stdout
    assert len(path.read_text().splitlines()) == 6
    assert picture.stat().st_size > 1000
