import contextlib
import dataclasses
import json
import math
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box
from hypothesis import given, settings
from hypothesis import strategies as st

from teacher.errors import ConfigError
from teacher.reward.predictor import RewardPredictor
from teacher.settings.config import PARTS, TeachConfig
from teacher.settings.config_files import load_config, save_config
from teacher.settings.corrections import command_of
from teacher.settings.options import QueryConfig, RewardConfig
from teacher.settings.presets import PRESETS, from_options
from teacher.settings.variables import read_redis_url
from tests.teacher.conftest import save_new


def make_config(**changes: Any) -> TeachConfig:
    return TeachConfig(
        **{"env_id": "ShortHopper-v1", "predictor": "synth", "name": "x", "n_labels": 40, **changes}
    )


SETTINGS = [
    ("run_id",),
    ("unknown",),
    *((name,) for name in dataclasses.asdict(make_config())),
    *((part, name) for part, kind in PARTS.items() for name in (*dataclasses.asdict(kind()), "unknown")),
]
_PLAIN = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9))
JSON = _PLAIN | st.lists(_PLAIN, max_size=2) | st.dictionaries(st.text(max_size=5), _PLAIN, max_size=2)


@pytest.mark.parametrize(
    ("changes", "expectation"),
    [
        ({"name": "a b"}, "letters, digits"),
        ({"name": "मीरा"}, "ASCII letters, digits, _ and - only"),
        ({"name": "../up"}, "letters, digits"),
        ({"name": ""}, "letters, digits"),
        ({"predictor": "oracle"}, "rl, synth or human"),
        ({"n_labels": None}, "synth needs a number"),
        ({"n_labels": 3}, "4 or more"),
        ({"pretrain_labels": 41}, "no more than --n_labels"),
        ({"pretrain_labels": 0}, "1 or more"),
        ({"num_timesteps": 0}, "1 or more"),
        ({"value_refit": -1}, "0 or more"),
        ({"value_refit": 1e30}, "1e6 or less"),
        ({"n_labels": 1e30}, "1e9 or less"),
        ({"pretrain_labels": 1e30, "n_labels": None, "predictor": "human"}, "1e9 or less"),
        ({"max_episode_steps": 1e30}, "1e9 or less"),
        ({"ent_coef": 1e308}, "1000 or less"),
        ({"schedule": "daily"}, "exponential, constant, hyperbolic"),
        (
            {"schedule": "constant", "n_labels": None, "predictor": "human"},
            "needs a total number of labels, such as -l",
        ),
        ({"agent": "dqn"}, "ppo, trpo or sac"),
        ({"segment_seconds": 0.0}, "more than 0"),
        ({"segment_steps": 0}, "1 or more"),
        (
            {"segment_seconds": 2.0, "segment_steps": 30},
            "--segment_seconds: can't be combined with --segment_steps; got 2",
        ),
        ({"predictor": "human", "pace": "slow"}, "labels or free"),
        ({"predictor": "human", "prompt": "  "}, "a sentence of up to 500"),
        ({"predictor": "human", "site_url": "ftp://host", "storage": "s3://b/p"}, "http"),
        ({"predictor": "human", "site_url": "https://labels.example.org"}, "s3://"),
        ({"predictor": "human", "public_url": "labels.example.org"}, "http"),
        ({"workers": 0}, "1 or more"),
        ({"seed": -1}, "0 to"),
        ({"seed": 2**32}, "0 to"),
        ({"seed": 99999999999999999999}, "0 to"),
        ({"name": "x" * 90}, "shorter"),
        ({"predictor": "human", "storage": "ftp://host/clips"}, "s3://bucket/prefix or a folder"),
        ({"predictor": "human", "bind": "::"}, "needs public_url"),
        ({"predictor": "human", "bind": "0.0.0.0"}, "needs public_url"),  # noqa: S104 (refused)
        ({"gold": 0.6, "predictor": "human"}, "0 to 0.5"),
        ({"gold": 0.1}, "--gold: has no effect with -p synth; leave it out; got 0.1"),
        ({"teacher": "mistaken"}, "expected one or more of oracle"),
        ({"teacher": "mistake:2"}, "mistake"),
        ({"teacher": "noisy:1", "predictor": "human"}, "python -m teacher.bots --teacher"),
        (
            {"teacher": "mistake:0.1", "predictor": "rl"},
            "no effect with -p rl; leave it out; got 'mistake:0.1'",
        ),
        ({"teacher": "mistake:0.1", "predictor": "human"}, "python -m teacher.bots --teacher"),
    ],
)
def test_bad_values_name_field_and_expectation(changes: dict[str, Any], expectation: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        make_config(**changes)
    message = str(refusal.value)
    assert expectation in message
    assert message.startswith("--")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("changes", "expectation"),
    [
        ({"members": 0}, "1 or more"),
        ({"hidden": 0}, "1 or more"),
        ({"hidden": 10**12}, "4096 or less"),
        ({"members": 10**12}, "1000 or less"),
        ({"hidden": 4096, "members": 1000}, r"447 or less with --reward\.members 1000"),
        ({"stride": 0}, "1 or more"),
        ({"label_noise": 1.0}, "less than 1"),
        ({"discount": 0.0}, "at most 1"),
        ({"learning_rate": 0.0}, "more than 0"),
        ({"learning_rate": 1e39}, "1e30 or less"),
        ({"dropout": 1.0}, "less than 1"),
        ({"regularization": "l3"}, "weight_decay, l1 or l2"),
        ({"strength": float("nan")}, "0 or more"),
        ({"strength": 0.0, "adapt": True}, r"more than 0 with --reward\.adapt"),
        ({"label_smoothing": 0.5}, "less than 0.5"),
        ({"shortest_crop": 0.0}, "more than 0"),
        ({"accumulate": 0}, "1 or more"),
        ({"epochs": 0}, "1 or more"),
        ({"epochs": 1e30}, "1e6 or less"),
        ({"initial_epochs": 0}, "1 or more"),
        ({"initial_epochs": 1e30}, "1e6 or less"),
        ({"normalization": "batch"}, "preferences, running or none"),
        ({"uncertainty_bonus": 1e30}, "-1e6 to 1e6"),
        ({"batch_size": 0}, "1 or more"),
        ({"patience": 0}, "1 or more"),
        ({"reward_std": 1e30}, "more than 0 and at most 1e6"),
    ],
)
def test_bad_reward_values_name_the_option(changes: dict[str, Any], expectation: str) -> None:
    name = next(iter(changes))
    with pytest.raises(ConfigError, match=rf"^--reward\.{name}: expected .*{expectation}.*; got \S+$"):
        RewardConfig(**changes)


