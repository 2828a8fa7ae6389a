"""Celery tasks of the render workers, which can run on any number of hosts.

Start a worker with ``celery --app teacher.render_tasks worker --concurrency 2``. Add ``--without-gossip
--without-mingle`` to keep workers from exchanging status messages: they don't need them, and the number of
messages grows with the square of the number of workers.

A task is a JSON object with the clip's content (an episode's recipe and the first step), its size and frame
rate, and its key in the clip store. The worker replays, renders, encodes and uploads the clip. It needs this
package, OpenGL and access to the store, but neither torch nor Django. Environment variables configure it:

- ``REDIS_URL``: the Redis server with the queue.
- ``TEACHER_STORAGE``: the only store that the worker writes to, ``s3://bucket`` or ``s3://bucket/prefix``;
  the variables that :func:`teacher.storage.open_storage` reads give its endpoint and credentials.
- ``TEACHER_RENDER_MODULES``: comma-separated names of modules that the worker may import for environments
  named ``module:Env-v0`` and for observation transforms; none by default.
- ``TEACHER_METRICS_BIND``: port, or host and port, of the worker's metrics; none by default
  (:mod:`teacher.clips.metrics`).

Anyone who can write to the queue can make workers replay episodes, so protect Redis with a password.
"""

import contextlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from celery import Celery
from celery.backends.redis import RedisBackend
from celery.signals import celeryd_init

from teacher.clips import ClipJob, ClipRenderer, ClipSpec
from teacher.clips.metrics import METRICS, failure_kind
from teacher.envs.recipe import EpisodeRecipe
from teacher.envs.transform import FLATTEN, KWARG, SHIPPED
from teacher.errors import ConfigError, DataError, TeacherError
from teacher.settings.variables import REDIS_VARIABLE, read_redis_url
from teacher.storage import Storage, open_storage, put_verified

QUEUE = "render"
TASK = "teacher.render_clip"
TIME_LIMIT = 1800.0
"""Seconds after which a worker kills a task and its child processes.

Rendering and each operation of an upload have limits of their own; this one is for what hangs nevertheless.
"""

_VISIBILITY_TIMEOUT = 2400  # seconds after which a task whose host was lost is given to another worker
_RENDER_SECONDS = 25.0  # limit for each of two tries of a clip of up to 50 frames
_RESULT_SECONDS = 3600
_FOLDER_PREFIX = "rl-teacher-clip-"
_MAX_FRAMES, _MAX_SIZE, _MAX_FPS = 5000, 2048, 240


class QuietRedisBackend(RedisBackend):
    """Redis result backend that polls for results, because a Redis restart would lose subscriptions."""

    def on_task_call(self, producer: Any, task_id: str) -> None:
        """Skip the base class's subscription to the task's result."""


def celery_app(redis_url: str | None, **settings: Any) -> Celery:
    """Create the Celery application, with the same configuration for trainers and workers.

    Args:
        redis_url: URL of the Redis server, or None if ``REDIS_URL`` is not set; workers refuse to start
            without it.
    """
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
        # Forking is safe, because OpenGL is used only in rendering processes that the workers spawn.
        worker_pool="prefork",
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        # Without a timeout, a worker would wait forever on a connection that was lost silently.
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
def _prepare(**_: Any) -> None:
    """Exit with an error if a variable is missing or invalid; start to serve the worker's metrics."""
    try:
        redis_url = read_redis_url()
        if redis_url is None:
            raise ConfigError(
                f"{REDIS_VARIABLE} is not set; set it to a URL like redis://:password@host:6379/0"
            )
        if not re.fullmatch(r"s3://[^/?#]+(/[^?#]*)?", _own_storage()):
            raise ConfigError("TEACHER_STORAGE must be the clip store's URL, such as s3://clips")
        METRICS.serve(redis_url, QUEUE)
    except ConfigError as error:
        raise SystemExit(f"render worker: {error}") from error


def clip_request(job: ClipJob, storage_url: str) -> dict[str, Any]:
    """Return the JSON arguments of the task that renders a job and uploads the clip to ``storage_url``."""
    spec = job.spec.to_dict()
    return {"shot": spec, "fps": job.fps, "size": job.size, "key": job.key, "storage": storage_url}


