"""The claims about what labels teach, in their short form; how reward learning is timed; episode ends."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import episode_ends, reward_claims
from benchmarks.episode_ends import make, table
from benchmarks.reward_claims import (
    Figures,
    Fit,
    choice,
    controls,
    distance,
    later,
    main,
    regularization,
)
from benchmarks.reward_speed import Bench, report
from teacher.settings.options import RewardConfig

SHORT = Fit(RewardConfig(features="even", hidden=16, patience=20), max_updates=100)
SEEDS = (1, 2)


def by_variant(results: list[Figures]) -> dict[str, list[float]]:
    return {variant: [figures[variant] for figures in results] for variant in results[0]}


def test_oracle_labels_teach_and_coin_flips_do_not() -> None:
    values = by_variant([controls(seed, SHORT) for seed in SEEDS])
    taught, coin = values["oracle"], values["coin flips"]
    assert min(taught) > 0.8
    assert abs(np.mean(coin)) < 0.4
    assert max(coin) < min(taught) - 0.3


def test_labels_before_training_teach_little_about_a_policy_that_came_later() -> None:
    values = later(1, SHORT)
    assert values["labels before, random"] > 0.7
    assert values["labels before, policy"] < values["labels of both, policy"] - 0.5


def test_a_distance_is_learned_from_fewer_answers_by_squares_and_logarithms() -> None:
    values = by_variant([distance(seed, SHORT) for seed in SEEDS])
    assert np.mean(values["even"]) > 0.85
    assert np.mean(values["plain"]) < np.mean(values["even"]) - 0.08


def test_the_choice_and_every_regularization_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reward_claims, "CHOICE_LABELS", (80,))
    assert choice(1, SHORT) == {"distance, 80 labels": 1.0, "sum, 80 labels": 0.0}
    figures = regularization(1, SHORT)
    assert len(figures) == 6
    assert min(figures.values()) > 0.8


def test_finished_runs_are_kept_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reward_claims, "FULL", SHORT)
    path = tmp_path / "results.jsonl"
    kept = {"part": "distance", "seed": 1, "figures": {"plain": 0.125, "even": 0.5}}
    path.write_text(json.dumps(kept) + "\n")
    line = ["--part", "distance", "--results", str(path), "--seeds", "1", "2"]
    for _ in range(2):
        assert main(line) == 0
    first, second = map(json.loads, path.read_text().splitlines())
    assert first == kept
    assert second == {"part": "distance", "seed": 2, "figures": second["figures"]}
    assert f"({kept['figures']['even']:.2f} to {second['figures']['even']:.2f})" in capsys.readouterr().out  # type: ignore[index]
    assert main(["--show", "--results", str(tmp_path / "none.jsonl")]) == 0
    assert not (tmp_path / "none.jsonl").exists()


def test_our_side_is_timed_without_imitation(tmp_path: Path) -> None:
    found = Bench(tmp_path, imitation=None).relabel(seed=1)
    assert list(found) == ["ours"]
    assert 0 < found["ours"] < 1e-3  # seconds for one step


def test_ratios_are_medians_over_rounds_with_their_range() -> None:
    rounds = [{"ours": ours, "imitation": theirs} for ours, theirs in [(1.0, 10.0), (2.0, 30.0), (1.0, 40.0)]]
    assert list(report("fit", rounds)) == [
        "| fit | ours | 1 (1 to 2) s |",
        "| fit | imitation | 30 (10 to 40) s |",
        "| fit | imitation / ours | **15 (10 to 40)** |",
    ]


def test_a_run_on_labels_is_set_against_one_on_the_true_reward() -> None:
    rounds = [{"ours, rl": 2.0, "ours, rl, CPU": 2.0, "ours, synth": 3.0, "ours, synth, CPU": 5.0}]
    assert list(report("steps", rounds))[-2:] == [
        "| steps | ours, synth / ours, rl | **1.5 (1.5 to 1.5)** |",
        "| steps | ours, synth, CPU / ours, rl, CPU | **2.5 (2.5 to 2.5)** |",
    ]


def test_frozen_segments_are_ties(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episode_ends, "_EPISODES", 15)
    monkeypatch.setattr(episode_ends, "_TESTED", 5)
    monkeypatch.setattr(episode_ends, "LABELS", 30)
    found = {side: make("CartPole-v1", side, "random", 1) for side in ("frozen", "absorb")}
    frozen, absorb = found["frozen"]["ties"], found["absorb"]["ties"]
    assert frozen is not None
    assert absorb is not None
    assert frozen > 0.6
    assert absorb < 0.3
    results = [{"task": "CartPole-v1", "side": side, "labeled": "random", **found[side]} for side in found]
    assert table(results).row_count == len(episode_ends.TASKS) * len(episode_ends.SIDES)
