"""Videos, and trackers that never stop training; ``make test-tracking`` tests the libraries themselves."""

import io
import math
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import wait
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from agents.ppo import PPOConfig
from teacher.data.checkpoint import CHECKPOINT_NAME, load_state
from teacher.datasets.predictor_files import load_predictor
from teacher.envs.random_episodes import random_trajectories
from teacher.envs.tasks import TaskInfo, describe_task
from teacher.envs.trajectory import Trajectory
from teacher.reporting import trackers, tracking
from teacher.reporting.trackers import TrackedRun, _name_of_param, _values_of_param
from teacher.reporting.tracking import Tracking, settings_of
from teacher.reporting.videos import CLIPS_PER_RUN, EpisodeVideos
from teacher.settings.config import TeachConfig
from teacher.settings.options import RewardConfig
from teacher.training.builder import open_run
from teacher.training.loop import Round, train
from tests.teacher.conftest import config_in


class Notebook:
    """A tracker that writes everything down, on pages that all runs share."""

    def __init__(self, pages: list[Any], run: TrackedRun) -> None:
        self.pages = pages
        pages.append(run)

    def log_scalars(self, values: Mapping[str, float], step: int) -> None:
        self.pages.append((step, dict(values)))

    def log_video(self, path: Path, step: int) -> None:
        self.pages.append((step, path.name))

    def log_file(self, path: Path) -> None:
        self.pages.append((path.name, path.read_bytes()))

    def finish(self, *, completed: bool) -> None:
        self.pages.append(("completed", completed))


RUN = TrackedRun("1f", "Env-v0-x", Path(), {})


