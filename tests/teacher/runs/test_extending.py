"""A run that is over is given more steps and labels; looking at a run changes nothing of it."""

import contextlib
import json
import shutil
import sys
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from agents import SACConfig
from teacher.data.checkpoint import load_state
from teacher.data.ledger import Ledger
from teacher.data.preferences import PreferenceDataset
from teacher.errors import ConfigError
from teacher.queries.kinds import preferences_in
from teacher.queries.kinds.rating import SETTLING
from teacher.reporting import trackers
from teacher.runs.saved_run import SavedRun
from teacher.settings.config import RunSettings, TeachConfig
from teacher.settings.config_files import load_config, save_config
from teacher.settings.options import RewardConfig, RunStage
from teacher.teach import main, parse_arguments
from teacher.training.builder import open_run
from teacher.training.loop import train
from teacher.training.parts import schedule_of
from teacher.training.warmstart import read_policy
from tests.teacher.conftest import config_in

LINE = "-p synth -e CartPole-v1 -n x -l 20 -L 8 -t 2000 -V --allow_variable_horizon --segment_steps 5"


def config(**changes: Any) -> TeachConfig:
    common = {"predictor": "synth", "n_labels": 40, "pretrain_labels": 10, "num_timesteps": 1000}
    return TeachConfig(env_id="CartPole-v1", name="x", **{**common, **changes})


def test_added_labels_are_spread_over_the_added_steps() -> None:
    first = RunStage(num_timesteps=1000, n_labels=40, step=1000)
    schedule = schedule_of(config(num_timesteps=3000, n_labels=80, stages=(first,)))
    due = [schedule.due(step, 0.0) for step in (0, 500, 1000, 2000, 3000, 4000)]
    assert due == [10, 10 + 27, 40, 40 + 36, 80, 80]  # 1 - 0.01 ** 0.5 is 0.9


def test_a_run_that_was_stopped_goes_on_from_what_was_due_then() -> None:
    first = RunStage(num_timesteps=1000, n_labels=40, step=500)
    second = RunStage(num_timesteps=1500, n_labels=57, step=1000)
    schedule = schedule_of(config(num_timesteps=1500, n_labels=57, stages=(first,)))
    assert [schedule.due(step, 0.0) for step in (500, 1000, 1500)] == [37, 37 + 18, 57]
    schedule = schedule_of(config(num_timesteps=2000, n_labels=57, stages=(first, second)))
    assert [schedule.due(step, 0.0) for step in (500, 1000, 1500, 2000)] == [37, 55, 56, 57]


def test_more_steps_without_more_labels_ask_for_none_after_the_first_end() -> None:
    schedule = schedule_of(
        config(num_timesteps=2000, stages=(RunStage(num_timesteps=1000, n_labels=40, step=1000),))
    )
    assert [schedule.due(step, 0.0) for step in (1000, 1001, 2000)] == [40, 40, 40]


