"""Stepping of several MuJoCo simulations in the caller's thread and helper threads."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, NamedTuple

from numpy.typing import NDArray


class Simulation(NamedTuple):
    """The ``mujoco.MjModel`` and ``mujoco.MjData`` of one environment."""

    model: Any
    data: Any


class Physics:
    """Steps independent simulations in several threads; each free thread takes the next simulation.

    MuJoCo releases the GIL while it simulates. The caller's thread also steps simulations, and then waits
    only for helpers that have started, so a helper that gets no CPU time does not delay a step.

    Args:
        frame_skip: physics steps per environment step.
        workers: number of threads, including the caller's.
    """

    def __init__(self, simulations: Sequence[Simulation], frame_skip: int, workers: int) -> None:
        import mujoco  # noqa: PLC0415 - optional package

        self._mj_step = mujoco.mj_step
        self._simulations = simulations
        self._controls = [simulation.data.ctrl for simulation in simulations]
        self._frame_skip = frame_skip
        self._pending: deque[Simulation] = deque()
        self._helpers = [_Helper(self._work) for _ in range(workers - 1)]

    def step(self, controls: NDArray[Any], indices: Sequence[int]) -> None:
        """Step the simulations at ``indices``; leave the others unchanged.

        Args:
            controls: array of shape ``(num_simulations, nu)``; rows that are not in ``indices`` are ignored.

        Raises:
            mujoco.FatalError: a simulation failed in any of the threads.
        """
        for index in indices:
            self._controls[index][:] = controls[index]
        self._pending.extend([self._simulations[index] for index in indices])
        for helper in self._helpers:
            helper.wake()
        try:
            self._work()
        finally:
            self._pending.clear()  # not empty after an error
            for helper in self._helpers:
                helper.wait()

    def close(self) -> None:
        """Stop the helper threads."""
        for helper in self._helpers:
            helper.close()
        self._helpers = []

    def _work(self) -> None:
        """Step pending simulations until none are left."""
        while True:
            try:
                model, data = self._pending.popleft()
            except IndexError:
                return
            self._mj_step(model, data, self._frame_skip)


class _Helper:
    """Thread that runs ``work`` once for each call to :meth:`wake`."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._wakes: SimpleQueue[bool] = SimpleQueue()
        self._busy = threading.Lock()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="physics", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        self._wakes.put(True)

    def wait(self) -> None:
        """If ``work`` is running, wait until it returns; if it failed, re-raise its exception."""
        with self._busy:
            error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        self._wakes.put(False)
        self._thread.join()

    def _run(self) -> None:
        while self._wakes.get():
            with self._busy:
                try:
                    self._work()
                except BaseException as error:  # re-raised by wait()
                    self._error = error
