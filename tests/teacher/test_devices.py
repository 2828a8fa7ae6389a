"""A device that is not there is refused before anything begins, with those that are."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from teacher import HumanPreferencesEnvWrapper
from teacher.errors import ConfigError
from teacher.options import RewardConfig
from teacher.reward.devices import devices_here
from teacher.reward.predictor import RewardPredictor
from teacher.teach import main

SPACES = Box(-np.inf, np.inf, (3,)), Box(-1, 1, (2,), np.float32)
NONE_HERE = ["gpu", "cuda:99", "meta", "hip", "hpu", "cpu:x", ""]


@pytest.mark.parametrize("device", [*NONE_HERE, None, 1.5])
def test_a_predictor_refuses_a_device_that_is_not_here(device: Any) -> None:
    with pytest.raises(ConfigError) as error:
        RewardPredictor(*SPACES, RewardConfig(), seed=1, device=device)
    said = str(error.value)
    assert said.startswith("device: expected a device of this machine (cpu")
    assert all(name in said for name in devices_here())
    assert f"got {device!r}: " in said
    assert "\n" not in said
    assert len(said) < 400


@pytest.mark.parametrize("device", NONE_HERE)
def test_the_wrapper_refuses_it_and_makes_no_folder(device: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^device: expected a device of this machine \(cpu"):
        HumanPreferencesEnvWrapper(gym.make("Pendulum-v1"), log_dir=tmp_path / "logs", device=device)
    assert not list(tmp_path.iterdir())


def test_the_command_line_refuses_it_by_its_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main("-p rl -e Pendulum-v1 -n x --device gpu".split()) == 2
    said = capsys.readouterr().err
    assert said.startswith("teach: --device: expected a device of this machine (cpu")
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_every_device_that_is_named_works() -> None:
    for name in devices_here():
        assert RewardPredictor(*SPACES, RewardConfig(), seed=1, device=name)


def test_all_accelerators_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        torch.accelerator, "current_accelerator", lambda check_available: torch.device("cuda")
    )
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    assert devices_here() == ["cpu", "cuda:0", "cuda:1"]
