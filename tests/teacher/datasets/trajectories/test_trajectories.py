"""Files as imitation 1.0.1 and Minari 0.5.4 wrote them (in ``data``), read, and with other rewards."""

import errno
import json
import re
import shutil
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray
from pyarrow import ipc

from teacher.data.demonstrations import load_demonstrations, save_demonstrations
from teacher.data.steps import StepsBatch
from teacher.datasets.trajectories import Recording, as_demonstrations, load_trajectories, relabel
from teacher.envs.make import make_env
from teacher.envs.trajectory import Trajectory
from teacher.errors import ConfigError, DataError, StorageError
from teacher.reward.predictor import RewardPredictor
from teacher.settings.options import RewardConfig

DATA = Path(__file__).parent / "data"
SPACES = Box(-np.inf, np.inf, (4,)), Discrete(2)
FOLDERS = ("imitation", "minari-hdf5", "minari-arrow")


@pytest.fixture
def predictor() -> RewardPredictor:
    return RewardPredictor(
        *SPACES, RewardConfig(inputs="state,action,next_state,terminated", model="network"), seed=1
    )


@pytest.fixture
def copy(tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a folder of ``data``, to be damaged."""
    return lambda name: Path(shutil.copytree(DATA / name, tmp_path / name))


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Write trajectories as older versions of imitation did, with pickled infos."""
    with np.load(DATA / "expected.npz") as expected:
        arrays = {key: [expected[f"{key}{index}"] for index in range(2)] for key in ("obs", "acts", "rews")}
    path = tmp_path / "old.npz"
    np.savez(
        path,
        obs=np.concatenate(arrays["obs"]),
        acts=np.concatenate(arrays["acts"]),
        rews=np.concatenate(arrays["rews"]),
        infos=np.array([{}] * 10),
        terminal=np.array([True, True]),
        indices=np.array([6]),
    )
    return path


def test_a_folder_of_imitation_holds_its_trajectories() -> None:
    recording = load_trajectories(DATA / "imitation")
    assert recording.env_id is None
    with np.load(DATA / "expected.npz") as expected:
        for index, episode in enumerate(recording.episodes):
            np.testing.assert_array_equal(episode.all_observations, expected[f"obs{index}"])
            np.testing.assert_array_equal(episode.actions, expected[f"acts{index}"])
            np.testing.assert_array_equal(episode.true_rewards, expected[f"rews{index}"])
    assert [len(episode) for episode in recording.episodes] == [6, 4]
    assert [episode.terminated for episode in recording.episodes] == [True, False]  # the last: a time limit
    assert recording.episodes[0].all_observations.dtype == np.float32


def test_an_older_archive_of_imitation_holds_the_same(archive: Path) -> None:
    found, expected = load_trajectories(archive).episodes, load_trajectories(DATA / "imitation").episodes
    for one, other in zip(found, expected, strict=True):
        for name in ("all_observations", "actions", "true_rewards"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert not any(episode.terminated for episode in found)  # that would be among what is pickled


@pytest.mark.parametrize("name", ["minari-hdf5", "minari-arrow"])
def test_a_dataset_of_minari_holds_what_was_played(name: str) -> None:
    recording = load_trajectories(DATA / name)
    assert recording.env_id == "CartPole-v1"
    for seed, episode in enumerate(recording.episodes):
        env = make_env("CartPole-v1", {"max_episode_steps": 12})
        states, rewards, terminated = [env.reset(seed=seed)[0]], [], False
        for action in episode.actions:
            state, reward, terminated, *_ = env.step(action)
            states.append(state)
            rewards.append(reward)
        np.testing.assert_array_equal(episode.all_observations, states)
        np.testing.assert_array_equal(episode.true_rewards, rewards)
        assert episode.terminated == terminated
    assert {episode.terminated for episode in recording.episodes} == {True, False}


def rewards_of(path: Path) -> Sequence[NDArray[np.float64]]:
    return [episode.true_rewards for episode in load_trajectories(path).episodes]


@pytest.mark.parametrize("name", FOLDERS)
def test_copy_differs_in_rewards_only(name: str, tmp_path: Path, predictor: RewardPredictor) -> None:
    source, target = DATA / name, tmp_path / "taught-v1"
    before = {path: path.read_bytes() for path in source.rglob("*") if path.is_file()}
    relabel(predictor, source, target)
    expected = [predictor.step_rewards(episode) for episode in load_trajectories(source).episodes]
    for found, wanted in zip(rewards_of(target), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)
    pairs = zip(load_trajectories(target).episodes, load_trajectories(source).episodes, strict=True)
    for one, other in pairs:
        np.testing.assert_array_equal(one.all_observations, other.all_observations)
        np.testing.assert_array_equal(one.actions, other.actions)
        assert one.terminated == other.terminated
    assert {path: path.read_bytes() for path in before} == before
    assert [path.name for path in tmp_path.iterdir()] == ["taught-v1"]
    with pytest.raises(ConfigError, match="taught-v1 already exists"):
        relabel(predictor, source, target)


def test_minari_reward_metadata_is_updated(tmp_path: Path, predictor: RewardPredictor) -> None:
    relabel(predictor, DATA / "minari-arrow", tmp_path / "taught-v1")
    first = rewards_of(tmp_path / "taught-v1")[0]
    about = json.loads((tmp_path / "taught-v1" / "data" / "0" / "metadata.json").read_text())
    assert about["rewards_sum"] == pytest.approx(first.sum())
    assert about["rewards_std"] == pytest.approx(first.std())
    dataset = json.loads((tmp_path / "taught-v1" / "data" / "metadata.json").read_text())
    assert dataset["dataset_id"] == "cartpole/taught-v1"


def test_a_copy_does_not_pass_its_rewards_off_as_the_authors(
    tmp_path: Path, copy: Callable[[str], Path], predictor: RewardPredictor
) -> None:
    source = copy("minari-hdf5")
    path = source / "data" / "metadata.json"
    theirs = {
        "author": ["Ada"], "author_email": ["ada@lab.example"], "algorithm_name": "SAC",
        "code_permalink": "https://lab.example/code", "ref_max_score": 500.0, "description": "Expert play.",
    }  # fmt: skip
    path.write_text(json.dumps(json.loads(path.read_text()) | theirs))
    relabel(predictor, source, tmp_path / "taught-v1")
    about = json.loads((tmp_path / "taught-v1" / "data" / "metadata.json").read_text())
    assert about["reward_source"] == "predicted"
    assert not theirs.keys() - {"description"} & about.keys()
    assert "rewards were predicted by a reward model" in about["description"]
    assert about["description"].endswith(" by Ada, collected with SAC. Expert play.")


def test_a_folder_without_rewards_gets_a_column_of_them(
    tmp_path: Path, copy: Callable[[str], Path], predictor: RewardPredictor
) -> None:
    folder = copy("imitation")
    (path,) = folder.glob("*.arrow")
    with path.open("rb") as file:
        table = ipc.open_stream(file).read_all().drop_columns("rews")
    with ipc.new_stream(str(path), table.schema) as stream:
        stream.write_table(table)
    info = json.loads((folder / "dataset_info.json").read_text())
    rewards = info["features"].pop("rews")
    (folder / "dataset_info.json").write_text(json.dumps(info))
    assert not np.concatenate(rewards_of(folder)).any()
    relabel(predictor, folder, tmp_path / "taught")
    assert np.concatenate(rewards_of(tmp_path / "taught")).any()
    declared = json.loads((tmp_path / "taught" / "dataset_info.json").read_text())["features"]["rews"]
    assert declared == rewards


@pytest.mark.parametrize("name", FOLDERS)
def test_episodes_become_demonstrations(name: str, tmp_path: Path) -> None:
    recording = load_trajectories(DATA / name)
    save_demonstrations(tmp_path / "a.npz", as_demonstrations(recording))
    found = load_demonstrations(tmp_path / "a.npz")
    assert found.actions.shape == (len(found), 1)
    starts = np.flatnonzero(found.episode_starts)
    np.testing.assert_array_equal(found.obs[starts], [one.observations[0] for one in recording.episodes])
    assert found.episode_returns.tolist() == [ep.true_rewards.sum() for ep in recording.episodes]


def test_a_last_step_that_led_to_no_number_is_not_demonstrated(tmp_path: Path) -> None:
    first, second = load_trajectories(DATA / "imitation").episodes
    states = first.all_observations.copy()
    states[-1, 0] = np.nan
    first = Trajectory.from_arrays(states, first.actions, first.true_rewards, first.terminated)
    states = np.stack([second.observations[0], np.full(4, np.inf, np.float32)])
    broken = Trajectory.from_arrays(states, second.actions[:1], second.true_rewards[:1])
    save_demonstrations(tmp_path / "a.npz", as_demonstrations(Recording([first, broken, second])))
    found = load_demonstrations(tmp_path / "a.npz")
    assert np.diff(np.flatnonzero([*found.episode_starts, True])).tolist() == [5, 4]
    np.testing.assert_array_equal(found.obs, [*first.observations[:5], *second.observations[:4]])
    np.testing.assert_array_equal(found.final_obs, [first.observations[5], second.final_observation])
    assert found.episode_returns.tolist() == [first.true_rewards[:5].sum(), second.true_rewards.sum()]
    with pytest.raises(DataError, match="has no episode with at least one step"):
        as_demonstrations(Recording([broken]))


def test_an_episode_without_a_step_is_relabeled_like_the_others(
    copy: Callable[[str], Path], tmp_path: Path, predictor: RewardPredictor
) -> None:
    source = copy("minari-hdf5")
    with h5py.File(source / "data" / "main_data.hdf5", "r+") as file:
        group = file["episode_0"]
        for name in ("observations", "actions", "rewards", "terminations"):
            array = group[name][: name == "observations"]
            del group[name]
            group[name] = array
    relabel(predictor, source, tmp_path / "taught-v1")
    assert [len(rewards) for rewards in rewards_of(tmp_path / "taught-v1")] == [0, 12]


def test_demonstrations_are_relabeled_step_by_step(tmp_path: Path) -> None:
    predictor = RewardPredictor(*SPACES, RewardConfig(model="network"), seed=1)
    recording = load_trajectories(DATA / "minari-hdf5")
    source, target = tmp_path / "a.npz", tmp_path / "b.npz"
    save_demonstrations(source, as_demonstrations(recording))
    relabel(predictor, source, target)
    first, second = expected = [predictor.step_rewards(episode) for episode in recording.episodes]
    new = load_demonstrations(target)
    np.testing.assert_allclose(new.rewards, np.concatenate(expected), rtol=1e-6)
    assert new.episode_returns == pytest.approx([first.sum(), second.sum()])
    for found, wanted in zip(load_trajectories(target).episodes, recording.episodes, strict=True):
        np.testing.assert_array_equal(found.all_observations, wanted.all_observations)
        np.testing.assert_array_equal(found.actions[:, 0], wanted.actions)


def test_demonstrations_are_relabeled_by_what_reads_ends(tmp_path: Path, predictor: RewardPredictor) -> None:
    source, target = tmp_path / "a.npz", tmp_path / "b.npz"
    recording = load_trajectories(DATA / "minari-hdf5")
    assert any(episode.terminated for episode in recording.episodes)
    save_demonstrations(source, as_demonstrations(recording))
    relabel(predictor, source, target)
    expected = np.concatenate([predictor.step_rewards(episode) for episode in recording.episodes])
    np.testing.assert_allclose(load_demonstrations(target).rewards, expected, rtol=1e-6)
    ended = [episode.terminated for episode in load_trajectories(target).episodes]
    assert ended == [episode.terminated for episode in recording.episodes]


def test_demonstrations_without_last_states_are_relabeled_by_what_does_not_read_them(tmp_path: Path) -> None:
    source, target = tmp_path / "a.npz", tmp_path / "b.npz"
    old = replace(as_demonstrations(load_trajectories(DATA / "minari-hdf5")), final_obs=None)
    save_demonstrations(source, old)
    with pytest.raises(ConfigError, match=r"lacks the episodes' final observations.*--reward\.inputs state"):
        relabel(RewardPredictor(*SPACES, RewardConfig(model="network"), seed=1), source, target)
    predictor = RewardPredictor(*SPACES, RewardConfig(inputs="state", model="network"), seed=1)
    relabel(predictor, source, target)
    expected = predictor.rewards(old.obs, old.actions[:, 0])
    np.testing.assert_array_equal(load_demonstrations(target).rewards, expected)
    split = int(np.flatnonzero(old.episode_starts)[1])
    lengths = [len(episode) for episode in load_trajectories(target).episodes]
    assert lengths == [split - 1, len(old) - split - 1]


def test_unreadable_steps_are_one_line(tmp_path: Path, predictor: RewardPredictor) -> None:
    source, target = tmp_path / "a.npz", tmp_path / "b.npz"
    known = as_demonstrations(load_trajectories(DATA / "minari-hdf5"))
    save_demonstrations(source, replace(known, terminated=None))
    said = r"does not record which episodes the environment terminated.*--reward\.inputs state$"
    with pytest.raises(ConfigError, match=said):
        relabel(predictor, source, target)
    other = RewardPredictor(Box(-1, 1, (3,)), Discrete(2), RewardConfig(model="network"), seed=1)
    for path in (source, *(DATA / name for name in FOLDERS)):
        with pytest.raises(
            DataError, match=r"(must belong to the space|do not match the predictor's spaces,) Box"
        ):
            relabel(other, path, target)
    assert not target.exists()


def test_old_archive_is_read_only(archive: Path, tmp_path: Path, predictor: RewardPredictor) -> None:
    with pytest.raises(ConfigError, match="only with pickle; run teach import"):
        relabel(predictor, archive, tmp_path / "b.npz")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def misplace_infos(path: Path) -> None:
    """Let those of the second trajectory begin after all; Arrow ends the process that looks there."""
    intact, places = path.read_bytes(), struct.pack("<3i", 0, 6, 10)
    _, at, _ = (place.start() for place in re.finditer(re.escape(places), intact))
    path.write_bytes(intact[: at + 4] + struct.pack("<i", 10**7) + intact[at + 8 :])


@pytest.mark.parametrize(
    ("name", "file", "damage", "says"),
    [
        ("imitation", "data-00000-of-00001.arrow", cut, "cannot be read"),
        ("imitation", "data-00000-of-00001.arrow", misplace_infos, "cannot be read"),
        ("imitation", "state.json", lambda path: path.write_text("{}"), "does not list data files"),
        (
            "imitation",
            "state.json",
            lambda path: path.write_text('{"_data_files": [{"filename": "../../secret"}]}'),
            "lists data files outside of",
        ),
        ("minari-hdf5", "data/main_data.hdf5", cut, "damaged"),
        ("minari-hdf5", "data/metadata.json", lambda path: path.write_text("[]"), "does not describe"),
        ("minari-arrow", "data/1/part-0.arrow", cut, "damaged"),
        ("minari-arrow", "data/1/part-0.arrow", Path.unlink, "damaged"),
    ],
)
def test_a_damaged_folder_is_one_line(
    name: str, file: str, damage: Callable[[Path], object], says: str, copy: Callable[[str], Path]
) -> None:
    folder = copy(name)
    damage(folder / file)
    with pytest.raises(DataError, match=rf"{says}"):
        load_trajectories(folder)


def test_a_dataset_without_a_name_is_not_copied(
    copy: Callable[[str], Path], tmp_path: Path, predictor: RewardPredictor
) -> None:
    path = copy("minari-arrow") / "data" / "metadata.json"
    about = json.loads(path.read_text())
    del about["dataset_id"]
    path.write_text(json.dumps(about))
    with pytest.raises(DataError, match=r"data/metadata\.json cannot be read: 'dataset_id'"):
        relabel(predictor, tmp_path / "minari-arrow", tmp_path / "taught-v1")


def test_other_spaces_are_refused(copy: Callable[[str], Path]) -> None:
    folder = copy("minari-arrow")
    path = folder / "data" / "metadata.json"
    about = json.loads(path.read_text())
    path.write_text(json.dumps({**about, "observation_space": '{"type": "Dict", "subspaces": {}}'}))
    with pytest.raises(DataError, match=r"has Dict and .* spaces, but only Box and Discrete are supported"):
        load_trajectories(folder)


def test_other_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        load_trajectories(tmp_path / "nothing")
    np.savez(tmp_path / "a.npz", other=np.zeros(3))
    for path in (tmp_path, tmp_path / "a.npz"):
        with pytest.raises(DataError, match="contains no readable trajectories"):
            load_trajectories(path)


@pytest.mark.parametrize(
    ("name", "module", "extra"),
    [
        ("imitation", "pyarrow", "parquet"),
        ("minari-arrow", "pyarrow", "parquet"),
        ("minari-hdf5", "h5py", "minari"),
    ],
)
def test_missing_package(name: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf" needs {module}, .*pip install 'rl-teacher\[{extra}\]'$"):
        load_trajectories(DATA / name)


def test_a_copy_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, predictor: RewardPredictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copytree", fail)
    with pytest.raises(StorageError, match=r"cannot write the trajectories .*: No space left on device"):
        relabel(predictor, DATA / "imitation", tmp_path / "taught")
    assert list(tmp_path.iterdir()) == []


def test_steps_are_read_as_they_were_recorded(predictor: RewardPredictor) -> None:
    """The reward of a step that ended an episode is that of an end."""
    (ended, _) = load_trajectories(DATA / "imitation").episodes
    flags = np.zeros(6, np.bool_)
    flags[-1] = True
    steps = StepsBatch(ended.observations, ended.actions, ended.next_observations, flags)
    np.testing.assert_array_equal(predictor.step_rewards(ended), predictor.step_rewards(steps))
