"""The trainer's side of rendering elsewhere: clips by render workers, and here where these do not answer."""

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
"""Seconds after which a clip is made here instead; a task is killed after 60."""

POLL_SECONDS = 0.25
_CONNECTING = {"max_retries": 1, "interval_start": 0.1, "interval_step": 0.1}

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Clip:
    """One clip on its way.

    Attributes:
        sent_at: when it went to the queue.
        refused: a worker could not make it.
        error: why it could not be made here.
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
    """Has clips made by render workers (:mod:`teacher.render_tasks`), which put them into the store.

    The result of a clip is None where it is in the store, and the path of a file to be uploaded where it was
    made here. That is where clips are made while Redis or all workers are away, which is said once. Later one
    clip tries the queue again, and the others follow when that one came back. What a worker could not make is
    tried here, and what cannot be made here waits for the workers: only both together give a clip up.

    All of this happens in a thread; :meth:`submit` never waits.
    """

    def __init__(self, redis_url: str, storage: Storage, storage_url: str, renderer: ClipRenderer) -> None:
        """``storage_url`` leads render workers to ``storage``; ``renderer``'s owner closes it."""
        timeouts = {"socket_timeout": 5.0, "socket_connect_timeout": 5.0}
        self._celery = celery_app(
            redis_url, broker_transport_options={**_CONNECTING, **timeouts}, redis_socket_timeout=5.0
        )
        self._storage, self._storage_url, self._renderer = storage, storage_url, renderer
        self._lock = threading.Lock()
        self._new: list[_Clip] = []  # under the lock: for the thread to look at
        self._closed = False
        self._sent: dict[str, _Clip] = {}  # by the task's id
        self._last_sign = 0.0  # of a worker
        self._away = Backoff()
        self._complaints: set[str] = set()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._work, name="render-queue", daemon=True)
        self._thread.start()

    def submit(self, job: ClipJob) -> "Future[Path | None]":
        """Have a clip made; see the class. The future raises what :class:`ClipRenderer`'s would."""
        clip = _Clip(job)
        self._look_at(clip)
        return clip.future

    def close(self) -> None:
        """Request no more clips, and cancel those on their way, though workers may still finish them."""
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

    # What follows runs in the queue's own thread, except _made_here.

    def _work(self) -> None:
        while not self._closed:
            self._wake.wait(self._seconds_to_next())
            self._wake.clear()
            with self._lock:
                clips, self._new = deque(self._new), []
            try:
                self._use_queue(clips)
            except Exception as error:  # of Redis, kombu or the network: whatever it is, clips go on here
                self._lose(f"the render queue does not answer ({type(error).__name__})", "it does", clips)
            self._take_back(clips)
            self._make_here(clips)

    def _seconds_to_next(self) -> float | None:
        if self._sent:
            return POLL_SECONDS
        return max(POLL_SECONDS, self._away.seconds_left()) if self._new else None

    def _use_queue(self, clips: "deque[_Clip]") -> None:
        """Send from ``clips`` what may be sent, and take what came back."""
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
        """Look at what became of a clip; False where the store cannot be asked for it now."""
        reason = result.get("error") if isinstance(result, dict) else str(result)
        if reason is None:
            try:
                if not self._storage.size(clip.job.key):
                    reason = f"it says that {clip.job.key} is in {self._storage_url}, which has none"
            except StorageError as error:
                self._complain("a render worker has made a clip, which cannot be looked for: %s", error)
                return False
        self._trust()
        if reason is None:
            clip.settle(None)
        elif clip.error is not None:
            clip.settle(None, clip.error)
        else:
            clip.refused = True
            self._complain("a render worker could not make a clip, so it is rendered here: %s", reason)
            self._make_here([clip])
        return True

    def _trust(self) -> None:
        if self._away.away is not None:
            _log.warning("the render queue is back: its workers make the clips again")
        self._away.succeeded()

    def _take_back(self, clips: "deque[_Clip]") -> None:
        """Take back what has been away for too long: its worker, or its task in Redis, is gone."""
        now = time.monotonic()
        overdue = [task for task, clip in self._sent.items() if now - clip.sent_at > PATIENCE]
        if overdue and now - self._last_sign > PATIENCE:
            self._lose(f"no render worker answered for {PATIENCE:g} s", "one does", clips)
        else:
            clips.extend(self._sent.pop(task) for task in overdue)

    def _complain(self, message: str, reason: object) -> None:
        """Say once what may come again and again."""
        if message not in self._complaints:
            _log.warning(message, reason)
            self._complaints.add(message)

    def _lose(self, reason: str, until: str, clips: "deque[_Clip]") -> None:
        """Take back what was sent. It may be made twice, which changes nothing."""
        if self._away.away is None:
            _log.warning("%s: clips are rendered here until %s", reason, until)
        self._away.failed(RenderError(reason))
        clips.extend(self._sent.values())
        self._sent.clear()

    def _make_here(self, clips: Iterable[_Clip]) -> None:
        for clip in clips:
            if clip.error is not None:  # it has been tried
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
        else:  # perhaps it is only this machine that cannot draw
            self._complain(
                "a clip cannot be rendered here either, it waits for render workers: %s", clip.error
            )
            try:
                self._look_at(clip)
            except RenderError as closed:
                clip.settle(None, closed)
