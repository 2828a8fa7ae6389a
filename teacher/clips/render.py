"""Rendering of one clip: replay the episode from its recipe, check the replay, and draw it."""

import base64
import contextlib
import functools
import hashlib
import io
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from teacher.clips.encode import Frame, encode
from teacher.clips.fast_path import FastPath, is_mujoco
from teacher.data.segments import Segment
from teacher.envs.capture import draw, frame_of, prepare_drawing
from teacher.envs.episodes import replay
from teacher.envs.make import make_env
from teacher.envs.recipe import EpisodeRecipe, library_versions
from teacher.envs.trajectory import Trajectory
from teacher.errors import DataError, RenderError, ReplayMismatchError, TeacherError, describe_exception

CLIP_SIZE = 400
"""Length of a clip's longer side in pixels."""
_MOST_PIXELS = 4096 * 4096  # limit for a captured frame, because a small JPEG file may declare a huge image


@dataclass(frozen=True, eq=False)
class ClipSpec:
    """Content of a clip: the frame after each step from ``start`` to the last step of the recipe.

    Attributes:
        recipe: recipe for replaying the episode up to the last shown step.
        start: index of the first shown step.
        digests: expected hash of the observation before each shown step, to verify the replay; None to skip
            verification. Specs are sent to other processes, so they contain hashes, not large observations.
        frames: captured frames of the shown steps as JPEG data, used instead of a replay; None to replay.
    """

    recipe: EpisodeRecipe
    start: int = 0
    digests: tuple[str, ...] | None = None
    frames: tuple[bytes, ...] | None = None

    def __post_init__(self) -> None:
        shown = len(self.recipe.actions) - self.start
        if self.start < 0 or shown < 1 or (self.digests is not None and len(self.digests) != shown):
            digests = "no" if self.digests is None else len(self.digests)
            raise DataError(
                "a clip must show at least one step, with one digest per step or no digests at all; this one "
                f"shows {shown} steps from step {self.start}, and has {digests} digests"
            )
        if self.frames is not None and len(self.frames) != shown:
            raise DataError(f"a clip of {shown} steps needs {shown} captured frames, not {len(self.frames)}")

    @classmethod
    def of(cls, segment: Segment) -> "ClipSpec":
        """Return a spec for a segment's clip.

        It contains the segment's captured frames if there are any, or else digests to verify its replay.
        """
        if segment.frames is not None:
            return cls(segment.recipe, segment.start, frames=segment.frames)
        return cls(segment.recipe, segment.start, tuple(map(_digest, segment.observations)))

    @classmethod
    def of_episode(cls, episode: Trajectory) -> "ClipSpec":
        """Return a spec for an episode's clip.

        It contains the episode's captured frames if there are any; otherwise, the replay is not verified.
        """
        return cls(episode.recipe(), frames=None if episode.frames is None else tuple(episode.frames))

    def to_dict(self) -> dict[str, Any]:
        """Return the spec as a JSON-serializable dictionary."""
        digests = None if self.digests is None else list(self.digests)
        data = {"recipe": self.recipe.to_dict(), "start": self.start, "digests": digests}
        if self.frames is not None:
            data["frames"] = [base64.b64encode(frame).decode("ascii") for frame in self.frames]
        return data

    @classmethod
    def from_dict(cls, data: Any) -> "ClipSpec":
        """Make a spec from the output of :meth:`to_dict`; raise DataError if it is invalid."""
        try:
            digests = None if data["digests"] is None else tuple(map(str, data["digests"]))
            frames = data.get("frames")
            if frames is not None:
                frames = tuple(base64.b64decode(frame, validate=True) for frame in frames)
            return cls(EpisodeRecipe.from_dict(data["recipe"]), int(data["start"]), digests, frames)
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise DataError(f"invalid clip spec: {error!r}; use the output of ClipSpec.to_dict") from error


@dataclass(frozen=True, eq=False)
class ClipJob:
    """Request to render a clip.

    Attributes:
        path: file to write if the clip is rendered on this machine.
        key: key in the clip store under which a render worker uploads the clip.
    """

    spec: ClipSpec
    path: Path
    fps: int
    key: str = ""
    size: int = CLIP_SIZE


