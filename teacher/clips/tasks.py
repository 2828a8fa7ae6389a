"""Render workers on any number of hosts: ``celery --app teacher.render_tasks worker --concurrency 2``.

With ``--without-gossip --without-mingle``, workers do not exchange status messages, which they do not use and
whose number grows with the square of the workers.

A task describes in JSON what a clip shows (an episode's recipe and the first step), its size and frame rate,
and its key in the store; the worker replays, renders, encodes, uploads and confirms. A worker needs this
package, OpenGL and the store, but not the trainer's memory, torch or Django. Its settings are environment
variables: ``REDIS_URL``, ``TEACHER_STORAGE`` (the only store it writes to, ``s3://bucket`` or a prefix in it,
with the ``S3_ENDPOINT_URL`` and ``AWS_...`` of :func:`teacher.storage.open_storage`) and
``TEACHER_RENDER_MODULES`` (modules that recipes of the form ``module:Env-v0`` and observation transforms may
import, separated by commas; default none).

Anyone who can write to the queue can run replays here, so protect Redis with a password.
"""

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from celery import Celery
from celery.backends.redis import RedisBackend
from celery.signals import celeryd_init

from teacher.clips import ClipJob, ClipRenderer, ClipSpec
from teacher.envs.recipe import EpisodeRecipe
from teacher.envs.transform import FLATTEN, KWARG, SHIPPED
from teacher.errors import ConfigError, DataError, TeacherError
from teacher.settings.variables import REDIS_VARIABLE, read_redis_url
from teacher.storage import Storage, open_storage, put_verified

QUEUE = "render"
TASK = "teacher.render_clip"
TIME_LIMIT = 60.0
"""Seconds after which a task and its child processes are killed."""

_VISIBILITY_TIMEOUT = 120  # seconds after which Redis gives the task of a lost host to another
_RENDER_SECONDS = 25.0  # for each of two tries, so that a hang is reported before the task is killed
_RESULT_SECONDS = 3600
_FOLDER_PREFIX = "rl-teacher-clip-"
_MAX_FRAMES, _MAX_SIZE, _MAX_FPS = 5000, 2048, 240


class QuietRedisBackend(RedisBackend):
    """Result backend that polls, without a subscription per task, which would not survive Redis restarts."""

    def on_task_call(self, producer: Any, task_id: str) -> None:
        """Do not subscribe to the result."""


def celery_app(redis_url: str | None, **settings: Any) -> Celery:
    """Return the Celery application of trainer and workers; ``settings`` are additional Celery settings."""
    app = Celery("teacher.render_tasks", fixups=[])  # without Django
    app.conf.update(
        broker_url=redis_url,
        result_backend=redis_url and f"{__name__}:{QuietRedisBackend.__name__}+{redis_url}",
        accept_content=["json"],
        task_default_queue=QUEUE,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_time_limit=TIME_LIMIT,
        worker_prefetch_multiplier=1,
        # Forked before OpenGL is used: rendering runs in processes that these spawn.
        worker_pool="prefork",
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        # Without a limit, a worker waits forever on a connection that was lost without notice.
        broker_transport_options={
            "visibility_timeout": _VISIBILITY_TIMEOUT,
            "socket_connect_timeout": 5.0,
            "socket_timeout": 10.0,
        },
        redis_socket_connect_timeout=5.0,
        redis_socket_timeout=10.0,
        result_expires=_RESULT_SECONDS,
    )
    app.conf.update(settings)
    return app


app = celery_app(os.environ.get(REDIS_VARIABLE, "").strip() or None)


@celeryd_init.connect
def _check_settings(**_: Any) -> None:
    """Refuse to start a worker without a queue or store."""
    try:
        if read_redis_url() is None:
            raise ConfigError(f"expected {REDIS_VARIABLE}, such as redis://:password@host:6379/0")
        if not re.fullmatch(r"s3://[^/?#]+(/[^?#]*)?", _own_storage()):
            raise ConfigError("expected TEACHER_STORAGE, the clip store, such as s3://clips")
    except ConfigError as error:
        raise SystemExit(f"render worker: {error}") from error


