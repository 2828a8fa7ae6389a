"""Settings from TOML files and of earlier versions, those without effect in a mode, and bad arguments."""

import dataclasses
import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from teacher import HumanPreferencesEnvWrapper
from teacher.behaviors import backflip
from teacher.data.checkpoint import load_state, save_state
from teacher.data.demonstrations import Demonstrations, record_demonstrations
from teacher.data.segment_pool import SegmentPool
from teacher.datasets.predictor_files import load_predictor, save_predictor
from teacher.errors import ConfigError
from teacher.queries.judges import ScriptedTeacher, oracle
from teacher.queries.kinds import KINDS
from teacher.queries.offline import OfflineConfig, ask
from teacher.reward.building import devices_here
from teacher.reward.predictor import RewardPredictor
from teacher.settings.config import TeachConfig
from teacher.settings.config_files import load_config
from teacher.settings.functions import named_function
from teacher.settings.options import OLD_NAMES, QueryConfig, RewardConfig
from teacher.settings.presets import PRESETS, from_options
from teacher.settings.teachers import ErrorModel
from teacher.settings.unused import UNUSED
from teacher.teach import main, parse_arguments
from teacher.training.asking import first_questions
from teacher.training.builder import open_run
from teacher.wrapper import replayable
from teacher.wrapper.settings import WrapperConfig
from tests.teacher.conftest import config_in, save_new

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
def path(here: Path) -> Path:
    path = here / "run.toml"
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
    config = config_in(tmp_path, "x", reward=SETTINGS, no_videos=False)
    path = save_new(config)
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
    "feedback": "graded", "lowest_rating": "falls", "highest_rating": "walks",
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
        "lowest_rating": {"feedback": "rating"},
        "highest_rating": {"feedback": "rating"},
    }
    changed = make("human", **{name: OTHER[name], **needed.get(name, {})})
    assert getattr(changed, name) != getattr(make("human"), name)


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
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "-p synth -e Pendulum-v1 -n x -l 40 -t 400 -V --reward.image_dropout 0.1"
    assert main(words.split()) == 2
    assert "--reward.image_dropout: has no effect when obs" in capsys.readouterr().err
    assert not (here / "runs").exists()


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
    path = save_new(config)
    data = json.loads(path.read_text())
    for name, value in saved.items():
        part, _, field = name.rpartition(".")
        (data[part] if part else data)[field] = value
    path.write_text(json.dumps(data))
    loaded, _ = load_config(config.run_dir)
    assert dataclasses.replace(loaded, state_dir="state") == config


SPACES = Box(-np.inf, np.inf, (3,)), Box(-1, 1, (2,), np.float32)
SMALL = RewardConfig(members=1, hidden=4)
NAN, INFINITY = float("nan"), float("inf")

Take = Callable[[Any], object]


def pendulum() -> gym.Env[Any, Any]:
    return gym.make("Pendulum-v1")


def wrap(**settings: Any) -> None:
    HumanPreferencesEnvWrapper(pendulum(), **settings).close()


def split(**settings: Any) -> object:
    columns = np.ones((4, 3)), np.ones((4, 2)), np.ones(4), np.full(1, 4.0), np.arange(4) == 0
    return Demonstrations(*columns).split(1, **settings)


def record(n_episodes: Any = 1, seed: Any = 0) -> object:
    return record_demonstrations(lambda _: [0.0], pendulum(), n_episodes, seed)


SEEDS: Mapping[str, Take] = {
    "settings": lambda seed: TeachConfig(env_id="Pendulum-v1", predictor="rl", name="x", seed=seed),
    "lesson": lambda seed: OfflineConfig(n_labels=5, segment_steps=5, seed=seed),
    "wrapper": lambda seed: wrap(seed=seed),
    "vector": lambda seed: replayable(pendulum, 2, seed),
    "predictor": lambda seed: RewardPredictor(*SPACES, SMALL, seed),
    "pool": lambda seed: SegmentPool(5, seed=seed),
    "teacher": lambda seed: ScriptedTeacher(ErrorModel(), seed),
    "recording": lambda seed: record(seed=seed),
    "division": lambda seed: split(seed=seed),
}
NO_SEEDS = [-1, 1.5, True, 2**32, 2**64, "3", NAN, np.arange(2)]
SIZES: Mapping[str, Take] = {
    "length": SegmentPool,
    "capacity": lambda size: SegmentPool(5, capacity=size),
    "max_bytes": lambda size: SegmentPool(5, max_bytes=size),
    "count": lambda size: ask(SegmentPool(5), oracle, size),
    "n_episodes": record,
    "batch_size": lambda size: split(batch_size=size),
    "num_envs": lambda size: replayable(pendulum, size),
}
NO_SIZES = [0, -3, 2.5, "10", True, NAN, INFINITY, [3]]
DEVICES: Mapping[str, Take] = {
    "predictor": lambda device: RewardPredictor(*SPACES, SMALL, seed=1, device=device),
    "wrapper": lambda device: wrap(log_dir="logs", device=device),
}
NO_DEVICES = ["gpu", "cuda:99", "meta", "hip", "hpu", "cpu:x", ""]