@app.task(name=TASK, shared=False, Request="teacher.clips.counted_request:CountedRequest")
def render_clip(request: dict[str, Any]) -> dict[str, Any]:
    """Render a clip and upload it; return ``{"bytes": size}``.

    If that fails, return ``{"error": reason, "kind": kind}`` with one of
    :data:`~teacher.clips.metrics.FAILURE_KINDS`. The task is idempotent: a clip that is already in the store
    is kept.
    """
    try:
        return {"bytes": _render(request)}
    except TeacherError as error:
        kind = failure_kind(error)
        METRICS.note_failure(kind)
        return {"error": str(error), "kind": kind}


def _render(request: Mapping[str, Any]) -> int:
    with tempfile.TemporaryDirectory(prefix=_FOLDER_PREFIX) as folder:
        _remove_older_folders(Path(folder))
        job = _checked(request, Path(folder) / "clip.mp4")
        store = _store(request["storage"])
        if size := store.size(job.key):
            return size
        began = time.perf_counter()
        clip = _renderer().submit(job).result()
        METRICS.note_clip(time.perf_counter() - began)
        return put_verified(store, job.key, clip)


def _remove_older_folders(new: Path) -> None:
    """Remove old temporary folders left by killed tasks; on a tmpfs, they would fill up memory.

    Age is measured relative to the timestamp of ``new``, a folder that was just created, because the file
    system's clock may differ from this process's.
    """
    made = new.stat().st_mtime
    for folder in new.parent.glob(f"{_FOLDER_PREFIX}*"):
        with contextlib.suppress(OSError):
            if made - folder.stat().st_mtime > _VISIBILITY_TIMEOUT:
                shutil.rmtree(folder)


def _checked(request: Mapping[str, Any], path: Path) -> ClipJob:
    """Check a task's arguments, and return them as a job that renders to ``path``."""
    try:
        spec = ClipSpec.from_dict(request["shot"])
        fps, size, key = int(request["fps"]), int(request["size"]), str(request["key"])
        storage = str(request["storage"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise DataError(f"invalid clip request: {error!r}") from error
    frames = len(spec.recipe.actions) - spec.start
    if frames > _MAX_FRAMES or not 1 <= fps <= _MAX_FPS or not 2 <= size <= _MAX_SIZE:
        raise DataError(
            f"a render worker's clip must have at most {_MAX_FRAMES} frames, 1 to {_MAX_FPS} frames per "
            f"second and a size of 2 to {_MAX_SIZE} pixels, not {frames} frames, {fps} per second and "
            f"{size} pixels"
        )
    allowed = {name.strip() for name in os.environ.get("TEACHER_RENDER_MODULES", "").split(",")} - {""}
    for name, module in _imported(spec.recipe):
        if module not in SHIPPED | allowed:
            raise DataError(
                f"{name} imports the module {module}, which this render worker may not import; to allow "
                "it, add it to the worker's TEACHER_RENDER_MODULES"
            )
    own = _own_storage()
    if storage != own and not storage.startswith(f"{own}/"):
        raise DataError(
            f"this render worker can upload only to {own}, its TEACHER_STORAGE, not to {storage!r}; use the "
            "same clip store for the run and the worker"
        )
    return ClipJob(spec, path, fps, key, size)


def _imported(recipe: EpisodeRecipe) -> Iterator[tuple[str, str]]:
    """Yield ``(name, module)`` for each module that replaying a recipe imports.

    ``name`` is the environment ID or the transform that refers to the module.
    """
    if ":" in recipe.env_id:
        yield recipe.env_id, recipe.env_id.rpartition(":")[0]
    transform = recipe.kwargs.get(KWARG)
    if transform not in (None, FLATTEN):
        yield str(transform), str(transform).partition(":")[0]  # the whole name if it has no colon


def _own_storage() -> str:
    return os.environ.get("TEACHER_STORAGE", "").strip().rstrip("/")


@cache
def _store(url: str) -> Storage:
    return open_storage(url)


@cache
def _renderer() -> ClipRenderer:
    """Return the renderer of this Celery pool process; its own subprocess exits with the pool process."""
    return ClipRenderer(workers=1, timeout=_RENDER_SECONDS)
