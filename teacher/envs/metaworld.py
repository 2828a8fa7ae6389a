"""Meta-World (Yu et al. 2019, arXiv 1910.10897), for example ``metaworld/button-press-v3``.

They need the extra ``metaworld``. Unlike in Meta-World's own environments, the seed of a reset determines the
whole initial state, so that episodes can be replayed.
"""

import sys
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from teacher.envs.gl import select_gl
from teacher.envs.suites import import_suite, require_task
from teacher.errors import EnvironmentUnsuitableError

SIZE = 400
_CAMERAS = ("topview", "corner", "corner2", "corner3", "corner4", "behindGripper", "gripperPOV")
_CAMERA = "corner4"  # the view of corner2, from nearer


def task_names() -> list[str]:
    """Return the names of all tasks, such as ``button-press``.

    Raises:
        EnvironmentUnsuitableError: ``metaworld`` can't be imported.
    """
    kinds = import_suite("metaworld.env_dict").ALL_V3_ENVIRONMENTS
    return [name.removesuffix("-v3") for name in kinds]


class ManipulationTask(gym.Env[NDArray[np.float64], NDArray[np.float32]]):
    """A task of Meta-World, in which an arm with a gripper moves an object.

    Each reset draws new positions of object and goal. An observation, ``(39,)``, consists of the state of
    hand, gripper and objects, their previous state, and the goal's position. An action, ``(4,)``, moves the
    hand along three axes and closes the gripper. The reward of a step is from 0 to 10, and its
    ``info["success"]`` is 1 if the task is now solved, else 0. The environment has no step limit of its own.

    Args:
        camera_name: name of a camera in Meta-World's models, such as ``corner2`` or ``topview``.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 80}  # noqa: RUF012
    never_terminates = True
    reports_success = True

    def __init__(
        self,
        task: str,
        render_mode: str | None = None,
        *,
        width: int = SIZE,
        height: int = SIZE,
        camera_name: str = _CAMERA,
    ) -> None:
        kinds = import_suite("metaworld.env_dict").ALL_V3_ENVIRONMENTS
        require_task("Meta-World", task, task_names())
        if camera_name not in _CAMERAS:
            raise EnvironmentUnsuitableError(
                f"camera_name: expected one of {', '.join(_CAMERAS)}; got {camera_name!r}"
            )
        self._env = kinds[f"{task}-v3"](
            render_mode="rgb_array", camera_name=camera_name, width=width, height=height
        )
        self._env._set_task_called = True
        self._env.seeded_rand_vec = True  # draw from the environment's generator, not numpy's global one
        self._env._partially_observable = False
        vars(self._env).pop("sawyer_observation_space", None)  # cached, with the goal hidden
        # Gymnasium's TimeLimit truncates episodes, so that --max_episode_steps applies.
        self._env.max_path_length = sys.maxsize
        self._env.model.vis.quality.shadowsize = 1024  # a quarter: frames take two thirds of the time
        self.render_mode = render_mode
        self._camera_name = camera_name
        self.action_space: Any = self._env.action_space
        self.observation_space: Any = self._env.sawyer_observation_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float64], dict[str, Any]]:
        """Start an episode; a seed determines its initial state, with the positions of object and goal."""
        super().reset(seed=seed)
        self._env.np_random = self.np_random
        self._env._freeze_rand_vec = False
        self._env.reset()
        # In some tasks, such as drawer-open, that reset put the goal where the object's previous position
        # would need it. So Meta-World's benchmarks, too, draw positions in one reset and use them in another.
        self._env._freeze_rand_vec = True
        observation, _ = self._env.reset()
        return observation, {}

    def step(
        self, action: NDArray[np.float32]
    ) -> tuple[NDArray[np.float64], float, bool, bool, dict[str, Any]]:
        """Step the simulation; the environment itself never ends an episode."""
        observation, reward, _, _, info = self._env.step(action)
        return observation, float(reward), False, False, info

    def render(self) -> NDArray[np.uint8]:
        """Return the view of the camera, ``(height, width, 3)``.

        Raises:
            RenderError: no OpenGL backend works.
        """
        select_gl()
        positions = self._env.data.site_xpos
        before = positions.copy()
        self._move_markers()
        picture: NDArray[np.uint8] = self._env.render()
        positions[:] = before  # rendering must not change an episode
        is_upside_down = self._env.data.camera(self._camera_name).xmat[7] < 0  # its y axis points down
        return np.rot90(picture, 2).copy() if is_upside_down else picture

    def _move_markers(self) -> None:
        """Move the goal's marker to the goal, and markers of other tasks with the same model out of sight.

        Meta-World does so in each step, but then lets MuJoCo overwrite the positions.
        """
        target = self._env._target_pos
        markers = self._env._target_site_config
        if any(np.array_equal(position, target) for _, position in markers):  # not in pick-out-of-hole
            for name, position in markers:
                self._env.data.site(name).xpos = position[:3]

    def close(self) -> None:
        """Free the simulation and its OpenGL context."""
        self._env.close()
