"""From a recipe to a clip: play the episode again, check it, draw it."""

import base64
import contextlib
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
from teacher.clips.gl import select_gl
from teacher.clips.overrides import draws_as_gymnasium
from teacher.data.segments import Segment
from teacher.envs.capture import as_frame, prepare_drawing
from teacher.envs.episodes import replay
from teacher.envs.make import make_env
from teacher.envs.recipe import EpisodeRecipe, library_versions
from teacher.envs.trajectory import Trajectory
from teacher.errors import DataError, RenderError, ReplayMismatchError, TeacherError, describe_exception

CLIP_SIZE = 400
"""The longer side of a clip in pixels."""
_MOST_PIXELS = 4096 * 4096  # of a captured picture: a small file may say that it is a huge one


@dataclass(frozen=True, eq=False)
class ClipSpec:
    """What to show: the steps of an episode from ``start`` on, one frame for the outcome of each.

    Attributes:
        recipe: plays the episode up to the last step to be shown.
        start: index of the first step shown.
        digests: of the observation before each shown step, to be met; None checks nothing. Digests, because
            observations may be pictures, and a spec is sent to other processes.
        frames: a picture of each shown step, as JPEG files: they are shown, and nothing is played again.
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
                f"expected a shot of 1 or more steps with a digest of each, got {shown} steps from "
                f"{self.start} and {digests} digests"
            )
        if self.frames is not None and len(self.frames) != shown:
            raise DataError(f"expected a picture of each of {shown} steps, got {len(self.frames)}")

    @classmethod
    def of(cls, segment: Segment) -> "ClipSpec":
        """Show a segment: what was captured of it, or its replay, checked against what was recorded."""
        if segment.frames is not None:
            return cls(segment.recipe, segment.start, frames=segment.frames)
        return cls(segment.recipe, segment.start, tuple(map(_digest, segment.observations)))

    @classmethod
    def of_episode(cls, episode: Trajectory) -> "ClipSpec":
        """Show a whole episode: what was captured of it, or its replay, which nothing is checked against."""
        return cls(episode.recipe(), frames=None if episode.frames is None else tuple(episode.frames))

    def to_dict(self) -> dict[str, Any]:
        """Return the spec as JSON values."""
        digests = None if self.digests is None else list(self.digests)
        data = {"recipe": self.recipe.to_dict(), "start": self.start, "digests": digests}
        if self.frames is not None:
            data["frames"] = [base64.b64encode(frame).decode("ascii") for frame in self.frames]
        return data

    @classmethod
    def from_dict(cls, data: Any) -> "ClipSpec":
        """Read back :meth:`to_dict`. Raises :class:`DataError` for anything else."""
        try:
            digests = None if data["digests"] is None else tuple(map(str, data["digests"]))
            frames = data.get("frames")
            if frames is not None:
                frames = tuple(base64.b64decode(frame, validate=True) for frame in frames)
            return cls(EpisodeRecipe.from_dict(data["recipe"]), int(data["start"]), digests, frames)
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise DataError(f"not a shot: {error!r}; expected what ClipSpec.to_dict wrote") from error


@dataclass(frozen=True, eq=False)
class ClipJob:
    """One clip to be made.

    Attributes:
        spec: what it shows.
        path: where a renderer on this machine leaves it.
        fps: frames a second, one frame a step.
        key: its name in the store, for renderers elsewhere, which put it there.
        size: the longer side in pixels.
    """

    spec: ClipSpec
    path: Path
    fps: int
    key: str = ""
    size: int = CLIP_SIZE


class ReplayRenderer:
    """One environment and its camera, ready to show any episode of that environment.

    ``size`` is the longer side of a picture where the camera is ours to choose, in pixels; ``make`` makes the
    environment instead of :func:`make_env`.

    Raises:
        RenderError: the environment cannot be made or cannot draw itself.
    """

    def __init__(
        self,
        env_id: str,
        kwargs: Mapping[str, Any],
        size: int = CLIP_SIZE,
        make: Callable[[], gym.Env[Any, Any]] | None = None,
    ) -> None:
        self._name, self._size = env_id, size
        prepare_drawing()
        try:
            self._env = make() if make is not None else make_env(env_id, kwargs, render_mode="rgb_array")
        except TeacherError:
            raise
        except Exception as error:
            raise RenderError(
                f"{env_id} cannot be made for rendering: {describe_exception(error)}"
            ) from error
        self._scene: Any = None
        self._is_quick: bool | None = None  # whether our scene shows what the environment would

    def frames(self, spec: ClipSpec) -> Iterator[Frame]:
        """Play the episode and yield a picture after each step to be shown.

        Raises:
            ReplayMismatchError: the episode does not come out as it was recorded.
            RenderError: the environment gave no picture.
        """
        try:
            for index, step in enumerate(replay(spec.recipe, self._env)):
                if index >= spec.start:
                    if spec.digests is not None:
                        _check(step.observation, spec.digests[index - spec.start], index, spec.recipe)
                    yield self._draw()
        except TeacherError:
            raise
        except Exception as error:  # an environment may raise anything
            raise RenderError(
                f"{self._name} failed while it was rendered: {describe_exception(error)}"
            ) from error

    def close(self) -> None:
        """Close the environment and free the OpenGL context."""
        if self._scene is not None:
            self._scene.close()
        self._env.close()

    def _draw(self) -> Frame:
        if self._is_quick is None:
            self._is_quick = draws_as_gymnasium(self._env)
        if not self._is_quick:
            if hasattr(self._env.unwrapped, "mujoco_renderer"):
                select_gl()
            return as_frame(self._env.render(), self._name)
        bare: Any = self._env.unwrapped
        if self._scene is None:
            # Not at the top: a process that only trains must not touch OpenGL, which may be missing.
            from teacher.clips.scene import MujocoScene  # noqa: PLC0415

            self._scene = MujocoScene(bare.model, bare.mujoco_renderer.default_cam_config, self._size)
        return cast(Frame, self._scene.draw(bare.data))


def render(job: ClipJob) -> None:
    """Encode a clip as an mp4 at ``job.path``, in this process.

    Raises:
        ReplayMismatchError: the replay differs from what was recorded.
        RenderError: the environment cannot be drawn, or the clip cannot be encoded or written.
    """
    with contextlib.closing(frames_of(job.spec, job.size)) as frames:
        encode(frames, job.path, job.fps, job.size)


def frames_of(spec: ClipSpec, size: int = CLIP_SIZE) -> Generator[Frame, None, None]:
    """Yield a picture after each step to be shown: those captured, else those of a replay.

    Raises:
        ReplayMismatchError: the replay differs from what was recorded.
        RenderError: the environment cannot be drawn, or a captured picture is damaged.
    """
    if spec.frames is not None:
        yield from captured(spec.frames)
        return
    with contextlib.closing(ReplayRenderer(spec.recipe.env_id, spec.recipe.kwargs, size)) as renderer:
        yield from renderer.frames(spec)


def captured(frames: Iterable[bytes]) -> Iterator[Frame]:
    """Yield pictures from JPEG files, all as large as the first.

    Raises:
        RenderError: one is damaged, or of another size.
    """
    shape: tuple[int, ...] | None = None
    for data in frames:
        try:
            with Image.open(io.BytesIO(data), formats=("JPEG",)) as image:
                if math.prod(image.size) > _MOST_PIXELS:
                    raise ValueError(f"it has {image.size[0]} by {image.size[1]} pixels")
                frame = np.asarray(image.convert("RGB"))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise RenderError(f"a captured picture cannot be read: {describe_exception(error)}") from error
        shape = shape or frame.shape
        if frame.shape != shape:
            raise RenderError(f"expected captured pictures of one shape, got {shape} and {frame.shape}")
        yield frame


def _digest(observation: NDArray[Any]) -> str:
    return hashlib.blake2b(observation.tobytes(), digest_size=8).hexdigest()


def _check(observation: NDArray[Any], recorded: str, step: int, recipe: EpisodeRecipe) -> None:
    if _digest(observation) == recorded:
        return
    now = library_versions()
    raise ReplayMismatchError(
        f"{recipe.env_id} does not replay: the observation before step {step} differs from the recorded one "
        f"(recorded with {_listed(recipe.versions)}; replayed with {_listed(now)}); "
        "replay with the recorded versions on the same kind of machine, or train with --capture_frames"
    )


def _listed(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())
