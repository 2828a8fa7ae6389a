"""Publication of comparisons and episode videos: render, upload and verify clips, then tell the site."""

import contextlib
import logging
import math
import shutil
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NoReturn, Protocol

from teacher.clips import ClipJob, ClipSpec
from teacher.data.ledger import Ledger, Question
from teacher.data.segments import Segment
from teacher.errors import SiteRefusedError, SiteUnreachableError, TeacherError
from teacher.labeling.client import (
    MAX_COMPARISONS_PER_REQUEST,
    ClipReference,
    ExperimentSettings,
    FeedbackClient,
    Registration,
)
from teacher.queries.judges import Value, true_return
from teacher.queries.kinds import KINDS
from teacher.storage import Storage, put_verified

_MAX_RENDERING = (
    16  # questions in rendering or upload, so that clips don't fill the disk if the store is down
)
_MAX_FAILURES_IN_A_ROW = 8
_MAX_REFUSALS_IN_A_ROW = 5
_UNPROCESSABLE = 422
_ITEMS = ("first", "second", "third", "fourth")

_log = logging.getLogger(__name__)


class Renderer(Protocol):
    """Interface of an asynchronous clip renderer."""

    def submit(self, job: ClipJob) -> "Future[Path] | Future[Path | None]":
        """Start rendering a clip; the future's result is the file's path, or None if a worker uploaded it."""


@dataclass(frozen=True)
class PublishTarget:
    """Everything needed to publish a run's comparisons: ledger, renderer, clip store and site.

    Attributes:
        value: function that scores a segment; scripted labelers see the score as the true return.
    """

    ledger: Ledger
    client: FeedbackClient
    renderer: Renderer
    storage: Storage
    settings: ExperimentSettings
    value: Value = true_return

    def key(self, comparison: Question, item: str) -> str:
        """Return the key under which the clip of a comparison's item, such as ``first``, is stored."""
        return f"{self.settings.name}/{comparison.uuid}/{item}.mp4"

    def keys(self, comparison: Question) -> list[str]:
        """Return the keys under which a comparison's clips are stored, in order."""
        return [self.key(comparison, item) for item in _items(comparison)]


def _items(comparison: Question) -> Sequence[str]:
    """Return the names of a comparison's items."""
    return _ITEMS[: len(comparison.items)]


@dataclass(frozen=True)
class _Rendering:
    comparison: Question
    clips: "dict[str, Future[Path] | Future[Path | None]]"

    def is_done(self) -> bool:
        return all(clip.done() for clip in self.clips.values())


class EpisodeVideoUploader:
    """Uploads the newest episode video to the clip store and announces it to the site.

    :meth:`offer` is thread-safe; the other methods are not.
    """

    def __init__(self, experiment: str, storage: Storage, client: FeedbackClient) -> None:
        self._experiment = experiment
        self._storage = storage
        self._client = client
        self._lock = threading.Lock()
        self._offered: tuple[Path, int] | None = None
        self._uploaded: int | None = None

    def offer(self, video: Path, step: int) -> None:
        """Queue a video recorded at environment step ``step``, replacing the queued one, if any."""
        with self._lock:
            self._offered = (video, step)

    def upload(self) -> None:
        """Upload the queued video, if any.

        Raises:
            StorageError: the clip store can't be written; the video stays queued.
        """
        with self._lock:
            offered = self._offered
        if offered is None:
            return
        video, step = offered
        if video.exists():  # the user may have deleted the file
            self._storage.put(self._key(step), video)
            self._uploaded = step
        with self._lock:
            if self._offered == offered:
                self._offered = None

    def announce(self) -> bool:
        """Announce the last uploaded video to the site, and return True, unless it has been announced.

        If the site refuses the video, log a warning.

        Raises:
            SiteUnreachableError: the site is unreachable; the next call tries again.
        """
        if self._uploaded is None:
            return False
        try:
            self._client.add_episode(self._experiment, self._uploaded, self._key(self._uploaded))
        except SiteRefusedError as error:
            _log.warning("the site refused an episode video, so labelers can't watch it: %s", error)
        self._uploaded = None
        return True

    def _key(self, step: int) -> str:
        return f"{self._experiment}/episodes/{step}.mp4"