@pytest.mark.parametrize(
    ("changes", "expectation"),
    [
        ({"selection": "best"}, "random or active"),
        ({"uncertainty": "entropy"}, "probability, logit or label"),
        ({"candidates": 0}, "1 or more"),
        ({"candidates": 1e30}, "10000 or less"),
        ({"diversity": 0}, "1 or more"),
        ({"diversity": 11}, r"no more than --queries\.candidates \(10\)"),
        ({"recency": 0.0}, "more than 0"),
        ({"recency": float("nan")}, "more than 0"),
        ({"oversampling": 0.5}, "1 or more"),
        ({"exploration_frac": 1.5}, "0 to 1"),
        ({"switch_prob": -0.1}, "0 to 1"),
        ({"random_prob": float("nan")}, "0 to 1"),
    ],
)
def test_bad_query_values_name_the_option(changes: dict[str, Any], expectation: str) -> None:
    (name,) = changes
    with pytest.raises(ConfigError, match=rf"^--queries\.{name}: expected {expectation}; got \S+$"):
        QueryConfig(**changes)


@pytest.mark.parametrize(("members", "hidden"), [(10, 4096), (1000, 64), (3, 4096)])
def test_many_members_or_large_ones_are_fine(members: int, hidden: int) -> None:
    assert RewardConfig(members=members, hidden=hidden).hidden == hidden


def test_one_member_cannot_disagree_with_itself() -> None:
    active = QueryConfig(selection="active")
    assert make_config(queries=active).queries == active
    with pytest.raises(
        ConfigError, match=r"^--queries\.selection: .*--reward\.members of 2 or more; got 'active'"
    ):
        make_config(queries=active, reward=RewardConfig(members=1))


def test_one_member_cannot_disagree() -> None:
    with pytest.raises(ConfigError, match="0 with only one ensemble member"):
        RewardConfig(members=1, uncertainty_bonus=0.5)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"n_labels": 1400}, 350),
        ({"predictor": "human", "n_labels": None}, 175),
        ({"pretrain_labels": 20}, 20),
    ],
)
def test_pretraining_labels_default_to_a_quarter(changes: dict[str, Any], expected: int) -> None:
    assert make_config(**changes).num_pretrain_labels == expected


