"""Recorded segments, an environment that misbehaves when told to, and what is inside an mp4."""

import struct
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
import pytest
from numpy.typing import NDArray

from teacher.clips import ClipRenderer
from teacher.data.segments import Segment
from teacher.envs.gl import select_gl
from teacher.envs.make import make_env
from teacher.envs.recipe import EpisodeRecipe

Record = Callable[..., Segment]
Inspect = Callable[[Path], "Mp4"]

_TROUBLED_ENVIRONMENT = '''
"""Counts its steps and draws them; misbehaves in one step, where ``once`` names a file only once."""

import os
import sys
import time
from pathlib import Path

import gymnasium
import numpy as np


class Troubled(gymnasium.Env):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, trouble="", at=0, once="", render_mode=None):
        self.render_mode = render_mode
        self._trouble, self._at, self._once = trouble, at, once

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self._steps = 0
        return np.zeros(2), {}

    def step(self, action):
        self._steps += 1
        # A recording, which does not render, goes well.
        if self.render_mode is not None and self._steps == self._at and not self._gone():
            getattr(self, self._trouble)()
        return np.array([self._steps, action[0]]), 0.0, False, False, {}

    def render(self):
        return np.full((50, 70, 3), 10 * self._steps, np.uint8)

    def _gone(self):
        if not self._once:
            return False
        if Path(self._once).exists():
            return True
        Path(self._once).touch()
        return False

    def hang(self):
        time.sleep(1000)

    def hang_there(self):
        if "REDIS_URL" in os.environ:  # as it is in a render worker
            self.hang()

    def crash(self):
        os._exit(3)

    def abort(self):
        sys.stderr.write("the physics engine gave up\\n")
        os.abort()

    def fail(self):
        raise ValueError("the robot\\nfell apart")

    def fail_here(self):
        if "REDIS_URL" not in os.environ:
            raise ValueError("this machine cannot draw")

    def tell(self):
        print(sorted(name for name in sys.modules if name in ("torch", "tests", "pytest")), file=sys.stderr)
        os._exit(1)


gymnasium.register("Troubled-v0", Troubled, max_episode_steps=100)
'''


@pytest.fixture(scope="session")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of modules that can be imported here and in processes that are started from here."""
    folder = tmp_path_factory.mktemp("modules")
    (folder / "troubled_environment.py").write_text(_TROUBLED_ENVIRONMENT)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield folder


@pytest.fixture
def troubled(modules: Path) -> str:
    """The id of an environment whose ``trouble`` (hang, crash, abort, fail) comes at step ``at``."""
    return "troubled_environment:Troubled-v0"


@pytest.fixture(scope="session")
def renderer(modules: Path) -> Iterator[ClipRenderer]:
    """One renderer for all tests that leave it as they find it."""
    select_gl()  # once for all processes that are started from here
    with ClipRenderer(workers=1) as renderer:
        yield renderer


def record(
    env_id: str, *, seed: int = 5, start: int = 4, length: int = 12, actions: Any = None, **kwargs: Any
) -> Segment:
    """Play random actions, and cut a segment."""
    steps: list[tuple[Any, Any, float]] = []
    with make_env(env_id, kwargs) as env:
        env.action_space.seed(seed)
        observation, _ = env.reset(seed=seed)
        for index in range(start + length):
            action = env.action_space.sample() if actions is None else actions[index]
            after, reward, *_ = env.step(action)
            steps.append((observation, action, float(reward)))
            observation = after
    observations, executed, rewards = (np.array(column) for column in zip(*steps, strict=True))
    recipe = EpisodeRecipe(env_id, kwargs, seed, executed)
    return Segment(recipe, start, observations[start:], executed[start:], rewards[start:])


@dataclass(frozen=True)
class Mp4:
    """Hold a file's boxes in order, and its decoded frames, ``(frames, height, width, 3)``."""

    boxes: list[tuple[str, bytes]]
    pictures: NDArray[np.uint8]
    probe: str

    def box(self, name: str) -> bytes:
        return next(content for kind, content in self.boxes if kind == name)

    @property
    def seconds(self) -> float:
        scale, duration = struct.unpack(">II", self.box("mvhd")[12:20])
        return float(duration / scale)


def inspect_mp4(path: Path) -> Mp4:
    """Take an mp4 apart, and decode it."""
    boxes = list(_boxes(path.read_bytes()))
    width, height = next(struct.unpack(">II", content[-8:]) for kind, content in boxes if kind == "tkhd")
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    decoded = subprocess.run(command, capture_output=True, check=True)
    pictures = np.frombuffer(decoded.stdout, np.uint8).reshape(-1, height >> 16, width >> 16, 3)
    return Mp4(boxes, pictures, decoded.stderr.decode())


def _boxes(data: bytes) -> Iterator[tuple[str, bytes]]:
    while data:
        size, kind = struct.unpack(">I4s", data[:8])
        name, content = kind.decode("latin-1"), data[8:size]
        yield name, content
        if name in {"moov", "trak", "mdia", "minf", "stbl"}:
            yield from _boxes(content)
        elif name == "stsd":
            yield from _boxes(content[8:])
        data = data[size:]
