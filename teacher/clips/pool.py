"""Pool of rendering processes; processes that crash or hang are replaced."""

import contextlib
import json
import logging
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
from typing import Any

from teacher.clips.render import ClipJob
from teacher.envs.registry import registration_of
from teacher.errors import RenderError, ReplayMismatchError
from teacher.files import remove_abandoned_parts

ATTEMPTS = 2
"""Maximum number of attempts per job; the second attempt helps after a temporary failure."""

START_SECONDS = 60.0
FRAMES_IN_TIME = 50
"""Number of frames up to which ``timeout`` applies; longer clips have proportionally more time."""
"""Maximum seconds to wait for a new rendering process to be ready."""

_log = logging.getLogger(__name__)

_Task = tuple[ClipJob, "Future[Path]"]


class ClipRenderer:
    """Renders clips in a pool of separate processes, which start when they get their first job.

    The processes are spawned, not forked, because OpenGL and torch don't survive a fork. They don't
    import torch, and they import the main module only if it defines the environment. They ignore Ctrl-C in
    the terminal, and exit when this process ends or is killed.

    A job that fails, crashes its process, or exceeds its time limit is retried once. If the retry fails too,
    the job's future raises :class:`RenderError`, or :class:`ReplayMismatchError` if the replayed episode
    differs from the recording.
    """

    def __init__(self, workers: int | None = None, timeout: float = 120.0) -> None:
        """Create the pool without starting any process.

        Args:
            workers: number of processes; None means one for every two CPUs.
        """
        count = workers or max(1, (os.cpu_count() or 1) // 2)
        self._closed = False
        self._lock = threading.Lock()  # keeps submit() from queuing a job after close() empties the queue
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._workers = [_Worker(timeout) for _ in range(count)]
        self._threads = [
            threading.Thread(target=self._serve, args=(worker,), daemon=True) for worker in self._workers
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: ClipJob) -> "Future[Path]":
        """Queue a clip to be rendered to ``job.path``; the future's result is that path."""
        future: Future[Path] = Future()
        with self._lock:
            if self._closed:
                raise RenderError(f"cannot render {job.path.name}: the renderer is closed")
            self._tasks.put((job, future))
        return future

    @property
    def note(self) -> str:
        """Return the renderer of a process's last clip and why; empty if it was not a MuJoCo clip."""
        return next((worker.note for worker in self._workers if worker.note), "")

    def close(self) -> None:
        """Cancel queued jobs and kill the processes; running jobs' futures raise :class:`RenderError`."""
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
            except Exception as error:  # every error must reach the future
                future.set_exception(error)
            else:
                future.set_result(job.path)
        worker.stop()

    def _render(self, worker: "_Worker", job: ClipJob) -> None:
        """Render a job, retrying on failure; if every attempt fails, raise the last error."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                worker.render(job)
                return
            except Exception:
                remove_abandoned_parts(job.path)  # a killed process leaves its temporary file
                if self._closed:
                    name = job.path.name
                    raise RenderError(f"{name} was not rendered: the renderer was closed") from None
                if attempt == ATTEMPTS:
                    raise


def time_limit(job: ClipJob, timeout: float) -> float:
    """Return the maximum seconds to render a clip, which grow with its length."""
    frames = len(job.spec.recipe.actions) - job.spec.start
    return timeout * max(1.0, frames / FRAMES_IN_TIME)


class _Worker:
    """Manager of one rendering process, which is started on demand and restarted after a failure.

    Only one thread may use a worker, except for :meth:`close`, which any thread may call.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._lock = threading.Lock()
        self._closed = False
        self._process: _Process | None = None
        self.note = ""

    def render(self, job: ClipJob) -> None:
        """Render one clip in the process, starting the process if it isn't running."""
        recipe = job.spec.recipe
        registration = registration_of(recipe.env_id, recipe.kwargs) if job.spec.frames is None else None
        process = self._running()
        try:
            answer = process.ask(job, registration, time_limit(job, self._timeout))
        except RenderError:
            self.stop()
            raise
        if "mismatch" in answer:
            raise ReplayMismatchError(answer["mismatch"])
        if "error" in answer:
            raise RenderError(answer["error"])
        if (note := answer.get("note", "")) not in ("", self.note):
            _log.info("%s: %s", job.spec.recipe.env_id, note)
        self.note = note

    def stop(self) -> None:
        """Kill the process, if it is running; the next job starts a new one."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.release()

    def close(self) -> None:
        """Kill the process, unblock any thread waiting for it, and refuse to start a new one."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._process.kill()

    def _running(self) -> "_Process":
        with self._lock:
            if self._closed:
                raise RenderError("the renderer was closed before the clip was rendered")
            if self._process is None:
                try:
                    self._process = _Process()
                except OSError as error:
                    raise RenderError(f"cannot start a rendering process: {error.strerror}") from error
            return self._process


class _Process:
    """Subprocess that renders clips, in its own process group, with a job pipe and a file for stderr."""

    def __init__(self) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed in release
        self._connection, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "teacher.clips.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                start_new_session=True,
                # Makes modules that register the user's environments importable in the process.
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path),
                },
            )
        self._is_ready = False

    def ask(self, job: ClipJob, registration: dict[str, Any] | None, timeout: float) -> dict[str, str]:
        """Send a job and its environment's registration; return the response. Useless after an error."""
        name, path = job.path.name, str(job.path.absolute())
        request = {"shot": job.spec.to_dict(), "path": path, "fps": job.fps, "size": job.size}
        request |= {} if registration is None else {"registration": registration}
        try:
            if not self._is_ready:
                self._receive(START_SECONDS, "starting a rendering process")
                self._is_ready = True
            self._connection.send_bytes(json.dumps(request).encode())
            return self._receive(timeout, f"rendering {name}")
        except (EOFError, OSError) as error:
            raise RenderError(f"the process rendering {name} died{self._last_stderr_line()}") from error

    def _receive(self, seconds: float, doing: str) -> dict[str, str]:
        if not self._connection.poll(seconds):
            raise RenderError(f"{doing} took more than {seconds:g} s and was stopped")
        message: dict[str, str] = json.loads(self._connection.recv_bytes())
        return message

    def kill(self) -> None:
        """Kill the process and any ffmpeg that it started, and wait for the process to exit."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def release(self) -> None:
        """Kill the process and close its pipe and its stderr file."""
        self.kill()
        self._connection.close()
        self._stderr.close()

    def _last_stderr_line(self) -> str:
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        return f": {lines[-1]}" if lines else ""
