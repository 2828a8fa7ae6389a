"""The settings of the benchmark of learning from images are valid."""

from pathlib import Path

from benchmarks.moving_dot import SIDES, config_of


def test_the_settings_of_each_side_are_accepted() -> None:
    configs = [config_of(side, 1, 8_000, Path("runs")) for side in SIDES]
    assert [(config.predictor, config.n_labels) for config in configs] == [("rl", None), ("synth", 100)]
