"""Preferences on disk: nothing is lost on the way, other programs can read them, what is wrong is said."""

import contextlib
import json
import re
import resource
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import UUID

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray

from teacher import HumanPreferencesEnvWrapper
from teacher.data.columns import Column
from teacher.data.preferences import Preference, PreferenceDataset
from teacher.data.segments import Segment
from teacher.datasets.preference_files import (
    describe_space,
    load_preferences,
    save_preferences,
    saved_spaces,
    space_of,
)
from teacher.envs.recipe import EpisodeRecipe
from teacher.errors import ConfigError, DataError, StorageError
from teacher.reward.predictor import RewardPredictor
from teacher.settings.options import RewardConfig
from teacher.teach import main
from tests.teacher.conftest import make_segment

SPACES = spaces.Box(-np.inf, np.inf, (3,)), spaces.Box(-1, 1, (2,), np.float32)
needs_pyarrow = pytest.mark.skipif(find_spec("pyarrow") is None, reason="pyarrow, an extra, is not installed")
SUFFIXES = (".npz", pytest.param(".parquet", marks=needs_pyarrow))


@pytest.fixture
def dataset() -> PreferenceDataset:
    """Make 20 preferences, decided in another order than they are stored."""
    dataset = PreferenceDataset()
    for number in range(22):
        first, second = make_segment(number), make_segment(number + 50)
        dataset.upsert([Preference(UUID(int=(number << 70) + number), first, second, (number % 3) / 2)])
    for number, value in ((3, None), (0, None), (7, 0.25)):
        uuid = UUID(int=(number << 70) + number)
        dataset.upsert([Preference(uuid, make_segment(number), make_segment(number + 50), value)])
    assert (dataset.by_decision != np.arange(20)).any()
    return dataset


