"""The list of runs, and what a run's policy does as a film or a picture."""

import fcntl
import re
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageSequence

from teacher.cli.ls import summarize
from teacher.clips.encode import HOLD_SECONDS
from teacher.clips.render import ClipSpec, frames_of
from teacher.errors import ConfigError
from teacher.queries.collector import CollectorStatus, SyntheticTeacher
from teacher.reporting.timing import ProgressFile
from teacher.runs.play import RewardTrace, cut, draw_rewards, film_rewards, play_episodes
from teacher.runs.saved_run import SavedRun
from teacher.settings.config import TeachConfig
from teacher.settings.config_files import load_config, save_config
from teacher.teach import main
from teacher.training.builder import open_run


@pytest.fixture(scope="module")
def made(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run that is done, one that was stopped, and one that never began."""
    runs = tmp_path_factory.mktemp("runs")
    shutil.copytree(finished_run, runs / "Pendulum-v1" / "done")
    settings: dict[str, Any] = {"env_id": "Pendulum-v1", "no_videos": True, "runs_dir": str(runs)}
    with open_run(TeachConfig(name="stopped", predictor="synth", n_labels=8, **settings)):
        pass
    new = TeachConfig(name="new", predictor="rl", **settings)
    new.run_dir.mkdir()
    save_config(new, uuid.uuid4())
    return runs


@pytest.fixture
def runs(made: Path, tmp_path: Path) -> Path:
    """Return a copy that may be changed."""
    return shutil.copytree(made, tmp_path / "runs")


def test_runs_are_listed_with_how_far_they_came(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", str(runs)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].split() == ["run", "rewards", "steps", "labels", "return", "saved", "state"]
    rows = {line.split()[0].rpartition("/")[2]: line.split() for line in said[1:]}
    assert list(rows) == ["new", "done", "stopped"]
    done = summarize(runs / "Pendulum-v1" / "done")
    assert done.steps >= 256
    assert done.last_return is not None
    assert -2000 < done.last_return < -500  # 200 steps of hardly any skill
    assert rows["done"][1:5] == [
        "synth",
        f"{done.steps / 1000:.3g}k/256",
        "12/12",
        f"{done.last_return:.1f}",
    ]
    assert [row[-1] for row in rows.values()] == ["new", "done", "stopped"]
    assert rows["new"][1:3] == ["rl", "0/5M"]


def test_a_run_finished_on_the_site_is_finished_and_keeps_its_return(runs: Path) -> None:
    folder = runs / "Pendulum-v1" / "done"
    before = summarize(folder).last_return
    config, run_id = load_config(folder)
    save_config(replace(config, num_timesteps=10**6), run_id)
    assert summarize(folder).state == "stopped"
    with open_run(folder) as run:
        run.begin()  # and is stopped before its first episode has ended
    assert (summarize(folder).state, summarize(folder).last_return) == ("stopped", before)
    with open_run(folder) as run:
        run.begin()
        assert run.teaching is not None
        run.teaching.collector = Finished(run.teaching.ledger, 1)
    assert (summarize(folder).state, summarize(folder).last_return) == ("finished", before)


class Finished(SyntheticTeacher):
    """Reports that the experiment was finished on the site."""

    @property
    def status(self) -> CollectorStatus:
        return CollectorStatus(state="finished")


def test_a_run_that_is_held_is_running_and_can_still_begin(runs: Path) -> None:
    folder = runs / "Pendulum-v1" / "stopped"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert summarize(folder).state == "running"
    assert summarize(folder).state == "stopped"
    with open_run(folder):
        pass


def test_training_run_shows_its_current_step(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = runs / "Pendulum-v1" / "stopped"
    ProgressFile(folder).write(1_234_000, 7200.0)
    assert summarize(folder).steps == 0
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert main(["ls", str(runs)]) == 0
    said = capsys.readouterr().out
    assert re.search(r"/stopped +synth +1\.23M/5M .* running, 2 h left$", said, re.MULTILINE)


def test_a_damaged_run_does_not_hide_the_others(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "Pendulum-v1" / "done" / "checkpoint.npz").write_bytes(b"PK")
    assert main(["ls", str(runs)]) == 1
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 4
    assert said[-1].startswith("damaged: ")
    assert "not a readable checkpoint" in said[-1]


def test_removed_run_is_not_reported_as_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load_what_goes(folder: Path) -> tuple[TeachConfig, uuid.UUID]:
        if folder.name == "goes":
            shutil.rmtree(folder)
        return load_config(folder)

    for name in ("goes", "stays"):
        new = TeachConfig(env_id="Pendulum-v1", predictor="rl", name=name, runs_dir=str(tmp_path))
        new.run_dir.mkdir(parents=True)
        save_config(new, uuid.uuid4())
    monkeypatch.setattr("teacher.cli.ls.load_config", load_what_goes)
    assert main(["ls", str(tmp_path)]) == 0
    assert [line.split()[0].rpartition("/")[2] for line in capsys.readouterr().out.splitlines()] == [
        "run",
        "stays",
    ]


def test_no_runs_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("teach ls: there are no runs in the folder")
    assert said.count("\n") == 1


@pytest.fixture(scope="module")
def run_dir(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the folder of a run on Gymnasium's pendulum, which is rendered without OpenGL."""
    folder = tmp_path_factory.mktemp("runs") / finished_run.parent.name / finished_run.name
    shutil.copytree(finished_run, folder)
    return folder


def film(path: Path) -> Sequence[NDArray[np.uint8]]:
    """The frames of an mp4."""
    with tempfile.TemporaryDirectory() as folder:
        ffmpeg = imageio_ffmpeg.get_ffmpeg_exe()
        subprocess.run([ffmpeg, "-loglevel", "error", "-i", path, f"{folder}/%04d.png"], check=True)
        return [np.asarray(Image.open(frame).convert("RGB")) for frame in sorted(Path(folder).iterdir())]


def test_a_film_shows_the_episode_that_was_played(
    run_dir: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["play", str(run_dir), "--episodes", "3", "--steps", "20", "--start", "5"]) == 0
    said = capsys.readouterr().out
    played = play_episodes(SavedRun(run_dir), 3, seed=0)
    returns = [episode.true_return for episode in played]
    assert returns == sorted(returns)
    summary = f"return {returns[1]:.1f}; 3 episodes played, returns {returns[0]:.1f} to"
    assert f"20 steps of an episode with {summary}" in said
    shown = film(here / "done.mp4")
    expected = list(frames_of(ClipSpec.of(cut(played[1], 5, 20))))
    assert 20 <= len(shown) <= 20 + 0.2 * 30 + 1  # the last one stays for a while
    size = shown[0].shape[1::-1]
    small = [np.asarray(Image.fromarray(frame).resize(size), np.float64) for frame in expected]
    for number in (0, 10, 19):
        distances = [np.abs(frame - small[number]).mean() for frame in shown[:20]]
        assert np.argmin(distances) == number


def test_a_gif_plays_as_fast_as_the_film(run_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.gif"
    assert main(["play", str(run_dir), str(path), "--episodes", "1", "--steps", "60"]) == 0
    with Image.open(path) as gif:
        assert (gif.format, gif.info["loop"]) == ("GIF", 0)
        durations = []
        for frame in ImageSequence.Iterator(gif):
            durations.append(frame.info["duration"])
    assert sum(durations) == pytest.approx(1000 * (60 / 30 + HOLD_SECONDS), abs=50)
    assert min(durations) >= 40  # browsers slow faster ones down


def test_a_film_with_rewards_has_a_line_that_moves(run_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    assert main(["play", str(run_dir), str(path), "--episodes", "1", "--steps", "30", "--rewards"]) == 0
    frames = [frame.astype(int) for frame in film(path)][:30]
    height, width = frames[0].shape[:2]
    assert height > width
    red = [(frame[..., 0] - frame[..., 1] > 40) & (frame[..., 0] - frame[..., 2] > 40) for frame in frames]
    columns = [np.flatnonzero(mask[int(height * 0.8) :].sum(axis=0) > 60) for mask in red]
    places = [column.mean() for column in columns]
    assert (np.diff(places) > 0).all()
    assert places[-1] > 0.9 * width


def test_picture_has_curve(run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.png"
    assert main(["play", str(run_dir), str(path), "--episodes", "1", "--steps", "60"]) == 0
    run = SavedRun(run_dir)
    clip = cut(play_episodes(run, 1, seed=0)[0], 0, 60)
    trace = RewardTrace.of(run.load_predictor(), clip, run.task.fps)
    assert capsys.readouterr().out.endswith(f"  {trace.summary()}\n")
    assert trace.predicted == pytest.approx(trace.members.mean(axis=0), abs=1e-6)
    assert trace.true_to_scale is not None
    assert trace.true_to_scale.mean() == pytest.approx(trace.predicted.mean())
    assert np.corrcoef(trace.true_to_scale, clip.true_rewards)[0, 1] == pytest.approx(1)
    with Image.open(path) as picture:
        assert picture.size[0] == 1000
        colors = picture.convert("RGB").getcolors(10**6)
    assert colors is not None
    assert {(31, 111, 180), (217, 115, 26)} <= {color for _, color in colors}  # both curves


def test_a_reward_that_is_not_known_is_not_drawn(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    trace = RewardTrace(random.normal(size=30), random.normal(size=(1, 30)), None, fps=10)
    frames = [np.full((40, 30, 3), number, np.uint8) for number in range(30)]
    draw_rewards(tmp_path / "a.png", trace, frames, "a title")
    with Image.open(tmp_path / "a.png") as picture:
        colors = picture.convert("RGB").getcolors(10**6)
    assert colors is not None
    assert (217, 115, 26) not in {color for _, color in colors}
    assert trace.summary() == f"predicted sum {trace.predicted.sum():.2f}"
    film_rewards(tmp_path / "a.mp4", trace, frames)
    assert film(tmp_path / "a.mp4")[0].shape[1] >= 320


@pytest.mark.parametrize(
    ("line", "status", "says"),
    [
        ("RUN a.webm", 2, "the file must be named *.mp4, *.gif or *.png, not a.webm"),
        ("RUN a.mp4 --episodes 0", 2, "--episodes: expected a whole number, 1 or more; got 0"),
        ("RUN a.mp4 --steps 0", 2, "--steps: expected a whole number, 1 or more; got 0"),
        ("RUN a.mp4 --episodes 1 --start 200", 1, "--start must be from 0 to 199"),
        (". a.mp4", 2, "pass a run's folder"),
    ],
)
def test_errors_are_one_line(
    line: str, status: int, says: str, run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(run_dir.iterdir())
    words = line.replace("RUN", str(run_dir)).replace("a.mp4", str(run_dir / "a.mp4")).split()
    assert main(["play", *words]) == status
    said = capsys.readouterr().err
    assert said.startswith("teach play: ")
    assert said.count("\n") == 1
    assert says in said
    assert sorted(run_dir.iterdir()) == before


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    trace = RewardTrace(np.zeros(3), np.zeros((1, 3)), None, fps=10)
    for write in (draw_rewards, film_rewards):
        with pytest.raises(ConfigError, match=r"pip install 'rl-teacher\[plots\]'"):
            write(tmp_path / "a.mp4", trace, [])
