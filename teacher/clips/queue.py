"""Client for the render workers, with a fallback to local rendering when no worker is available."""

import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from celery.states import READY_STATES
from redis import Redis

from teacher.clips import ClipJob, ClipRenderer
from teacher.clips.backoff import Backoff
from teacher.clips.metrics import STORAGE
from teacher.clips.tasks import QUEUE, TASK, celery_app, clip_request
from teacher.errors import RenderError, StorageError, Topics, describe_exception, one_line
from teacher.storage import Storage

PATIENCE = 90.0
"""Seconds to wait for a worker before rendering a clip locally, in case the workers are busy or gone."""

POLL_SECONDS = 0.25
_CONNECTING = {"max_retries": 1, "interval_start": 0.1, "interval_step": 0.1}

_log = logging.getLogger(__name__)


class _NoStoreError(Exception):
    """Raised when the clip store is away for the workers, which must not fail the clips that need them."""


@dataclass(eq=False)
class _Clip:
    """State of a submitted clip.

    Attributes:
        sent_at: monotonic time in seconds at which the clip was sent to the workers.
        error: error from rendering the clip locally; None if local rendering hasn't failed.
    """

    job: ClipJob
    future: "Future[Path | None]" = field(default_factory=Future)
    sent_at: float = 0.0
    refused: bool = False
    error: BaseException | None = None

    def settle(self, path: Path | None, error: BaseException | None = None) -> None:
        """Resolve the future with a path or an error, unless it is resolved or was canceled."""
        if self.future.done() or not self.future.set_running_or_notify_cancel():
            return
        if error is None:
            self.future.set_result(path)
        else:
            self.future.set_exception(error)


