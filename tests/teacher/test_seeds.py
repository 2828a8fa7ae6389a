"""A seed that no generator takes is refused at once, wherever one is given."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box

from teacher import HumanPreferencesEnvWrapper
from teacher.assembly import open_run
from teacher.config import TeachConfig
from teacher.demonstrations import Demonstrations, record_demonstrations
from teacher.errors import ConfigError
from teacher.judges import ScriptedTeacher
from teacher.loop import first_pairs
from teacher.offline import Lesson
from teacher.options import QueryConfig, RewardConfig
from teacher.reward.predictor import RewardPredictor
from teacher.segments import SegmentPool
from teacher.teach import main
from teacher.teachers import Manner
from teacher.wrapper import replayable

SPACES = Box(-np.inf, np.inf, (3,)), Box(-1, 1, (2,), np.float32)
SMALL = RewardConfig(members=1, hidden=4)


def one_episode() -> Demonstrations:
    return Demonstrations(np.ones((4, 3)), np.ones((4, 2)), np.ones(4), np.full(1, 4.0), np.arange(4) == 0)


TAKE_SEEDS: dict[str, Callable[[Any], object]] = {
    "settings": lambda seed: TeachConfig(env_id="Pendulum-v1", predictor="rl", name="x", seed=seed),
    "lesson": lambda seed: Lesson(n_labels=5, segment_steps=5, seed=seed),
    "wrapper": lambda seed: HumanPreferencesEnvWrapper(gym.make("Pendulum-v1"), seed=seed),
    "vector": lambda seed: replayable(lambda: gym.make("Pendulum-v1"), 2, seed),
    "predictor": lambda seed: RewardPredictor(*SPACES, SMALL, seed),
    "pool": lambda seed: SegmentPool(5, seed=seed),
    "teacher": lambda seed: ScriptedTeacher(Manner(), seed),
    "recording": lambda seed: record_demonstrations(lambda _: [0.0], gym.make("Pendulum-v1"), 1, seed),
    "division": lambda seed: one_episode().split(1, seed=seed),
}


@pytest.mark.parametrize("seed", [-1, 1.5, True, 2**32, 2**64, "3", float("nan"), np.arange(2)], ids=repr)
@pytest.mark.parametrize("name", TAKE_SEEDS)
def test_a_seed_that_no_generator_takes_is_refused(
    name: str, seed: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"^(--)?seed: expected .*got .*$"):
        TAKE_SEEDS[name](seed)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("seed", [0, 2**32 - 1, np.int64(3), 3.0], ids=repr)
@pytest.mark.parametrize("name", TAKE_SEEDS)
def test_any_other_seed_is_taken(
    name: str, seed: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = TAKE_SEEDS[name](seed)
    if isinstance(made, HumanPreferencesEnvWrapper):
        made.close()


@pytest.mark.parametrize("seed", ["-1", "1.5", "4294967296", "99999999999999999999", "x"])
@pytest.mark.parametrize("line", ["fit labels.npz reward.npz", "play run", "record run expert.npz"])
def test_the_command_line_refuses_it_before_anything_is_read(
    line: str, seed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = main([*line.split(), "--seed", seed])
    except SystemExit as exit_:
        status = int(exit_.code or 0)
    said = capsys.readouterr().err
    assert status == 2
    assert "--seed: expected a whole number" in said
    assert said.count("\n") == 1


def test_the_last_seed_asks_again_as_others_do(tmp_path: Path) -> None:
    """Questions that take the place of others are drawn from the seeds that follow."""
    config = TeachConfig(
        env_id="Pendulum-v1", predictor="synth", name="a", n_labels=4, seed=2**32 - 1, no_videos=True,
        runs_dir=str(tmp_path), reward=SMALL, queries=QueryConfig(selection="random"),
    )  # fmt: skip
    with open_run(config) as run:
        for _ in range(2):
            assert run.teaching is not None
            run.teaching.collector.submit(first_pairs(run, 2), "pretraining", 0)
