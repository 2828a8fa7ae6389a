"""Every kind of file that the trainer reads, cut off, changed and replaced: refused in one line, or harmless.

A kind needs a row here. A ledger's ``-wal`` file is in ``test_ledger_durability.py``. The site's own are in
``tests/site/test_imports.py`` and ``test_embedded.py``, a stack's in ``tests/e2e/test_stack_programs.py`` and
``test_stack_audit.py``, benchmarks' in ``test_results.py``.
"""

import contextlib
import csv
import functools
import json
import resource
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import h5py
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from PIL import Image
from pyarrow import ipc, parquet

from teacher.clips.render import captured
from teacher.data.checkpoint import load_state, save_state
from teacher.data.demonstrations import Demonstrations, load_demonstrations, save_demonstrations
from teacher.data.ledger import Ledger, Question
from teacher.data.preferences import Preference, PreferenceDataset
from teacher.data.segments import Segment
from teacher.datasets.predictor_files import load_predictor, save_predictor
from teacher.datasets.preference_files import load_preferences, save_preferences, saved_spaces
from teacher.datasets.trajectories import load_trajectories, relabel
from teacher.datasets.unirlhf import CrowdLabels, crowd_preferences, load_crowd_labels
from teacher.envs.recipe import EpisodeRecipe
from teacher.errors import DataError, TeacherError
from teacher.queries.kinds import preferences_in
from teacher.reward.predictor import RewardPredictor
from teacher.runs.saved_run import SavedRun
from teacher.settings.config import TeachConfig
from teacher.settings.config_files import load_config, save_config
from teacher.settings.options import RewardConfig
from teacher.training.builder import open_run
from teacher.training.warmstart import read_policy
from teacher.wrapper.labels import run_id_in
from tests.conftest import damaged
from tests.teacher.conftest import config_in, make_segment

DATA = Path(__file__).parent / "datasets" / "trajectories" / "data"
SPACES = Box(-np.inf, np.inf, (3,)), Box(-1, 1, (2,), np.float32)
MOST_MEMORY = 2**29  # bytes that reading a damaged file may take


@dataclass(frozen=True)
class Kind:
    """One kind of file: ``write`` makes an intact one in a folder and returns it, ``read`` reads it."""

    name: str
    write: Callable[[Path], Path]
    read: Callable[[Path], object]


def checkpoint(folder: Path) -> Path:
    state = {"agent": {"weights": np.arange(300.0), "epoch": 3}, "random": [1, {"key": np.arange(9)}]}
    save_state(folder / "checkpoint.npz", state)
    return folder / "checkpoint.npz"


