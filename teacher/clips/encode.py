"""Encoding of frames as H.264 video, which every browser plays, with imageio-ffmpeg's ffmpeg."""

import itertools
import math
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, cast

import imageio_ffmpeg
import numpy as np
from numpy.typing import NDArray

from teacher.errors import RenderError
from teacher.files import part_of

Frame = NDArray[np.uint8]

GIF_FPS = 25  # browsers slow down GIFs with more than 50 frames per second
HOLD_SECONDS = 0.2
"""Seconds to hold the last frame, which shows where a looping clip ends."""


def encode(frames: Iterable[Frame], path: Path, fps: int, size: int) -> None:
    """Encode frames as an MP4 file, or as a GIF if ``path`` ends in ``.gif``, written atomically.

    Args:
        frames: one or more frames, all of the same shape ``(height, width, 3)``.
        size: length of the longer side in pixels; width and height are rounded to even numbers.

    Raises:
        RenderError: ``frames`` is empty, ffmpeg failed, or the file can't be written.
    """
    moving = iter(frames)
    first = next(moving, None)
    if first is None:
        raise RenderError(f"cannot encode {path.name}: there are no frames")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part_of(path) as part:
            command = [*_command(first.shape, fps, size, gif=path.suffix == ".gif"), str(part)]
            _run_ffmpeg(_hold_last(itertools.chain([first], moving), fps), command, part)
    except OSError as error:
        raise RenderError(f"cannot write the clip {path}: {error.strerror or error}") from error


def convert(film: Path, path: Path, fps: int, seconds: float, size: int) -> None:
    """Write the first seconds of a film of any size and frame rate as a clip like those of :func:`encode`.

    Raises:
        RenderError: the film can't be read or is damaged, or the clip can't be written.
    """
    scaling = f"fps={fps},scale={size}:{size}:force_original_aspect_ratio=decrease:force_divisible_by=2"
    command = [
        *(imageio_ffmpeg.get_ffmpeg_exe(), "-loglevel", "error", "-y", "-xerror", "-err_detect", "explode"),
        *("-i", f"file:{film}", "-t", str(seconds), "-map", "0:v:0", "-map_metadata", "-1", "-an"),
        *_encoding(scaling),
    ]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part_of(path) as part:
            command.append(f"file:{part}")
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
            if done.returncode != 0 or not part.stat().st_size:
                words = done.stderr.decode(errors="replace").strip().splitlines()
                reason = words[0].rpartition("] ")[2] if words else "it has no frames"
                raise RenderError(f"{film} is not a readable film: {reason}")
    except OSError as error:
        raise RenderError(f"cannot write the clip {path}: {error.strerror or error}") from error


def fit(width: int, height: int, size: int) -> tuple[int, int]:
    """Scale ``(width, height)`` so that the longer side is ``size``, and round both to even numbers."""
    scale = size / max(width, height)
    return max(2, round(width * scale / 2) * 2), max(2, round(height * scale / 2) * 2)


def _hold_last(frames: Iterable[Frame], fps: int) -> Iterator[Frame]:
    frame: Frame | None = None
    for frame in frames:
        yield frame
    if frame is not None:
        yield from itertools.repeat(frame, math.ceil(HOLD_SECONDS * fps))


def _run_ffmpeg(frames: Iterable[Frame], command: Sequence[str], path: Path) -> None:
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            for frame in frames:
                cast(IO[bytes], process.stdin).write(np.ascontiguousarray(frame).data)
        except BrokenPipeError:
            pass  # ffmpeg exited; its stderr says why
        except BaseException:
            process.kill()
            raise
        words = process.communicate()[1].decode(errors="replace").strip().splitlines()
        if process.returncode != 0:
            raise RenderError(f"ffmpeg could not write {path}: {words[-1] if words else 'no error message'}")


def _command(shape: tuple[int, ...], fps: int, size: int, *, gif: bool) -> list[str]:
    height, width = shape[:2]
    to_width, to_height = fit(width, height, size)
    # Downscaling averages areas for smooth frames. Upscaling keeps the sharp edges of small (Atari) frames.
    scaling = f"scale={to_width}:{to_height}:flags={'area' if to_width < width else 'neighbor'}"
    reading = [
        *(imageio_ffmpeg.get_ffmpeg_exe(), "-loglevel", "error", "-y"),
        *("-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", str(fps), "-i", "pipe:"),
        *("-an", "-threads", "1"),
    ]
    if gif:
        palette = "split[a][b];[a]palettegen[colors];[b][colors]paletteuse"
        return [*reading, "-vf", f"{scaling},fps={min(fps, GIF_FPS)},{palette}", "-f", "gif"]
    return [*reading, *_encoding(scaling)]


def _encoding(scaling: str) -> list[str]:
    """Return ffmpeg's options for an MP4 file that every browser plays."""
    color_tags = "setparams=colorspace=bt709:color_primaries=bt709:color_trc=bt709"
    return [
        *("-c:v", "libx264", "-tag:v", "avc1", "-preset", "veryfast", "-crf", "20"),
        *("-vf", f"{scaling}:out_color_matrix=bt709,{color_tags}", "-pix_fmt", "yuv420p"),
        *("-movflags", "+faststart", "-f", "mp4"),
    ]
