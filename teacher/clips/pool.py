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
"""Maximum seconds to wait for a new rendering process to be ready."""
FRAMES_IN_TIME = 50
"""Number of frames up to which ``timeout`` applies; longer clips have proportionally more time."""

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

    Attributes:
        note: the renderer of the last clip and why; empty if it was not a MuJoCo clip.
    """

    def __init__(self, workers: int | None = None, timeout: float = 120.0) -> None:
        """Create the pool without starting any process.

        Args:
            workers: number of processes; None means one for every two CPUs.
        """
        count = workers or max(1, (os.cpu_count() or 1) // 2)
        self.note = ""
        self._timeout = timeout
        self._closed = False
        self._lock = threading.Lock()  # keeps close() from missing a job or a process
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._processes: set[_Process] = set()
        self._threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(count)]
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

    def close(self) -> None:
        """Cancel queued jobs and kill the processes; running jobs' futures raise :class:`RenderError`."""
        with self._lock:
            self._closed = True
            with contextlib.suppress(queue.Empty):
                while True:
                    if task := self._tasks.get_nowait():
                        task[1].cancel()
            for process in self._processes:
                process.kill()
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join(timeout=5.0)

    def __enter__(self) -> "ClipRenderer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self) -> None:
        running: list[_Process] = []  # this thread's process, if there is one
        while task := self._tasks.get():
            job, future = task
            if not future.set_running_or_notify_cancel():
                continue
            try:
                self._render(running, job)
            except Exception as error:  # every error must reach the future
                future.set_exception(error)
            else:
                future.set_result(job.path)
        self._stop(running)

    def _render(self, running: "list[_Process]", job: ClipJob) -> None:
        """Render a job, retrying on failure; if every attempt fails, raise the last error."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                self._try(running, job)
                return
            except Exception:
                remove_abandoned_parts(job.path)  # a killed process leaves its temporary file
                if self._closed:
                    name = job.path.name
                    raise RenderError(f"{name} was not rendered: the renderer was closed") from None
                if attempt == ATTEMPTS:
                    raise

    def _try(self, running: "list[_Process]", job: ClipJob) -> None:
        recipe = job.spec.recipe
        registration = registration_of(recipe.env_id, recipe.kwargs) if job.spec.frames is None else None
        if not running:
            running.append(self._started())
        try:
            answer = running[0].ask(job, registration, time_limit(job, self._timeout))
        except RenderError:
            self._stop(running)
            raise
        if "mismatch" in answer:
            raise ReplayMismatchError(answer["mismatch"])
        if "error" in answer:
            raise RenderError(answer["error"])
        if (note := answer.get("note", "")) not in ("", self.note):
            _log.info("%s: %s", recipe.env_id, note)
        self.note = note

    def _started(self) -> "_Process":
        with self._lock:
            if self._closed:
                raise RenderError("the renderer was closed before the clip was rendered")
            try:
                process = _Process()
            except OSError as error:
                raise RenderError(f"cannot start a rendering process: {error.strerror}") from error
            self._processes.add(process)
            return process

    def _stop(self, running: "list[_Process]") -> None:
        while running:
            process = running.pop()
            with self._lock:
                self._processes.remove(process)
            process.release()


def time_limit(job: ClipJob, timeout: float) -> float:
    """Return the maximum seconds to render a clip, which grow with its length."""
    frames = len(job.spec.recipe.actions) - job.spec.start
    return timeout * max(1.0, frames / FRAMES_IN_TIME)


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
