"""From a recipe to a clip: play the episode again, check it, draw it."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from teacher.clips.encode import Frame, encode
from teacher.envs.episodes import replay
from teacher.envs.make import make_env
from teacher.envs.recipe import EpisodeRecipe, library_versions
from teacher.errors import RenderError, ReplayMismatchError, TeacherError
from teacher.segments import Segment

CLIP_SIZE = 400
"""The longer side of a clip in pixels."""


@dataclass(frozen=True, eq=False)
class Shot:
    """What to show: the steps of an episode from ``start`` on, one frame for the outcome of each.

    Attributes:
        recipe: plays the episode up to the last step to be shown.
        start: index of the first step shown.
        observations: ``(len(recipe.actions) - start, *observation_shape)`` before each shown step, to be met
            bit by bit; None checks nothing.
    """

    recipe: EpisodeRecipe
    start: int = 0
    observations: NDArray[Any] | None = None

    @classmethod
    def of(cls, segment: Segment) -> "Shot":
        """A segment, checked against what was recorded."""
        return cls(segment.recipe, segment.start, segment.observations)


class Stage:
    """One environment and its camera, ready to show any episode of that environment.

    ``size`` is the longer side of a picture where the camera is ours to choose, in pixels.

    Raises:
        RenderError: the environment cannot be made or cannot draw itself.
    """

    def __init__(self, env_id: str, kwargs: Mapping[str, Any], size: int = CLIP_SIZE) -> None:
        self._name, self._size = env_id, size
        # pygame, under the classic control and Box2D environments, would otherwise look for a screen.
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        try:
            self._env = make_env(env_id, kwargs, render_mode="rgb_array")
        except TeacherError:
            raise
        except Exception as error:
            raise RenderError(f"{env_id} cannot be made for rendering: {one_line(error)}") from error
        self._scene: Any = None

    def frames(self, shot: Shot) -> Iterator[Frame]:
        """Play the shot's episode and yield a picture after each step to be shown.

        Raises:
            ReplayMismatchError: the episode does not come out as it was recorded.
            RenderError: the environment gave no picture.
        """
        try:
            for index, step in enumerate(replay(shot.recipe, self._env)):
                if index >= shot.start:
                    if shot.observations is not None:
                        _check(step.observation, shot.observations[index - shot.start], index, shot.recipe)
                    yield self._draw()
        except TeacherError:
            raise
        except Exception as error:  # an environment may raise anything
            raise RenderError(f"{self._name} failed while it was rendered: {one_line(error)}") from error

    def close(self) -> None:
        """Give the environment and the OpenGL context back."""
        if self._scene is not None:
            self._scene.close()
        self._env.close()

    def _draw(self) -> Frame:
        bare: Any = self._env.unwrapped
        if hasattr(bare, "mujoco_renderer"):
            if self._scene is None:
                # Not at the top: a process that only trains must not touch OpenGL, which may be missing.
                from teacher.clips.scene import MujocoScene  # noqa: PLC0415

                self._scene = MujocoScene(bare.model, bare.mujoco_renderer.default_cam_config, self._size)
            return cast(Frame, self._scene.draw(bare.data))
        picture: Any = self._env.render()
        if not isinstance(picture, np.ndarray) or picture.ndim != 3 or picture.shape[2] != 3:
            raise RenderError(
                f"{self._name} drew {type(picture).__name__}; expected an RGB array from rgb_array mode"
            )
        return picture.astype(np.uint8, copy=False)


def render_segment(segment: Segment, path: Path, fps: int, size: int = CLIP_SIZE) -> None:
    """Show a segment as an mp4 at ``path``: one frame a step, ``fps`` frames a second.

    ``size`` is the longer side in pixels.

    Raises:
        ReplayMismatchError: the replay differs from what was recorded.
        RenderError: the environment cannot be drawn, or the clip cannot be encoded or written.
    """
    _render(Shot.of(segment), path, fps, size)


def render_episode(recipe: EpisodeRecipe, path: Path, fps: int, size: int = CLIP_SIZE) -> None:
    """Show all steps of a recipe as an mp4 at ``path``, unchecked; otherwise as :func:`render_segment`."""
    _render(Shot(recipe), path, fps, size)


def _render(shot: Shot, path: Path, fps: int, size: int) -> None:
    stage = Stage(shot.recipe.env_id, shot.recipe.kwargs, size)
    try:
        encode(stage.frames(shot), path, fps, size)
    finally:
        stage.close()


def _check(observation: NDArray[Any], recorded: NDArray[Any], step: int, recipe: EpisodeRecipe) -> None:
    if observation.tobytes() == recorded.tobytes():
        return
    now = library_versions()
    raise ReplayMismatchError(
        f"{recipe.env_id} does not replay: the observation before step {step} differs from the recorded one "
        f"(recorded with {_listed(recipe.versions)}; replayed with {_listed(now)}); "
        "replay with the recorded versions on the same kind of machine, or choose a deterministic environment"
    )


def _listed(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def one_line(error: BaseException) -> str:
    """An exception of any library as part of a one-line message."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
