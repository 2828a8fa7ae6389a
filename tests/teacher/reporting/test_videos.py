import io
from collections.abc import Iterator
from concurrent.futures import wait
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from teacher.envs.random_episodes import random_trajectories
from teacher.envs.tasks import TaskInfo, describe_task
from teacher.envs.trajectory import Trajectory
from teacher.reporting.videos import CLIPS_PER_RUN, EpisodeVideos
from teacher.settings.config import TeachConfig


@pytest.fixture(scope="module")
def task() -> TaskInfo:
    return describe_task("teacher/ShortReacher-v1")


@pytest.fixture(scope="module")
def episode(task: TaskInfo) -> Trajectory:
    (episode,) = islice(random_trajectories(task, seed=1), 1)
    return episode


@pytest.fixture
def said() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def videos(tmp_path: Path, task: TaskInfo, said: io.StringIO) -> Iterator[EpisodeVideos]:
    config = TeachConfig(
        env_id="ShortReacher-v1", predictor="rl", name="x", num_timesteps=1000, runs_dir=str(tmp_path)
    )
    config.run_dir.mkdir(parents=True)
    console = Console(file=said, width=200)
    videos = EpisodeVideos(config.run_dir / "videos", 1000, task.fps, console)
    yield videos
    videos.close()


def films(folder: Path) -> list[str]:
    """Everything in the folder of videos, unfinished files included."""
    return sorted(path.name for path in folder.rglob("videos/*"))


def test_the_first_episode_one_in_each_part_and_the_last_are_filmed(
    videos: EpisodeVideos, episode: Trajectory, tmp_path: Path, said: io.StringIO
) -> None:
    part = 1000 // CLIPS_PER_RUN
    for step in (20, 40, part + 10, part + 20):
        videos.offer(episode, step)
        wait(videos._handled)  # so that none is dropped for a newer one
    videos.finish()
    assert films(tmp_path) == ["step-000000020.mp4", "step-000000060.mp4", "step-000000070.mp4"]
    videos.finish()
    assert len(films(tmp_path)) == 3
    assert "no videos" not in said.getvalue()


def test_videos_of_slow_steps_are_due_by_time(
    videos: EpisodeVideos, episode: Trajectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    videos.offer(episode, 1)
    videos.offer(episode, 2)
    wait(videos._handled)
    monkeypatch.setattr("teacher.reporting.videos.FILM_SECONDS", 0.0)
    videos.offer(episode, 3)
    wait(videos._handled)
    assert films(tmp_path) == ["step-000000001.mp4", "step-000000003.mp4"]


def test_slow_renderer_keeps_newest(videos: EpisodeVideos, episode: Trajectory, tmp_path: Path) -> None:
    steps = range(20, 1000, 50)
    for step in steps:
        videos.offer(episode, step)
    videos.finish()
    made = films(tmp_path)
    assert made[-1] == f"step-{steps[-1]:09d}.mp4"
    assert len(made) < len(steps) / 2


def test_videos_are_shown(task: TaskInfo, episode: Trajectory, tmp_path: Path, said: io.StringIO) -> None:
    config = TeachConfig(
        env_id="ShortReacher-v1", predictor="rl", name="x", num_timesteps=1000, runs_dir=str(tmp_path)
    )
    config.run_dir.mkdir(parents=True)
    shown: list[tuple[str, int]] = []
    videos = EpisodeVideos(
        config.run_dir / "videos",
        1000,
        task.fps,
        Console(file=said),
        lambda film, step: shown.append((film.name, step)),
    )
    videos.offer(episode, 20)
    wait(videos._handled)
    videos.offer(episode, 40)
    videos.finish()
    assert shown == [("step-000000020.mp4", 20), ("step-000000040.mp4", 40)]
    videos.close()


def test_stopping_it_is_silent_and_leaves_no_unfinished_file(
    videos: EpisodeVideos, episode: Trajectory, tmp_path: Path, said: io.StringIO
) -> None:
    videos.offer(episode, 20)
    videos.close()
    assert not [name for name in films(tmp_path) if name != "step-000000020.mp4"]
    assert said.getvalue() == ""


def test_ctrl_c_skips_the_last_video(
    videos: EpisodeVideos, episode: Trajectory, said: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: object, timeout: float | None = None) -> object:
        if timeout is None:
            raise KeyboardInterrupt
        return SimpleNamespace(not_done={1})

    monkeypatch.setattr("teacher.reporting.videos.wait", interrupted)
    videos.offer(episode, 20)
    videos.finish()
    videos.close()
    assert "no videos" not in said.getvalue()


def test_a_video_that_cannot_be_made_is_reported_once(
    videos: EpisodeVideos,
    episode: Trajectory,
    tmp_path: Path,
    said: io.StringIO,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(episode, "_env_id", "teacher/Nothing-v1")
    for step in (20, 60, 110):
        videos.offer(episode, step)
        wait(videos._handled)
    videos.finish()
    assert said.getvalue().count("cannot make videos of episodes") == 1
    assert not list(tmp_path.rglob("*.mp4"))
