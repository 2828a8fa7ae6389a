"""A NaN or an infinity is refused where it comes in, by its episode and step, and never written on."""

import contextlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import SyncVectorEnv
from pyarrow import ipc

from teacher import HumanPreferencesEnvWrapper, HumanPreferencesVectorWrapper
from teacher.data.demonstrations import load_demonstrations, record_demonstrations, save_demonstrations
from teacher.datasets.predictor_files import save_predictor
from teacher.datasets.trajectories import as_demonstrations, load_trajectories
from teacher.datasets.unirlhf import crowd_preferences, load_crowd_labels
from teacher.envs.trajectory import Trajectory
from teacher.errors import DataError
from teacher.queries.judges import oracle
from teacher.queries.offline import OfflineConfig, learn_reward
from teacher.reward.predictor import RewardPredictor
from teacher.settings.options import RewardConfig
from teacher.teach import main
from tests.environments import Stub

DATA = Path(__file__).parent / "datasets" / "trajectories" / "data"
SPACES = Box(-np.inf, np.inf, (4,)), Discrete(2)

Broken = Callable[[str, int, Any], Path]


def change_minari(folder: Path, name: str, step: int, value: Any) -> None:
    with h5py.File(folder / "data" / "main_data.hdf5", "r+") as file:
        array = file["episode_1"][name]
        array[step] = value


def change_imitation(folder: Path, name: str, step: int, value: Any) -> None:
    name = {"observations": "obs", "rewards": "rews"}[name]
    (path,) = folder.glob("*.arrow")
    with path.open("rb") as file, ipc.open_stream(file) as stream:
        table = stream.read_all()
    rows = table[name].to_pylist()
    rows[1][step] = [value] * len(rows[1][step]) if isinstance(rows[1][step], list) else value
    column = pa.array(rows, table.schema.field(name).type)
    table = table.set_column(table.column_names.index(name), table.schema.field(name), column)
    with pa.OSFile(str(path), "wb") as file, ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)


CHANGES = {"minari-hdf5": change_minari, "imitation": change_imitation}


