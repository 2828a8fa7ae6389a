"""Adapters that give Weights & Biases, MLflow and Trackio one interface.

Each adapter is only used from the background thread of :class:`~teacher.reporting.tracking.Tracking`, so its
methods may block, and may raise any exception.
"""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import requests

from teacher.errors import ConfigError, SiteUnreachableError
from teacher.settings.addresses import is_http_url
from teacher.settings.config import TrackerName

PROJECT = "rl-teacher"
"""Project or experiment of the runs, unless an environment variable of the library names another."""
VIDEO_TAG = "videos/episode"
_VIDEO_STEP_TAG = "videos/step"
_RUN_TAG = "rl-teacher.run_id"
_CONNECT_SECONDS = 10.0
_FINISH_SECONDS = 50.0  # W&B's last upload; less than tracking.PATIENCE_SECONDS
_MAX_PARAM = 6000  # characters in a value; MLflow's limit


@dataclass(frozen=True)
class TrackedRun:
    """Description of a run for trackers, the same when the run is resumed, except for extended settings.

    Attributes:
        run_id: the run's ID in hexadecimal digits; a resumed run keeps it.
        folder: the run's folder, where a tracker may keep files.
        settings: settings, keyed by option name, such as ``reward.hidden``; values are JSON types.
    """

    run_id: str
    name: str
    folder: Path
    settings: Mapping[str, Any]


class Tracker(Protocol):
    """A run in an experiment tracker; made from a :class:`TrackedRun`, which it continues if it knows it."""

    def log_scalars(self, values: Mapping[str, float], step: int) -> None:
        """Log values, keyed by TensorBoard tag, at an environment step."""

    def log_video(self, path: Path, step: int) -> None:
        """Upload the video of an episode that ended at an environment step."""

    def log_file(self, path: Path) -> None:
        """Upload a file as an artifact; the file may be removed as soon as this method has returned."""

    def finish(self, *, completed: bool) -> None:
        """End the tracked run; ``completed`` is False if training was interrupted or failed."""


class WandbTracker:
    """A run in Weights & Biases, or in a folder if ``WANDB_MODE=offline``.

    The terminal's output, the command line and the state of the Git repository are not uploaded, because they
    may contain secrets, such as a link that signs in labelers.

    Raises:
        wandb.Error: the server can't be reached or refuses the run.
    """

    def __init__(self, run: TrackedRun) -> None:
        import wandb  # noqa: PLC0415

        os.environ.setdefault("WANDB_DISABLE_WEAVE", "true")  # it takes the package agents for another one
        if wandb.setup().settings.mode in ("online", "run", "shared") and not wandb.login(prompt=False):
            raise ConfigError("not logged in to W&B; run wandb login, or set WANDB_MODE=offline")
        self._wandb = wandb
        self._name = run.name
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            dir=os.environ.get("WANDB_DIR", run.folder),
            id=run.run_id,
            name=run.name,
            config=dict(run.settings),
            allow_val_change=True,  # an extended run has a higher num_timesteps
            resume="allow",
            settings=wandb.Settings(
                console="off",
                disable_code=True,
                disable_git=True,
                x_disable_meta=True,
                finish_timeout=_FINISH_SECONDS,
                quiet=True,
            ),
        )

        self._run.define_metric(_VIDEO_STEP_TAG)
        self._run.define_metric(VIDEO_TAG, step_metric=_VIDEO_STEP_TAG)

    def log_scalars(self, values: Mapping[str, float], step: int) -> None:
        """Log values, unless W&B already has some of a later step, which a crash has made the run repeat."""
        if step >= self._run.step:
            self._run.log(dict(values), step=step)

    def log_video(self, path: Path, step: int) -> None:
        """Log a video with its own step, because W&B's steps never decrease and videos take time to make."""
        video = self._wandb.Video(path, caption=f"step {step:,}")
        self._run.log({VIDEO_TAG: video, _VIDEO_STEP_TAG: step})

    def log_file(self, path: Path) -> None:
        """Upload a file as a new version of the artifact that is named after the run and the file."""
        self._run.log_artifact(path, name=f"{self._name}-{path.stem}", type="model")

    def finish(self, *, completed: bool) -> None:
        """Upload what is left, and end the run."""
        self._run.finish(exit_code=0 if completed else 1)