def clip_request(job: ClipJob, storage_url: str) -> dict[str, Any]:
    """Return a job as JSON values, with the URL of the store of ``job.key``."""
    spec = job.spec.to_dict()
    return {"shot": spec, "fps": job.fps, "size": job.size, "key": job.key, "storage": storage_url}


@app.task(name=TASK, shared=False)
def render_clip(request: dict[str, Any]) -> dict[str, Any]:
    """Render a clip and store it; returns ``{"bytes": size}``, or ``{"error": reason}``.

    A clip that is in the store already is kept, so the task is idempotent.
    """
    try:
        return {"bytes": _render(request)}
    except TeacherError as error:
        return {"error": str(error)}


def _render(request: Mapping[str, Any]) -> int:
    with tempfile.TemporaryDirectory(prefix=_FOLDER_PREFIX) as folder:
        _remove_older_folders(Path(folder))
        job = _checked(request, Path(folder) / "clip.mp4")
        store = _store(request["storage"])
        if size := store.size(job.key):
            return size
        return put_verified(store, job.key, _renderer().submit(job).result())


def _remove_older_folders(new: Path) -> None:
    """Remove the folders of killed tasks, which may be in memory.

    Their age is relative to the new folder's time stamp, as the file system's clock may differ from this
    process's.
    """
    made = new.stat().st_mtime
    for folder in new.parent.glob(f"{_FOLDER_PREFIX}*"):
        with contextlib.suppress(OSError):
            if made - folder.stat().st_mtime > _VISIBILITY_TIMEOUT:
                shutil.rmtree(folder)


def _checked(request: Mapping[str, Any], path: Path) -> ClipJob:
    """Return the job in a message. Raises :class:`DataError` for one that this worker must not run."""
    try:
        spec = ClipSpec.from_dict(request["shot"])
        fps, size, key = int(request["fps"]), int(request["size"]), str(request["key"])
        storage = str(request["storage"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise DataError(f"not a clip request: {error!r}") from error
    frames = len(spec.recipe.actions) - spec.start
    if frames > _MAX_FRAMES or not 1 <= fps <= _MAX_FPS or not 2 <= size <= _MAX_SIZE:
        raise DataError(
            f"expected at most {_MAX_FRAMES} frames, {_MAX_FPS} per second and {_MAX_SIZE} pixels, "
            f"got {frames}, {fps} and {size}"
        )
    for name, module in _imported(spec.recipe):
        if module not in _allowed_modules():
            raise DataError(
                f"{name} would import {module}, which TEACHER_RENDER_MODULES of this render worker does not "
                "list"
            )
    own = _own_storage()
    if storage != own and not storage.startswith(f"{own}/"):
        raise DataError(
            f"expected clips for {own}, the TEACHER_STORAGE of this render worker, got {storage!r}"
        )
    return ClipJob(spec, path, fps, key, size)


def _imported(recipe: EpisodeRecipe) -> Iterator[tuple[str, str]]:
    """Yield each name in a recipe that imports a module, and the module."""
    if ":" in recipe.env_id:
        yield recipe.env_id, recipe.env_id.rpartition(":")[0]
    transform = recipe.kwargs.get(KWARG)
    if transform not in (None, FLATTEN):
        yield str(transform), str(transform).partition(":")[0]  # all of it without a colon


def _own_storage() -> str:
    return os.environ.get("TEACHER_STORAGE", "").strip().rstrip("/")


def _allowed_modules() -> frozenset[str]:
    return SHIPPED | {name.strip() for name in os.environ.get("TEACHER_RENDER_MODULES", "").split(",")} - {""}


@cache
def _store(url: str) -> Storage:
    return open_storage(url)


@cache
def _renderer() -> ClipRenderer:
    """Return the renderer of this pool process, with one rendering process that ends with it."""
    return ClipRenderer(workers=1, timeout=_RENDER_SECONDS)
