"""Tracking with Trackio, on this machine and with its server; ``make test-tracking`` runs this file."""

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import requests

from stack.process import Service, running
from tests.suites.tracked import (
    RUN,
    assert_trains_untracked,
    responds,
    stopped_and_resumed,
    tensorboard_points,
    videos,
)
from tests.waiting import free_port

_TOKEN = "0" * 32
_SERVE = "import trackio; trackio.show(open_browser=False, block_thread=True, server_port={})"


@contextlib.contextmanager
def server(folder: Path, port: int) -> Iterator[str]:
    """Run a real Trackio server that keeps its data in a folder."""
    url = f"http://127.0.0.1:{port}"

    environment = {**os.environ, "TRACKIO_DIR": str(folder / "data"), "TRACKIO_WRITE_TOKEN": _TOKEN}
    command = [sys.executable, "-c", _SERVE.format(port)]
    service = Service(
        name="trackio",
        command=lambda: command,
        environment=environment,
        is_ready=partial(responds, url),
        folder=folder,
    )
    with running(service, folder):
        yield url


def check(folder: Path, url: str) -> None:
    """Check that a server has the one run in a folder, once."""

    def ask(name: str, **values: Any) -> Any:
        answer = requests.post(f"{url}/api/{name}", json={"args": [], "kwargs": values}, timeout=60)
        answer.raise_for_status()
        return answer.json()["data"]

    run_id = json.loads((folder / RUN / "config.json").read_text())["run_id"]
    (run,) = ask("get_runs_for_project", project="rl-teacher")
    assert run["name"] == f"ShortReacher-v1-tracked-{run_id[:8]}"
    (settings,) = ask("get_run_configs", project="rl-teacher").values()
    assert settings["reward.hidden"] == 8
    rows = ask("get_logs", project="rl-teacher", run=run["name"])
    captions = [row["videos/episode"]["caption"] for row in rows if "videos/episode" in row]
    assert sorted(captions) == sorted(f"step {int(name[5:14]):,}" for name in videos(folder))
    points = {
        (tag, row["step"]): value
        for row in rows
        for tag, value in row.items()
        if tag not in {"step", "timestamp", "videos/episode"}
    }
    assert points == pytest.approx(tensorboard_points(folder), rel=1e-6)
    artifacts = {artifact["name"] for artifact in ask("list_artifacts", project="rl-teacher")}
    assert artifacts == {"ShortReacher-v1-tracked-checkpoint", "ShortReacher-v1-tracked-predictor"}


def test_local_run_is_tracked_across_resume(tmp_path: Path) -> None:
    stopped_and_resumed(tmp_path, "trackio", {"TRACKIO_DIR": str(tmp_path / "data")})
    with server(tmp_path, free_port()) as url:
        check(tmp_path, url)


def test_remote_run_is_tracked_across_resume(tmp_path: Path) -> None:
    with server(tmp_path, free_port()) as url:
        variables = {
            "TRACKIO_DIR": str(tmp_path / "own"),
            "TRACKIO_SERVER_URL": f"{url}?write_token={_TOKEN}",
        }
        stopped_and_resumed(tmp_path, "trackio", variables)
        check(tmp_path, url)


def test_without_its_server_a_run_trains_untracked(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    variables = {"TRACKIO_DIR": str(tmp_path), "TRACKIO_SERVER_URL": f"{url}/?write_token={_TOKEN}"}
    assert_trains_untracked(tmp_path, "trackio", f"no server responds at {url} (Connection", variables)
