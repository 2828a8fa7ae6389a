"""``teach doctor``: check that everything a run needs works on this machine.

Each check does something that a run does, such as rendering a frame, encoding a clip, writing a file, or
calling the site.
"""

import contextlib
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from rich.console import Console
from rich.markup import escape

from teacher.envs.gl import PACKAGES, install_command
from teacher.errors import (
    ConfigError,
    RenderError,
    SiteRefusedError,
    SiteUnreachableError,
    StorageError,
    one_line,
)
from teacher.extras import EXTRAS
from teacher.settings.arguments import OneLineParser, report_errors
from teacher.settings.variables import REDIS_VARIABLE, TOKEN_VARIABLE, read_redis_url

_GL_SECONDS = 120
_LEAST_FREE = 2**30  # bytes of free disk space
_DRAW = """
from teacher.envs.gl import select_gl
backend = select_gl()
import numpy as np
from teacher.clips.render import ClipSpec, ReplayRenderer
from teacher.envs.recipe import EpisodeRecipe
renderer = ReplayRenderer("ShortHopper-v1", {})
spec = ClipSpec(EpisodeRecipe("ShortHopper-v1", {}, 1, np.zeros((2, 3), np.float32)))
assert all(frame.any() for frame in renderer.frames(spec)), "the frames are black"
print(f"backend={backend}; {renderer.note}", flush=True)
"""
_GL_REMEDY = (
    f"{install_command() or f'install {chr(32).join(PACKAGES)} or their equivalents'}; leave MUJOCO_GL unset"
)
_FFMPEG_REMEDY = (
    "pip install --force-reinstall imageio-ffmpeg (which includes ffmpeg); leave IMAGEIO_FFMPEG_EXE unset"
)

State = Literal["ok", "missing", "optional"]


@dataclass(frozen=True)
class Finding:
    """Result of one check.

    Attributes:
        state: ``ok``; ``missing`` for a failed requirement; ``optional`` for an extra that isn't installed.
        remedy: how to fix the problem; empty if nothing needs fixing.
    """

    about: str
    state: State
    detail: str
    remedy: str = ""


@dataclass(frozen=True)
class Machine:
    """Values of ``teach`` options that the checks depend on.

    Attributes:
        site_url: value of ``--site_url``; None to check the site on this machine.
        storage: value of ``--storage``; None for the site's own clip store, which isn't checked.
    """

    runs_dir: str
    state_dir: str
    site_url: str | None
    storage: str | None


class _MissingError(Exception):
    """Raised by a check if a requirement is missing, with the detail and the remedy."""


def examine(machine: Machine) -> Iterator[Finding]:
    """Run the checks one at a time and yield their results; a check can take several seconds."""
    checks: dict[str, Callable[[], str]] = {
        "Python": _python,
        "OpenGL": _opengl,
        "ffmpeg": _ffmpeg,
        "runs": lambda: _folder(machine.runs_dir, "--runs_dir"),
    }
    if machine.site_url is None:
        checks["site's folder"] = lambda: _folder(machine.state_dir, "--state_dir")
    if machine.storage is not None:
        checks["storage"] = lambda: _storage(machine.storage or "")
    checks |= {"labeling site": lambda: _site(machine), "Redis": lambda: _redis(machine)}
    yield from itertools.starmap(look, checks.items())
    for name, (module, purpose) in EXTRAS.items():
        if find_spec(module) is not None:
            yield Finding(name, "ok", f"installed, for {purpose}")
        else:
            remedy = f"pip install 'rl-teacher[{name}]'"
            yield Finding(name, "optional", f"not installed, needed for {purpose}", remedy)


def look(about: str, check: Callable[[], str]) -> Finding:
    """Run one check, which returns the detail or raises an exception, and return its result."""
    try:
        return Finding(about, "ok", check())
    except _MissingError as missing:
        return Finding(about, "missing", *missing.args)


def _python() -> str:
    import torch  # noqa: PLC0415 - each check does its own imports, so that earlier results show at once

    device = f"{torch.cuda.get_device_name()} (cuda)" if torch.cuda.is_available() else "the CPU"
    version = ".".join(map(str, sys.version_info[:3]))
    return f"{version}, with torch {torch.__version__} on {device}"