@settings(max_examples=40)
@given(
    name=st.sampled_from([None, "constant", "hyperbolic", "paper_mujoco"]),
    growth=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 900), st.integers(0, 50)), max_size=4),
)
def test_due_is_monotonic_across_stages(name: Any, growth: list[tuple[int, int, int]]) -> None:
    end, labels, step, stages = 1000, 40, 0, []
    for quarters, more_steps, more_labels in growth:
        step = max(step, end * quarters // 4)
        stages.append(RunStage(num_timesteps=end, n_labels=labels, step=step))
        end, labels = end + more_steps, labels + more_labels
    grown = config(num_timesteps=end, n_labels=labels, stages=tuple(stages), schedule=name)
    schedule = schedule_of(grown)
    due = [schedule.due(step, 0.0) for step in [*range(0, end, 50), end]]
    assert due == sorted(due)
    assert due[-1] == labels


@pytest.fixture
def run_dir(here: Path) -> Path:
    return Path("runs/CartPole-v1/x")


@pytest.mark.usefixtures("short_rollouts")
def test_finished_run_is_extended(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(LINE.split()) == 0
    made = load_state(run_dir / "checkpoint.npz")["agent"]["total_steps"]
    assert f"--resume {run_dir} -t {2 * made} -l 40\n" in capsys.readouterr().out
    for _ in range(2):  # the second time there is nothing more
        assert main(["--resume", str(run_dir), *"-t 3e3 -l 30".split()]) == 0
        assert "30 of 30 labels" in capsys.readouterr().out
    steps = load_state(run_dir / "checkpoint.npz")["agent"]["total_steps"]
    assert 3000 <= steps < 4000
    with contextlib.closing(Ledger(run_dir / "ledger.sqlite3", read_only=True)) as ledger:
        assert (ledger.asked(), ledger.usable(), ledger.asked("pretraining")) == (30, 30, 8)
    grown, _ = load_config(run_dir)
    assert (grown.num_timesteps, grown.n_labels, grown.num_pretrain_labels) == (3000, 30, 8)
    assert [(stage.num_timesteps, stage.n_labels) for stage in grown.stages] == [(2000, 20)]
    assert main(["--resume", str(run_dir)]) == 0
    assert load_state(run_dir / "checkpoint.npz")["agent"]["total_steps"] == steps


@pytest.mark.usefixtures("short_rollouts", "here")
def test_kinds_of_questions_change_and_train_together(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("-p synth -e Pendulum-v1 -n x -l 12 -L 6 -t 800 -V --feedback rating".split()) == 0
    run_dir = Path("runs/Pendulum-v1/x")
    assert main(["--resume", str(run_dir), *"-t 1600 -l 20 --feedback best_worst".split()]) == 0
    assert "20 of 20 labels" in capsys.readouterr().out
    assert load_config(run_dir)[0].feedback == "best_worst"
    with contextlib.closing(Ledger(run_dir / "ledger.sqlite3", read_only=True)) as ledger:
        kinds = Counter(answered.kind for answered in ledger.answered())
        held = PreferenceDataset()
        held.upsert(preferences_in(ledger))
    assert kinds == {"rating": 12, "best_worst": 8}
    assert held.labels == 12 - SETTLING - 1 + 8  # the first rating that counts has no earlier one
    assert SavedRun(run_dir).load_preferences().labels == held.labels
    with pytest.raises(ConfigError, match=r"^--feedback: new questions need more training steps: "):
        parse_arguments(["--resume", str(run_dir), "--feedback", "pair"])


Save = Callable[..., str]


@pytest.fixture
def save(run_dir: Path) -> Save:
    """Save the settings of a run that has not begun; its folder."""

    def save(**changes: Any) -> str:
        run_dir.mkdir(parents=True)
        save_config(config(**changes), uuid.uuid4())
        return str(run_dir)

    return save


def test_a_run_that_has_not_begun_is_given_more_as_if_it_had_been_so_at_first(save: Save) -> None:
    grown = parse_arguments(["--resume", save(pretrain_labels=None), "-l", "80"]).config
    assert (grown.n_labels, grown.num_pretrain_labels, grown.stages) == (80, 10, ())


def test_a_run_on_the_true_reward_is_given_more_steps(save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save(predictor="rl", n_labels=None, pretrain_labels=None)
    monkeypatch.setattr("teacher.runs.extending.steps_made", lambda _: 1000)
    grown = parse_arguments(["--resume", folder, "-t", "2e3"]).config
    assert (grown.num_timesteps, grown.n_labels, grown.pretrain_labels) == (2000, None, None)
    assert [(stage.num_timesteps, stage.step) for stage in grown.stages] == [(1000, 1000)]


def test_words_beside_ratings_end_with_the_ratings(save: Save) -> None:
    folder = save(predictor="human", feedback="rating", lowest_rating="falls")
    assert parse_arguments(["--resume", folder, "--feedback", "rating"]).config.lowest_rating == "falls"
    words = parse_arguments(["--resume", folder, "--highest_rating", "walks"]).config
    assert (words.lowest_rating, words.highest_rating) == ("falls", "walks")
    changed = parse_arguments(["--resume", folder, "--feedback", "graded"]).config
    assert (changed.feedback, changed.lowest_rating) == ("graded", None)


@pytest.mark.parametrize(
    ("changes", "line", "expected"),
    [
        (
            {},
            "-t 999",
            "-t: 999 is less than 1,000, the current value in .*/x; runs",
        ),
        ({}, "-l 39 -t 2e3", "-l: .* is less than 40"),
        (
            {"predictor": "rl", "n_labels": None, "pretrain_labels": None},
            "-l 50",
            "uses no labels; leave out -l",
        ),
        ({"predictor": "human", "n_labels": None}, "-l 50", "no label limit"),
        (
            {},
            "-s 3 -t 2e3 -L 20",
            r"can only raise a run's -t and -l, and .* --feedback, .*; remove --seed --pretrain_labels, or",
        ),
        ({}, "--reopen", "--reopen works only with -p human; .* has no experiment on a site"),
    ],
)
def test_impossible_extensions(save: Save, changes: dict[str, Any], line: str, expected: str) -> None:
    folder = save(**changes)
    with pytest.raises(ConfigError, match=expected):
        parse_arguments(["--resume", folder, *line.split()])
    assert load_config(Path(folder))[0].num_timesteps == 1000


def test_labels_alone_cannot_extend_a_finished_run(save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save()
    monkeypatch.setattr("teacher.runs.extending.steps_made", lambda _: 1000)
    expected = r"^-l: more labels need more training steps: .* is already at step 1,000; .* -t 2000$"
    with pytest.raises(ConfigError, match=expected):
        parse_arguments(["--resume", folder, "-l", "80"])
    assert parse_arguments(["--resume", folder, "-l", "80", "-t", "2e3"]).config.n_labels == 80


def test_an_earlier_run_alone_is_reopened() -> None:
    with pytest.raises(ConfigError, match="--reopen works only with --resume RUN_DIR"):
        parse_arguments("-p human -e CartPole-v1 -n x --reopen".split())


def test_settings_of_before_have_no_stages(save: Save) -> None:
    folder = Path(save())
    path = folder / "config.json"
    path.write_text(path.read_text().replace(',\n  "stages": []', ""))
    assert load_config(folder)[0].stages == ()
    assert isinstance(RunSettings(*load_config(folder), resumed=True).run_id, uuid.UUID)


QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, finished_run: Path) -> Path:
    """A run that is done; one that keeps replay files and was stopped; and the same, killed as it trained."""
    folder = tmp_path_factory.mktemp("runs")
    shutil.copytree(finished_run.parents[1], folder / "done")
    config = config_in(
        folder / "stopped",
        "Pendulum-v1",
        agent=SACConfig(learning_starts=10, hidden_sizes=(8,), batch_size=8),
        n_labels=8,
        num_timesteps=2_000,
        pretrain_iters=10,
        reward=RewardConfig(hidden=4),
    )

    def stop(_: object) -> None:
        run.save()
        shutil.copytree(folder / "stopped", folder / "killed")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), open_run(config, QUIET) as run:
        train(run, stop)
    return folder


def copied(runs: Path, folder: Path) -> Path:
    """Copy a folder of one run to ``folder / "runs"``, and return the run's folder."""
    shutil.copytree(runs, folder / "runs")
    return next((folder / "runs").glob("*/*"))


def contents(folder: Path) -> dict[str, Any]:
    """All that a folder has, and when each file and folder in it was changed."""
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else None)
        for path in [folder, *folder.rglob("*")]
    }


def look(run_dir: Path) -> None:
    with open_run(run_dir, QUIET) as run, open_run(str(run_dir), QUIET) as other:
        assert run.teaching is not None
        assert other.teaching is not None
        assert run.step == other.step > 0
        assert run.agent.act(np.zeros((1, 3)), deterministic=True).shape == (1, 1)
        assert len(run.teaching.dataset) == run.teaching.ledger.usable() == other.teaching.ledger.usable() > 0
        preference = next(preferences_in(run.teaching.ledger))
        assert np.isfinite(other.teaching.predictor.segment_returns([preference.first]))


def read(run_dir: Path) -> None:
    run = SavedRun(run_dir)
    run.load_agent()
    run.load_predictor()
    assert isinstance(run.load_preferences(), PreferenceDataset)


LOOKS: dict[str, Callable[[Path], object]] = {
    "open_run": look,
    "SavedRun": read,
    "ls": lambda run: main(["ls", str(run.parents[1])]),
    "play": lambda run: main(["play", str(run), "--episodes", "1", "--steps", "3"]),
    "export": lambda run: main(
        f"export {run} labels.npz --predictor reward.npz --sb3 policy.zip --huggingface hub".split()
    ),
    "doctor": lambda run: main(["doctor", "--runs_dir", str(run.parents[1])]),
    "--policy": lambda run: not read_policy(run),
}


@pytest.mark.parametrize("name", ["done", "stopped", "killed"])
def test_looking_changes_nothing(
    runs: Path, name: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("teacher.cli.doctor.examine", lambda _: ())
    monkeypatch.setitem(sys.modules, "wandb", ModuleType("wandb"))
    monkeypatch.setitem(trackers.TRACKERS, "wandb", lambda _: pytest.fail("it was tracked"))
    run = copied(runs / name, here)
    config, run_id = load_config(run)
    save_config(replace(config, track="wandb"), run_id)
    before = contents(run)
    for what, look_at in LOOKS.items():
        assert not look_at(run), (what, capsys.readouterr())
        assert contents(run) == before, what


def test_a_run_is_looked_at_while_another_process_trains_it(runs: Path, tmp_path: Path) -> None:
    run_dir = copied(runs / "done", tmp_path)
    with open_run(run_dir, QUIET) as training:
        training.begin()
        look(run_dir)
        with pytest.raises(ConfigError, match="is in use by another teach process"), open_run(run_dir) as run:
            train(run)


def test_a_run_that_was_looked_at_trains_on_from_where_it_is(runs: Path, tmp_path: Path) -> None:
    run_dir = copied(runs / "stopped", tmp_path)
    with open_run(run_dir, QUIET) as early:
        with open_run(run_dir, QUIET) as run:
            run.collect()
        with pytest.raises(ConfigError, match="has been trained since it was opened; open it again"):
            train(early)
    with open_run(run_dir, QUIET) as later:
        assert later.step == run.step > early.step


def test_looking_needs_no_site(tmp_path: Path, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor the token of the one where people gave the labels."""
    monkeypatch.delenv("TEACHER_TOKEN", raising=False)
    run_dir = copied(runs / "done", tmp_path)
    settings = json.loads((run_dir / "config.json").read_text())
    settings |= {"predictor": "human", "site_url": "https://nowhere.invalid", "storage": "s3://nowhere/clips"}
    (run_dir / "config.json").write_text(json.dumps(settings))
    with open_run(run_dir, QUIET) as run:
        assert run.teaching is not None
        assert len(run.teaching.dataset) == 12
        with pytest.raises(ConfigError, match="TEACHER_TOKEN"):
            train(run)
