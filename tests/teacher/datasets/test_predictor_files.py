"""A predictor goes into a file and comes back the same; damage of a file of tensors is one line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from numpy.typing import NDArray
from safetensors import safe_open

from teacher.data.checkpoint import State, load_state, save_state
from teacher.data.preferences import PreferenceDataset
from teacher.datasets.network_files import load_tensors, save_tensors
from teacher.datasets.predictor_files import load_predictor, save_predictor
from teacher.datasets.preference_files import describe_space, space_of
from teacher.errors import ConfigError, DataError
from teacher.reward.predictor import RewardPredictor
from teacher.settings.options import RewardConfig
from tests.conftest import refusals
from tests.teacher.conftest import make_segment, truthful

SPACES = Box(-np.inf, np.inf, (3,)), Box(-1, 1, (2,), np.float32)


@pytest.fixture
def dataset() -> PreferenceDataset:
    return truthful(20)


def test_file_round_trips(tmp_path: Path, dataset: PreferenceDataset) -> None:
    predictor = RewardPredictor(*SPACES, RewardConfig(members=2, hidden=16, inputs="state"), seed=3)
    predictor.fit(dataset, max_epochs=2)
    save_predictor(tmp_path / "a.npz", predictor, *SPACES)
    again = load_predictor(tmp_path / "a.npz", *SPACES)
    assert again.config == predictor.config
    segments = [make_segment(number) for number in (50, 51)]
    for _ in range(2):
        assert np.array_equal(again.segment_returns(segments), predictor.segment_returns(segments))
        for one in (again, predictor):
            one.fit(dataset, max_epochs=1)


def test_one_from_before_inputs_had_a_default_reads_states_and_actions(tmp_path: Path) -> None:
    old = RewardPredictor(*SPACES, RewardConfig(inputs=None), seed=3)
    save_predictor(tmp_path / "old.npz", old, *SPACES)
    for forget in (False, True):  # and from before there was a choice
        state = load_state(tmp_path / "old.npz")
        if forget:
            del state["about"]["reward"]["inputs"]
        save_state(tmp_path / "again.npz", state)
        again = load_predictor(tmp_path / "again.npz")
        assert again.inputs == {"state", "action"}
        steps = np.ones((4, 3)), np.ones((4, 2))
        np.testing.assert_array_equal(again.rewards(*steps), old.rewards(*steps))


def test_that_of_another_environment_is_refused(tmp_path: Path) -> None:
    save_predictor(tmp_path / "a.npz", RewardPredictor(*SPACES, RewardConfig(), seed=3), *SPACES)
    with pytest.raises(DataError, match="from a different environment: action_space is"):
        load_predictor(tmp_path / "a.npz", SPACES[0], Discrete(2))


def test_same_spaces_of_another_environment_are_refused(tmp_path: Path, dataset: PreferenceDataset) -> None:
    path = tmp_path / "a.npz"
    predictor = RewardPredictor(*SPACES, RewardConfig(members=2, hidden=8), seed=3)
    predictor.fit(dataset, max_epochs=1)
    save_predictor(path, predictor, *SPACES)
    assert load_predictor(path, *SPACES, env_id="Any-v0").env_id == "Any-v0"
    message = rf"^{path} is from a different environment: env_id is Any-v0, not Other-v0; .* to None .*$"
    with pytest.raises(DataError, match=message):
        load_predictor(path, *SPACES, env_id="Other-v0")
    meant = load_predictor(path)
    meant.env_id = None
    save_predictor(path, meant, *SPACES)
    assert load_predictor(path, *SPACES, env_id="Other-v0").env_id is None


@pytest.mark.parametrize("name", ["version", "observation_space", "action_space", "reward", "predictor"])
def test_a_file_without_a_part_is_damaged(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.npz"
    save_predictor(path, RewardPredictor(*SPACES, RewardConfig(), seed=3), *SPACES)
    state = load_state(path)
    del (state if name == "predictor" else state["about"])[name]
    save_state(path, state)
    with pytest.raises(DataError, match=f"^{path} is damaged: {name} is missing; save"):
        load_predictor(path, *SPACES)


def test_a_file_of_a_newer_version_is_named_as_such(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    save_predictor(path, RewardPredictor(*SPACES, RewardConfig(), seed=3), *SPACES)
    state = load_state(path)
    state["about"]["reward"]["new_option"] = 3
    save_state(path, state)
    with pytest.raises(ConfigError, match=r"newer version .* setting reward\.new_option; update RL-Teacher"):
        load_predictor(path)
    state["about"]["reward"] = 3
    save_state(path, state)
    with pytest.raises(DataError, match=f"^{path} is damaged: .*; save the predictor again$"):
        load_predictor(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    expected = "expected a file from teach fit, .* save_predictor$"
    with pytest.raises(DataError, match=f"^{path} is not a readable predictor: No such file.*; {expected}"):
        load_predictor(path)
    save_state(path, {"agent": {}})
    use = expected.replace("expected", "use")
    with pytest.raises(DataError, match=f"^{path} contains no reward predictor; {use}"):
        load_predictor(path)
    np.savez(path, about=np.array("{}"))
    with pytest.raises(DataError, match=rf"^{path} is an \.npz file but not a predictor; {expected}"):
        load_predictor(path)
    path.write_text("not even an archive")
    with pytest.raises(
        DataError, match=f"^{path} is not a readable predictor: the file is truncated, or .*; {expected}"
    ):
        load_predictor(path)
    save_predictor(path, RewardPredictor(*SPACES, RewardConfig(), seed=3), *SPACES)
    state = load_state(path)
    state["about"]["version"] = 99
    save_state(path, state)
    said = "the file has format version 99, but this RL-Teacher"
    message = f"^{path} cannot be read as a predictor: {said}"
    with pytest.raises(DataError, match=message):
        load_predictor(path)


Entry = tuple[str, ...]
NUMBERS: list[Entry] = [
    *(("network", name) for name in ("input_mean", "weights.0", "biases.2")),
    *(("fitter", "optimizer", "0", name) for name in ("step", "exp_avg", "exp_avg_sq")),
    *((name,) for name in ("generator", "output_mean", "output_std", "scale")),
]
DAMAGE: dict[str, Callable[[NDArray[Any]], Any]] = {
    "missing": lambda _: None,
    "text": lambda array: np.full(array.shape, "a"),
    "a list": lambda _: [1, "a"],
    "of other dimensions": lambda array: np.ones((3, *array.shape), array.dtype),
    "more of them": lambda array: np.ones(
        np.array(array.shape, int) + 1 if array.ndim else (7,), array.dtype
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("entry", NUMBERS, ids="/".join)
def test_bad_shapes_are_damage(tmp_path: Path, dataset: PreferenceDataset, entry: Entry, damage: str) -> None:
    path, state = saved(tmp_path, dataset)
    *parents, name = entry
    part: Any = state["predictor"]
    for parent in parents:
        part = part[int(parent) if parent.isdigit() else parent]
    part[name] = DAMAGE[damage](np.asarray(part[name]))
    if damage == "missing":
        del part[name]
    save_state(path, state)
    message = rf"^{path} is damaged: the saved parameters .*; save the predictor again$"
    with pytest.raises(DataError, match=message):
        load_predictor(path)


@pytest.mark.parametrize("dtype", [np.int64, np.float64])
def test_other_types_are_damage(tmp_path: Path, dataset: PreferenceDataset, dtype: type[np.generic]) -> None:
    path, state = saved(tmp_path, dataset)
    network = state["predictor"]["network"]
    network["weights.1"] = network["weights.1"].astype(dtype)
    save_state(path, state)
    with pytest.raises(
        DataError, match=r"damaged: .*tensor weights\.1 has .*, not \(2, 8, 8\) and torch\.float32"
    ):
        load_predictor(path)


@pytest.mark.parametrize(
    ("part", "value", "says"),
    [
        (
            "observation_space",
            {"kind": "Circle"},
            "invalid description of a space: unknown kind of space",
        ),
        ("action_space", 3, "invalid description of a space:"),
        ("reward", {"members": -3}, "members: expected 1 or more; got -3"),
        ("reward", 3, "'int' object is not a mapping"),
    ],
)
def test_bad_metadata_is_refused_by_name(
    tmp_path: Path, dataset: PreferenceDataset, part: str, value: object, says: str
) -> None:
    path, state = saved(tmp_path, dataset)
    state["about"][part] = value
    save_state(path, state)
    with pytest.raises(DataError, match=f"^{path} is damaged: .*{says}.*; save the predictor again$"):
        load_predictor(path)


def saved(folder: Path, dataset: PreferenceDataset) -> tuple[Path, State]:
    """A predictor that was fitted, and what its file holds."""
    predictor = RewardPredictor(*SPACES, RewardConfig(members=2, hidden=8, features="plain"), seed=3)
    predictor.fit(dataset, max_epochs=1)
    save_predictor(folder / "a.npz", predictor, *SPACES)
    return folder / "a.npz", load_state(folder / "a.npz")


def test_a_database_with_an_archive_at_its_end_is_no_file_of_a_predictor(tmp_path: Path) -> None:
    """Use a database, such as a ledger; numpy would suggest unpickling it."""
    path = tmp_path / "a.npz"
    save_predictor(path, RewardPredictor(*SPACES, RewardConfig(), seed=3), *SPACES)
    path.write_bytes(b"SQLite format 3" + path.read_bytes())
    with pytest.raises(
        DataError, match=f"^{path} is not a readable predictor: the file is truncated, or not an .npz file"
    ):
        load_predictor(path)


@pytest.mark.parametrize(
    "space",
    [
        SPACES[0],
        SPACES[1],
        Discrete(3, start=1),
        MultiDiscrete([2, 3], start=[0, -1]),
        Box(0, 255, (8, 9, 3), np.uint8),
    ],
)
def test_spaces_are_told_apart_and_read_back(space: Box | Discrete | MultiDiscrete) -> None:
    about = describe_space(space)
    assert describe_space(space_of(about)) == about


def test_invalid_space_descriptions_are_refused() -> None:
    with pytest.raises(DataError, match="description of a space"):
        space_of({"kind": "Circle"})


TENSORS = {
    "a.b": np.arange(6, dtype=np.float32).reshape(2, 3).T,  # not contiguous
    "double": np.array([0.1, 1e300]),
    "count": np.array(7),
}


def test_the_same_tensors_and_metadata_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_tensors(path, TENSORS, {"env_id": "Any-v0"}, new=True)
    found = load_tensors(path)
    assert found.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert found[name].dtype == tensor.dtype
        np.testing.assert_array_equal(found[name], tensor, strict=True)
    with safe_open(path, "numpy") as file:
        assert file.metadata() == {"env_id": "Any-v0"}
    with pytest.raises(ConfigError, match="already exists"):
        save_tensors(path, {}, {}, new=True)


def test_damage_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_tensors(path, TENSORS, {}, new=True)
    refused = refusals(path, lambda: load_tensors(path), DataError)  # a changed number can't be noticed
    assert len(refused) > 20
    assert all(str(path) in refusal and "\n" not in refusal for refusal in refused)
    path.unlink()
    with pytest.raises(DataError, match="is not a readable safetensors file"):
        load_tensors(path)