@pytest.fixture
def mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Return what is read from now on is taken to be large."""
    monkeypatch.setattr(Column, "MAX_IN_MEMORY", 1100)
    monkeypatch.setattr(Column, "MAX_AT_WORK", 1000)


@pytest.fixture(params=SUFFIXES)
def saved(request: pytest.FixtureRequest, dataset: PreferenceDataset, tmp_path: Path) -> Path:
    """The dataset in a file of each kind."""
    path = tmp_path / f"labels{request.param}"
    save_preferences(path, dataset, *SPACES)
    return path


def assert_same(found: PreferenceDataset, expected: PreferenceDataset) -> None:
    """Also in the order of decision."""
    rows = found.by_decision, expected.by_decision
    assert found.env_id == expected.env_id
    for name, column in expected.columns.items():
        assert found.columns[name].rows.dtype == column.rows.dtype
        np.testing.assert_array_equal(found.columns[name].rows[rows[0]], column.rows[rows[1]], err_msg=name)


def test_a_dataset_comes_back_as_it_was(dataset: PreferenceDataset, tmp_path: Path, saved: Path) -> None:
    assert_same(load_preferences(saved), dataset)
    assert [file.name for file in tmp_path.iterdir()] == [saved.name]
    again = load_preferences(saved, env_id="Any-v0", observation_space=SPACES[0], action_space=SPACES[1])
    save_preferences(saved, again, *SPACES)  # over the file that it was read from
    assert_same(load_preferences(saved), dataset)


def test_weights_and_questions_come_back_in_a_newer_format(dataset: PreferenceDataset, saved: Path) -> None:
    assert load_preferences(saved).one_each
    old = saved.read_bytes()
    weighted = Preference(UUID(int=1), make_segment(1), make_segment(2), 0.7, 0.25, UUID(int=(7 << 70) + 7))
    dataset.upsert([weighted])
    save_preferences(saved, dataset, *SPACES)
    found = load_preferences(saved)
    assert_same(found, dataset)
    assert not found.one_each
    assert found.weights[-1] == 0.25
    assert found.labels == len(dataset) - 1
    dataset.upsert([replace(weighted, value=None)])
    save_preferences(saved, dataset, *SPACES)
    assert saved.read_bytes() == old  # which earlier versions can read


@pytest.mark.usefixtures("mapped")
def test_a_large_dataset_is_the_same_and_can_go_on(dataset: PreferenceDataset, saved: Path) -> None:
    large, before = load_preferences(saved), saved.read_bytes()
    in_memory = [name for name, column in large.columns.items() if column._mapping is None]
    assert set(large.columns) - set(in_memory) == {"observations", "actions"}
    assert_same(large, dataset)
    known, undone = UUID(int=(5 << 70) + 5), UUID(int=(8 << 70) + 8)
    for changed in (large, dataset):
        for uuid, value in ((UUID(int=99), 1.0), (known, 0.75), (undone, None)):
            changed.upsert([Preference(uuid, make_segment(1), make_segment(2), value)])
    assert_same(large, dataset)
    assert saved.read_bytes() == before


@pytest.mark.usefixtures("mapped")
def test_a_predictor_learns_the_same_from_a_large_dataset(
    dataset: PreferenceDataset, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each member trains on the same pairs as before, in the same minibatches, up to how sums are rounded."""
    save_preferences(tmp_path / "labels.npz", dataset, *SPACES)
    read = load_preferences(tmp_path / "labels.npz")
    save_preferences(tmp_path / "again.npz", read, *SPACES)
    large = load_preferences(tmp_path / "again.npz")
    predictors = [RewardPredictor(*SPACES, RewardConfig(), seed=1) for _ in range(2)]
    predictors[0].fit(read, max_epochs=5)
    monkeypatch.setattr("teacher.reward.pairs.BYTES_AT_ONCE", 2000)  # two pairs
    predictors[1].fit(large, max_epochs=5)
    returns = [predictor.segment_returns([make_segment(n) for n in range(9)]) for predictor in predictors]
    np.testing.assert_allclose(returns[0], returns[1], rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    ("observation_space", "action_space"),
    [
        (spaces.Box(0, 255, (4, 5, 2), np.uint8), spaces.Discrete(3)),
        (spaces.Discrete(9), spaces.Discrete(3, start=-1)),
        (spaces.Box(-1, 1, (2, 2)), spaces.Box(-1, 1, (), np.float64)),
    ],
    ids=["image", "discrete", "grid"],
)
def test_all_spaces_keep_their_type(
    observation_space: spaces.Space[Any], action_space: spaces.Space[Any], tmp_path: Path, suffix: str
) -> None:
    dataset = PreferenceDataset()
    for number in range(3):
        pair = [sampled_segment(observation_space, action_space, 2 * number + i) for i in range(2)]
        dataset.upsert([Preference(UUID(int=number), pair[0], pair[1], 0.5)])
    path = tmp_path / f"labels{suffix}"
    save_preferences(path, dataset, observation_space, action_space)
    found = load_preferences(path, observation_space=observation_space, action_space=action_space)
    assert_same(found, dataset)
    with pytest.raises(DataError, match="is from a different environment: action_space is"):
        load_preferences(path, action_space=spaces.Discrete(4))


def sampled_segment(
    observation_space: spaces.Space[Any], action_space: spaces.Space[Any], seed: int
) -> Segment:
    observation_space.seed(seed)
    action_space.seed(seed)
    observations = np.array([observation_space.sample() for _ in range(5)])
    actions = np.array([action_space.sample() for _ in range(4)])
    recipe = EpisodeRecipe("Any-v0", {}, seed, actions)
    return Segment(recipe, 0, observations[:4], actions, np.zeros(4), np.array(observations[4]))