class RenderQueue:
    """Sends clips to render workers (:mod:`teacher.render_tasks`), which upload them to the clip store.

    A future's result is None if a worker uploaded the clip, or else the path of the locally rendered file,
    which the caller must upload. While Redis or all workers are unavailable, clips are rendered locally.
    Meanwhile, one clip at a time is sent to the workers as a probe, with exponential backoff, until a worker
    responds.

    A clip that fails on a worker is rendered locally. A clip that fails locally with :class:`RenderError`
    waits for a worker, and its future raises the error only if the worker fails too. Any other local error,
    such as :class:`ReplayMismatchError`, is set on the future immediately.

    A background thread does all the work, so :meth:`submit` never blocks.
    """

    def __init__(self, redis_url: str, storage: Storage, storage_url: str, renderer: ClipRenderer) -> None:
        """Start the background thread.

        Args:
            redis_url: URL of the Redis server that the trainer and the workers share.
            storage: clip store that is checked for the workers' uploads.
            storage_url: URL of the same clip store, sent to the workers.
        """
        timeouts = {"socket_timeout": 5.0, "socket_connect_timeout": 5.0}
        self._celery = celery_app(
            redis_url, broker_transport_options={**_CONNECTING, **timeouts}, redis_socket_timeout=5.0
        )
        self._storage, self._storage_url, self._renderer = storage, storage_url, renderer
        self._lock = threading.Lock()
        self._new: list[_Clip] = []  # for the thread to pick up; guarded by the lock
        self._closed = False
        self._sent: dict[str, _Clip] = {}  # by Celery task ID
        self._last_response = 0.0  # monotonic time of the last result from a worker
        self._away = Backoff()
        self._logged = Topics()
        self._is_sound = True
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._work, name="render-queue", daemon=True)
        self._thread.start()

    def submit(self, job: ClipJob) -> "Future[Path | None]":
        """Queue a clip to be rendered by a worker or locally, and return its future.

        The future's result is None if a worker uploaded the clip, or else the path of the rendered file. It
        raises the same errors as a future from :meth:`ClipRenderer.submit`.
        """
        clip = _Clip(job)
        self._enqueue(clip)
        return clip.future

    def close(self) -> None:
        """Stop the thread and cancel all pending futures; workers may still finish some clips."""
        with self._lock:
            self._closed = True
        self._wake.set()
        self._thread.join(timeout=15.0)
        for clip in [*self._new, *self._sent.values()]:
            clip.future.cancel()

    def _enqueue(self, clip: _Clip) -> None:
        with self._lock:
            if self._closed:
                raise RenderError(f"cannot render {clip.job.path.name}: the render queue is closed")
            self._new.append(clip)
        self._wake.set()

    # The methods below run in the queue's thread, except _rendered_locally.

    def _work(self) -> None:
        while not self._closed:
            self._wake.wait(self._seconds_to_next())
            self._wake.clear()
            with self._lock:
                clips, self._new = deque(self._new), []
            try:
                self._serve(clips)
            except Exception as error:  # a bug: the thread must live, and every clip must be resolved
                if self._is_sound:
                    _log.exception("the render queue failed; its clips are given up")
                self._is_sound = False
                lost = [*clips, *self._sent.values()]
                self._sent.clear()
                for clip in lost:
                    clip.settle(None, RenderError(f"the render queue failed: {describe_exception(error)}"))

    def _serve(self, clips: "deque[_Clip]") -> None:
        """Send ``clips`` to the workers and receive results; render locally what can't be sent."""
        try:
            self._use_queue(clips)
        except Exception as error:  # from Redis, kombu or the network: render locally instead
            name = type(error).__name__
            if isinstance(error, _NoStoreError):
                self._reclaim_all(str(error), "one can", clips)
            else:
                self._reclaim_all(f"the render queue does not respond ({name})", "it does", clips)
        self._reclaim_overdue(clips)
        self._render_locally(clips)

    def _seconds_to_next(self) -> float | None:
        if self._sent:
            return POLL_SECONDS
        return max(POLL_SECONDS, self._away.seconds_left()) if self._new else None

    def _use_queue(self, clips: "deque[_Clip]") -> None:
        if self._away.seconds_left():
            return
        if self._away.away is not None and self._is_full():
            return
        while clips and (self._away.away is None or not self._sent):
            self._send(clips[0])
            clips.popleft()
        for task, clip in list(self._sent.items()):
            meta = self._celery.backend.get_task_meta(task)
            if meta["status"] in READY_STATES:
                self._last_response = time.monotonic()
                if self._handle_result(clip, meta["result"]):
                    del self._sent[task]

    def _is_full(self) -> bool:
        """Back off and return True if a clip, of this or another run, still waits for a worker.

        Otherwise, the probes of a long outage would fill Redis with clips that nobody needs anymore.
        """
        redis: Redis = self._celery.backend.client  # type: ignore[attr-defined]
        is_full = not self._sent and bool(redis.llen(QUEUE))
        if is_full:
            self._away.failed(RenderError("no render worker takes clips from the queue"))
        return is_full

    def _send(self, clip: _Clip) -> None:
        task = str(uuid.uuid4())
        self._celery.send_task(
            TASK,
            kwargs={"request": clip_request(clip.job, self._storage_url)},
            queue=QUEUE,
            task_id=task,
            retry_policy=_CONNECTING,
        )
        clip.sent_at = time.monotonic()
        self._sent[task] = clip

    def _handle_result(self, clip: _Clip, result: Any) -> bool:
        """Process a worker's result.

        Return False if the clip store is temporarily unreadable and the caller should retry later.
        """
        reason = result.get("error") if isinstance(result, dict) else str(result)
        if reason is None:
            try:
                if not self._storage.size(clip.job.key):
                    reason = f"{clip.job.key} is not in {self._storage_url}, although the worker uploaded it"
            except StorageError as error:
                self._warn_once("cannot check that a render worker's clip is in the clip store: %s", error)
                return False
        is_away = isinstance(result, dict) and result.get("kind") == STORAGE
        if is_away and clip.error is not None:
            raise _NoStoreError(f"the render workers cannot store clips ({reason})")
        if self._away.away is not None:
            _log.warning("the render queue is responding again; render workers will render the clips")
        self._away.succeeded()
        if reason is None:
            clip.settle(None)
        elif clip.error is not None:
            clip.settle(None, clip.error)
        else:
            clip.refused = not is_away
            self._warn_once(
                "a render worker failed to render a clip; rendering it on this machine: %s", reason
            )
            self._render_locally([clip])
        return True

    def _reclaim_overdue(self, clips: "deque[_Clip]") -> None:
        now = time.monotonic()
        overdue = [task for task, clip in self._sent.items() if now - clip.sent_at > PATIENCE]
        if overdue and now - self._last_response > PATIENCE:
            self._reclaim_all(f"no render worker responded for {PATIENCE:g} s", "one does", clips)
        else:
            clips.extend(self._sent.pop(task) for task in overdue)

    def _warn_once(self, message: str, reason: object) -> None:
        """Log a warning, unless one with the same format string was logged before."""
        if self._logged.is_new(message):
            _log.warning(message, reason)

    def _reclaim_all(self, reason: str, until: str, clips: "deque[_Clip]") -> None:
        """Move all sent clips back to ``clips``, and back off.

        A worker may still render some of them, which is harmless. Unless the workers were already
        unavailable, log a warning with ``reason``. ``until`` completes its phrase "clips are rendered on this
        machine until".
        """
        if self._away.away is None:
            _log.warning("%s; clips are rendered on this machine until %s", reason, until)
        self._away.failed(RenderError(reason))
        clips.extend(self._sent.values())
        self._sent.clear()

    def _render_locally(self, clips: Iterable[_Clip]) -> None:
        for clip in clips:
            if clip.error is not None:  # local rendering failed before: wait for a worker
                with self._lock:
                    self._new.append(clip)
                continue
            try:
                self._renderer.submit(clip.job).add_done_callback(partial(self._rendered_locally, clip))
            except Exception as error:  # the renderer is closed, or no thread or process can be started
                clip.settle(None, error if isinstance(error, RenderError) else RenderError(one_line(error)))

    def _rendered_locally(self, clip: _Clip, done: "Future[Path]") -> None:
        if done.cancelled():
            clip.future.cancel()
            return
        clip.error = done.exception()
        if clip.error is None:
            clip.settle(done.result())
        elif clip.refused or not isinstance(clip.error, RenderError):
            clip.settle(None, clip.error)
        else:  # a worker may still be able to render the clip
            try:
                self._enqueue(clip)
            except RenderError as closed:
                clip.settle(None, closed)
                return
            self._warn_once(
                "cannot render a clip on this machine; waiting for render workers: %s", clip.error
            )
