"""The pool outlives hangs, crashes and failures of what it renders, and never outlives its parent."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from teacher.clips import ClipJob, ClipRenderer, ClipSpec
from teacher.clips.pool import time_limit
from teacher.data.segments import Segment
from teacher.envs.recipe import EpisodeRecipe
from teacher.envs.registry import register_again, registration_of
from teacher.errors import RenderError, ReplayMismatchError
from tests.teacher.clips.conftest import record
from tests.waiting import wait_until

Record = Callable[..., Segment]
Started = Callable[[], list[int]]


@pytest.fixture
def started() -> Started:
    """The rendering processes that this process has started since the test began."""
    before = rendering_processes(os.getpid())
    return lambda: [process for process in rendering_processes(os.getpid()) if process not in before]


@pytest.fixture
def wait_for_clips(renderer: ClipRenderer, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Has the renderer wait so many seconds for each clip that it begins with from then on."""
    return lambda seconds: monkeypatch.setattr(renderer, "_timeout", seconds)


def job(segment: Segment, path: Path) -> ClipJob:
    return ClipJob(ClipSpec.of(segment), path, 10)


def test_many_clips_come_out(renderer: ClipRenderer, troubled: str, tmp_path: Path) -> None:
    segments = [record(troubled), record("CartPole-v1", start=0, length=5), record(troubled, seed=6)]
    specs = [*map(ClipSpec.of, segments), ClipSpec(segments[0].recipe)]
    futures = [renderer.submit(ClipJob(spec, tmp_path / f"{i}.mp4", 10)) for i, spec in enumerate(specs)]
    for index, future in enumerate(futures):
        assert future.result(240) == tmp_path / f"{index}.mp4"
        assert future.result().stat().st_size > 500


@pytest.mark.parametrize(("steps", "start", "limit"), [(50, 0, 25.0), (60, 10, 25.0), (200, 13, 93.5)])
def test_long_clips_have_more_time(steps: int, start: int, limit: float, tmp_path: Path) -> None:
    spec = ClipSpec(EpisodeRecipe("Any-v0", {}, 0, np.zeros((steps, 1))), start)
    assert time_limit(ClipJob(spec, tmp_path / "clip.mp4", 10), 25.0) == pytest.approx(limit)


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        ("hang", "took more than 0.5 s and was stopped"),
        ("crash", "the process rendering clip.mp4 died"),
        ("abort", "died: the physics engine gave up"),
        ("fail", "ValueError: the robot fell apart"),
    ],
)
def test_trouble_is_reported_and_the_next_clip_comes(
    renderer: ClipRenderer,
    wait_for_clips: Callable[[float], None],
    *,
    troubled: str,
    tmp_path: Path,
    trouble: str,
    words: str,
) -> None:
    wait_for_clips(0.5 if trouble == "hang" else 120.0)
    future = renderer.submit(job(record(troubled, trouble=trouble, at=9), tmp_path / "clip.mp4"))
    with pytest.raises(RenderError, match=words) as caught:
        future.result(240)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "clip.mp4").exists()
    wait_for_clips(120.0)
    assert renderer.submit(job(record(troubled), tmp_path / "next.mp4")).result(240).exists()


@pytest.mark.parametrize("trouble", ["hang", "crash", "fail"])
def test_trouble_that_passes_is_overcome(
    renderer: ClipRenderer,
    wait_for_clips: Callable[[float], None],
    troubled: str,
    tmp_path: Path,
    trouble: str,
) -> None:
    segment = record(troubled, trouble=trouble, at=9, once=str(tmp_path / "once"))
    wait_for_clips(0.5 if trouble == "hang" else 120.0)
    clip = renderer.submit(job(segment, tmp_path / "clip.mp4"))
    wait_until((tmp_path / "once").exists)
    wait_for_clips(120.0)  # the second time
    assert clip.result(240).exists()
    assert [path.suffix for path in tmp_path.glob("*clip*")] == [".mp4"]


def test_killed_process_replaced(troubled: str, tmp_path: Path, started: Started) -> None:
    with ClipRenderer(workers=1) as renderer:
        renderer.submit(job(record(troubled), tmp_path / "before.mp4")).result(240)
        (worker,) = started()
        os.kill(worker, signal.SIGKILL)
        assert renderer.submit(job(record(troubled), tmp_path / "after.mp4")).result(240).exists()
        assert started() != [worker]


def test_a_mismatch_is_reported_as_one(renderer: ClipRenderer, tmp_path: Path) -> None:
    segment = record("CartPole-v1", start=0, length=5)
    segment.observations[2] += 1
    with pytest.raises(ReplayMismatchError, match="observation before step 2 differs"):
        renderer.submit(job(segment, tmp_path / "clip.mp4")).result(240)


def test_reused_environments_replay_exactly(renderer: ClipRenderer, tmp_path: Path) -> None:
    # The worker keeps one hopper for all of these; a difference in the last bit would be refused.
    segments = [record("ShortHopper-v1", seed=seed, start=20 * seed, length=3) for seed in (3, 1, 2)]
    for segment in [*segments, segments[0]]:
        renderer.submit(job(segment, tmp_path / "clip.mp4")).result(240)


def test_closing_kills_hung_clip(troubled: str, tmp_path: Path, started: Started) -> None:
    renderer = ClipRenderer(workers=1)
    hanging = record(troubled, trouble="hang", at=1, once=str(tmp_path / "hangs"))
    hung = renderer.submit(job(hanging, tmp_path / "a"))
    waiting = renderer.submit(job(record(troubled), tmp_path / "b.mp4"))
    wait_until((tmp_path / "hangs").exists)
    (worker,) = started()
    closed_at = time.monotonic()
    renderer.close()
    assert time.monotonic() - closed_at < 240  # the clip would hang for longer
    with pytest.raises(RenderError):
        hung.result(240)
    with pytest.raises(CancelledError):
        waiting.result(240)
    assert not is_running(worker)
    with pytest.raises(RenderError, match="closed"):
        renderer.submit(job(record(troubled), tmp_path / "c.mp4"))