CASES: list[tuple[Take, Sequence[object], str]] = [
    *((take, NO_SEEDS, r"^(--)?seed: expected .*got .*$") for take in SEEDS.values()),
    *(
        (take, NO_SIZES, rf"^{name}: expected a whole number, 1 or more; got GIVEN$")
        for name, take in SIZES.items()
    ),
    *(
        (take, NO_DEVICES, r"^device: can't use GIVEN: .*; use a device available on this machine \(cpu.*$")
        for take in DEVICES.values()
    ),
    (
        DEVICES["predictor"],
        [None, 1.5],
        r"^device: can't use GIVEN: .*; use a device available on this machine \(cpu.*$",
    ),
]
NAMES = [*(f"seed of {name}" for name in SEEDS), *SIZES, *(f"device of {name}" for name in DEVICES), "text"]


@pytest.mark.parametrize(("take", "refused", "says"), CASES, ids=NAMES)
def test_unusable_arguments_leave_nothing(
    take: Take, refused: Sequence[object], says: str, here: Path
) -> None:
    for given in refused:
        with pytest.raises(ConfigError, match=says.replace("GIVEN", re.escape(repr(given)))) as error:
            take(given)
        assert len(str(error.value)) < 400
    assert not list(here.iterdir())


@pytest.mark.parametrize("take", SEEDS.values(), ids=SEEDS)
def test_any_other_seed_is_taken(take: Take, here: Path) -> None:
    for seed in (0, 2**32 - 1, np.int64(3), 3.0):
        take(seed)


@pytest.mark.parametrize(
    ("line", "refused", "says"),
    [
        *(
            (
                f"{line} --seed",
                ["-1", "1.5", "4294967296", "99999999999999999999", "x"],
                "expected a whole number",
            )
            for line in ("fit labels.npz reward.npz", "play run", "record run expert.npz")
        ),
        ("-p rl -e Pendulum-v1 -n x --device", ["gpu"], "can't use 'gpu': "),
    ],
)
def test_the_command_line_refuses_it_before_anything_is_read(
    line: str, refused: Sequence[str], says: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    *words, option = line.split()
    for given in refused:
        try:
            status = main([*words, option, given])
        except SystemExit as exit_:
            status = int(exit_.code or 0)
        said = capsys.readouterr().err
        assert status == 2
        assert said.startswith("teach")
        assert f"{option}: {says}" in said
        assert said.count("\n") == 1
    assert not list(here.iterdir())


def test_the_last_seed_asks_again_as_others_do(tmp_path: Path) -> None:
    """Questions that take the place of others are drawn from the seeds that follow."""
    config = config_in(
        tmp_path,
        "Pendulum-v1",
        name="a",
        n_labels=4,
        seed=2**32 - 1,
        reward=SMALL,
        queries=QueryConfig(selection="random"),
    )
    with open_run(config) as run:
        for _ in range(2):
            assert run.teaching is not None
            run.teaching.collector.submit(first_questions(run, KINDS["pair"], 2), "pretraining", 0)


def test_every_device_that_is_named_works_and_all_are_named_where_one_is_refused() -> None:
    for name in devices_here():
        assert DEVICES["predictor"](name)
    with pytest.raises(ConfigError) as error:
        DEVICES["predictor"]("gpu")
    assert all(name in str(error.value) for name in devices_here())


def test_all_accelerators_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = partial(torch.device, "cuda")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: cuda())
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    assert devices_here() == ["cpu", "cuda:0", "cuda:1"]
