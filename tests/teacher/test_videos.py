import io
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from rich.console import Console

from teacher.config import TeachConfig
from teacher.envs.episodes import Trajectory
from teacher.envs.random_episodes import random_trajectories
from teacher.envs.tasks import TaskInfo, describe_task
from teacher.videos import CLIPS_PER_RUN, EpisodeVideos


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
    videos = EpisodeVideos(config, task, Console(file=said, width=200))
    yield videos
    videos.close()


def test_the_first_episode_and_then_one_in_each_part_of_the_run_is_filmed(
    videos: EpisodeVideos, episode: Trajectory, tmp_path: Path, said: io.StringIO
) -> None:
    part = 1000 // CLIPS_PER_RUN
    for step in (20, 40, part + 10, part + 20):
        videos.offer(episode, step)
    videos.close()
    clips = sorted(path.name for path in tmp_path.rglob("*.mp4"))
    assert clips == ["step-000000020.mp4", "step-000000060.mp4"]
    assert said.getvalue() == ""


def test_each_film_is_shown_when_it_is_made(
    task: TaskInfo, episode: Trajectory, tmp_path: Path, said: io.StringIO
) -> None:
    config = TeachConfig(
        env_id="ShortReacher-v1", predictor="rl", name="x", num_timesteps=1000, runs_dir=str(tmp_path)
    )
    config.run_dir.mkdir(parents=True)
    shown: list[tuple[str, int]] = []
    videos = EpisodeVideos(
        config, task, Console(file=said), lambda film, step: shown.append((film.name, step))
    )
    for step in (20, 60):
        videos.offer(episode, step)
    videos.close()
    assert shown == [("step-000000020.mp4", 20), ("step-000000060.mp4", 60)]


def test_a_clip_that_cannot_be_made_is_reported_once(
    videos: EpisodeVideos,
    episode: Trajectory,
    tmp_path: Path,
    said: io.StringIO,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(episode, "_env_id", "teacher/Nothing-v1")
    for step in (20, 60, 110):
        videos.offer(episode, step)
    videos.close()
    assert said.getvalue().count("no clips of whole episodes") == 1
    assert not list(tmp_path.rglob("*.mp4"))