@needs_pyarrow
def test_other_programs_read_what_the_files_say(dataset: PreferenceDataset, tmp_path: Path) -> None:
    from pyarrow import parquet

    for suffix in (".npz", ".parquet"):
        save_preferences(tmp_path / f"labels{suffix}", dataset, *SPACES)
    with np.load(tmp_path / "labels.npz", allow_pickle=False) as archive:
        about = json.loads(str(archive["about"]))
        arrays = {name: archive[name] for name in archive.files if name != "about"}
    table = parquet.read_table(tmp_path / "labels.parquet")
    assert about == json.loads(table.schema.metadata[b"rl-teacher"])
    assert {name: about[name] for name in ("env_id", "segment_length", "preferences", "version")} == {
        "env_id": "Any-v0",
        "segment_length": 6,
        "preferences": 20,
        "version": 1,
    }
    assert arrays["observations"].shape == (20, 2, 7, 3)
    row = table.slice(4, 1).to_pylist()[0]
    assert UUID(row["uuid"]).int == (int(arrays["ids"][4, 0]) << 64) + int(arrays["ids"][4, 1])
    assert row["preference"] == arrays["values"][4]
    assert row["complete"] == arrays["complete"][4]
    for index, side in enumerate(("first", "second")):
        np.testing.assert_array_equal(row[f"{side}_observations"], arrays["observations"][4, index])
        np.testing.assert_array_equal(row[f"{side}_actions"], arrays["actions"][4, index])
        assert row[f"{side}_true_return"] == arrays["true_returns"][4, index]
        assert row[f"{side}_terminated"] == arrays["terminated"][4, index]


@needs_pyarrow
def test_films_lie_beside_the_numbers(dataset: PreferenceDataset, tmp_path: Path) -> None:
    from pyarrow import parquet

    path = tmp_path / "labels.parquet"
    save_preferences(path, dataset, *SPACES, clips=lambda uuid: (uuid.bytes, b"second"))
    table = parquet.read_table(path)
    for row in table.select(["uuid", "first_clip", "second_clip"]).to_pylist():
        uuid = UUID(row["uuid"])
        assert row["first_clip"] == {"bytes": uuid.bytes, "path": f"{uuid}-first.mp4"}
        assert row["second_clip"] == {"bytes": b"second", "path": f"{uuid}-second.mp4"}
    features = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]
    assert list(features) == table.schema.names
    assert features["first_clip"] == {"_type": "Video"}
    numbers = {"dtype": "float64", "_type": "Value"}
    step = {"feature": numbers, "length": 3, "_type": "Sequence"}
    assert features["first_observations"] == {"feature": step, "length": 7, "_type": "Sequence"}
    assert_same(load_preferences(path), dataset)
    with pytest.raises(
        ConfigError, match=r"labels\.npz can't contain clips; to include clips, use a \.parquet"
    ):
        save_preferences(tmp_path / "labels.npz", dataset, *SPACES, clips=lambda _: (b"", b""))


@needs_pyarrow
def test_a_file_of_another_layout_is_refused(dataset: PreferenceDataset, tmp_path: Path) -> None:
    from pyarrow import parquet

    path = tmp_path / "labels.parquet"
    save_preferences(path, dataset, *SPACES)
    parquet.write_table(parquet.read_table(path).drop_columns("preference"), path)
    with pytest.raises(DataError, match="the file lacks the columns preference; export it again"):
        load_preferences(path)


def rewritten(path: Path, **changes: NDArray[Any] | None) -> None:
    """Write an .npz again with other arrays; None leaves one out."""
    with np.load(path, allow_pickle=False) as archive:
        arrays = {**{name: archive[name] for name in archive.files}, **changes}
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})


def changed(array: NDArray[Any], number: float) -> NDArray[Any]:
    array = array.copy()
    array.flat[-1] = number
    return array