def test_nothing_starts_before_the_first_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    monkeypatch.setattr("teacher.clips.pool.subprocess.Popen", lambda command, **_: started.append(command))
    ClipRenderer(workers=2).close()  # which waits for what it has begun
    assert started == []


def test_worker_imports_little(renderer: ClipRenderer, troubled: str, tmp_path: Path) -> None:
    future = renderer.submit(job(record(troubled, trouble="tell", at=1), tmp_path / "clip.mp4"))
    with pytest.raises(RenderError, match=r"died: \[\]$"):
        future.result(240)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_workers_die_with_parent(troubled: str, tmp_path: Path, how: signal.Signals) -> None:
    (tmp_path / "segment").write_bytes(
        record(troubled, trouble="hang", at=2, once=str(tmp_path / "hangs")).to_bytes()
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=subprocess.PIPE,
    )
    with parent:
        wait_until((tmp_path / "hangs").exists)
        (worker,) = rendering_processes(parent.pid)
        parent.send_signal(how)
        parent.communicate(timeout=240)
    wait_until(lambda: not is_running(worker))


_PARENT = """
import sys
from pathlib import Path
from teacher.clips import ClipJob, ClipRenderer, ClipSpec
from teacher.clips.pool import time_limit
from teacher.data.segments import Segment
folder = Path(sys.argv[1])
segment = Segment.from_bytes((folder / "segment").read_bytes())
ClipRenderer(workers=1).submit(ClipJob(ClipSpec.of(segment), folder / "a.mp4", 10)).result()
"""


def rendering_processes(parent: int) -> list[int]:
    children = Path(f"/proc/{parent}/task").glob("*/children")
    found = [int(child) for path in children for child in path.read_text().split()]
    return [child for child in found if b"teacher.clips.worker" in command_line(child)]


def command_line(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


def is_running(process: int) -> bool:
    return command_line(process) != b""  # a zombie has none


SCRIPT = """
import sys
from pathlib import Path
import gymnasium as gym
import numpy as np
from teacher.clips import ClipJob, ClipRenderer, ClipSpec
from teacher.clips.pool import time_limit
from teacher.envs.recipe import EpisodeRecipe

class Dark(gym.Env):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    observation_space = gym.spaces.Box(0, 9, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 0.0, False, False, {}

    def render(self):
        return np.zeros((50, 70, 3), np.uint8)

gym.register("Dark-v0", Dark, max_episode_steps=9)

if __name__ == "__main__":
    recipe = EpisodeRecipe("Dark-v0", {}, 1, np.zeros(3, int))
    with ClipRenderer(1) as renderer:
        print(renderer.submit(ClipJob(ClipSpec(recipe), Path(sys.argv[1]), 10)).result())
"""


def test_an_environment_of_the_script_is_drawn(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "run.py"), str(tmp_path / "clip.mp4")]
    subprocess.run(command, check=True, capture_output=True, cwd=tmp_path)
    assert (tmp_path / "clip.mp4").stat().st_size > 500


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """A script without a guard, with an environment and a transform."""
    module = ModuleType("__main__")
    module.__file__ = str(tmp_path / "run.py")
    (tmp_path / "run.py").write_text(SCRIPT.replace('if __name__ == "__main__"', "if True"))
    module.__dict__["Dark"] = type("Dark", (gym.Env,), {"__module__": "__main__"})
    monkeypatch.setitem(sys.modules, "__main__", module)
    monkeypatch.setitem(gym.registry, "Dark-v0", gym.envs.registration.EnvSpec("Dark-v0", module.Dark))
    return module


@pytest.mark.parametrize("env_id", ["Dark-v0", "__main__:Dark-v0", "CartPole-v1"])
def test_environment_of_an_unguarded_script_is_refused(main: ModuleType, env_id: str) -> None:
    kwargs = {"obs_transform": "__main__:cells"} if env_id == "CartPole-v1" else {}
    name = "cells" if kwargs else "Dark-v0"
    with pytest.raises(RenderError) as refused:
        registration_of(env_id, kwargs)
    assert str(refused.value) == (
        f"{name} is defined in the script run.py, which does not start its work in "
        'if __name__ == "__main__":, so the processes that render clips '
        f"don't have it; put it into a module, such as my_module.py, and pass my_module:{name}"
    )
    del main.__file__
    with pytest.raises(RenderError, match="is defined in a notebook or an interactive session, so the"):
        registration_of(env_id, kwargs)


def test_another_process_gets_the_environment_of_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = gym.envs.registration.EnvSpec("CartPole-v1", "teacher.envs.dot:MovingDot", kwargs={"size": 3})
    monkeypatch.setitem(gym.registry, "CartPole-v1", spec)
    data = registration_of("CartPole-v1", {})
    monkeypatch.undo()
    assert gym.spec("CartPole-v1").entry_point != spec.entry_point
    monkeypatch.setitem(gym.registry, "CartPole-v1", gym.spec("CartPole-v1"))
    register_again(data)
    assert gym.spec("CartPole-v1") == spec


def test_an_environment_that_no_import_registers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made: Any = lambda **settings: None  # noqa: E731
    monkeypatch.setitem(gym.registry, "Made-v0", gym.envs.registration.EnvSpec("Made-v0", made))
    data = registration_of("Made-v0", {})
    monkeypatch.undo()
    with pytest.raises(
        RenderError, match=r"put it into a module, such as my_module\.py, and pass my_module:Made"
    ):
        register_again(data)
