"""A seed, a size or a device that cannot be is refused by the argument's name, wherever one is given."""

import re
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
from teacher.data.demonstrations import Demonstrations, record_demonstrations
from teacher.data.segment_pool import SegmentPool
from teacher.errors import ConfigError
from teacher.queries.judges import ScriptedTeacher, oracle
from teacher.queries.kinds import KINDS
from teacher.queries.offline import OfflineConfig, ask
from teacher.reward.building import devices_here
from teacher.reward.predictor import RewardPredictor
from teacher.settings.config import TeachConfig
from teacher.settings.options import QueryConfig, RewardConfig
from teacher.settings.teachers import ErrorModel
from teacher.teach import main
from teacher.training.asking import first_questions
from teacher.training.builder import open_run
from teacher.wrapper import replayable

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
    take: Take, refused: Sequence[object], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for given in refused:
        with pytest.raises(ConfigError, match=says.replace("GIVEN", re.escape(repr(given)))) as error:
            take(given)
        assert len(str(error.value)) < 400
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("take", SEEDS.values(), ids=SEEDS)
def test_any_other_seed_is_taken(take: Take, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
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
    line: str,
    refused: Sequence[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
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
    assert not list(tmp_path.iterdir())


def test_the_last_seed_asks_again_as_others_do(tmp_path: Path) -> None:
    """Questions that take the place of others are drawn from the seeds that follow."""
    config = TeachConfig(
        env_id="Pendulum-v1", predictor="synth", name="a", n_labels=4, seed=2**32 - 1, no_videos=True,
        runs_dir=str(tmp_path), reward=SMALL, queries=QueryConfig(selection="random"),
    )  # fmt: skip
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
