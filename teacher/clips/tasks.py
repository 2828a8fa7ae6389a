"""Rendering on any number of hosts: ``celery --app teacher.render_tasks worker --concurrency 2``.

With ``--without-gossip --without-mingle`` workers do not tell each other how they are, which none of them
uses, and which is the square of their number.

A task says in JSON what a clip shows (an episode's recipe and where the clip begins), how it looks and where
it goes; the worker replays, draws, encodes, uploads and confirms. A worker needs this package, OpenGL and the
store, nothing of the trainer's memory, neither torch nor Django. Its settings are environment variables:
``REDIS_URL``, ``TEACHER_STORAGE`` (the only store it writes to, ``s3://bucket`` or a prefix in it, with the
``S3_ENDPOINT_URL`` and ``AWS_...`` of :func:`teacher.storage.open_storage`) and ``TEACHER_RENDER_MODULES``
(the modules that recipes of the form ``module:Env-v0``, and transforms of observations, may import, separated
by commas; unset, none).

Whoever may write to the queue may have episodes replayed here, so keep Redis behind a password.
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
"""Seconds after which a task is killed, with all it started."""

_VISIBILITY_TIMEOUT = 120  # seconds after which Redis may give the task of a host that vanished to another
_RENDER_SECONDS = 25.0  # for each of two tries, so that a hung environment is reported before it is killed
_RESULT_SECONDS = 3600
_FOLDER_PREFIX = "rl-teacher-clip-"
_MAX_FRAMES, _MAX_SIZE, _MAX_FPS = 5000, 2048, 240


class QuietRedisBackend(RedisBackend):
    """Results that are looked up when wanted: no subscription for each, which would have to outlive Redis."""

    def on_task_call(self, producer: Any, task_id: str) -> None:
        """Subscribe to nothing."""


def celery_app(redis_url: str | None, **settings: Any) -> Celery:
    """Make the Celery application of both sides; ``settings`` are further ones of Celery."""
    app = Celery("teacher.render_tasks", fixups=[])  # Django is none of a worker's business
    app.conf.update(
        broker_url=redis_url,
        result_backend=redis_url and f"{__name__}:{QuietRedisBackend.__name__}+{redis_url}",
        accept_content=["json"],
        task_default_queue=QUEUE,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_time_limit=TIME_LIMIT,
        worker_prefetch_multiplier=1,
        # Forked before anything touches OpenGL: drawing happens in processes that these start afresh.
        worker_pool="prefork",
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        # Without a limit a worker waits for ever where Redis is gone and nothing has told the connection so.
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
    """Refuse to start a worker that could do nothing."""
    try:
        if read_redis_url() is None:
            raise ConfigError(f"expected {REDIS_VARIABLE}, such as redis://:password@host:6379/0")
        if not re.fullmatch(r"s3://[^/?#]+(/[^?#]*)?", _own_storage()):
            raise ConfigError("expected TEACHER_STORAGE, such as s3://clips: the store that clips go to")
    except ConfigError as error:
        raise SystemExit(f"render worker: {error}") from error


def clip_request(job: ClipJob, storage_url: str) -> dict[str, Any]:
    """Return a job as JSON values; ``storage_url`` is where ``job.key`` lies."""
    spec = job.spec.to_dict()
    return {"shot": spec, "fps": job.fps, "size": job.size, "key": job.key, "storage": storage_url}


@app.task(name=TASK, shared=False)
def render_clip(request: dict[str, Any]) -> dict[str, Any]:
    """Make one clip and put it into the store: ``{"bytes": size}``, or ``{"error": reason}``.

    Doing it again changes nothing: a clip that is there stays.
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
    """Remove what tasks left that were killed at work: where it lies may be memory.

    How old they are is judged by the clock that dates files, by which ``new`` was made just now: this
    process's own may be another one.
    """
    made = new.stat().st_mtime
    for folder in new.parent.glob(f"{_FOLDER_PREFIX}*"):
        with contextlib.suppress(OSError):
            if made - folder.stat().st_mtime > _VISIBILITY_TIMEOUT:
                shutil.rmtree(folder)


def _checked(request: Mapping[str, Any], path: Path) -> ClipJob:
    """Read the job in a message. Raises :class:`DataError` for what this worker should not do."""
    try:
        spec = ClipSpec.from_dict(request["shot"])
        fps, size, key = int(request["fps"]), int(request["size"]), str(request["key"])
        storage = str(request["storage"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise DataError(f"not a request for a clip: {error!r}") from error
    frames = len(spec.recipe.actions) - spec.start
    if frames > _MAX_FRAMES or not 1 <= fps <= _MAX_FPS or not 2 <= size <= _MAX_SIZE:
        raise DataError(
            f"expected at most {_MAX_FRAMES} frames, {_MAX_FPS} a second and {_MAX_SIZE} pixels, "
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
    """Yield what in a recipe names a module to be imported, and the module."""
    if ":" in recipe.env_id:
        yield recipe.env_id, recipe.env_id.rpartition(":")[0]
    transform = recipe.kwargs.get(KWARG)
    if transform not in (None, FLATTEN):
        yield str(transform), str(transform).partition(":")[0]  # all of it where there is no colon


def _own_storage() -> str:
    return os.environ.get("TEACHER_STORAGE", "").strip().rstrip("/")


def _allowed_modules() -> frozenset[str]:
    return SHIPPED | {name.strip() for name in os.environ.get("TEACHER_RENDER_MODULES", "").split(",")} - {""}


@cache
def _store(url: str) -> Storage:
    return open_storage(url)


@cache
def _renderer() -> ClipRenderer:
    """Return the one rendering process of this process of the worker's pool, which dies with it."""
    return ClipRenderer(workers=1, timeout=_RENDER_SECONDS)
