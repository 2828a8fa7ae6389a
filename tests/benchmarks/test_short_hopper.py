"""Test what one call of the benchmark leaves, the next one goes on from."""

from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.results import append
from benchmarks.short_hopper import Outcomes, Play, config_of, load_outcomes


def test_outcomes_are_kept_and_half_a_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "outcomes.jsonl"
    assert load_outcomes(path) == []
    kept = [Outcomes("synth", seed, Play(900.0 + seed, 1.5, 1.2), 300, 0.9) for seed in (1, 2)]
    for outcome in kept:
        append(path, asdict(outcome))
    assert load_outcomes(path) == kept
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(SystemExit, match=r"outcomes\.jsonl line 2: not a JSON object; remove the line"):
        load_outcomes(path)


def test_the_settings_of_each_side_are_accepted() -> None:
    configs = [config_of(side, 1, 300_000, Path("runs")) for side in ("rl", "synth", "coin")]
    assert [config.n_labels for config in configs] == [None, 300, 300]
