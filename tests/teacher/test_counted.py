"""Counts in messages, singular and plural, and commands that look where they write before they work."""

from pathlib import Path
from uuid import UUID

import numpy as np
import pytest
from gymnasium.spaces import Box

from teacher.data.demonstrations import Demonstrations
from teacher.data.preferences import Preference, PreferenceDataset
from teacher.data.segment_pool import SegmentPool
from teacher.datasets.predictor_files import save_predictor
from teacher.datasets.preference_files import load_preferences, save_preferences
from teacher.envs.trajectory import Trajectory
from teacher.errors import DataError, pluralize
from teacher.queries.judges import oracle
from teacher.queries.offline import ask
from teacher.reward.predictor import RewardPredictor
from teacher.settings.options import RewardConfig
from teacher.teach import main

SPACES = Box(-np.inf, np.inf, (3,)), Box(-1, 1, (2,), np.float32)


def pool(length: int, steps: int) -> SegmentPool:
    made = SegmentPool(length, seed=1)
    observations = np.repeat(np.arange(steps + 1.0)[:, None], 3, axis=1)  # a state that stays is an end
    made.extend([Trajectory.from_arrays(observations, np.ones((steps, 2)), np.arange(steps, dtype=float))])
    return made


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    """A file of one preference."""
    dataset, (first, second) = PreferenceDataset(), pool(1, 2).segments
    dataset.upsert([Preference(UUID(int=1), first, second, 1.0)])
    save_preferences(tmp_path / "labels.npz", dataset, *SPACES)
    return tmp_path / "labels.npz"


@pytest.mark.parametrize(
    ("number", "says"), [(0, "0 pairs"), (1, "1 pair"), (2, "2 pairs"), (1400, "1,400 pairs")]
)
def test_a_noun_goes_with_its_number(number: int, says: str) -> None:
    assert pluralize(number, "pair") == says


def test_refusals_go_with_theirs() -> None:
    with pytest.raises(DataError, match="expected 2 or more segments of 1 step, got 1; use"):
        ask(pool(1, 1), oracle, 1)
    with pytest.raises(DataError, match="got only 0 of 1 label from 1 comparison of 2 segments, because the"):
        ask(pool(1, 2), lambda *_: "cant_tell", 1)


def test_so_do_the_lines_of_commands(labels: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reward = labels.with_name("reward.npz")
    predictor = RewardPredictor(*SPACES, RewardConfig(members=10, hidden=4), seed=1)
    predictor.fit(load_preferences(labels), max_epochs=1)
    save_predictor(reward, predictor, *SPACES)
    assert main(["evaluate", str(reward), str(labels)]) == 0
    assert "on 1 label (" in capsys.readouterr().out
    reward.unlink()
    network = ["--reward.members", "10", "--reward.hidden", "4"]
    assert main(["fit", str(labels), str(reward), "--max_updates", "1", *network]) == 0
    assert f"{reward}: fitted to 1 preference on recorded in 1 update; " in capsys.readouterr().out
    one = Demonstrations(np.ones((1, 3)), np.ones((1, 2)), np.ones(1), np.ones(1), np.ones(1, bool))
    assert one.summary().startswith("1 episode, 1 step, return")


COMMANDS = {
    "record": ["record", "no-run", "FILE"],
    "play": ["play", "no-run", "FILE"],
    "import": ["import", "no-source", "FILE"],
    "relabel": ["relabel", "no-predictor.npz", "no-source", "FILE"],
    "fit": ["fit", "no-answers.npz", "FILE"],
}
"""Their sources do not exist: who looks there first says that instead."""


def refused(name: str, file: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main([word.replace("FILE", str(file)) for word in COMMANDS[name]]) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_missing_folder_is_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "missing" / ("a.mp4" if name == "play" else "a.npz")
    assert f"cannot write {file}: there is no folder {file.parent}; create it first" in refused(
        name, file, capsys
    )


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "play"])  # which writes a film again
def test_existing_file_is_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.npz"
    file.write_bytes(b"precious")
    assert f"{file} already exists" in refused(name, file, capsys)
    assert file.read_bytes() == b"precious"
