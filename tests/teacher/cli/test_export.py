"""The labels of a run leave it as they are."""

import contextlib
import re
import shutil
import uuid
from pathlib import Path

import numpy as np
import pytest
import yaml
from pyarrow import parquet

from teacher.data.ledger import LEDGER_NAME, Ledger
from teacher.data.segment_pool import SegmentPool
from teacher.datasets.predictor_files import load_predictor
from teacher.datasets.preference_files import load_preferences
from teacher.envs.random_episodes import random_trajectories
from teacher.envs.tasks import describe_task
from teacher.queries.collector import SyntheticTeacher
from teacher.queries.kinds import preferences_in
from teacher.settings.config import TeachConfig
from teacher.settings.config_files import save_config
from teacher.teach import main
from teacher.training.builder import open_run


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Make a run with 5 synthetic labels and no predictor."""
    config = TeachConfig(
        env_id="ShortReacher-v1", predictor="synth", name="a", n_labels=5, runs_dir=str(tmp_path)
    )
    config.run_dir.mkdir(parents=True)
    save_config(config, uuid.uuid4())
    pool = SegmentPool(10, seed=1)
    for trajectory in random_trajectories(describe_task(config.env_id), seed=1):
        pool.extend([trajectory])
        if len(pool) == 10:
            break
    with contextlib.closing(Ledger(config.run_dir / LEDGER_NAME)) as ledger:
        SyntheticTeacher(ledger, seed=1).submit(pool.sample_pairs(5), "training", 0)
    return config.run_dir


def test_export_equals_ledger(run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "labels.npz"
    assert main(["export", str(run_dir), str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: 5 preferences\n"
    task = describe_task("ShortReacher-v1")
    dataset = load_preferences(
        path,
        env_id="ShortReacher-v1",
        observation_space=task.observation_space,
        action_space=task.action_space,
    )
    with contextlib.closing(Ledger(run_dir / LEDGER_NAME, read_only=True)) as ledger:
        held = list(preferences_in(ledger))
    assert dataset.values.tolist() == [preference.value for preference in held]
    for row, preference in enumerate(held):
        assert preference.uuid in dataset
        for index, segment in enumerate((preference.first, preference.second)):
            np.testing.assert_array_equal(
                dataset.steps().next_observations[row, index], segment.next_observations
            )
            np.testing.assert_array_equal(dataset.actions[row, index], segment.actions)


def test_dataset_folder_with_card(run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "reacher"
    assert main(["export", str(run_dir), str(folder), "--clips"]) == 0
    upload = f"hf upload YOU/reacher {folder} . --repo-type dataset"
    assert capsys.readouterr().out.endswith(f"{folder}: 5 preferences; to upload: {upload}\n")
    table = parquet.read_table(folder / "train.parquet", columns=["first_clip", "second_clip"])
    films = {clip["bytes"] for row in table.to_pylist() for clip in row.values()}
    assert len(films) == 10
    assert {film[4:8] for film in films} == {b"ftyp"}
    _, header, text = (folder / "README.md").read_text().split("---\n", 2)
    about = yaml.safe_load(header)
    assert about["configs"][0]["data_files"] == [{"split": "train", "path": "train.parquet"}]
    assert about["size_categories"] == ["n<1K"]
    assert about["license"] == "unknown"
    assert "pip install torchcodec" in text
    assert "Video(decode=False)" in text
    assert "5 labels saying which of two clips" in text
    assert "a scripted teacher (`oracle`)" in text
    listed = set(
        re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in text.splitlines() if line[:1] == "|"))
    )
    assert listed == set(parquet.read_schema(folder / "train.parquet").names)
    assert main(["export", str(run_dir), str(folder)]) == 0  # again, without films
    assert "_clip" not in (folder / "README.md").read_text()
    (folder / "README.md").write_text("# Mine\n")
    assert main(["export", str(run_dir), str(folder)]) == 2
    assert "README.md was not written by RL-Teacher" in capsys.readouterr().err
    assert (folder / "README.md").read_text() == "# Mine\n"


def test_predictor_export(finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_run(shutil.copytree(finished_run, tmp_path / "Pendulum-v1" / "done")) as run:
        assert run.teaching is not None
        steps = run.teaching.dataset.steps()
        expected = run.teaching.predictor.step_rewards(steps)
    assert main(["export", str(finished_run), "--predictor", str(tmp_path / "reward.npz")]) == 0
    found = load_predictor(tmp_path / "reward.npz")
    np.testing.assert_array_equal(found.step_rewards(steps), expected)
    assert found.env_id == "Pendulum-v1"


def test_export_keeps_files(run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels, table, predictor = (tmp_path / name for name in ("a.npz", "a.parquet", "p.npz"))
    folder = tmp_path / "mine"
    folder.mkdir()
    for path in (labels, table, predictor, folder / "train.parquet"):
        path.write_text("mine")
    new = str(tmp_path / "new.npz")
    for words, taken in (
        ([labels], labels),
        ([table, "--clips"], table),
        ([new, "--predictor", predictor], predictor),
        ([folder], folder),
    ):
        assert main(["export", str(run_dir), *map(str, words)]) == 2
        assert (
            capsys.readouterr().err
            == f"teach export: {taken} already exists; choose another name or remove it\n"
        )
    assert main(["export", str(run_dir), new, "--predictor", new]) == 2
    assert "labels and predictor can't both be written to" in capsys.readouterr().err
    assert main(["export", str(run_dir), str(tmp_path / f"{'x' * 300}.npz")]) == 2
    assert "File name too long; choose another name" in capsys.readouterr().err
    assert {path.read_text() for path in (labels, table, predictor, *folder.iterdir())} == {"mine"}
    assert not Path(new).exists()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{new} --predictor {folder}/p.npz", "there is no folder {folder}; create it first"),
        ("{folder}/a.npz", "cannot write {folder}/a.npz: there is no folder {folder}; create it first"),
        ("{new} --predictor p.npz", "has no predictor; expected"),
    ],
)
def test_files_are_written_both_or_neither(
    line: str,
    says: str,
    run_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"new": tmp_path / "new.npz", "folder": tmp_path / "nowhere"}
    assert main(["export", str(run_dir), *line.format(**names).split()]) != 0
    assert says.format(**names) in capsys.readouterr().err
    assert not list(tmp_path.glob("*.npz"))


def test_a_folder_with_nothing_but_hidden_files_becomes_a_dataset(run_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cloned"
    folder.mkdir()
    (folder / ".gitattributes").touch()
    assert main(["export", str(run_dir), str(folder)]) == 0
    assert {path.name for path in folder.iterdir()} == {".gitattributes", "README.md", "train.parquet"}


def test_export_errors(run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels = str(tmp_path / "labels.npz")
    assert main(["export", str(tmp_path), labels]) == 2
    assert main(["export", str(run_dir), str(tmp_path / "labels.csv")]) == 2
    assert main(["export", str(run_dir), labels, "--clips"]) == 2
    assert main(["export", str(run_dir), "--predictor", labels]) == 1
    assert main(["export", str(run_dir)]) == 2
    (run_dir / LEDGER_NAME).unlink()
    assert main(["export", str(run_dir), labels]) == 1
    Ledger(run_dir / LEDGER_NAME).close()  # of a run in which nothing was answered
    assert main(["export", str(run_dir), labels]) == 1
    errors = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in errors] == ["teach export"] * 7
    assert "can't contain clips; to include clips, use a .parquet file" in errors[2]
    assert "has no predictor; expected" in errors[3]
    assert "pass a file for the labels, or --predictor FILE" in errors[4]
    assert "expected a run started with -p synth or -p human" in errors[5]
    assert "the dataset is still empty" in errors[6]
    assert not list(tmp_path.glob("labels*"))
