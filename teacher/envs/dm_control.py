"""DeepMind Control Suite (Tassa et al. 2018, arXiv 1801.00690), for example ``dm_control/walker-walk``.

They need the extra ``dmc``. Unlike in Shimmy's environments, observations are flat, and the step limit of
episodes is known to Gymnasium.
"""

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from teacher.envs.gl import select_gl
from teacher.envs.make import without_opengl
from teacher.envs.suites import import_suite, require_task
from teacher.errors import EnvironmentUnsuitableError, RenderError

SIZE = 400
_CAMERAS = {"dog": "y-axis", "quadruped": "y"}
"""Cameras that follow the robot from the side, for domains in which that is not always the first camera."""


class ControlTask(gym.Env[NDArray[np.float64], NDArray[np.float64]]):
    """A task of the DeepMind Control Suite.

    An observation consists of the task's parts in the alphabetical order of their names, concatenated. The
    reward of a step is from 0 to 1. The environment has no step limit of its own.

    Args:
        camera_id: index or name of a camera in the domain's model; None for the first one, or for one that
            follows the robot where the first does not.

    Raises:
        EnvironmentUnsuitableError: the suite has no such task, the model has no such camera, or
            ``dm_control`` can't be imported.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012 (an instance adds its rate)

    def __init__(
        self,
        domain: str,
        task: str,
        render_mode: str | None = None,
        *,
        width: int = SIZE,
        height: int = SIZE,
        camera_id: int | str | None = None,
    ) -> None:
        suite = _import_dm_control()
        require_task("DMControl", f"{domain}-{task}", task_names())
        # Gymnasium's TimeLimit truncates episodes, so that --max_episode_steps applies. LQR generates a
        # random model when it is loaded.
        with _without_advice():
            self._env = suite.load(domain, task, {"time_limit": float("inf"), "random": 0})
        self._spec = self._env.observation_spec()
        self.render_mode = render_mode
        self.metadata = {**self.metadata, "render_fps": round(1 / self._env.control_timestep())}
        self._size = {"width": width, "height": height}
        self._camera: int | str = _CAMERAS.get(domain, 0) if camera_id is None else camera_id
        self._require_camera()
        self._is_seeded = False
        actions = self._env.action_spec()
        low, high = (np.broadcast_to(bound, actions.shape) for bound in (actions.minimum, actions.maximum))
        self.action_space: Any = Box(low, high, actions.shape, actions.dtype)
        length = sum(int(np.prod(part.shape)) for part in self._spec.values())
        self.observation_space: Any = Box(-np.inf, np.inf, (length,), np.float64)

    def _require_camera(self) -> None:
        model = self._env.physics.model
        names = [model.id2name(index, "camera") for index in range(model.ncam)]
        if self._camera not in names and self._camera not in range(model.ncam):
            expected = f"0 to {model.ncam - 1}, or one of {', '.join(names)}"
            raise EnvironmentUnsuitableError(f"camera_id: expected {expected}; got {self._camera!r}")

    @property
    def never_terminates(self) -> bool:
        """Return True if the task has no condition that ends an episode."""
        base: Any = import_suite("dm_control.rl.control").Task
        return bool(type(self._env.task).get_termination is base.get_termination)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float64], dict[str, Any]]:
        """Start an episode; a seed determines its initial state."""
        super().reset(seed=seed)
        if seed is None and not self._is_seeded:
            seed = int(self.np_random.integers(2**31))
        if seed is not None:
            self._env.task.random.seed(seed)
            self._is_seeded = True
        return self._flat(self._env.reset().observation), {}

    def step(
        self, action: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], float, bool, bool, dict[str, Any]]:
        """Step the simulation; the episode terminates only where the task itself ends it."""
        outcome = self._env.step(action)
        ended, terminal = outcome.last(), outcome.discount == 0
        return (
            self._flat(outcome.observation),
            float(outcome.reward),
            bool(ended and terminal),
            bool(ended and not terminal),
            {},
        )

    def render(self) -> NDArray[np.uint8]:
        """Return the view of the camera, ``(height, width, 3)``."""
        picture: NDArray[np.uint8] = self._env.physics.render(**self._size, camera_id=self._camera)
        return picture

    def close(self) -> None:
        """Free the simulation and its OpenGL context."""
        self._env.close()

    def _flat(self, parts: Any) -> NDArray[np.float64]:
        return np.concatenate([np.ravel(parts[name]) for name in sorted(parts)], dtype=np.float64)


def task_names() -> list[str]:
    """Return the names of all tasks, such as ``walker-walk``.

    Raises:
        EnvironmentUnsuitableError: ``dm_control`` can't be imported.
    """
    return ["-".join(names) for names in _import_dm_control().ALL_TASKS]


def _import_dm_control() -> Any:
    """Import the suite; on import, ``dm_control`` selects an OpenGL backend, which can't be changed later.

    Left to itself, it would select GLFW, which crashes the process where there is no display. Physics does
    not need OpenGL, so where no backend works, only rendering will fail.
    """
    try:
        select_gl()
        return import_suite("dm_control.suite")
    except (RenderError, EnvironmentUnsuitableError):
        with without_opengl():
            return import_suite("dm_control.suite")


@contextlib.contextmanager
def _without_advice() -> Iterator[None]:
    """Turn off, within the ``with`` block, the log messages about deprecated attributes in a model's file."""
    logger = logging.getLogger("absl")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