class ReplayRenderer:
    """Replays episodes of one environment and renders them as frames.

    Frames are what ``render()`` returns. :class:`MujocoScene`, which is faster, replaces it only as far as
    :class:`FastPath` allows. A clip doesn't depend on the clips rendered before it: a MuJoCo environment that
    renders itself is made again for each clip, because its camera, textures and meshes are those of its first
    frame.

    Args:
        size: side length in pixels of the square frames that :class:`MujocoScene` renders; all other frames
            keep the environment's own size.
        make: function that makes the environment; None to use :func:`make_env`.

    Raises:
        RenderError: the environment can't be made.
    """

    def __init__(
        self,
        env_id: str,
        kwargs: Mapping[str, Any],
        size: int = CLIP_SIZE,
        make: Callable[[], gym.Env[Any, Any]] | None = None,
    ) -> None:
        self._name, self._size = env_id, size
        self._make = make or functools.partial(make_env, env_id, kwargs, render_mode="rgb_array")
        prepare_drawing()
        self._env = self._made()
        self._fast_path = FastPath(self._env) if is_mujoco(self._env) else None
        self._scene: Any = None
        self._is_new = True

    @property
    def note(self) -> str:
        """Return which renderer draws the clips of a MuJoCo environment, and why; else empty."""
        if self._fast_path is None:
            return ""
        if why_not := self._fast_path.why_not:
            return f"clips show the environment's own render(), because {why_not}"
        return "clips of Gymnasium's own MuJoCo environments are drawn by the fast renderer"

    def frames(self, spec: ClipSpec) -> Iterator[Frame]:
        """Replay the episode and yield a frame after each shown step.

        Raises:
            ReplayMismatchError: the replay differs from the recording.
            RenderError: the environment raised an exception or its ``render()`` returned no frame.
        """
        try:
            if self._fast_path is not None:
                self._prepare(spec, self._fast_path)
            is_fast = False
            for index, step in enumerate(replay(spec.recipe, self._env)):
                if index < spec.start:
                    self._forget_markers()
                    continue
                if spec.digests is not None:
                    _check(step.observation, spec.digests[index - spec.start], index, spec.recipe)
                if index == spec.start and self._scene is not None and self._fast_path is not None:
                    is_fast = self._fast_path.has_compiled_model()
                yield self._draw_fast() if is_fast else frame_of(self._env, self._name)
        except TeacherError:
            raise
        except Exception as error:  # an environment may raise anything
            raise RenderError(
                f"{self._name} failed while a clip was being rendered: {describe_exception(error)}"
            ) from error

    def close(self) -> None:
        """Close the environment and free the OpenGL context."""
        self._close_scene()
        self._env.close()

    def _made(self) -> gym.Env[Any, Any]:
        try:
            return self._make()
        except TeacherError:
            raise
        except Exception as error:
            raise RenderError(
                f"cannot make {self._name} with render_mode='rgb_array': {describe_exception(error)}"
            ) from error

    def _prepare(self, spec: ClipSpec, path: FastPath) -> None:
        if not path.why_not and self._scene is None:
            # Not at the top of the module, because a process that only trains must not need OpenGL.
            from teacher.clips.scene import MujocoScene  # noqa: PLC0415

            bare: Any = self._env.unwrapped
            self._scene = MujocoScene(bare.model, bare.mujoco_renderer.default_cam_config, self._size)
        if path.needs_comparison:
            last = len(spec.recipe.actions) - 1
            for index, _ in enumerate(replay(spec.recipe, self._env)):
                if index >= spec.start:
                    path.compare(frames=index in (spec.start, last), last=index == last)
            path.release()
            self._is_new = False
        if path.why_not:
            self._close_scene()
            if not self._is_new:
                self._env.close()
                self._env = self._made()
            self._is_new = False
            self._env.reset(seed=spec.recipe.seed)
            draw(self._env)  # sets the camera

    def _forget_markers(self) -> None:
        """Remove the markers that an undrawn step added; Gymnasium's ``render()`` removes them when drawn."""
        bare: Any = self._env.unwrapped
        viewer: Any = getattr(getattr(bare, "mujoco_renderer", None), "viewer", None)
        if hasattr(viewer, "_markers"):
            viewer._markers.clear()

    def _draw_fast(self) -> Frame:
        bare: Any = self._env.unwrapped
        return cast(Frame, self._scene.draw(bare.data))

    def _close_scene(self) -> None:
        scene, self._scene = self._scene, None
        if scene is not None:
            scene.close()


def render(job: ClipJob) -> None:
    """Render a clip in this process, and write it to ``job.path`` as MP4."""
    with contextlib.closing(frames_of(job.spec, job.size)) as frames:
        encode(frames, job.path, job.fps, job.size)


def frames_of(spec: ClipSpec, size: int = CLIP_SIZE) -> Generator[Frame, None, None]:
    """Yield a frame for each shown step: the captured frames if there are any, or else replayed ones.

    Args:
        size: side length in pixels of the square frames that :class:`MujocoScene` renders.
    """
    if spec.frames is not None:
        yield from captured(spec.frames)
        return
    with contextlib.closing(ReplayRenderer(spec.recipe.env_id, spec.recipe.kwargs, size)) as renderer:
        yield from renderer.frames(spec)


def captured(frames: Iterable[bytes]) -> Iterator[Frame]:
    """Decode captured frames from JPEG data."""
    shape: tuple[int, ...] | None = None
    for data in frames:
        try:
            with Image.open(io.BytesIO(data), formats=("JPEG",)) as image:
                if math.prod(image.size) > _MOST_PIXELS:
                    width, height = image.size
                    raise ValueError(
                        f"the frame has {width} x {height} pixels; the maximum is {_MOST_PIXELS:,} in total"
                    )
                frame = np.asarray(image.convert("RGB"))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise RenderError(f"cannot read a captured frame: {describe_exception(error)}") from error
        shape = shape or frame.shape
        if frame.shape != shape:
            raise RenderError(f"a clip's captured frames have different shapes, {shape} and {frame.shape}")
        yield frame


def _digest(observation: NDArray[Any]) -> str:
    return hashlib.blake2b(observation.tobytes(), digest_size=8).hexdigest()


def _check(observation: NDArray[Any], recorded: str, step: int, recipe: EpisodeRecipe) -> None:
    if _digest(observation) == recorded:
        return
    now = library_versions()
    raise ReplayMismatchError(
        f"the replay of {recipe.env_id} diverged: the observation before step {step} differs from the "
        f"recorded one (recorded with {_listed(recipe.versions)}; replayed with {_listed(now)}); "
        "replay with the recorded versions on the same kind of machine, or train with --capture_frames"
    )


def _listed(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())