@pytest.fixture
def said() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def console(said: io.StringIO) -> Console:
    return Console(file=said, width=400)


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return what a notebook in place of W&B is told."""
    pages: list[Any] = []
    monkeypatch.setitem(sys.modules, "wandb", ModuleType("wandb"))
    monkeypatch.setitem(trackers.TRACKERS, "wandb", lambda run: Notebook(pages, run))
    return pages


def config(runs: Path, **changes: Any) -> TeachConfig:
    small = config_in(
        runs,
        "Pendulum-v1",
        name="tracked",
        n_labels=12,
        num_timesteps=400,
        agent=PPOConfig(num_steps=200),
        num_envs=2,
        pretrain_iters=10,
        reward=RewardConfig(hidden=4),
        track="wandb",
    )
    return replace(small, **changes)


def test_everything_arrives_in_order_and_nan_does_not(console: Console, tmp_path: Path) -> None:
    pages: list[Any] = []
    sent = Tracking("notebook", lambda: Notebook(pages, RUN), console)
    sent.log_scalars({"predictor/loss": 0.5, "predictor/correlation": math.nan}, 100)
    sent.log_video(tmp_path / "step-100.mp4", 100)
    sent.log_results({"predictor.npz": lambda path: path.write_bytes(b"weights")})
    sent.close()
    assert pages == [
        RUN,
        (100, {"predictor/loss": 0.5}),
        (100, "step-100.mp4"),
        ("predictor.npz", b"weights"),
        ("completed", True),
    ]


def test_a_run_that_fails_before_its_first_value_is_not_tracked(console: Console) -> None:
    pages: list[Any] = []
    Tracking("notebook", lambda: Notebook(pages, RUN), console).close()
    assert pages == []


def test_a_tracker_that_fails_is_told_once_and_tried_again_later(console: Console, said: io.StringIO) -> None:
    pages: list[Any] = []

    class Torn(Notebook):
        def log_scalars(self, values: Mapping[str, float], step: int) -> None:
            if step < 300:
                raise ConnectionError(f"no\nroute to https://me:hidden@host/?write_token=hidden at {step}")
            super().log_scalars(values, step)

    now = iter([0.0, 10.0, 40.0]).__next__
    sent = Tracking("notebook", lambda: Torn(pages, RUN), console, now)
    for step in (100, 200, 300):
        sent.log_scalars({"predictor/loss": 0.5}, step)
    sent.close()
    assert pages == [RUN, RUN, (300, {"predictor/loss": 0.5}), ("completed", False)]
    assert said.getvalue() == (
        "--track notebook failed and is tried again from time to time: ConnectionError: no route to "
        "https://***@host/?write_token=*** at 100\n"
    )


def test_a_run_that_ended_after_its_server_came_back_gets_its_final_status(console: Console) -> None:
    pages: list[Any] = []
    servers = iter([ConnectionError("killed"), None, None])

    def open_tracker() -> Notebook:
        if (error := next(servers)) is not None:
            raise error
        return Notebook(pages, RUN)

    sent = Tracking("notebook", open_tracker, console)
    sent.log_scalars({"predictor/loss": 0.5}, 100)
    sent.log_results({})
    sent.close()
    assert pages == [RUN, ("completed", True)]


def test_mlflow_lists_extended_settings_beside_the_first_ones() -> None:
    params = {"num_timesteps": "20000"}
    for text in ("20000", "40000", "40000", "80000"):
        if text not in _values_of_param("num_timesteps", params)[-1:]:
            params[_name_of_param("num_timesteps", params)] = text
        params["seed"] = "1"
    assert params == {
        "num_timesteps": "20000",
        "num_timesteps.extended_1": "40000",
        "num_timesteps.extended_2": "80000",
        "seed": "1",
    }


def test_hung_tracker(console: Console, said: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(tracking, "AT_ONCE_SECONDS", 0.0)
    answer = threading.Event()
    sent = Tracking("notebook", lambda: Notebook([answer.wait()], RUN), console)
    sent.log_scalars({}, 100)
    sent.close()
    answer.set()
    assert "sending the rest to notebook (Ctrl-C skips it)\n" in said.getvalue()
    assert (
        "--track notebook failed and is tried again from time to time: no response for 0 s" in said.getvalue()
    )


def test_ctrl_c_skips_what_is_not_yet_sent(console: Console, said: io.StringIO) -> None:
    answer = threading.Event()

    class Slow(Notebook):
        def finish(self, *, completed: bool) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            answer.wait()

    sent = Tracking("notebook", lambda: Slow([], RUN), console)
    sent.log_scalars({}, 100)
    sent.close()
    answer.set()
    assert "failed" not in said.getvalue()


def test_without_the_package_one_line_says_how_to_install_it_and_training_completes(
    tmp_path: Path, console: Console, said: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    with open_run(config(tmp_path), console) as run:
        assert train(run)
    (line,) = [line for line in said.getvalue().splitlines() if "wandb" in line]
    assert line.startswith("--track wandb needs wandb, which can't be imported (")
    assert line.endswith("); to install: pip install 'rl-teacher[wandb]'; training starts without it")


def test_tracked_runs_match(tmp_path: Path, console: Console, said: io.StringIO, pages: list[Any]) -> None:
    rounds: list[Round] = []
    with open_run(config(tmp_path, no_videos=False), console) as run:
        assert train(run, rounds.append)
    about, *logged, checkpoint, predictor, end = pages
    films = sorted((run.config.run_dir / "videos").iterdir())
    assert films
    assert [page for page in logged if isinstance(page[1], str)] == [
        (int(film.stem.removeprefix("step-")), film.name) for film in films
    ]
    known = [{tag: x for tag, x in one.values.items() if not math.isnan(x)} for one in rounds]
    values = [page for page in logged if isinstance(page[1], dict)]
    assert values == [(one.step, tagged) for one, tagged in zip(rounds, known, strict=True)]
    assert (about.name, about.settings["reward.hidden"], about.settings["agent.num_steps"]) == (
        "Pendulum-v1-tracked", 4, 200,
    )  # fmt: skip
    (tmp_path / "policy.npz").write_bytes(checkpoint[1])
    assert load_state(tmp_path / "policy.npz")["agent"]["total_steps"] == run.step
    (tmp_path / "predictor.npz").write_bytes(predictor[1])
    assert load_predictor(tmp_path / "predictor.npz").env_id == "Pendulum-v1"
    assert (checkpoint[0], predictor[0], end) == (CHECKPOINT_NAME, "predictor.npz", ("completed", True))
    assert "--track" not in said.getvalue()


def test_resumed_run_keeps_its_tracking_id(tmp_path: Path, console: Console, pages: list[Any]) -> None:
    def stop(_: Round) -> None:
        raise KeyboardInterrupt

    small = config(tmp_path, num_timesteps=800)
    with pytest.raises(KeyboardInterrupt), open_run(small, console) as run:
        train(run, stop)
    with open_run(small.run_dir, console) as run:
        train(run)
    first, second = (page for page in pages if isinstance(page, TrackedRun))
    ends = [page[1] for page in pages if not isinstance(page, TrackedRun) and page[0] == "completed"]
    assert (first, ends) == (second, [False, True])
    assert first.run_id in (small.run_dir / "config.json").read_text().replace("-", "")


def test_trackers_get_no_setting_that_may_hold_a_secret() -> None:
    human = TeachConfig(
        env_id="Pendulum-v1",
        predictor="human",
        name="x",
        site_url="https://me:s3cret@site",
        storage="s3://s3cret/clips",
        state_dir="/home/s3cret",
        runs_dir="/home/s3cret/runs",
        prompt="Which is better?",
        track="mlflow",
    )
    sent = settings_of(human, PPOConfig())
    assert "s3cret" not in str(sent)
    assert (sent["prompt"], sent["agent.gamma"]) == ("Which is better?", 0.99)


@pytest.fixture(scope="module")
def task() -> TaskInfo:
    return describe_task("teacher/ShortReacher-v1")


@pytest.fixture(scope="module")
def episode(task: TaskInfo) -> Trajectory:
    (episode,) = islice(random_trajectories(task, seed=1), 1)
    return episode


@pytest.fixture
def videos(tmp_path: Path, task: TaskInfo, said: io.StringIO) -> Iterator[EpisodeVideos]:
    config = config_in(
        tmp_path, "ShortReacher-v1", predictor="rl", num_timesteps=1000, no_videos=False, n_labels=None
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
    config = config_in(
        tmp_path, "ShortReacher-v1", predictor="rl", num_timesteps=1000, no_videos=False, n_labels=None
    )
    config.run_dir.mkdir(parents=True)
    shown: list[tuple[str, int, bool]] = []
    videos = EpisodeVideos(
        config.run_dir / "videos",
        1000,
        task.fps,
        Console(file=said),
        lambda film, step, of: shown.append((film.name, step, of is episode)),
    )
    videos.offer(episode, 20)
    wait(videos._handled)
    videos.offer(episode, 40)
    videos.finish()
    assert shown == [("step-000000020.mp4", 20, True), ("step-000000040.mp4", 40, True)]
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