class Publisher:
    """Publishes comparisons in steps (render, upload, register); not thread-safe.

    Args:
        folder: folder for clips that are not uploaded yet; the constructor empties it, and :meth:`close`
            removes it.
        wake: callback, called from other threads when a rendered clip is ready for :meth:`upload`.

    Attributes:
        failed: number of comparisons that were dropped because they couldn't be rendered.
    """

    def __init__(self, publication: PublishTarget, folder: Path, wake: Callable[[], None]) -> None:
        self._at = publication
        self._folder = folder
        self._wake = wake
        self._unchecked: deque[Question] = deque()
        self._waiting: deque[Question] = deque()
        self._rendering: list[_Rendering] = []
        self._uploaded: deque[Question] = deque()
        self._failures_in_a_row = 0
        self._refusals_in_a_row = 0
        self.failed = 0
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)

    def __len__(self) -> int:
        """Return the number of added comparisons that are not registered yet."""
        return len(self._unchecked) + len(self._waiting) + len(self._rendering) + len(self._uploaded)

    def add(self, comparisons: Iterable[Question]) -> None:
        """Add new comparisons, whose clips must be rendered."""
        self._waiting.extend(comparisons)

    def add_again(self, comparisons: Iterable[Question]) -> None:
        """Add comparisons whose clips may already be in the store."""
        self._unchecked.extend(comparisons)

    def render(self) -> None:
        """Submit waiting comparisons to the renderer, up to the limit on comparisons in progress."""
        while self._waiting and len(self._rendering) < _MAX_RENDERING:
            comparison = self._waiting.popleft()
            clips = {item: self._submit(comparison, item) for item in _items(comparison)}
            self._rendering.append(_Rendering(comparison, clips))

    def upload(self) -> None:
        """Upload rendered clips, and drop comparisons that couldn't be rendered.

        Raises:
            StorageError: the clip store can't be read or written; a later call tries again.
            RenderError, ReplayMismatchError: too many comparisons in a row couldn't be rendered.
        """
        while self._unchecked:
            comparison = self._unchecked[0]
            is_there = all(map(self._at.storage.size, self._at.keys(comparison)))
            (self._uploaded if is_there else self._waiting).append(comparison)
            self._unchecked.popleft()
        for rendering in [item for item in self._rendering if item.is_done()]:
            try:
                paths = {item: clip.result() for item, clip in rendering.clips.items()}
            except TeacherError as error:
                self._rendering.remove(rendering)
                self._give_up(rendering.comparison, error)
                continue
            for item, path in paths.items():
                if path is not None:  # None if a render worker uploaded the clip
                    put_verified(self._at.storage, self._at.key(rendering.comparison, item), path)
            self._failures_in_a_row = 0
            self._rendering.remove(rendering)
            self._uploaded.append(rendering.comparison)
            self._remove_files(rendering.comparison)

    def register(self) -> bool:
        """Register the comparisons whose clips are in the store; return True if there were any.

        Raises:
            SiteUnreachableError: the site is unreachable or can't find a clip yet; a later call tries again.
            SiteRefusedError: the site refused the comparisons, and a retry won't help.
        """
        if not self._uploaded:
            return False
        while self._uploaded:
            batch = list(islice(self._uploaded, MAX_COMPARISONS_PER_REQUEST))
            try:
                self._at.client.register(self._at.settings.name, [self._registration(item) for item in batch])
            except SiteRefusedError as error:
                self._refused(error, batch)
            self._refusals_in_a_row = 0
            self._at.ledger.set_status([item.uuid for item in batch], "registered")
            for _ in batch:
                self._uploaded.popleft()
        return True

    def close(self) -> None:
        """Stop publishing; the ledger keeps the unregistered comparisons for the next process."""
        for rendering in self._rendering:
            for clip in rendering.clips.values():
                clip.cancel()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _submit(self, comparison: Question, item: str) -> "Future[Path] | Future[Path | None]":
        spec = ClipSpec.of(comparison.items[_ITEMS.index(item)])
        path, key = self._path(comparison, item), self._at.key(comparison, item)
        clip = self._at.renderer.submit(ClipJob(spec, path, self._at.settings.fps, key))
        clip.add_done_callback(lambda _: self._wake())
        return clip

    def _give_up(self, comparison: Question, error: TeacherError) -> None:
        self._at.ledger.set_status([comparison.uuid], "failed")
        self._remove_files(comparison)
        self.failed += 1
        self._failures_in_a_row += 1
        if self.failed == 1:
            _log.warning("cannot render a clip, so its comparison will be replaced with a new one: %s", error)
        if self._failures_in_a_row == _MAX_FAILURES_IN_A_ROW:
            raise error

    def _refused(self, error: SiteRefusedError, batch: Iterable[Question]) -> NoReturn:
        if error.status != _UNPROCESSABLE:
            raise error
        self._refusals_in_a_row += 1
        if self._refusals_in_a_row == _MAX_REFUSALS_IN_A_ROW:
            raise SiteRefusedError(
                f"{error}; --storage here and the site's TEACHER_STORAGE must point to the same clip store",
                error.status,
            ) from error
        for comparison in batch:
            self._uploaded.popleft()
            self._unchecked.append(comparison)
        raise SiteUnreachableError(str(error)) from error

    def _registration(self, comparison: Question) -> Registration:
        items = [
            ClipReference(key, self._true_return(item))
            for key, item in zip(self._at.keys(comparison), comparison.items, strict=True)
        ]
        return Registration(
            uuid=comparison.uuid,
            phase="training" if comparison.phase == "gold" else comparison.phase,
            step=comparison.step,
            # Pretraining questions that are left come last, because labelers should judge current behavior.
            priority=1 if comparison.phase == "training" else 0,
            items=tuple(items),
            kind=comparison.kind,
            gold=self._known(comparison) if comparison.phase == "gold" else None,
            reason="attention_check" if comparison.phase == "gold" else comparison.reason,
        )

    def _known(self, comparison: Question) -> str:
        """Return the right answer to an attention check."""
        values = [self._at.value(segment) for segment in comparison.items]
        return comparison.known or KINDS[comparison.kind].known(values)[0]

    def _true_return(self, segment: Segment) -> float | None:
        value = self._at.value(segment)
        return value if self._at.settings.has_true_reward and math.isfinite(value) else None

    def _path(self, comparison: Question, item: str) -> Path:
        return self._folder / f"{comparison.uuid}-{item}.mp4"

    def _remove_files(self, comparison: Question) -> None:
        for item in _items(comparison):
            with contextlib.suppress(OSError):
                self._path(comparison, item).unlink()