def test_only_people_are_waited_for() -> None:
    assert not make_config().holds_for_labels
    assert make_config(predictor="human").holds_for_labels
    assert not make_config(predictor="human", pace="free").holds_for_labels


def test_environment_ids_with_slashes_make_one_folder_and_one_site_name() -> None:
    config = make_config(env_id="my.module:teacher/Pendulum-v1", name="swing")
    assert config.run_dir == Path("runs/my-module-teacher-Pendulum-v1/swing")
    assert config.experiment == "my-module-teacher-Pendulum-v1-swing"


def test_a_saved_configuration_comes_back(tmp_path: Path) -> None:
    config, run_id = make_config(predictor="human", runs_dir=str(tmp_path / "runs")), uuid.uuid4()
    config.run_dir.mkdir(parents=True)
    save_config(config, run_id)
    absolute = dataclasses.replace(config, state_dir=str(Path("state").absolute()))
    assert load_config(config.run_dir) == (absolute, run_id)


def test_the_settings_of_parts_are_saved_as_parts(tmp_path: Path) -> None:
    config = make_config(runs_dir=str(tmp_path / "runs"), reward=RewardConfig(members=5))
    save_new(config)
    assert json.loads((config.run_dir / "config.json").read_text())["reward"]["members"] == 5
    assert load_config(config.run_dir)[0].reward == config.reward


def test_a_configuration_from_before_there_were_parts_loads(tmp_path: Path) -> None:
    config = make_config(runs_dir=str(tmp_path / "runs"))
    path = save_new(config)
    old = {name: value for name, value in json.loads(path.read_text()).items() if name not in PARTS}
    path.write_text(json.dumps(old))
    assert load_config(config.run_dir)[0].reward == RewardConfig(
        inputs=None, features="plain", model="network"
    )


@pytest.mark.parametrize("reward", [{"memebers": 3}, {"members": "many"}, [], {"members": 0}])
def test_a_part_that_does_not_fit_is_refused(tmp_path: Path, reward: Any) -> None:
    config = make_config(runs_dir=str(tmp_path / "runs"))
    path = save_new(config)
    path.write_text(json.dumps({**json.loads(path.read_text()), "reward": reward}))
    with pytest.raises(ConfigError):
        load_config(config.run_dir)


@pytest.mark.parametrize("part", ["", *PARTS])
def test_a_setting_of_a_newer_version_is_named_as_such(tmp_path: Path, part: str) -> None:
    config = make_config(runs_dir=str(tmp_path / "runs"))
    path = save_new(config)
    data = json.loads(path.read_text())
    (data[part] if part else data)["new_option"] = 3
    path.write_text(json.dumps(data))
    name = f"{part}.new_option" if part else "new_option"
    message = rf"^{path} was written by a newer version .* unknown setting {name}; update RL-Teacher$"
    with pytest.raises(ConfigError, match=message):
        load_config(config.run_dir)


@pytest.mark.parametrize("name", PRESETS)
def test_given_values_override_the_preset(name: str) -> None:
    options = {"env_id": "ShortHopper-v1", "predictor": "synth", "name": "x", "n_labels": 40, "preset": name}
    preset = from_options(options)
    for option, value in PRESETS[name].items():  # type: ignore[index]
        part, _, field = option.rpartition(".")
        if part == "agent":
            assert preset.agent_settings[field] == value
        else:
            assert getattr(getattr(preset, part) if part else preset, field) == value
    other = from_options({**options, "reward.members": 7, "segment_seconds": 3.0})
    assert other == dataclasses.replace(
        preset, segment_steps=None, segment_seconds=3.0, reward=dataclasses.replace(preset.reward, members=7)
    )


def test_the_papers_preset_fits_as_the_paper_does() -> None:
    reward = from_options(
        {"env_id": "Hopper-v5", "predictor": "synth", "name": "x", "n_labels": 40, "preset": "paper"}
    ).reward
    assert (reward.regularization, reward.adapt) == ("l2", True)
    assert (reward.members, reward.hidden, reward.label_noise, reward.reward_std) == (3, 64, 0.1, 1.0)
    predictor = RewardPredictor(Box(-1, 1, (3,)), Box(-1, 1, (2,)), reward, seed=1)
    assert predictor.inputs == {"state", "action"}


