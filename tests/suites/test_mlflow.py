"""Tracking with MLflow and its server; ``make test-tracking`` runs this file."""

import json
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


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real MLflow server without any runs."""
    folder, port = tmp_path_factory.mktemp("mlflow"), free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "mlflow", "server", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder}/runs.db"]
    command += ["--artifacts-destination", f"{folder}/files"]
    ready = partial(responds, f"{url}/health")
    service = Service(name="mlflow", command=lambda: command, is_ready=ready, folder=folder)
    with running(service, folder):
        yield url


def found(answer: requests.Response) -> dict[str, Any]:
    answer.raise_for_status()
    values: dict[str, Any] = answer.json()
    return values


def test_a_run_is_tracked_across_ctrl_c_and_resume(tmp_path: Path, server: str) -> None:
    api = f"{server}/api/2.0/mlflow"

    def ask(what: str, **values: str) -> dict[str, Any]:
        return found(requests.get(f"{api}/{what}", params=values, timeout=60))

    stopped_and_resumed(tmp_path, "mlflow", {"MLFLOW_TRACKING_URI": server})
    experiment = ask("experiments/get-by-name", experiment_name="rl-teacher")["experiment"]["experiment_id"]
    searched = requests.post(f"{api}/runs/search", json={"experiment_ids": [experiment]}, timeout=60)
    (run,) = found(searched)["runs"]
    tags = {tag["key"]: tag["value"] for tag in run["data"]["tags"]}
    params = {param["key"]: param["value"] for param in run["data"]["params"]}
    assert (run["info"]["run_name"], run["info"]["status"]) == ("ShortReacher-v1-tracked", "FINISHED")
    config = json.loads((tmp_path / RUN / "config.json").read_text())
    assert tags["rl-teacher.run_id"] == config["run_id"].replace("-", "")
    assert (params["reward.hidden"], params["num_timesteps"]) == ("8", "16000")
    assert params["num_timesteps.extended_1"] == str(config["num_timesteps"])  # MLflow changes no parameter
    run_id, expected = run["info"]["run_id"], tensorboard_points(tmp_path)
    points = {
        (tag, int(metric["step"])): metric["value"]
        for tag in {tag for tag, _ in expected}
        for metric in ask("metrics/get-history", run_id=run_id, metric_key=tag)["metrics"]
    }
    assert points.keys() == expected.keys()
    assert points == pytest.approx(expected, rel=1e-6)
    assert len(run["data"]["metrics"]) == len({tag for tag, _ in expected})
    files = [file["path"] for file in ask("artifacts/list", run_id=run_id)["files"]]
    assert files == ["checkpoint.npz", "config.json", "predictor.npz", "videos"]
    filmed = [file["path"] for file in ask("artifacts/list", run_id=run_id, path="videos")["files"]]
    assert filmed == [f"videos/{name}" for name in videos(tmp_path)]


def test_without_its_server_a_run_trains_untracked(tmp_path: Path) -> None:
    host = f"127.0.0.1:{free_port()}"
    variables = {"MLFLOW_TRACKING_URI": f"http://me:hidden@{host}"}
    assert_trains_untracked(tmp_path, "mlflow", f"no server responds at http://{host} (Connection", variables)


def test_without_an_address_a_run_trains_untracked(tmp_path: Path) -> None:
    assert_trains_untracked(tmp_path, "mlflow", "set MLFLOW_TRACKING_URI to a server's URL", {})
