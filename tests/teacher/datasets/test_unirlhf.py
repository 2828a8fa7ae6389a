"""Labels of the Uni-RLHF platform, in both forms they come in, and the table they are about."""

import csv
import json
import pickle
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from teacher.datasets.preference_files import load_preferences
from teacher.datasets.unirlhf import crowd_preferences, load_crowd_labels
from teacher.errors import ConfigError, DataError
from teacher.teach import main

NAMED = "domain_mujoco_env_hopper-medium-v2_num_4_len_5_0123abcd"
STARTS = np.array([[0, 24], [3, 12], [30, 5], [19, 1]])  # each within one episode of the table below
VALUES = [1.0, 0.0, 0.5, 1.0]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Write data like the published datasets, but not pickled."""
    folder = tmp_path / "hopper-medium-v2_human_labels"
    folder.mkdir()
    np.save(folder / f"indices_1_{NAMED}.npy", STARTS[:, 0])
    np.save(folder / f"indices_2_{NAMED}.npy", STARTS[:, 1])
    np.save(folder / f"human_label_{NAMED}.npy", np.array([0, 1, -1, 0]))
    return folder


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """Write labels as the platform exports a project."""
    folder = tmp_path / "project"
    folder.mkdir()
    about = {
        "domain": "mujoco", "environment_name": "hopper-medium-v2", "query_num": 4, "query_length": 5,
        "feedback_type": "comparative",
    }  # fmt: skip
    (folder / "project.json").write_text(json.dumps(about))
    rows = [
        f"{a},{b},\"{{'1': {{'0': {label}}}}}\"" for (a, b), label in zip(STARTS, (0, 2, 1, 0), strict=True)
    ]
    (folder / "project.csv").write_text("\n".join(["start_indices_1,start_indices_2,label", *rows]) + "\n")
    return folder


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """A file of D4RL: 41 steps; a time limit ended that in row 10, a fall that in row 24."""
    random = np.random.default_rng(1)
    path = tmp_path / "hopper_medium-v2.hdf5"
    with h5py.File(path, "w") as file:
        file["observations"] = random.normal(size=(41, 3)).astype(np.float32)
        file["actions"] = random.uniform(-1, 1, (41, 2)).astype(np.float32)
        file["rewards"] = random.normal(size=41).astype(np.float32)
        file["terminals"] = np.arange(41) == 24
        file["timeouts"] = np.arange(41) == 10
    return path


def test_both_forms_say_the_same(files: Path, exported: Path) -> None:
    for folder in (files, exported):
        labels = load_crowd_labels(folder)
        assert (labels.env_id, labels.length) == ("hopper-medium-v2", 5)
        np.testing.assert_array_equal(labels.starts, STARTS)
        assert labels.values.tolist() == VALUES


@pytest.mark.parametrize("delimiter", [";", "\t", ","])
def test_a_table_that_a_spreadsheet_saved_says_the_same(exported: Path, delimiter: str) -> None:
    path = exported / "project.csv"
    rows = list(csv.reader(path.read_text().splitlines()))
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file, delimiter=delimiter, quoting=csv.QUOTE_ALL).writerows(rows)
    labels = load_crowd_labels(exported)
    np.testing.assert_array_equal(labels.starts, STARTS)
    assert labels.values.tolist() == VALUES


def test_labels_of_a_scripted_teacher_are_shares(files: Path) -> None:
    (path,) = files.glob("human_label*")
    np.save(files / f"fake_label_{NAMED}.npy", np.array([[1, 0], [0, 1], [0.5, 0.5], [1, 0]]))
    path.unlink()
    assert load_crowd_labels(files).values.tolist() == VALUES


def test_segments_are_rows_of_the_table_that_d4rl_makes(files: Path, raw: Path, tmp_path: Path) -> None:
    """That of ``d4rl.qlearning_dataset``, written out here step by step."""
    with h5py.File(raw) as file:
        whole = {name: np.asarray(file[name]) for name in file}
    table: dict[str, list[Any]] = {name: [] for name in ("observations", "actions", "next_observations")}
    table |= {"rewards": [], "terminals": []}
    for row in range(40):
        if whole["timeouts"][row]:
            continue
        for name in ("observations", "actions", "rewards", "terminals"):
            table[name].append(whole[name][row])
        table["next_observations"].append(whole["observations"][row + 1])
    np.savez(tmp_path / "table.npz", **{name: np.array(column) for name, column in table.items()})  # type: ignore[arg-type]
    labels = load_crowd_labels(files)
    datasets = [crowd_preferences(labels, path) for path in (raw, tmp_path / "table.npz")]
    for dataset in datasets:
        assert dataset.env_id == "hopper-medium-v2"
        assert dataset.values.tolist() == VALUES
        for row, starts in enumerate(STARTS):
            for side, start in enumerate(starts):
                wanted = np.array(table["observations"][start : start + 5])
                np.testing.assert_array_equal(dataset.observations[row, side], wanted)
                np.testing.assert_array_equal(
                    dataset.steps().next_observations[row, side],
                    table["next_observations"][start : start + 5],
                )
                assert dataset.true_returns[row, side] == pytest.approx(
                    float(np.sum(table["rewards"][start : start + 5])), rel=1e-5
                )


def test_they_are_imported_by_command(
    files: Path, raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "labels.npz")
    assert main(["import", str(files), path]) == 2
    assert "--trajectories is missing" in capsys.readouterr().err
    assert main(["import", str(files), path, "--trajectories", str(raw), "--env_id", "Hopper-v5"]) == 0
    assert capsys.readouterr().out == f"{path}: 4 preferences on Hopper-v5\n"
    assert load_preferences(Path(path), env_id="Hopper-v5").values.tolist() == VALUES


def test_an_import_writes_over_no_file_that_was_written_meanwhile(
    files: Path,
    raw: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "labels.npz"
    monkeypatch.setattr("teacher.cli.import_files.require_new", lambda path: path.write_text("theirs"))
    assert main(["import", str(files), str(path), "--trajectories", str(raw)]) == 2
    assert (
        capsys.readouterr().err == f"teach import: {path} already exists; choose another name or remove it\n"
    )
    assert path.read_text() == "theirs"


def test_a_pickle_is_never_loaded(files: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.touch, (str(files / "sprung"),)

    for path in files.glob("human_label*"):
        path.unlink()
    (files / f"human_label_{NAMED}.pkl").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(
        DataError, match=r"is a pickle, and loading a pickle can run arbitrary code; docs/datasets\.md"
    ):
        load_crowd_labels(files)
    np.save(files / f"human_label_{NAMED}.npy", np.array([Trap()], object))
    with pytest.raises(DataError, match="contains no readable Uni-RLHF labels"):
        load_crowd_labels(files)
    assert not (files / "sprung").exists()


def test_bad_data_is_one_line(files: Path, exported: Path, raw: Path, tmp_path: Path) -> None:
    labels = load_crowd_labels(files)
    np.savez(
        tmp_path / "short.npz", observations=np.zeros((9, 3)), actions=np.zeros((9, 2)), rewards=np.zeros(9)
    )
    with pytest.raises(
        DataError,
        match=r"labels refer to 35 transitions, but .*short.npz has only 9; use the D4RL dataset for hopper",
    ):
        crowd_preferences(labels, tmp_path / "short.npz")
    np.savez(tmp_path / "other.npz", observations=np.zeros((9, 3)))
    with pytest.raises(DataError, match="observations, actions, rewards with the same number of rows"):
        crowd_preferences(labels, tmp_path / "other.npz")
    with h5py.File(raw, "r+") as file:
        del file["timeouts"]
    with pytest.raises(DataError, match="has no 'timeouts', which mark the steps that ended at a time limit"):
        crowd_preferences(labels, raw)
    np.save(files / f"human_label_{NAMED}.npy", np.array([0, 1, 1]))
    with pytest.raises(DataError, match="has 3 labels for 4 pairs"):
        load_crowd_labels(files)
    np.save(files / f"human_label_{NAMED}.npy", np.array([0, 1, 2, 1]))
    with pytest.raises(DataError, match="contains no readable Uni-RLHF labels: 2"):
        load_crowd_labels(files)
    about = json.loads((exported / "project.json").read_text())
    (exported / "project.json").write_text(json.dumps({**about, "feedback_type": "keypoint"}))
    with pytest.raises(DataError, match="contains keypoint feedback; only comparative feedback can be read"):
        load_crowd_labels(exported)


def test_a_missing_h5py_is_named(files: Path, raw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = load_crowd_labels(files)
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ConfigError, match=r"pip install 'rl-teacher\[minari\]'"):
        crowd_preferences(labels, raw)