def test_the_papers_preset_asks_as_the_paper_does() -> None:
    given = {"env_id": "Hopper-v5", "predictor": "synth", "name": "x", "n_labels": 700, "preset": "paper"}
    config = from_options(given)
    assert config.queries == QueryConfig(
        selection="active", uncertainty="probability", candidates=10, recency=math.inf
    )
    assert (config.schedule, config.num_pretrain_labels) == ("paper_mujoco", 175)


def test_the_papers_preset_for_atari_is_that_of_its_games() -> None:
    given = {"env_id": "teacher/Pong-v1", "predictor": "synth", "name": "x", "preset": "paper_atari"}
    config = from_options({**given, "n_labels": 5500, "pretrain_labels": 500})
    assert (config.segment_steps, config.schedule, config.agent) == (25, "paper_atari", "ppo")
    reward = config.reward
    assert (reward.max_preferences, reward.reward_std, reward.image_dropout) == (3000, 0.05, 0.5)
    assert (reward.regularization, reward.adapt, reward.no_image_batch_norm) == ("l2", True, False)


def test_the_preset_of_bpref_is_pebble() -> None:
    given = {"env_id": "Hopper-v5", "predictor": "synth", "name": "x", "preset": "bpref", "n_labels": 500}
    config = from_options(given)
    assert (config.agent, config.pretrain_steps, config.segment_steps) == ("sac", 10_000, 50)
    assert config.agent_settings == {
        "hidden_sizes": (1024, 1024),
        "batch_size": 1024,
        "learning_rate": 5e-4,
        "ent_coef": "auto_0.1",
        "target_update_interval": 2,
    }
    assert (config.reward.inputs, config.reward.hidden, config.reward.label_noise) == ("state,action", 256, 0)
    assert config.num_pretrain_labels == 125
    assert command_of(config, {}) == "teach -p synth -e Hopper-v5 -n x -l 500 --preset bpref"
    smaller = from_options({**given, "agent.batch_size": 256})
    assert smaller.agent_settings["batch_size"] == 256
    assert smaller.agent_settings["learning_rate"] == 5e-4


def test_options_that_cant_be_combined_with_a_presets_replace_them() -> None:
    given = {"env_id": "Hopper-v5", "predictor": "synth", "name": "x", "preset": "bpref", "n_labels": 500}
    config = from_options({**given, "ent_coef": 0.1, "policy": "somewhere"})
    assert (config.ent_coef, config.pretrain_steps) == (0.1, 0)
    assert "ent_coef" not in config.agent_settings


def test_a_preset_with_another_agent_leaves_out_what_is_its_agents() -> None:
    given = {"env_id": "Hopper-v5", "predictor": "synth", "name": "x", "agent": "ppo", "n_labels": 500}
    config = from_options({**given, "preset": "bpref"})
    assert (config.agent, config.agent_settings, config.pretrain_steps) == ("ppo", {}, 0)
    assert config.reward.hidden == 256


def test_an_unknown_preset_is_refused() -> None:
    with pytest.raises(ConfigError, match="default or paper or paper_atari or bpref"):
        from_options({"env_id": "ShortHopper-v1", "predictor": "rl", "name": "x", "preset": "best"})


