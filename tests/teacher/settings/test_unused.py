"""A setting that has no effect in a mode is refused, except in files of earlier versions."""

import dataclasses
import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from teacher.errors import ConfigError
from teacher.settings.config import TeachConfig
from teacher.settings.options import QueryConfig, RewardConfig
from teacher.settings.presets import PRESETS, from_options
from teacher.settings.saved_config import load_config, save_config
from teacher.settings.unused import UNUSED
from teacher.teach import main
from teacher.wrapper.settings import WrapperConfig

BASE = {"env_id": "ShortHopper-v1", "name": "x"}
OTHER: dict[str, Any] = {
    "n_labels": 40, "pretrain_labels": 9, "schedule": "constant", "teacher": "mistake:0.1",
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


@pytest.mark.parametrize("name", OTHER)
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