WRONG: dict[str, Callable[[dict[str, NDArray[Any]]], dict[str, NDArray[Any] | None]]] = {
    "NaN or infinity": lambda old: {"observations": changed(old["observations"], np.nan)},
    "actions.npy contains NaN": lambda old: {"actions": changed(old["actions"], -np.inf)},
    "between 0 and 1, not 0.0 to 1.5": lambda old: {"values": changed(old["values"], 1.5)},
    "the same length": lambda old: {"actions": old["actions"][:, :, :-1]},
    r"values must have shape \(20,\) \(20 pairs of ": lambda old: {"values": old["values"][:-1]},
    "type of observations must be <f8, not float32": lambda old: {
        "observations": old["observations"].astype(np.float32)
    },
    "two preferences have the same UUID": lambda old: {"ids": np.repeat(old["ids"][:1], 20, axis=0)},
    "values.npy must be a numeric array in C order": lambda old: {"values": np.array(["yes"] * 20)},
    "the file lacks the arrays terminated.npy; export it again": lambda old: {"terminated": None},
    "the file is not a preference file": lambda old: {"about": np.array('{"format": "recipes"}')},
    "the file has format version 3, .* version 2; update RL-Teacher$": lambda old: {
        "about": np.array('{"format": "rl-teacher preferences", "version": 3}')
    },
    "format version must be 1 to 2, not '2'": lambda old: {"about": newer(old["about"], version="2")},
    "format version must be 1 to 2, not 0": lambda old: {"about": newer(old["about"], version=0)},
    "observations is missing from the description of the columns": lambda old: {
        "about": newer(old["about"], columns=3)
    },
    "is damaged": lambda old: {"about": np.array("not json")},
    "observations have shape .3,. per step, but the observation_space has shape .4,.": lambda old: {
        "about": newer(old["about"], observation_space=describe_space(spaces.Box(-1, 1, (4,))))
    },
    r"actions have shape .2,. per step, but the action_space has shape \(\)": lambda old: {
        "about": newer(old["about"], action_space=describe_space(spaces.Discrete(2)))
    },
    "description of a space": lambda old: {"about": newer(old["about"], action_space={"kind": "Discrete"})},
    "counts. have to be positive": lambda old: {
        "about": newer(old["about"], action_space={"kind": "Discrete", "n": 0, "start": 0})
    },
    "3 is not a valid env_id": lambda old: {"about": newer(old["about"], env_id=3)},
    "the file has no preferences": lambda old: {
        **{name: array[:0] for name, array in old.items() if name != "about"},
        "about": newer(old["about"], preferences=0),
    },
}


@pytest.mark.parametrize(
    "name", ["version", "segment_length", "observation_space", "action_space", "preferences", "columns"]
)
def test_unknown_entry_is_named(saved: Path, name: str) -> None:
    describe_again(saved, lambda about: about.pop(name))
    message = f"^{saved} cannot be read as preferences: {name} is missing from the file's description"
    for read in (load_preferences, saved_spaces):
        with pytest.raises(DataError, match=f"{message}; export the file again$"):
            read(saved)


@pytest.mark.parametrize("name", ["observations", "terminated", "ids"])
def test_unknown_column_is_named(saved: Path, name: str) -> None:
    describe_again(saved, lambda about: about["columns"][name].pop("dtype"))
    with pytest.raises(DataError, match=f"dtype is missing from the description of {name}"):
        load_preferences(saved)
    describe_again(saved, lambda about: about["columns"].pop(name))
    with pytest.raises(DataError, match=f"{name} is missing from the description of the columns"):
        load_preferences(saved)


