"""The trainer's side of render workers, with local rendering while they are unavailable."""

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

from teacher.clips import ClipJob, ClipRenderer
from teacher.clips.backoff import Backoff
from teacher.clips.tasks import QUEUE, TASK, celery_app, clip_request
from teacher.errors import RenderError, StorageError
from teacher.storage import Storage

PATIENCE = 90.0
"""Seconds until a clip is rendered here instead; workers kill a task after 60."""

POLL_SECONDS = 0.25
_CONNECTING = {"max_retries": 1, "interval_start": 0.1, "interval_step": 0.1}

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Clip:
    """A submitted clip.

    Attributes:
        job: what to render.
        future: the future that :meth:`RenderQueue.submit` returned.
        sent_at: time at which it was sent to the queue.
        refused: True if a worker could not render it.
        error: why it could not be rendered here.
    """

    job: ClipJob
    future: "Future[Path | None]" = field(default_factory=Future)
    sent_at: float = 0.0
    refused: bool = False
    error: BaseException | None = None

    def settle(self, path: Path | None, error: BaseException | None = None) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        if error is None:
            self.future.set_result(path)
        else:
            self.future.set_exception(error)


class RenderQueue:
    """Sends clips to render workers (:mod:`teacher.render_tasks`), which upload them to the store.

    A clip's result is None if a worker has uploaded it, or the path of a file to upload if it was rendered
    here. Clips are rendered here while Redis or all workers are unavailable, with one warning; from time to
    time one clip tries the queue again, and if it comes back the others follow. Clips that fail on a worker
    are tried here, and clips that fail here wait for the workers; only those that fail on both raise an
    error.

    A thread does all the work; :meth:`submit` never blocks.
    """

    def __init__(self, redis_url: str, storage: Storage, storage_url: str, renderer: ClipRenderer) -> None:
        """Start the thread; workers open ``storage`` by ``storage_url``; the caller closes ``renderer``."""
        timeouts = {"socket_timeout": 5.0, "socket_connect_timeout": 5.0}
        self._celery = celery_app(
            redis_url, broker_transport_options={**_CONNECTING, **timeouts}, redis_socket_timeout=5.0
        )
        self._storage, self._storage_url, self._renderer = storage, storage_url, renderer
        self._lock = threading.Lock()
        self._new: list[_Clip] = []  # guarded by the lock: for the thread to pick up
        self._closed = False
        self._sent: dict[str, _Clip] = {}  # by the task's id
        self._last_sign = 0.0  # of a worker
        self._away = Backoff()
        self._complaints: set[str] = set()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._work, name="render-queue", daemon=True)
        self._thread.start()

    def submit(self, job: ClipJob) -> "Future[Path | None]":
        """Render a clip by a worker or here; the future raises what :class:`ClipRenderer`'s would."""
        clip = _Clip(job)
        self._look_at(clip)
        return clip.future

    def close(self) -> None:
        """Stop, and cancel the pending clips, though workers may still finish them."""
        with self._lock:
            self._closed = True
        self._wake.set()
        self._thread.join(timeout=15.0)
        for clip in [*self._new, *self._sent.values()]:
            clip.future.cancel()

    def _look_at(self, clip: _Clip) -> None:
        with self._lock:
            if self._closed:
                raise RenderError(f"cannot render {clip.job.path.name}: the render queue is closed")
            self._new.append(clip)
        self._wake.set()

    # The following methods run in the queue's thread, except _made_here.

    def _work(self) -> None:
        while not self._closed:
            self._wake.wait(self._seconds_to_next())
            self._wake.clear()
            with self._lock:
                clips, self._new = deque(self._new), []
            try:
                self._use_queue(clips)
            except Exception as error:  # from Redis, kombu or the network: render here instead
                self._lose(f"the render queue does not respond ({type(error).__name__})", "it does", clips)
            self._take_back(clips)
            self._make_here(clips)

    def _seconds_to_next(self) -> float | None:
        if self._sent:
            return POLL_SECONDS
        return max(POLL_SECONDS, self._away.seconds_left()) if self._new else None

    def _use_queue(self, clips: "deque[_Clip]") -> None:
        """Send clips if the queue is available, and receive results."""
        if self._away.seconds_left():
            return
        while clips and (self._away.away is None or not self._sent):
            self._send(clips[0])
            clips.popleft()
        for task, clip in list(self._sent.items()):
            meta = self._celery.backend.get_task_meta(task)
            if meta["status"] in READY_STATES:
                self._last_sign = time.monotonic()
                if self._take(clip, meta["result"]):
                    del self._sent[task]

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

    def _take(self, clip: _Clip, result: Any) -> bool:
        """Process a worker's result; return False if the store cannot be checked for the clip now."""
        reason = result.get("error") if isinstance(result, dict) else str(result)
        if reason is None:
            try:
                if not self._storage.size(clip.job.key):
                    reason = f"it reported {clip.job.key} in {self._storage_url}, but it is not there"
            except StorageError as error:
                self._complain("cannot check the store for a render worker's clip: %s", error)
                return False
        self._trust()
        if reason is None:
            clip.settle(None)
        elif clip.error is not None:
            clip.settle(None, clip.error)
        else:
            clip.refused = True
            self._complain("a render worker could not render a clip, rendering it here: %s", reason)
            self._make_here([clip])
        return True

    def _trust(self) -> None:
        if self._away.away is not None:
            _log.warning("the render queue is back: its workers render the clips again")
        self._away.succeeded()

    def _take_back(self, clips: "deque[_Clip]") -> None:
        """Take back clips without a result for too long, as their worker or task is gone."""
        now = time.monotonic()
        overdue = [task for task, clip in self._sent.items() if now - clip.sent_at > PATIENCE]
        if overdue and now - self._last_sign > PATIENCE:
            self._lose(f"no render worker responded for {PATIENCE:g} s", "one does", clips)
        else:
            clips.extend(self._sent.pop(task) for task in overdue)

    def _complain(self, message: str, reason: object) -> None:
        """Log a warning unless the same one was logged before."""
        if message not in self._complaints:
            _log.warning(message, reason)
            self._complaints.add(message)

    def _lose(self, reason: str, until: str, clips: "deque[_Clip]") -> None:
        """Take back all sent clips and log why; rendering a clip twice is harmless."""
        if self._away.away is None:
            _log.warning("%s: clips are rendered here until %s", reason, until)
        self._away.failed(RenderError(reason))
        clips.extend(self._sent.values())
        self._sent.clear()

    def _make_here(self, clips: Iterable[_Clip]) -> None:
        for clip in clips:
            if clip.error is not None:  # it failed here before
                with self._lock:
                    self._new.append(clip)
                continue
            try:
                self._renderer.submit(clip.job).add_done_callback(partial(self._made_here, clip))
            except RenderError as error:  # the renderer is closed
                clip.settle(None, error)

    def _made_here(self, clip: _Clip, done: "Future[Path]") -> None:
        if done.cancelled():
            clip.future.cancel()
            return
        clip.error = done.exception()
        if clip.error is None:
            clip.settle(done.result())
        elif clip.refused or not isinstance(clip.error, RenderError):
            clip.settle(None, clip.error)
        else:  # it may fail only on this machine
            self._complain("a clip cannot be rendered here, waiting for render workers: %s", clip.error)
            try:
                self._look_at(clip)
            except RenderError as closed:
                clip.settle(None, closed)
