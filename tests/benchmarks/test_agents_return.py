"""The benchmark of returns trains both sides alike, keeps what it has, and judges as it says."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.agents_return import SIDES, STEPS, Job, compare, main, run


def result(side: str, seed: int, reached: float, steps: int = STEPS["CartPole-v1"]) -> dict[str, Any]:
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


def test_finished_runs_are_not_made_again_and_all_of_them_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, picture = tmp_path / "results.jsonl", tmp_path / "returns.png"
    results = [result(side, seed, 400.0 + seed) for side in SIDES for seed in (1, 2, 3)]
    path.write_text("".join(json.dumps(one) + "\n" for one in results))
    arguments = ["--envs", "CartPole-v1", "--algorithms", "ppo", "--seeds", "1", "2", "3"]
    files = ["--results", str(path), "--plot", str(picture)]
    monkeypatch.setattr("sys.argv", ["agents_return", *arguments, *files])
    main()
    said = capsys.readouterr().out
    assert "402.0 [401.0, 403.0]" in said
    assert "level" in said
    assert len(path.read_text().splitlines()) == 6
    assert picture.stat().st_size > 1000
