"""Settings that were called otherwise in earlier versions are read in what those saved."""

import json
import uuid
from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Box

from teacher.behaviors import backflip
from teacher.data.checkpoint import load_state, save_state
from teacher.datasets.predictor_files import load_predictor, save_predictor
from teacher.errors import ConfigError
from teacher.reward.predictor import RewardPredictor
from teacher.settings.config import TeachConfig
from teacher.settings.functions import named_function
from teacher.settings.options import OLD_NAMES, RewardConfig
from teacher.settings.saved_config import load_config, save_config

SETTINGS = RewardConfig(members=3, regularization="l2", normalization="running", hidden=8)
OLD = {new: old for old, new in OLD_NAMES.items()}
REMOVED = {"shaping": None, "flat_start": True}


def test_in_the_configuration_of_a_run(tmp_path: Path) -> None:
    config = TeachConfig(
        env_id="x", predictor="synth", name="x", n_labels=40, runs_dir=str(tmp_path), reward=SETTINGS
    )
    config.run_dir.mkdir(parents=True)
    save_config(config, uuid.uuid4())
    path = config.run_dir / "config.json"
    data = json.loads(path.read_text())
    assert set(OLD) <= data["reward"].keys()
    data["reward"] = {OLD.get(name, name): value for name, value in data["reward"].items()} | REMOVED
    path.write_text(json.dumps(data))
    assert load_config(config.run_dir)[0].reward == SETTINGS
    data["reward"]["shaping"] = 0.99
    path.write_text(json.dumps(data))
    with pytest.raises(ConfigError, match=r"reward\.shaping was removed; use version 0\.1\.0"):
        load_config(config.run_dir)


def test_in_a_predictor(tmp_path: Path) -> None:
    spaces = Box(-1, 1, (3,), np.float32), Box(-1, 1, (2,), np.float32)
    path = tmp_path / "reward.npz"
    save_predictor(path, RewardPredictor(*spaces, SETTINGS, seed=1), *spaces)
    state = load_state(path)
    settings = {OLD.get(name, name): kept for name, kept in state["about"]["reward"].items()}
    state["about"]["reward"] = settings | REMOVED
    save_state(path, state)
    assert load_predictor(path).config == SETTINGS
    state["about"]["reward"] = settings | {"shaping": 0.99}
    save_state(path, state)
    with pytest.raises(ConfigError, match=r"reward\.shaping was removed; use version 0\.1\.0"):
        load_predictor(path)


def test_in_the_name_of_a_function() -> None:
    assert named_function("teacher.behaviours:backflip") is backflip
