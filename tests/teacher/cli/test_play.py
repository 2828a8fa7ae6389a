"""Test what a run's policy does, as a film or a picture, with what its predictor thinks of it."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import imageio_ffmpeg
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageSequence

from teacher.clips.encode import HOLD_SECONDS
from teacher.clips.render import ClipSpec, frames_of
from teacher.errors import ConfigError
from teacher.runs.play import RewardTrace, cut, draw_rewards, film_rewards, play_episodes
from teacher.runs.saved_run import SavedRun
from teacher.teach import main


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
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["play", str(run_dir), "--episodes", "3", "--steps", "20", "--start", "5"]) == 0
    said = capsys.readouterr().out
    played = play_episodes(SavedRun(run_dir), 3, seed=0)
    returns = [episode.true_return for episode in played]
    assert returns == sorted(returns)
    summary = f"return {returns[1]:.1f}; 3 episodes played, returns {returns[0]:.1f} to"
    assert f"20 steps of an episode with {summary}" in said
    shown = film(tmp_path / "done.mp4")
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
