"""The simulations of several MuJoCo environments, stepped by the caller and its helper threads."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, NamedTuple

from numpy.typing import NDArray


class Simulation(NamedTuple):
    """One environment's ``mujoco.MjModel`` and ``mujoco.MjData``."""

    model: Any
    data: Any


class Physics:
    """Steps simulations, none of which sees another; whichever thread is free takes the next one.

    MuJoCo releases Python's lock while it simulates. The caller takes simulations as the helpers do, and
    waits only for helpers that have begun: one that the machine has no time for costs nothing.

    Args:
        simulations: what to step.
        frame_skip: steps of the physics in one step of the environment.
        workers: threads, the caller's among them.
    """

    def __init__(self, simulations: Sequence[Simulation], frame_skip: int, workers: int) -> None:
        import mujoco  # noqa: PLC0415 - an optional package, imported where there are simulations

        self._mj_step = mujoco.mj_step
        self._simulations = simulations
        self._controls = [simulation.data.ctrl for simulation in simulations]
        self._frame_skip = frame_skip
        self._pending: deque[Simulation] = deque()
        self._helpers = [_Helper(self._work) for _ in range(workers - 1)]

    def step(self, controls: NDArray[Any], indices: Sequence[int]) -> None:
        """Step the simulations of ``indices`` under their rows of ``controls``; the others stay as they are.

        Args:
            controls: ``(simulations, controls)``.
            indices: which to step.

        Raises:
            mujoco.FatalError: in whichever thread it came up.
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
        """End the threads."""
        for helper in self._helpers:
            helper.close()
        self._helpers = []

    def _work(self) -> None:
        """Step pending simulations until none is left."""
        while True:
            try:
                model, data = self._pending.popleft()
            except IndexError:
                return
            self._mj_step(model, data, self._frame_skip)


class _Helper:
    """A thread that does ``work`` whenever it is woken."""

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
        """Until the work that has begun is done; raises the error that ended it."""
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
                except BaseException as error:  # the caller's to raise
                    self._error = error
