"""A pool of rendering processes that survives crashes and hangs of its processes."""

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
"""Number of tries per job, in case of a temporary failure."""

START_SECONDS = 60.0
"""Maximum seconds until a new process responds."""

_Task = tuple[ClipJob, "Future[Path]"]


class ClipRenderer:
    """Renders clips in separate processes, which start with the first job.

    The processes are spawned, not forked, as OpenGL and torch do not survive a fork. They import neither
    torch nor the main module, ignore the terminal's Ctrl-C, and end with this process even if it is killed.

    A job that fails, crashes its process or takes longer than ``timeout`` seconds is tried once more. Then
    its future raises :class:`RenderError`, or :class:`ReplayMismatchError` if the replay differs from the
    recording.
    """

    def __init__(self, workers: int | None = None, timeout: float = 120.0) -> None:
        """Set the number of processes, by default one per two CPUs; none is started yet."""
        count = workers or max(1, (os.cpu_count() or 1) // 2)
        self._closed = False
        self._lock = threading.Lock()  # so that no job is queued after close() has emptied the queue
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._workers = [_Worker(timeout) for _ in range(count)]
        self._threads = [
            threading.Thread(target=self._serve, args=(worker,), daemon=True) for worker in self._workers
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: ClipJob) -> "Future[Path]":
        """Render a job by :func:`render` in one of the processes; the future's result is ``job.path``."""
        future: Future[Path] = Future()
        with self._lock:
            if self._closed:
                raise RenderError(f"cannot render {job.path.name}: the renderer is closed")
            self._tasks.put((job, future))
        return future

    def close(self) -> None:
        """Stop immediately: cancel waiting jobs; running ones raise :class:`RenderError`, leaving no file."""
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
            except Exception as error:  # any error must reach the future
                future.set_exception(error)
            else:
                future.set_result(job.path)
        worker.stop()

    def _render(self, worker: "_Worker", job: ClipJob) -> None:
        """Render a job, retrying on failure; raises the last error."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                worker.render(job)
                return
            except Exception:
                remove_abandoned_parts(job.path)  # a killed process could not do it
                if self._closed:
                    name = job.path.name
                    raise RenderError(f"{name} was not finished: the renderer was closed") from None
                if attempt == ATTEMPTS:
                    raise


class _Worker:
    """One rendering process, started on demand and replaced after it was killed.

    It belongs to one thread; other threads may call only :meth:`close`.
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
        """Kill the process, which wakes the thread waiting for it, and start no more."""
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
    """An operating-system process with its process group, pipe and standard error."""

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
                # So that modules that register the user's environments are found there too.
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path),
                },
            )
        self._is_ready = False

    def ask(self, job: ClipJob, timeout: float) -> dict[str, str]:
        """Request a clip; raises :class:`RenderError` without a response, and the process is unusable."""
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
        """Kill the process and the encoder it may have started, and wait for its end."""
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