@pytest.fixture(params=CHANGES)
def broken(request: pytest.FixtureRequest, tmp_path: Path) -> Broken:
    """Writes a value at one step of the second episode of a folder."""

    def make(name: str, step: int, value: Any) -> Path:
        folder = Path(shutil.copytree(DATA / request.param, tmp_path / request.param))
        CHANGES[request.param](folder, name, step, value)
        return folder

    return make


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        (
            "observations",
            np.nan,
            "observations contain nan at step 2 (numbers must be finite, with magnitude at most 3.4e+38)",
        ),
        (
            "observations",
            -np.inf,
            "observations contain -inf at step 2 (numbers must be finite, with magnitude at most 3.4e+38)",
        ),
        (
            "rewards",
            np.nan,
            "true rewards contain nan at step 2 (numbers must be finite, with magnitude at most 3.4e+38)",
        ),
    ],
)
def test_teach_import_refuses_what_it_could_not_read_again(
    broken: Broken, name: str, value: float, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, file = broken(name, 2, value), tmp_path / "expert.npz"
    assert main(["import", str(source), str(file)]) == 1
    assert f"episode 1 of {source}: {words}" in capsys.readouterr().err
    assert not file.exists()


def test_final_nan_is_left_out(broken: Broken, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = load_trajectories(source := broken("observations", -1, np.nan)).episodes
    assert main(["import", str(source), str(tmp_path / "expert.npz")]) == 0
    assert len(load_demonstrations(tmp_path / "expert.npz")) == sum(map(len, before)) - 1


def test_relabeling_names_it(broken: Broken, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    predictor = RewardPredictor(*SPACES, RewardConfig(inputs="state,action"), seed=1)
    save_predictor(tmp_path / "reward.npz", predictor, *SPACES)
    source = broken("observations", 2, np.nan)
    assert main(["relabel", str(tmp_path / "reward.npz"), str(source), str(tmp_path / "copy")]) == 1
    assert f"episode 1 of {source}: can't predict rewards: the observations" in capsys.readouterr().err
    assert not (tmp_path / "copy").exists()


def test_a_reward_is_not_learned_from_it_and_the_episode_is_named(broken: Broken) -> None:
    episodes = load_trajectories(broken("observations", 2, np.nan)).episodes
    lesson = OfflineConfig(n_labels=2, segment_steps=2, allow_variable_horizon=True)
    with pytest.raises(
        DataError, match=r"^episode 1: observations contain .* at step 2 .*; fix the episode or leave"
    ):
        learn_reward(episodes, oracle, *SPACES, lesson)


@pytest.mark.parametrize("source", ["minari-hdf5", "minari-arrow", "imitation"])
def test_episodes_of_several_spaces_are_refused_by_the_first_that_differs(source: str) -> None:
    recording = load_trajectories(DATA / source)
    first, second = recording.episodes
    fewer = second.all_observations[:, :3], second.actions, second.true_rewards
    other = replace(recording, episodes=[first, Trajectory.from_arrays(*fewer)])
    words = rf"episode 1 of .*{source}: the observations have shape \(3,\), but the first .* \(4,\)"
    with pytest.raises(DataError, match=words):
        as_demonstrations(other)


def test_an_episode_of_minari_whose_arrays_do_not_fit_is_named(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(DATA / "minari-hdf5", tmp_path / "data"))
    with h5py.File(folder / "data" / "main_data.hdf5", "r+") as file:
        rewards = file["episode_1"]["rewards"][:-1]
        del file["episode_1"]["rewards"]
        file["episode_1"]["rewards"] = rewards
    with pytest.raises(
        DataError, match=rf"^episode 1 of {folder}: there must be as many actions as true rewards"
    ):
        load_trajectories(folder)


def test_relabeling_names_a_foreign_episode(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spaces = Box(-np.inf, np.inf, (3,)), Discrete(2)
    save_predictor(tmp_path / "reward.npz", RewardPredictor(*spaces, RewardConfig(), seed=1), *spaces)
    source = DATA / "minari-hdf5"
    assert main(["relabel", str(tmp_path / "reward.npz"), str(source), str(tmp_path / "copy")]) == 1
    assert f"episode 0 of {source}: the observations must belong to the space Box" in capsys.readouterr().err


def test_demonstrations_that_could_not_be_read_are_not_written(tmp_path: Path) -> None:
    demonstrations = as_demonstrations(load_trajectories(DATA / "imitation"))
    demonstrations.obs[8, 1] = np.nan
    with pytest.raises(
        DataError, match=r"a\.npz was not written, .* obs contains NaN.* row 8 \(step 2 of episode 1"
    ):
        save_demonstrations(tmp_path / "a.npz", demonstrations)
    assert not list(tmp_path.iterdir())


def test_a_file_from_before_that_holds_one_is_refused_by_its_episode(tmp_path: Path) -> None:
    demonstrations = as_demonstrations(load_trajectories(DATA / "imitation"))
    demonstrations.rewards[7] = np.inf
    np.savez(tmp_path / "a.npz", **vars(demonstrations))
    with pytest.raises(DataError, match=r"rewards contains .* in row 7 \(step 1 of episode 1\)$"):
        load_demonstrations(tmp_path / "a.npz")


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    about = {"environment_name": "hopper-medium-v2", "query_length": 5, "feedback_type": "comparative"}
    (folder / "project.json").write_text(json.dumps(about))
    (folder / "project.csv").write_text("start_indices_1,start_indices_2,label\n0,10,0\n5,20,2\n")
    return folder


@pytest.fixture
def table() -> dict[str, Any]:
    random = np.random.default_rng(1)
    observations = random.normal(size=(31, 3)).astype(np.float32)
    return {
        "observations": observations[:-1],
        "next_observations": observations[1:].copy(),
        "actions": random.uniform(-1, 1, (30, 2)).astype(np.float32),
        "rewards": random.normal(size=30).astype(np.float32),
        "terminals": np.zeros(30, np.bool_),
    }


@pytest.mark.parametrize(
    ("name", "row", "label"), [("observations", 21, 1), ("rewards", 7, 1), ("next_observations", 4, 0)]
)
def test_uni_rlhf_row_is_named(labels: Path, table: dict[str, Any], name: str, row: int, label: int) -> None:
    table[name][row] = np.nan
    np.savez(labels.parent / "table.npz", **table)
    words = rf"label {label} refers to row {row} of .*table\.npz, whose {name} contain nan; fix the"
    with pytest.raises(DataError, match=words):
        crowd_preferences(load_crowd_labels(labels), labels.parent / "table.npz")


def test_unlabeled_rows_may_hold_nan(labels: Path, table: dict[str, Any], tmp_path: Path) -> None:
    for name, row in (("observations", 27), ("next_observations", 11), ("rewards", 29)):
        table[name][row] = np.nan
    np.savez(tmp_path / "table.npz", **table)
    assert len(crowd_preferences(load_crowd_labels(labels), tmp_path / "table.npz")) == 2


class Exploding(Stub):
    """Its reward is no number from some step on, and its state is none after the last one."""

    observation_space = Box(-np.inf, np.inf, (1,), np.float64)
    action_space = Box(-1, 1, (1,), np.float32)
    length, terminates = 4, True

    def __init__(self, reward: float = np.nan, worthless_from: int = 4) -> None:
        self._reward, self._worthless_from = reward, worthless_from

    def reward(self, action: Any) -> float:
        return self._reward if self.time >= self._worthless_from else 1.0

    def observe(self) -> Any:
        return np.full(1, np.nan if self.time == 4 else self.time, np.float64)


def test_the_reward_of_a_last_step_that_is_left_out_does_not_matter() -> None:
    recorded = record_demonstrations(lambda _: np.zeros(1), Exploding(), n_episodes=2)
    assert recorded.rewards.tolist() == [1.0] * 6
    with pytest.raises(DataError, match=r"the reward nan at step 2 of the episode"):
        record_demonstrations(lambda _: np.zeros(1), Exploding(worthless_from=2), n_episodes=1)


@pytest.mark.parametrize("reward", [np.nan, np.inf])
def test_wrapper_returns_0_before_the_first_predictor(tmp_path: Path, reward: float) -> None:
    single = HumanPreferencesEnvWrapper(Exploding(reward, worthless_from=1), log_dir=tmp_path / "single")
    envs = SyncVectorEnv([lambda: Exploding(reward, worthless_from=1)] * 2)
    vector = HumanPreferencesVectorWrapper(envs, log_dir=tmp_path / "vector")
    with contextlib.closing(single), contextlib.closing(vector):
        single.reset(seed=1)
        vector.reset(seed=1)
        _, found, _, _, info = single.step(np.zeros(1, np.float32))
        rewards = vector.step(np.zeros((2, 1), np.float32))[1]
    assert isinstance(found, float)
    assert [found, *rewards] == [0.0] * 3
    np.testing.assert_equal(info["true_reward"], reward)
