"""The claims about what labels teach, in their short form; and what the script keeps and shows."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import reward_claims
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