def _opengl() -> str:
    """Check that MuJoCo can render a clip, and say which renderer draws the built-in tasks.

    The clip is rendered in a subprocess, because a faulty graphics driver can crash the process.
    """
    chosen = os.environ.get("MUJOCO_GL")
    try:
        drawn = subprocess.run(
            [sys.executable, "-c", _DRAW], capture_output=True, text=True, timeout=_GL_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise _MissingError(f"MuJoCo rendered no frame within {_GL_SECONDS} s", _GL_REMEDY) from error
    # Libraries may print more lines before and after this one.
    backend = next((line for line in drawn.stdout.splitlines() if line.startswith("backend=")), "")
    if drawn.returncode == 0:
        return f"renders MuJoCo with {backend.removeprefix('backend=')}"
    words = drawn.stderr.strip().splitlines() or [f"killed by signal {-drawn.returncode}"]
    why = next((line for line in reversed(words) if "Error" in line), words[-1])
    by = f"with MUJOCO_GL={chosen}: " if chosen else ""
    raise _MissingError(f"cannot render MuJoCo {by}{one_line(why)[:200]}", _GL_REMEDY)


def _ffmpeg() -> str:
    import numpy as np  # noqa: PLC0415

    from teacher.clips.encode import encode  # noqa: PLC0415

    frame = np.zeros((16, 16, 3), np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clip.mp4"
        try:
            encode([frame, frame], path, fps=10, size=16)
            size = path.stat().st_size
        except (RenderError, RuntimeError) as error:  # RuntimeError: imageio-ffmpeg found no ffmpeg
            raise _MissingError(one_line(error)[:200], _FFMPEG_REMEDY) from error
    return f"encodes clips (a test clip has {size} bytes)"


def _folder(name: str, option: str) -> str:
    """Check that a folder, or its nearest existing parent, is writable and has free space."""
    folder = Path(name).absolute()
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    remedy = f"choose another folder with {option}, or take ownership: chown -R $USER {nearest}"
    try:
        with tempfile.TemporaryFile(dir=nearest):
            free = shutil.disk_usage(nearest).free
    except OSError as error:
        raise _MissingError(f"{folder} is not writable: {error.strerror}", remedy) from error
    if free < _LEAST_FREE:
        raise _MissingError(f"{folder} has only {free / 2**20:.0f} MB free", "free up disk space")
    return f"{folder} is writable, {free / 2**30:.0f} GB free"


def _storage(url: str) -> str:
    """Upload a test file to the clip store, and check that the store then contains it."""
    from teacher.storage import open_storage  # noqa: PLC0415

    key = "doctor/check.mp4"
    where = (
        "set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and, if the server isn't Amazon's, S3_ENDPOINT_URL; "
        "create the bucket with teach site setup_storage"
        if "://" in url
        else "choose another folder with --storage"
    )
    try:
        store = open_storage(url)
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"teach doctor")
            file.flush()
            store.put(key, Path(file.name))
        if store.size(key) is None:
            raise _MissingError(f"{url} accepted a test file, but does not contain it", where)
        with contextlib.suppress(StorageError):  # a trainer may not have permission to delete
            store.remove(key)
    except (StorageError, ConfigError) as error:
        raise _MissingError(one_line(error), where) from error
    return f"{url} accepts clips"


def _site(machine: Machine) -> str:
    """Check the site at ``--site_url`` if given; otherwise, check this machine's site if it is running."""
    from teacher.labeling.client import FeedbackClient  # noqa: PLC0415
    from teacher.labeling.embedded_site import find_running_site  # noqa: PLC0415

    url, token = machine.site_url, os.environ.get(TOKEN_VARIABLE)
    if url is None:
        running = find_running_site(Path(machine.state_dir))
        if running is None:
            return "not running; the first run with -p human starts it on this machine"
        url, token = running
    if not token:
        remedy = f"on the site, run teach site token USER, and set {TOKEN_VARIABLE} to the token"
        raise _MissingError(f"{url} needs a token, and {TOKEN_VARIABLE} is not set", remedy)
    try:
        with contextlib.closing(FeedbackClient(url, token)) as client:
            client.check()
    except SiteUnreachableError as error:
        remedy = "check the URL, and start the site if it isn't running"
        raise _MissingError(one_line(error), remedy) from error
    except SiteRefusedError as error:
        message, _, remedy = one_line(error).partition("; ")
        raise _MissingError(message, remedy or "check the URL") from error
    return f"{url} responds and accepts the token"


def _redis(machine: Machine) -> str:
    try:
        url = read_redis_url()
    except ConfigError as error:
        raise _MissingError(one_line(error), f"fix {REDIS_VARIABLE}, or leave it unset") from error
    if url is None:
        return f"not used: clips are rendered on this machine ({REDIS_VARIABLE} is not set)"
    import redis  # noqa: PLC0415

    host = urlsplit(url).hostname
    try:
        with redis.Redis.from_url(url, socket_connect_timeout=5, socket_timeout=5) as server:
            server.ping()
    except redis.RedisError as error:
        reason = type(error).__name__  # its message may contain the password
        remedy = (
            f"start Redis, fix {REDIS_VARIABLE}, or unset {REDIS_VARIABLE} to render clips on this machine"
        )
        raise _MissingError(f"{host} does not respond ({reason})", remedy) from error
    if not (machine.storage or "").startswith("s3://"):
        return f"{host} responds, but render workers need --storage s3://bucket/prefix"
    return f"{host} responds"


_SHOWN = {"ok": "[green]ok[/]      ", "missing": "[bold red]missing[/] ", "optional": "[dim]optional[/]"}


def _print(finding: Finding, console: Console) -> None:
    console.print(f"{_SHOWN[finding.state]}  {finding.about:<14} {escape(finding.detail)}", highlight=False)
    if finding.remedy:
        console.print(f"{'':25}{escape(finding.remedy)}", style="yellow", highlight=False)


def main(arguments: Sequence[str]) -> int:
    """Run ``teach doctor`` and return the exit status, which is 1 if a requirement is missing."""
    parser = OneLineParser(
        prog="teach doctor",
        description="Check that everything a run needs works on this machine, and show how to fix problems.",
        epilog="For a labeling site on another machine, pass the same --site_url and --storage as for teach.",
    )
    parser.add_argument("--site_url", help="URL of the labeling site (default: this machine's site)")
    parser.add_argument(
        "--storage",
        default=os.environ.get("TEACHER_STORAGE") or None,
        help="clip store: s3://bucket/prefix or a folder (default: TEACHER_STORAGE if set)",
    )
    parser.add_argument("--state_dir", default="state", help="folder of this machine's site (default: state)")
    parser.add_argument("--runs_dir", default="runs", help="parent folder of all runs (default: runs)")
    given = parser.parse_args(arguments)
    console = Console(soft_wrap=True)

    def work() -> int:
        missing = 0
        for finding in examine(Machine(given.runs_dir, given.state_dir, given.site_url, given.storage)):
            _print(finding, console)
            missing += finding.state == "missing"
        things = "requirement is" if missing == 1 else "requirements are"
        console.print(f"\n{missing} {things} missing." if missing else "\nNothing is missing.")
        return int(missing > 0)

    return report_errors(parser, work)
