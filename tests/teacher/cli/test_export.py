"""The labels of a run leave it as they are; policies and predictors leave the house; policies come back."""

import contextlib
import json
import re
import shutil
import sys
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import stable_baselines3 as sb3
import yaml
from gymnasium.spaces import Box
from huggingface_hub import ModelCard
from pyarrow import parquet
from safetensors.numpy import load_file

from teacher.data.ledger import LEDGER_NAME, Ledger
from teacher.data.segment_pool import SegmentPool
from teacher.datasets.predictor_files import load_predictor
from teacher.datasets.preference_files import load_preferences
from teacher.envs.random_episodes import policy_trajectories, random_trajectories
from teacher.envs.tasks import describe_task
from teacher.queries.collector import SyntheticTeacher
from teacher.queries.kinds import preferences_in
from teacher.runs import model_export
from teacher.runs.model_export import CHECKED_INPUTS, random_inputs
from teacher.runs.saved_run import SavedRun
from teacher.teach import main
from teacher.training.builder import open_run
from tests.models import AGENTS
from tests.teacher.conftest import config_in, save_new


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Make a run with 5 synthetic labels and no predictor."""
    config = config_in(tmp_path, "ShortReacher-v1", name="a", n_labels=5, no_videos=False)
    save_new(config)
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
    line: str, says: str, run_dir: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {"new": here / "new.npz", "folder": here / "nowhere"}
    assert main(["export", str(run_dir), *line.format(**names).split()]) != 0
    assert says.format(**names) in capsys.readouterr().err
    assert not list(here.glob("*.npz"))


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


FILES = {"README.md", "config.json", "policy.safetensors", "predictor.safetensors"}


def test_model_card(finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "swing-up"
    assert main(["export", str(finished_run), "--huggingface", str(folder), "--license", "mit"]) == 0
    assert capsys.readouterr().out == (
        f"{folder}: policy and predictor with a model card; to upload: hf upload YOU/swing-up {folder} .\n"
    )
    assert {path.name for path in folder.iterdir()} == FILES
    card = ModelCard.load(folder / "README.md")
    assert card.data.library_name == "rl-teacher"
    assert {"reinforcement-learning", "Pendulum-v1"} <= set(card.data.tags or [])
    results = {result.metric_type: result.metric_value for result in card.data.eval_results or []}
    assert results.keys() == {"mean_reward", "accuracy"}
    run = SavedRun(finished_run)
    seed = model_export._EVALUATION_SEED
    act = partial(run.load_agent().act, deterministic=True)
    episodes = islice(policy_trajectories(run.task, seed, act, num_envs=10), 10)
    returns = [episode.true_return for episode in episodes]
    mean, std = (float(number) for number in results["mean_reward"].split(" +/- "))
    assert (mean, std) == pytest.approx((np.mean(returns), np.std(returns)), abs=0.05)
    assert results["accuracy"] <= 1
    assert card.data.license == "mit"
    assert f"Seed: {run.config.seed}. Written with python 3." in card.text
    assert "on rewards predicted from 12 labels. The labels are from a scripted teacher (`oracle`)." in (
        card.text.replace("\n", " ")
    )
    assert all(f"| `{name}` |" in card.text for name in FILES - {"README.md"})
    assert "onnx" not in card.text

    config = json.loads((folder / "config.json").read_text())
    assert config["seed"] == run.config.seed
    assert set(config["versions"]) == {"python", "rl-teacher", "torch", "gymnasium", "numpy"}
    assert (config["env_id"], config["agent"], config["num_timesteps"]) == ("Pendulum-v1", "ppo", 1020)
    assert config["observation_space"] == {"kind": "Box", "shape": [3], "dtype": "float32"}
    assert config["predictor"]["inputs"] == "next_state"
    tensors = load_file(folder / "predictor.safetensors")
    for name, tensor in run.load_predictor().state_dict()["network"].items():
        np.testing.assert_array_equal(tensors[f"network.{name}"], tensor.numpy())


def test_replaces_export(finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, labels = tmp_path / "model", tmp_path / "labels"
    words = ["export", str(finished_run), "--huggingface"]
    assert main([*words, str(folder)]) == 0
    (folder / "config.json").write_text("{}")
    assert main([*words, str(folder)]) == 0
    assert (folder / "config.json").read_text() != "{}"
    assert main(["export", str(finished_run), str(labels)]) == 0
    assert main([*words, str(labels)]) == 2
    assert main(["export", str(finished_run), str(folder)]) == 2
    assert main(["export", str(finished_run), str(folder), "--huggingface", str(folder)]) == 2
    first, second, third = capsys.readouterr().err.splitlines()
    assert f"{labels / 'README.md'} was not written by RL-Teacher for a model" in first
    assert f"{folder / 'README.md'} was not written by RL-Teacher for labels" in second
    assert "Hugging Face keeps datasets and models in different repositories" in third


@pytest.mark.usefixtures("short_rollouts")
def test_a_run_begins_from_an_exported_policy(
    finished_run: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["export", str(finished_run), "--huggingface", "model", "--sb3", "policy.zip"]
    assert main(words) == 0
    assert "policy.zip: policy for stable_baselines3.PPO.load\n" in capsys.readouterr().out
    agent = SavedRun(finished_run).load_agent()
    observations = np.random.default_rng(1).normal(size=(20, 3)).astype(np.float32)
    expected = agent.act(observations, deterministic=True)
    model = sb3.PPO.load("policy.zip", device="cpu")
    np.testing.assert_allclose(model.predict(observations, deterministic=True)[0], expected, atol=1e-5)
    for name, path in (("a", "model/policy.safetensors"), ("b", "policy.zip")):
        # No update: the policy is saved as it was loaded.
        command = f"-p rl -e Pendulum-v1 -n {name} -t 1 -V --policy {path} --agent.learning_rate 1e-30"
        assert main(command.split()) == 0
        assert f"Starting from the policy in {path}" in capsys.readouterr().out
        found = SavedRun(Path(f"runs/Pendulum-v1/{name}")).load_agent()
        np.testing.assert_array_equal(found.act(observations, deterministic=True), expected)


@pytest.mark.usefixtures("short_rollouts")
def test_a_run_on_the_true_reward_has_no_predictor(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main("-p rl -e Pendulum-v1 -n a -t 100 -V --agent.hidden_sizes 8,4".split()) == 0
    assert main("export runs/Pendulum-v1/a --huggingface model".split()) == 0
    assert "model: policy with a model card" in capsys.readouterr().out
    assert {path.name for path in Path("model").iterdir()} == FILES - {"predictor.safetensors"}
    card = ModelCard.load("model/README.md")
    assert "on the environment's rewards." in card.text
    assert "--policy policy.safetensors --agent.hidden_sizes 8,4\n" in card.text


@pytest.mark.parametrize("module", ["onnxruntime", "safetensors", "stable_baselines3"])
def test_a_missing_package_is_named_before_anything_is_written(
    module: str,
    finished_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    option, extra = {
        "onnxruntime": ("--onnx", "onnx"),
        "safetensors": ("--huggingface", "hub"),
        "stable_baselines3": ("--sb3", "sb3"),
    }[module]
    assert main(["export", str(finished_run), option, str(tmp_path / "out.zip")]) == 2
    error = capsys.readouterr().err
    assert f"to install: pip install 'rl-teacher[{extra}]'" in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_export_errors_are_one_line(
    finished_run: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("taken").touch()
    Path("b.npz").touch()
    new = Path("new/Pendulum-v1/done")
    shutil.copytree(finished_run, new, ignore=shutil.ignore_patterns("checkpoint.npz"))
    run = str(finished_run)
    for words, says in (
        ([run, "--sb3", "a.pkl"], "the Stable-Baselines3 file must be named *.zip, not a.pkl"),
        ([run, "--sb3", "b.zip"], "b.npz already exists; choose another name or remove it"),
        ([run, "--sb3", "nowhere/a.zip"], "there is no folder nowhere; create it first"),
        ([run, "--huggingface", "taken"], "cannot create the folder taken"),
        ([str(new), "--huggingface", "model"], "expected a run directory with a checkpoint"),
    ):
        assert main(["export", *words]) != 0
        error = capsys.readouterr().err
        assert says in error
        assert error.count("\n") == 1
    for path, says in (
        ("b.npz", "is not a readable checkpoint"),
        ("model.zip", "expected a run directory with a checkpoint, or a file"),
        ("taken.zip", "is not a readable file of Stable-Baselines3"),
        ("taken.safetensors", "is not a readable safetensors file"),
    ):
        if path.startswith("taken"):
            Path(path).touch()
        assert main(f"-p rl -e Pendulum-v1 -n a -V --policy {path}".split()) != 0
        assert says in capsys.readouterr().err
    assert {path.name for path in here.iterdir()} == {
        *("taken", "b.npz", "new", "taken.zip", "taken.safetensors")
    }


def test_random_inputs_are_in_the_space_and_not_near_its_bounds_if_these_are_huge() -> None:
    largest = np.finfo(np.float32).max
    low, high = np.array([-largest, -np.inf, 2000, 0], np.float32), np.array([largest, 1, 3000, np.inf])
    drawn = random_inputs(Box(low, high.astype(np.float32)), seed=1)
    assert drawn.shape == (CHECKED_INPUTS, 4)
    assert drawn.dtype == np.float32
    assert np.abs(drawn[:, [0, 1, 3]]).max() < 100
    assert drawn[:, 2].min() > 2000
    assert drawn[:, 2].std() > 100


def test_drawing_does_not_change_the_space() -> None:
    for case in AGENTS.values():
        space = case.action_space
        space.seed(7)
        expected = space.sample()
        space.seed(7)
        random_inputs(space, seed=1)
        np.testing.assert_array_equal(space.sample(), expected)
