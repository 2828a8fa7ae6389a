"""A pool of rendering processes that survives whatever happens in them."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import Future
from multiprocessing import Pipe
from pathlib import Path

from teacher.clips.render import ClipJob
from teacher.errors import RenderError, ReplayMismatchError
from teacher.files import remove_abandoned_parts

ATTEMPTS = 2
"""How often a job is tried: a second time in case the first met a passing trouble."""

START_SECONDS = 60.0
"""How long a new process may take until it answers."""

_Task = tuple[ClipJob, "Future[Path]"]


class ClipRenderer:
    """Renders clips in processes of its own, which start with the first job.

    They are started afresh, not forked: OpenGL and torch do not survive a fork. They import neither torch nor
    the main module, do not see the terminal's Ctrl-C, and die with this process even when it is killed.

    A job that fails, crashes its process or outlasts ``timeout`` seconds is tried once more; then its future
    raises :class:`RenderError`, or :class:`ReplayMismatchError` where the episode differs from the recorded.
    """

    def __init__(self, workers: int | None = None, timeout: float = 120.0) -> None:
        """Start no process yet; ``workers`` is their number, by default one for every two processors."""
        count = workers or max(1, (os.cpu_count() or 1) // 2)
        self._closed = False
        self._lock = threading.Lock()  # no job is queued once the queue was emptied for good
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._workers = [_Worker(timeout) for _ in range(count)]
        self._threads = [
            threading.Thread(target=self._serve, args=(worker,), daemon=True) for worker in self._workers
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: ClipJob) -> "Future[Path]":
        """Render to ``job.path``, the future's result; see :func:`render`."""
        future: Future[Path] = Future()
        with self._lock:
            if self._closed:
                raise RenderError(f"cannot render {job.path.name}: the renderer is closed")
            self._tasks.put((job, future))
        return future

    def close(self) -> None:
        """Stop at once: waiting jobs are cancelled, others raise :class:`RenderError` and leave no file."""
        with self._lock, contextlib.suppress(queue.Empty):
            self._closed = True
            while True:
                if task := self._tasks.get_nowait():
                    task[1].cancel()
        for worker in self._workers:
            self._tasks.put(None)
            worker.close()
        for thread in self._threads:
            thread.join(timeout=5.0)

    def __enter__(self) -> "ClipRenderer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self, worker: "_Worker") -> None:
        while task := self._tasks.get():
            job, future = task
            if not future.set_running_or_notify_cancel():
                continue
            try:
                self._render(worker, job)
            except Exception as error:  # whatever it is, someone waits for the future
                future.set_exception(error)
            else:
                future.set_result(job.path)
        worker.stop()

    def _render(self, worker: "_Worker", job: ClipJob) -> None:
        """Render, and try again what fails; raises the last error."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                worker.render(job)
                return
            except Exception:
                remove_abandoned_parts(job.path)  # a process that was killed could not
                if self._closed:
                    name = job.path.name
                    raise RenderError(f"{name} was not finished: the renderer was closed") from None
                if attempt == ATTEMPTS:
                    raise


class _Worker:
    """One rendering process, started when it is needed and replaced when it had to be killed.

    It belongs to one thread; only :meth:`close` is for others.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._lock = threading.Lock()
        self._closed = False
        self._process: _Process | None = None

    def render(self, job: ClipJob) -> None:
        """Render one clip. Raises :class:`RenderError` and :class:`ReplayMismatchError`."""
        process = self._running()
        try:
            answer = process.ask(job, self._timeout)
        except RenderError:
            self.stop()
            raise
        if "mismatch" in answer:
            raise ReplayMismatchError(answer["mismatch"])
        if "error" in answer:
            raise RenderError(answer["error"])

    def stop(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.release()

    def close(self) -> None:
        """Start no more processes, and wake the thread that waits for this one by killing it."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._process.kill()

    def _running(self) -> "_Process":
        with self._lock:
            if self._closed:
                raise RenderError("the renderer was closed before the clip was done")
            if self._process is None:
                try:
                    self._process = _Process()
                except OSError as error:
                    raise RenderError(f"cannot start a rendering process: {error.strerror}") from error
            return self._process


class _Process:
    """The operating system's side of a worker: a process group, a pipe, and its standard error."""

    def __init__(self) -> None:
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 - closed in release
        self._connection, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "teacher.clips.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._words,
                start_new_session=True,
                # Environments registered by the user's own modules are to be found there too.
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path),
                },
            )
        self._is_ready = False

    def ask(self, job: ClipJob, timeout: float) -> dict[str, str]:
        """Request a clip; raises :class:`RenderError` where no answer comes, and the process is spent."""
        name, path = job.path.name, str(job.path.absolute())
        request = {"shot": job.spec.to_dict(), "path": path, "fps": job.fps, "size": job.size}
        try:
            if not self._is_ready:
                self._receive(START_SECONDS, "starting a rendering process")
                self._is_ready = True
            self._connection.send_bytes(json.dumps(request).encode())
            return self._receive(timeout, f"rendering {name}")
        except (EOFError, OSError) as error:
            raise RenderError(f"the process rendering {name} died{self._last_words()}") from error

    def _receive(self, seconds: float, doing: str) -> dict[str, str]:
        if not self._connection.poll(seconds):
            raise RenderError(f"{doing} took more than {seconds:g} s and was stopped")
        message: dict[str, str] = json.loads(self._connection.recv_bytes())
        return message

    def kill(self) -> None:
        """End the process and the encoder it may have started, and wait until it is gone."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def release(self) -> None:
        self.kill()
        self._connection.close()
        self._words.close()

    def _last_words(self) -> str:
        self._words.seek(0)
        lines = self._words.read().decode(errors="replace").strip().splitlines()
        return f": {lines[-1]}" if lines else ""
