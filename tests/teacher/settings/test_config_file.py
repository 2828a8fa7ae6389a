"""Settings from TOML files and of earlier versions, and those that have no effect in a mode."""

import dataclasses
import json
import shlex
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box

from teacher.behaviors import backflip
from teacher.data.checkpoint import load_state, save_state
from teacher.datasets.predictor_files import load_predictor, save_predictor
from teacher.errors import ConfigError
from teacher.reward.predictor import RewardPredictor
from teacher.settings.config import TeachConfig
from teacher.settings.config_files import load_config, save_config
from teacher.settings.functions import named_function
from teacher.settings.options import OLD_NAMES, QueryConfig, RewardConfig
from teacher.settings.presets import PRESETS, from_options
from teacher.settings.unused import UNUSED
from teacher.teach import main, parse_arguments
from teacher.wrapper.settings import WrapperConfig

FILE = """
env_id = "Pendulum-v1"
predictor = "synth"
name = "from-file"
n_labels = 40
num_timesteps = 3e4
schedule = "constant"

[reward]
members = 5

[queries]
selection = "random"

[agent]
name = "trpo"
gamma = 0.9
hidden_sizes = [32, 32]
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run.toml"
    path.write_text(FILE)
    return path


def test_a_file_says_the_same_as_the_options_of_its_names(path: Path) -> None:
    options = (
        "-e Pendulum-v1 -p synth -n from-file -l 40 -t 3e4 --schedule constant --reward.members 5 "
        "--queries.selection random -a trpo --agent.gamma 0.9 --agent.hidden_sizes 32,32"
    )
    found, wanted = (parse_arguments(shlex.split(line)).config for line in (f"--config {path}", options))
    assert dict(found.agent_settings) == {"gamma": 0.9, "hidden_sizes": [32, 32]}
    assert vars(found) | {"agent_settings": 0} == vars(wanted) | {"agent_settings": 0}


def test_the_command_line_overrides_the_file(path: Path) -> None:
    config = parse_arguments(
        shlex.split(f"--config {path} -l 80 --reward.members 2 --agent.gamma 0.8")
    ).config
    assert (config.n_labels, config.reward.members) == (80, 2)
    assert config.agent_settings["gamma"] == 0.8
    assert config.agent == "trpo"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("seed = ", "is not valid TOML"),
        ("sed = 3", "unknown option sed; did you mean seed?"),
        ("[reward]\nmember = 3", r"unknown option reward\.member; did you mean reward\.members\?"),
        ("stages = []", "unknown option stages"),
        ("seed = 2026-01-01", "seed must be a string, number, boolean or array"),
        ('env_id = "x"\npredictor = "rl"\nname = "x"\nseed = "many"', "--seed: expected a whole number"),
    ],
)
def test_a_file_that_cannot_work_is_refused(path: Path, text: str, says: str) -> None:
    path.write_text(text)
    with pytest.raises(ConfigError, match=says):
        parse_arguments(["--config", str(path)])


def test_missing_or_misplaced_file_is_refused(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", "no.toml"]) == 2
    assert "--config: can't read no.toml: No such file" in capsys.readouterr().err
    assert main(["--config", str(path), "--resume", "runs/x"]) == 2
    assert "remove --config" in capsys.readouterr().err


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


BASE = {"env_id": "ShortHopper-v1", "name": "x"}
OTHER: dict[str, Any] = {
    "n_labels": 40, "pretrain_labels": 9, "schedule": "constant", "teacher": "mistake:0.1",
    "feedback": "graded",
    "hard_labels": True, "segment_seconds": 2.0, "segment_steps": 30, "network": "a:b",
    "pretrain_iters": 7, "pretrain_steps": 9, "value_refit": 2,
    "allow_variable_horizon": True, "prompt": "Faster?", "gold": 0.1, "pace": "free",
    "site_url": "https://labels.example.org", "storage": "clips", "state_dir": "elsewhere",
    "bind": "127.0.0.2", "public_url": "https://labels.example.org", "reward": RewardConfig(members=5),
    "queries": QueryConfig(selection="random"),
}  # fmt: skip


def make(predictor: str, **changes: Any) -> TeachConfig:
    given = {**BASE, "predictor": predictor, **changes}
    return TeachConfig(**({"n_labels": 40, **given} if predictor == "synth" else given))


@pytest.mark.parametrize(
    ("predictor", "name"), [(mode, name) for mode in ("rl", "synth") for name in UNUSED[mode]]
)
def test_a_setting_without_effect_is_refused_with_its_mode(predictor: str, name: str) -> None:
    option = {"reward": r"reward\.members", "queries": r"queries\.selection"}.get(name, name)
    with pytest.raises(
        ConfigError, match=rf"--{option}: has no effect with -p {predictor}; leave it out; got"
    ):
        make(predictor, **{name: OTHER[name]})


@pytest.mark.parametrize("name", [name for name in OTHER if name != "feedback"])
def test_people_can_be_asked_with_any_of_them(name: str) -> None:
    needed: dict[str, dict[str, Any]] = {
        "schedule": {"n_labels": 40},
        "site_url": {"storage": "s3://bucket/prefix"},
        "teacher": {"teacher": "a:b"},
        "pretrain_steps": {"agent": "sac"},
    }
    changes = {name: OTHER[name], **needed.get(name, {})}
    assert make("human", **changes) != make("human")


@pytest.mark.parametrize("mode", UNUSED)
def test_every_name_of_the_table_is_a_setting(mode: str) -> None:
    kinds = (TeachConfig, WrapperConfig, RewardConfig, QueryConfig)
    fields = [{field.name for field in dataclasses.fields(kind)} for kind in kinds]
    assert any(UNUSED[mode].keys() <= names for names in fields)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_sets_only_what_has_an_effect(preset: str) -> None:
    config = from_options({**BASE, "predictor": "rl", "preset": preset})
    assert config.agent == PRESETS[preset].get("agent", "ppo")  # type: ignore[index]
    assert config.reward == RewardConfig()


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_sets_nothing_of_networks_for_a_linear_model(preset: str) -> None:
    options = {**BASE, "predictor": "human", "n_labels": 40, "preset": preset, "reward.model": "linear"}
    config = from_options(options)
    kept = {"reward.inputs", "reward.label_noise", "reward.reward_std", "reward.refit_after"}
    expected = {name: value for name, value in PRESETS[preset].items() if name in kept}  # type: ignore[index]
    assert {name: getattr(config.reward, name.removeprefix("reward.")) for name in expected} == expected


def test_settings_of_parts() -> None:
    with pytest.raises(ConfigError, match=r"^--queries\.uncertainty: has no effect .*with random selection"):
        QueryConfig(selection="random", uncertainty="logit")
    with pytest.raises(
        ConfigError, match=r"^--queries\.switch_prob: has no effect .*without exploration_frac"
    ):
        QueryConfig(switch_prob=0.1)
    with pytest.raises(
        ConfigError, match=r"^--reward\.epochs: has no effect .*with --reward\.converge; leave it out; got 3$"
    ):
        make("synth", reward=RewardConfig(converge=True, epochs=3))


def test_settings_of_another_network_are_refused_before_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = "-p synth -e Pendulum-v1 -n x -l 40 -t 400 -V --reward.image_dropout 0.1"
    assert main(words.split()) == 2
    assert "--reward.image_dropout: has no effect when obs" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("config", "saved"),
    [
        (make("rl"), {"n_labels": 40, "prompt": "Faster?", "reward": {"members": 5}}),
        (make("synth"), {"gold": 0.1, "bind": "0.0.0.0"}),  # noqa: S104 (never used)
        (make("synth", segment_steps=30), {"segment_seconds": 2.0}),
        (
            make("synth", queries=QueryConfig(selection="random"), reward=RewardConfig(converge=True)),
            {"queries.uncertainty": "logit", "queries.random_prob": 0.1, "reward.epochs": 3},
        ),
    ],
)
def test_earlier_run_resumes(tmp_path: Path, config: TeachConfig, saved: dict[str, Any]) -> None:
    config = dataclasses.replace(config, runs_dir=str(tmp_path))
    config.run_dir.mkdir(parents=True)
    save_config(config, uuid.uuid4())
    path = config.run_dir / "config.json"
    data = json.loads(path.read_text())
    for name, value in saved.items():
        part, _, field = name.rpartition(".")
        (data[part] if part else data)[field] = value
    path.write_text(json.dumps(data))
    loaded, _ = load_config(config.run_dir)
    assert dataclasses.replace(loaded, state_dir="state") == config