class MlflowTracker:
    """A run on the MLflow server at ``MLFLOW_TRACKING_URI``.

    MLflow chooses the IDs of runs, so a resumed run is found by a tag.

    Raises:
        SiteUnreachableError: the server doesn't respond.
        mlflow.MlflowException: the server refuses the run.
    """

    def __init__(self, run: TrackedRun) -> None:
        import mlflow  # noqa: PLC0415

        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")  # its default takes minutes
        if not mlflow.is_tracking_uri_set():
            raise ConfigError("set MLFLOW_TRACKING_URI to a server's URL, such as http://127.0.0.1:5000")
        _require_server(mlflow.get_tracking_uri())
        self._mlflow = mlflow
        self._client = client = mlflow.MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = client.get_experiment_by_name(name)
        experiment_id = client.create_experiment(name) if experiment is None else experiment.experiment_id
        found = client.search_runs([experiment_id], f"tags.`{_RUN_TAG}` = '{run.run_id}'")
        if found:
            known = found[0]
            client.update_run(known.info.run_id, status="RUNNING")
        else:
            known = client.create_run(experiment_id, tags={_RUN_TAG: run.run_id}, run_name=run.name)
        self._run_id = known.info.run_id
        before = known.data.params
        texts = {name: str(value)[:_MAX_PARAM] for name, value in run.settings.items()}
        params = [
            mlflow.entities.Param(_name_of_param(name, before), text)
            for name, text in texts.items()
            if text not in _values_of_param(name, before)[-1:]
        ]
        client.log_batch(self._run_id, params=params)
        client.log_dict(self._run_id, dict(run.settings), "config.json")

    def log_scalars(self, values: Mapping[str, float], step: int) -> None:
        """Log values in one request."""
        now = int(time.time() * 1000)
        metrics = [self._mlflow.entities.Metric(tag, value, now, step) for tag, value in values.items()]
        self._client.log_batch(self._run_id, metrics=metrics)

    def log_video(self, path: Path, step: int) -> None:
        """Upload a video, whose file name contains its step, to the artifact folder ``videos``."""
        self._client.log_artifact(self._run_id, str(path), "videos")

    def log_file(self, path: Path) -> None:
        """Upload a file, replacing one of the same name."""
        self._client.log_artifact(self._run_id, str(path))

    def finish(self, *, completed: bool) -> None:
        """Set the run's status."""
        self._client.set_terminated(self._run_id, "FINISHED" if completed else "KILLED")


def _values_of_param(name: str, params: Mapping[str, str]) -> list[str]:
    """Return a setting's first value and those of later extensions of the run, which MLflow can't replace."""
    names = [name, *(f"{name}.extended_{number}" for number in range(1, len(params)))]
    return [params[each] for each in names if each in params]


def _name_of_param(name: str, params: Mapping[str, str]) -> str:
    count = len(_values_of_param(name, params))
    return f"{name}.extended_{count}" if count else name


class TrackioTracker:
    """A run in Trackio: on this machine, or where ``TRACKIO_SERVER_URL`` or ``TRACKIO_SPACE_ID`` say.

    Trackio resumes runs by name, so the name contains a part of the run's ID.

    Raises:
        SiteUnreachableError: the server doesn't respond.
    """

    def __init__(self, run: TrackedRun) -> None:
        import trackio  # noqa: PLC0415

        _require_server(os.environ.get("TRACKIO_SERVER_URL", ""))
        self._trackio = trackio
        self._name = run.name
        self._run = trackio.init(
            project=PROJECT,
            name=f"{run.name}-{run.run_id[:8]}",
            config=dict(run.settings),
            resume="allow",
            embed=False,
            private=True,  # a new Space would be public
        )

    def log_scalars(self, values: Mapping[str, float], step: int) -> None:
        """Log values at a step."""
        self._run.log(dict(values), step=step)

    def log_video(self, path: Path, step: int) -> None:
        """Log a video at the step at which its episode ended."""
        self._run.log({VIDEO_TAG: self._trackio.Video(path, caption=f"step {step:,}")}, step=step)

    def log_file(self, path: Path) -> None:
        """Upload a file as a new version of the artifact that is named after the run and the file."""
        self._run.log_artifact(path, name=f"{self._name}-{path.stem}", type="model")

    def finish(self, *, completed: bool) -> None:
        """Upload what is left, and end the run; Trackio keeps no status."""
        self._run.finish()


def _require_server(url: str) -> None:
    """Raise SiteUnreachableError if ``url`` is an HTTP URL and nothing responds there.

    The libraries would try again for minutes.
    """
    if not is_http_url(url):
        return
    try:
        requests.get(url, timeout=_CONNECT_SECONDS)
    except requests.RequestException as error:
        parts = urlsplit(url)  # without the user and the query, which may contain secrets
        where = f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}"
        raise SiteUnreachableError(f"no server responds at {where} ({type(error).__name__})") from error


TRACKERS: Mapping[TrackerName, Callable[[TrackedRun], Tracker]] = {
    "wandb": WandbTracker,
    "mlflow": MlflowTracker,
    "trackio": TrackioTracker,
}
"""Adapters by the name of their library, which is also the name of its module and its extra."""