def test_resumed_run_finds_its_site_and_clips(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config(predictor="human", state_dir="site", storage="clips")
    save_new(config)
    monkeypatch.chdir("/")
    found, _ = load_config(here / config.run_dir)
    assert (found.state_dir, found.storage) == (str(here / "site"), str(here / "clips"))


def test_a_moved_run_is_found_and_a_renamed_one_refused(tmp_path: Path) -> None:
    config = make_config(runs_dir=str(tmp_path / "runs"))
    save_new(config)
    moved = (tmp_path / "runs").rename(tmp_path / "elsewhere")
    assert load_config(moved / "ShortHopper-v1" / "x")[0].run_dir == moved / "ShortHopper-v1" / "x"
    renamed = (moved / "ShortHopper-v1" / "x").rename(moved / "ShortHopper-v1" / "y")
    with pytest.raises(ConfigError, match="renamed"):
        load_config(renamed)


@pytest.mark.parametrize(
    ("name", "value", "expectation"),
    [
        ("seed", 1.5, "expected a whole number such as 1400 or 5e6; got 1.5"),
        ("predictor", None, "expected .*synth.*; got None"),
        ("no_videos", 1, "expected bool; got 1"),
        ("num_timesteps", 5e6, None),
        ("segment_seconds", 2, None),
    ],
)
def test_settings_keep_types(tmp_path: Path, name: str, value: object, expectation: str | None) -> None:
    config = make_config(runs_dir=str(tmp_path))
    config.run_dir.mkdir(parents=True)
    data = {"run_id": str(uuid.UUID(int=1)), **dataclasses.asdict(config), name: value}
    (config.run_dir / "config.json").write_text(json.dumps(data))
    if expectation is None:
        assert getattr(load_config(config.run_dir)[0], name) == value
    else:
        with pytest.raises(ConfigError, match=f"--{name}: {expectation}"):
            load_config(config.run_dir)


@settings(max_examples=300, derandomize=True, database=None, deadline=None)
@given(at=st.sampled_from(SETTINGS), value=JSON)
def test_whatever_a_setting_is_changed_to_is_read_back_or_refused(
    tmp_path_factory: pytest.TempPathFactory, at: tuple[str, ...], value: Any
) -> None:
    config = make_config(runs_dir=str(tmp_path_factory.getbasetemp()))
    data: dict[str, Any] = {"run_id": str(uuid.UUID(int=1)), **dataclasses.asdict(config)}
    part = data if len(at) == 1 else data[at[0]]
    part[at[-1]] = value
    config.run_dir.mkdir(parents=True, exist_ok=True)
    (config.run_dir / "config.json").write_text(json.dumps(data))
    with contextlib.suppress(ConfigError):
        changed, _ = load_config(config.run_dir)
        save_config(changed, uuid.UUID(int=1))
        again, _ = load_config(config.run_dir)
        folders: dict[str, Any] = {
            "state_dir": "",
            "policy": None,
            "demonstrations": None,
            "storage": None,
        }  # absolute now
        assert dataclasses.replace(again, **folders) == dataclasses.replace(changed, **folders)


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json"):
        load_config(tmp_path)


@pytest.mark.parametrize(
    "url",
    [
        "localhost:6379",
        "rediss://:secret@host:6379/0",
        "redis://:secret@host:port/0",
        "redis://:se/cret@host:6379/0",
        "redis://:secret@host:6379/zero",
        "redis://[::1",
        "http://host",
    ],
)
def test_bad_redis_address_is_refused_and_hidden(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", url)
    with pytest.raises(
        ConfigError,
        match="REDIS_URL is not a valid Redis URL; set it to a URL like redis://:password@host:6379/0",
    ) as caught:
        read_redis_url()
    assert "secret" not in str(caught.value)


def test_redis_url_is_stripped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", " redis://:secret@host:6379/1\n")
    assert read_redis_url() == "redis://:secret@host:6379/1"
    monkeypatch.setenv("REDIS_URL", " ")
    assert read_redis_url() is None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"members": 2.5}, "members: expected a whole number such as 1400 or 5e6; got 2.5"),
        ({"hidden": "64"}, "hidden: expected a whole number such as 1400 or 5e6; got '64'"),
        ({"hidden": None}, "hidden: expected a whole number such as 1400 or 5e6; got None"),
        ({"inputs": ["state"]}, r"inputs: expected text; got \['state'\]"),
    ],
)
def test_a_setting_of_another_type_is_refused_from_python_too(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=rf"--reward\.{says}"):
        RewardConfig(**changes)


def test_settings_may_be_numbers_of_numpys_and_whole_ones_with_a_point(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "members": np.int64(5),
        "dropout": np.float32(0.5),
        "hidden": 32.0,
        "strength": 2,
    }
    config = make_config(
        runs_dir=str(tmp_path), reward=RewardConfig(**settings), num_timesteps=np.int64(5000), n_labels=4e2
    )
    assert (config.reward.members, config.reward.dropout, config.reward.strength) == (5, 0.5, 2.0)
    kinds = [type(number) for number in (config.reward.hidden, config.num_timesteps, config.n_labels)]
    assert kinds == [int, int, int]
    save_new(config)
    assert load_config(config.run_dir)[0].reward == config.reward


def test_all_settings_that_do_not_fit_are_refused_at_once() -> None:
    with pytest.raises(ConfigError) as refused:
        make_config(seed=-1, workers=0, segment_steps=0)
    assert str(refused.value) == (
        "--seed: expected 0 to 2**32 - 1; got -1; --workers: expected 1 or more; got 0; "
        "--segment_steps: expected 1 or more; got 0"
    )
    with pytest.raises(
        ConfigError,
        match=r"--gold: has no effect .*-p synth; .*; got 0\.1; --site_url: has no .*; got 'here'",
    ):
        make_config(predictor="synth", gold=0.1, site_url="here")
