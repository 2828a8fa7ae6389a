"""Labeling in a terminal or notebook: each question is shown as a GIF, and the answer is typed in."""

import contextlib
import logging
import os
import random
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

import numpy as np
from PIL import Image

from teacher.clips.encode import Frame
from teacher.data.decisions import SiteState
from teacher.data.ledger import Ledger, Question, Role
from teacher.data.preferences import Preference
from teacher.data.segments import Segment
from teacher.errors import ConfigError, TeacherError
from teacher.queries.collector import Collector, CollectorStatus
from teacher.queries.kinds import KINDS
from teacher.settings.options import KindName

Frames = Callable[[Segment], "Future[list[Frame]]"]
"""Function that starts rendering a segment; returns a future that resolves to its frames."""
Read = Callable[[str], str]
"""Function that prints a prompt and returns the typed line; raises EOFError at the end of input."""

_GAP = 10  # pixels between the clips
_CLIP_SECONDS = 60.0  # timeout for rendering a clip
_LOOK_SECONDS = 0.2  # polling interval

_log = logging.getLogger(__name__)


class _ClosedError(EOFError):
    """Raised in the waiting thread when the collector is closed."""


class PromptCollector(Collector):
    """Asks the person who runs the program questions, in a terminal or a notebook.

    In a terminal, a thread prompts for answers as questions are submitted. In a notebook, the user calls
    :meth:`answer`. A question's UUID determines the order of its segments on the screen. Open questions from
    an earlier process come first.

    Args:
        frames: function that starts rendering a segment and returns a future for its frames.
        terminal: file descriptor of the terminal's standard input; None to prompt only when :meth:`answer` is
            called.
    """

    def __init__(
        self,
        ledger: Ledger,
        frames: Frames,
        folder: Path,
        fps: int,
        terminal: int | None = None,
    ) -> None:
        super().__init__(ledger)
        self._frames, self._folder, self._fps = frames, folder, fps
        self._waiting = deque(ledger.unfinished())
        self._state: SiteState = "running"
        self._failed = 0
        self._trouble: Exception | None = None
        self._stop, self._wake = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        if terminal is not None:
            lines = _Lines(terminal, self._stop)
            self._thread = threading.Thread(target=self._work, args=(lines,), name="prompt", daemon=True)
            self._thread.start()

    def submit(
        self,
        questions: Sequence[tuple[Segment, ...]],
        phase: Role,
        step: int,
        kind: KindName = "pair",
        reasons: Sequence[str] = (),
    ) -> None:
        """Add the questions to the ledger and to the queue of those to ask."""
        self._waiting.extend(self._write(questions, phase, step, kind))
        self._wake.set()

    def receive(self) -> list[Preference]:
        """Return the labels given since the last call; raise the error that stopped the thread, if any."""
        if self._trouble is not None:
            raise self._trouble
        return super().receive()

    @property
    def status(self) -> CollectorStatus:
        """Status with one active labeler; ``state`` becomes ``finished`` on EOF."""
        return CollectorStatus(state=self._state, active_labelers=1, failed=self._failed)

    def close(self) -> None:
        """Stop asking, and wait up to 5 seconds for the thread to end."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(5.0)

    def answer(self, count: int | None = None, read: Read | None = None) -> int:
        """Ask waiting questions in the calling thread; return the number of questions answered.

        Args:
            count: maximum number of questions; None for all that are waiting.
            read: function that reads a line; None for the built-in ``input``.
        """
        answered = 0
        with contextlib.suppress(EOFError):
            while self._waiting and answered != count:
                answered += self._ask(self._waiting.popleft(), read or input, _show_here)
        return answered

    def _work(self, lines: "_Lines") -> None:
        try:
            while not self._stop.is_set():
                self._wake.clear()
                while self._waiting and not self._stop.is_set():
                    self._ask(self._waiting.popleft(), lines.read, _tell)
                self._wake.wait()
        except EOFError:
            self._state = "finished"
        except Exception as error:  # re-raised by receive()
            self._trouble = error

    def _ask(self, question: Question, read: Read, show: Callable[[str, Path], None]) -> bool:
        """Ask a question; return True if it was answered, False if it could not be rendered."""
        kind, order = KINDS[question.kind], order_on_screen(question)
        try:
            clips = [self._render(question.items[index]) for index in order]
        except _ClosedError:
            self._waiting.appendleft(question)
            raise
        except (TeacherError, TimeoutError) as error:
            self._ledger.set_status([question.uuid], "failed")
            self._failed += 1
            _log.warning("skipping a question that could not be rendered: %s", error)
            return False
        path = self._folder / "pair.gif"
        write_gif(path, in_grid(clips), self._fps)
        try:
            self._check_open()
            show(kind.question, path)
            while (decided := kind.read(read(kind.prompt).strip().lower(), order)) is None:
                pass
        except EOFError:
            self._waiting.appendleft(question)
            raise
        self._decide([question], [decided])
        return True

    def _render(self, segment: Segment) -> list[Frame]:
        """Render the frames of a segment; raise an exception on timeout or :meth:`close`."""
        made, deadline = self._frames(segment), time.monotonic() + _CLIP_SECONDS
        while True:
            try:
                return made.result(_LOOK_SECONDS)
            except TimeoutError:
                self._check_open()
                if time.monotonic() > deadline:
                    raise

    def _check_open(self) -> None:
        if self._stop.is_set():
            raise _ClosedError


def order_on_screen(question: Question) -> Sequence[int]:
    """Return the index of the item in each place on the screen; it depends on the question's UUID alone."""
    order = list(range(len(question.items)))
    if len(order) == 2:
        return order[:: -1 if question.uuid.int & 1 else 1]
    random.Random(question.uuid.int).shuffle(order)
    return order