def preferences(suffix: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        dataset = PreferenceDataset()
        for number in range(4):
            pair = make_segment(number), make_segment(number + 50)
            dataset.upsert([Preference(UUID(int=number), *pair, 0.5)])
        save_preferences(folder / f"labels{suffix}", dataset, *SPACES)
        return folder / f"labels{suffix}"

    return write


def predictor(folder: Path) -> Path:
    predictor = RewardPredictor(*SPACES, RewardConfig(members=1, hidden=4), seed=1)
    save_predictor(folder / "predictor.npz", predictor, *SPACES)
    return folder / "predictor.npz"


def demonstrations(folder: Path) -> Path:
    starts = np.arange(20) % 10 == 0
    columns = np.ones((20, 3)), np.ones((20, 2)), np.ones(20), np.full(2, 10.0), starts
    save_demonstrations(folder / "expert.npz", Demonstrations(*columns))
    return folder / "expert.npz"


def demonstrated_image(folder: Path) -> Path:
    images = np.random.default_rng(1).integers(255, size=(4, 12, 10, 3), dtype=np.uint8)
    columns = images, np.ones((4, 1)), np.ones(4), np.full(1, 4.0), np.arange(4) == 0
    save_demonstrations(folder / "expert.npz", Demonstrations(*columns))
    return next(path for path in folder.rglob("*.png"))


def old_imitation(folder: Path) -> Path:
    arrays: dict[str, Any] = {"obs": np.ones((12, 3)), "acts": np.ones((10, 2)), "indices": np.array([6])}
    np.savez(folder / "old.npz", **arrays)
    return folder / "old.npz"


def shipped(name: str, file: str) -> Callable[[Path], Path]:
    """A file in a copy of what another program wrote."""
    return lambda folder: Path(shutil.copytree(DATA / name, folder / name)) / file


def parquet_of_minari(folder: Path) -> Path:
    """Store the dataset in Minari's Arrow format."""
    data = shutil.copytree(DATA / "minari-arrow", folder / "minari-parquet") / "data"
    for path in data.glob("*/*.arrow"):
        parquet.write_table(ipc.open_file(path).read_all(), path.with_suffix(".parquet"))
        path.unlink()
    about = json.loads((data / "metadata.json").read_text())
    (data / "metadata.json").write_text(json.dumps({**about, "data_format": "parquet"}))
    return data / "0" / "part-0.parquet"


@functools.cache
def predictor_of_cartpole() -> RewardPredictor:
    return RewardPredictor(Box(-np.inf, np.inf, (4,)), Discrete(2), RewardConfig(members=1, hidden=4), seed=1)


def copy_with_rewards(path: Path) -> None:
    """Make one beside it; what is refused leaves none."""
    source, target = folder_of(path), folder_of(path).with_name("taught")
    try:
        relabel(predictor_of_cartpole(), source, target)
        shutil.rmtree(target)
    finally:
        assert list(source.parent.iterdir()) == [source]


def uni_rlhf_table(folder: Path) -> Path:
    about = {"environment_name": "hopper", "query_length": 5, "feedback_type": "comparative"}
    (folder / "project.json").write_text(json.dumps(about))
    with (folder / "project.csv").open("w") as file:
        csv.writer(file).writerows([("start_indices_1", "start_indices_2", "label"), (0, 24, 0), (3, 12, 2)])
    return folder / "project.csv"


def uni_rlhf_arrays(which: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        for stem, values in (("indices_1", [0, 3]), ("indices_2", [24, 12]), ("human_label", [0, -1])):
            np.save(folder / f"{stem}_domain_mujoco_env_hopper_num_2_len_5_0.npy", np.array(values))
        return next(folder.glob(f"{which}_*"))

    return write


def d4rl(folder: Path) -> Path:
    with h5py.File(folder / "d4rl.hdf5", "w") as file:
        file["observations"], file["actions"] = np.ones((40, 3)), np.ones((40, 2))
        file["rewards"], file["terminals"] = np.ones(40), np.zeros(40, bool)
        file["timeouts"] = np.arange(40) == 20
    return folder / "d4rl.hdf5"


def transitions(folder: Path) -> Path:
    np.savez(
        folder / "table.npz", observations=np.ones((40, 3)), actions=np.ones((40, 2)), rewards=np.ones(40)
    )
    return folder / "table.npz"


def read_table(path: Path) -> object:
    labels = CrowdLabels("hopper", 5, np.array([[0, 9]]), np.array([1.0]))
    return crowd_preferences(labels, path)


def ledger(folder: Path) -> Path:
    written = Ledger(folder / "ledger.sqlite3")
    pairs = [(make_segment(number), make_segment(number + 9)) for number in range(8)]
    written.write([Question(UUID(int=n), pair, "training", 0) for n, pair in enumerate(pairs)])
    written.close()
    return folder / "ledger.sqlite3"


def read_ledger(path: Path) -> object:
    opened = Ledger(path)
    try:
        opened.write([])
        return contents(opened)
    finally:
        opened.close()
        for rest in path.parent.glob("ledger.sqlite3-*"):  # the next damage is not this one's
            rest.unlink()


def look_at_ledger(path: Path) -> object:
    with contextlib.closing(Ledger(path, read_only=True)) as opened:
        return contents(opened)


def contents(ledger: Ledger) -> object:
    return ledger.cursor, ledger.unfinished(), list(preferences_in(ledger)), ledger.decided_items(9)


def segment(folder: Path) -> Path:
    (folder / "segment").write_bytes(make_segment(1).to_bytes())
    return folder / "segment"


def recipe(folder: Path) -> Path:
    (folder / "recipe.json").write_text(make_segment(1).recipe.to_json())
    return folder / "recipe.json"


def settings(folder: Path) -> Path:
    config = TeachConfig(env_id="ShortHopper-v1", predictor="rl", name="x", runs_dir=str(folder))
    config.run_dir.mkdir(parents=True)
    save_config(config, UUID(int=1))
    return config.run_dir / "config.json"


def run_id(folder: Path) -> Path:
    run_id_in(folder)
    return folder / "run_id"


def picture(folder: Path) -> Path:
    pixels = np.random.default_rng(1).integers(255, size=(24, 32, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "frame.jpg")
    return folder / "frame.jpg"


OF_OTHER_PROGRAMS = (
    ("imitation", "data-00000-of-00001.arrow"),
    ("imitation", "state.json"),
    ("minari-hdf5", "data/main_data.hdf5"),
    ("minari-hdf5", "data/metadata.json"),
    ("minari-arrow", "data/1/part-0.arrow"),
    ("minari-arrow", "data/metadata.json"),
)


def folder_of(path: Path) -> Path:
    """Return another program's dataset."""
    return next(parent for parent in path.parents if parent.name.startswith(("imitation", "minari")))


KINDS = [
    Kind("checkpoint", checkpoint, lambda path: (load_state(path), load_state(path, with_arrays=False))),
    Kind("saved policy", checkpoint, read_policy),
    Kind("configuration", settings, lambda path: load_config(path.parent)),
    Kind("run id of a wrapper", run_id, lambda path: run_id_in(path.parent)),
    Kind("ledger", ledger, read_ledger),
    Kind("ledger that is only read", ledger, look_at_ledger),
    Kind("segment", segment, lambda path: Segment.from_bytes(path.read_bytes())),
    Kind("recipe", recipe, lambda path: EpisodeRecipe.from_json(path.read_text(errors="replace"))),
    *(
        Kind(
            f"labels in {suffix}",
            preferences(suffix),
            lambda path: (saved_spaces(path), load_preferences(path)),
        )
        for suffix in (".npz", ".parquet")
    ),
    Kind("predictor", predictor, load_predictor),
    Kind("demonstrations", demonstrations, load_demonstrations),
    Kind("demonstrations to be read as trajectories", demonstrations, load_trajectories),
    Kind(
        "demonstrated image",
        demonstrated_image,
        lambda path: load_demonstrations(path.parents[1] / "expert.npz"),
    ),
    Kind("captured picture", picture, lambda path: list(captured([path.read_bytes()]))),
    Kind("old trajectories of imitation", old_imitation, load_trajectories),
    Kind("Uni-RLHF's table", uni_rlhf_table, lambda path: load_crowd_labels(path.parent)),
    Kind(
        "Uni-RLHF's description",
        lambda folder: uni_rlhf_table(folder).with_suffix(".json"),
        lambda path: load_crowd_labels(path.parent),
    ),
    *(
        Kind(f"Uni-RLHF's {which}", uni_rlhf_arrays(which), lambda path: load_crowd_labels(path.parent))
        for which in ("indices_1", "indices_2", "human_label")
    ),
    Kind("D4RL's file", d4rl, read_table),
    Kind("table of transitions", transitions, read_table),
    *(
        Kind(f"{name}'s {file}", shipped(name, file), lambda path: load_trajectories(folder_of(path)))
        for name, file in OF_OTHER_PROGRAMS
    ),
    *(
        Kind(f"{name}'s {file}, to be copied", shipped(name, file), copy_with_rewards)
        for name, file in (
            *OF_OTHER_PROGRAMS,
            ("imitation", "dataset_info.json"),
            ("minari-arrow", "data/0/metadata.json"),
        )
    ),
    Kind("Minari's Parquet", parquet_of_minari, lambda path: load_trajectories(folder_of(path))),
    Kind("Minari's Parquet, to be copied", parquet_of_minari, copy_with_rewards),
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_damaged_file_is_refused_in_one_line(kind: Kind, tmp_path: Path) -> None:
    path = kind.write(tmp_path)
    intact = path.read_bytes()
    kind.read(path)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wrong: list[tuple[str, bytes]] = []
    refused = 0
    for content in damaged(intact):
        path.write_bytes(content)
        try:
            kind.read(path)  # what is read may be what nobody looks at
        except TeacherError as error:
            refused += 1
            if "\n" in str(error):
                wrong.append((str(error), content[:60]))
        except Exception as error:
            wrong.append((repr(error)[:200], content[:60]))
    assert wrong == []
    assert refused > 10
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) * 1024 < MOST_MEMORY


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"agent": {}},
        {"agent": 3},
        {"agent": {"total_steps": [1]}},
        {"agent": {"total_steps": 9}, "teaching": {}},
    ],
    ids=str,
)
def test_foreign_checkpoint_is_refused(tmp_path: Path, state: dict[str, Any]) -> None:
    config = config_in(tmp_path, "ShortHopper-v1", n_labels=9)
    config.run_dir.mkdir(parents=True)
    save_config(config, UUID(int=1))
    save_state(config.run_dir / "checkpoint.npz", state)
    with pytest.raises(DataError, match=r"checkpoint\.npz is not a checkpoint of "), open_run(config.run_dir):
        pass
    with pytest.raises(DataError, match=r"checkpoint\.npz is not a checkpoint of "):
        SavedRun(config.run_dir).load_predictor()