def describe_again(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as archive:
            about = json.loads(str(archive["about"]))
        change(about)
        rewritten(path, about=np.array(json.dumps(about)))
        return
    from pyarrow import parquet

    table = parquet.read_table(path)
    about = json.loads(table.schema.metadata[b"rl-teacher"])
    change(about)
    parquet.write_table(table.replace_schema_metadata({b"rl-teacher": json.dumps(about)}), path)


def newer(about: NDArray[Any], **changes: object) -> NDArray[Any]:
    return np.array(json.dumps({**json.loads(str(about)), **changes}))


@pytest.mark.parametrize("message", WRONG)
def test_unlearnable_data_is_refused(dataset: PreferenceDataset, tmp_path: Path, message: str) -> None:
    path = tmp_path / "labels.npz"
    save_preferences(path, dataset, *SPACES)
    with np.load(path, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    rewritten(path, **WRONG[message](arrays))
    with pytest.raises(DataError, match=rf"^{path}.*{message}.*$"):
        load_preferences(path)


def test_damaged_file_is_refused(dataset: PreferenceDataset, saved: Path) -> None:
    intact = saved.read_bytes()
    for length in (0, 3, 100, len(intact) // 2, len(intact) - 30, len(intact) - 1):
        saved.write_bytes(intact[:length])
        with pytest.raises(DataError, match=rf"^{saved} .*$"):
            load_preferences(saved)
    for position in range(0, len(intact), 997):
        saved.write_bytes(intact[:position] + bytes([intact[position] ^ 0xFF]) + intact[position + 1 :])
        with contextlib.suppress(DataError):
            assert_same(load_preferences(saved), dataset)  # changed where nobody reads


def test_foreign_preferences_are_refused(dataset: PreferenceDataset, saved: Path) -> None:
    with pytest.raises(DataError, match="a different environment: env_id is Any-v0, not Other-v0"):
        load_preferences(saved, env_id="Other-v0")
    assert load_preferences(saved, env_id="module:Any-v0").env_id == "Any-v0"
    with pytest.raises(DataError, match="a different environment: observation_space is"):
        load_preferences(saved, observation_space=spaces.Box(-1, 1, (4,)))
    with pytest.raises(
        DataError, match=r"actions have shape .* does not match Discrete.*pass the spaces of Any-v0"
    ):
        save_preferences(saved, dataset, SPACES[0], spaces.Discrete(3))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_foreign_preferences_by_option(dataset: PreferenceDataset, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"labels{suffix}"
    dataset.env_id = None
    save_preferences(path, dataset, *SPACES)
    assert_same(load_preferences(path, env_id="Other-v0"), dataset)


def test_a_space_of_truths_is_read_back() -> None:
    space = spaces.Box(0, 1, (3,), np.dtype(np.bool_))  # type: ignore[arg-type]  # as Gymnasium takes it
    assert space_of(describe_space(space)) == space


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_unknown_file_types_are_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"labels{suffix}"
    with pytest.raises(DataError, match="does not exist; use a preference file"):
        load_preferences(path)
    path.write_text("labels of last summer")
    with pytest.raises(DataError, match="the file is truncated, or not"):
        load_preferences(path)


def test_other_files_are_refused(dataset: PreferenceDataset, tmp_path: Path) -> None:
    np.savez(tmp_path / "labels.npz", observations=np.zeros(3))
    with pytest.raises(DataError, match=r"the \.npz file has no 'about' array describing its contents"):
        load_preferences(tmp_path / "labels.npz")
    (tmp_path / "labels.csv").touch()
    for use in (load_preferences, lambda path: save_preferences(path, dataset, *SPACES)):
        with pytest.raises(ConfigError, match=r"named \*\.npz or \*\.parquet, not .*labels\.csv"):
            use(tmp_path / "labels.csv")


def test_nothing_to_save(dataset: PreferenceDataset, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="wait for the first label"):
        save_preferences(tmp_path / "labels.npz", PreferenceDataset(), *SPACES)
    for uuid in list(dataset._uuids):
        dataset.upsert([Preference(uuid, make_segment(1), make_segment(2), None)])
    with pytest.raises(DataError, match="wait for the first label"):
        save_preferences(tmp_path / "labels.npz", dataset, *SPACES)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_full_disk_leaves_the_old_file(dataset: PreferenceDataset, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"labels{suffix}"
    path.write_bytes(b"old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
    try:
        with pytest.raises(StorageError, match=r"^cannot write the preferences .*: File too large$"):
            save_preferences(path, dataset, *SPACES)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_parquet_without_pyarrow_is_one_line(
    dataset: PreferenceDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "labels.parquet"
    path.write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for use in (load_preferences, lambda path: save_preferences(path, dataset, *SPACES)):
        with pytest.raises(ConfigError, match=r" needs pyarrow, .*pip install 'rl-teacher\[parquet\]'$"):
            use(path)


@pytest.mark.parametrize("name", ["none", "none.npz", "none.parquet", "no/such/folder.npz"])
def test_missing_file_is_named(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / name
    message = f"{path} does not exist; use a preference file from teach export or save_prefs()"
    for read in (load_preferences, saved_spaces):
        with pytest.raises(DataError, match=f"^{re.escape(message)}$"):
            read(path)
    assert main(["fit", str(path), str(tmp_path / "reward.npz")]) == 1
    assert capsys.readouterr().err == f"teach fit: {message}\n"


@pytest.mark.parametrize("name", ["none", "empty", "none.npz"])
def test_the_wrapper_names_what_it_looked_for(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    path = tmp_path / name
    missing = path / "preferences.npz" if path.is_dir() else path
    with pytest.raises(DataError, match=f"^{missing} does not exist; use a preference file"):
        HumanPreferencesEnvWrapper(gym.make("Pendulum-v1"), prefs_dir=path, log_dir=tmp_path / "logs")