def in_grid(clips: Sequence[Sequence[Frame]]) -> list[Frame]:
    """Join clips of equal length and size, two in a row, with white gaps between them."""
    frames = []
    for shown in zip(*clips, strict=True):
        rows = [_joined(shown[start : start + 2], axis=1) for start in range(0, len(shown), 2)]
        frames.append(_joined(rows, axis=0))
    return frames


def _joined(parts: Sequence[Frame], axis: int) -> Frame:
    shape = list(parts[0].shape)
    shape[axis] = _GAP
    gap = np.full(shape, 255, np.uint8)
    return np.concatenate([part for each in parts for part in (gap, each)][1:], axis=axis)


def write_gif(path: Path, frames: Sequence[Frame], fps: int) -> None:
    """Write frames to ``path`` as a looping GIF, replacing any existing file atomically."""
    first, *rest = [Image.fromarray(frame) for frame in frames]
    part = path.with_suffix(".part")
    path.parent.mkdir(parents=True, exist_ok=True)
    first.save(part, format="GIF", save_all=True, append_images=rest, duration=1000 // fps, loop=0)
    part.replace(path)


def _tell(question: str, path: Path) -> None:
    print(f"{question} See {path.absolute()}", flush=True)


def _show_here(question: str, path: Path) -> None:
    """Display the GIF if this is a notebook, else print its path."""
    if not _in_notebook():  # outside a notebook, IPython would only print an object's repr
        _tell(question, path)
        return
    from IPython.display import Image as Shown  # noqa: PLC0415
    from IPython.display import display  # noqa: PLC0415

    display(Shown(data=path.read_bytes(), format="gif"))


def _in_notebook() -> bool:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def terminal_descriptor() -> int:
    """Return the file descriptor of standard input."""
    problem = 'people: there is no terminal here; in a notebook, pass people="notebook"'
    if _in_notebook():  # a notebook's user can't type into the kernel's standard input
        raise ConfigError(problem)
    try:
        return sys.stdin.fileno()
    except (AttributeError, OSError, ValueError) as error:
        raise ConfigError(problem) from error


class _Lines:
    """Reads lines from a file descriptor until the event ``stop`` is set."""

    def __init__(self, descriptor: int, stop: threading.Event) -> None:
        self._descriptor, self._stop = descriptor, stop
        self._begun = b""

    def read(self, question: str) -> str:
        """Print a prompt and return the next line; raise EOFError at the end of input or on ``stop``."""
        print(question, end="", flush=True)
        while b"\n" not in self._begun:
            if self._stop.is_set():
                raise EOFError
            if select.select([self._descriptor], [], [], _LOOK_SECONDS)[0]:
                data = os.read(self._descriptor, 4096)
                if not data:
                    raise EOFError
                self._begun += data
        line, _, self._begun = self._begun.partition(b"\n")
        return line.decode(errors="replace")
