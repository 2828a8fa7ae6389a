"""A clip shows exactly the recorded steps, with the body in sight, as a video that every browser plays."""

import dataclasses
import math
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from teacher.clips import CLIP_SIZE, ClipJob, ClipSpec, render
from teacher.clips.encode import Frame, encode
from teacher.clips.scene import MujocoScene
from teacher.data.segments import Segment
from teacher.envs.make import make_env
from teacher.envs.recipe import library_versions
from teacher.errors import RenderError, ReplayMismatchError
from tests.teacher.clips.conftest import inspect_mp4, record

Record = Callable[..., Segment]
Inspect = Callable[[Path], Any]


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    return tmp_path / "new folder" / "first.mp4"


def test_a_clip_is_what_browsers_play(clip: Path) -> None:
    render(ClipJob(ClipSpec.of(record("Hopper-v5")), clip, 40))
    video = inspect_mp4(clip)
    names = [name for name, _ in video.boxes]
    assert names.index("moov") < names.index("mdat"), "a browser would have to load all before it starts"
    assert "avc1" in names
    assert [content[8:12] for name, content in video.boxes if name == "hdlr"] == [b"vide"], "no audio"
    assert "yuv420p(tv, bt709" in video.probe
    assert clip.stat().st_size < 100_000


def test_frame_per_step_and_held_last(clip: Path) -> None:
    render(ClipJob(ClipSpec.of(record("ShortHopper-v1", length=30)), clip, 40))
    video = inspect_mp4(clip)
    assert video.pictures.shape == (30 + 8, CLIP_SIZE, CLIP_SIZE, 3)
    assert video.seconds == pytest.approx(38 / 40, abs=0.002)
    change = np.abs(np.diff(video.pictures.astype(int), axis=0)).mean((1, 2, 3))
    assert change[:29].min() > 2 * change[30:].max(), "all steps move, the held frames do not"


@pytest.mark.parametrize("fps", [10, 20, 30])
def test_the_hold_lasts_a_fifth_of_a_second(troubled: str, clip: Path, fps: int) -> None:
    render(ClipJob(ClipSpec.of(record(troubled)), clip, fps))
    assert len(inspect_mp4(clip).pictures) == 12 + math.ceil(0.2 * fps)


def test_the_frames_are_those_after_each_step(troubled: str, clip: Path) -> None:
    # This environment draws ten times the number of its steps as a shade of gray.
    render(ClipJob(ClipSpec.of(record(troubled, start=4, length=5)), clip, 10))
    shades = inspect_mp4(clip).pictures.mean((1, 2, 3))
    assert shades == pytest.approx([50, 60, 70, 80, 90, 90, 90], abs=3)


def test_sizes_are_even(troubled: str, clip: Path) -> None:
    render(ClipJob(ClipSpec.of(record(troubled)), clip, 10))
    _, height, width, _ = inspect_mp4(clip).pictures.shape
    assert (width, height) == (400, 286)  # of 70 x 50


def test_a_whole_episode_is_shown(clip: Path) -> None:
    recipe = record("ShortReacher-v1", start=0, length=20).recipe
    render(ClipJob(ClipSpec(recipe), clip, 10))
    assert len(inspect_mp4(clip).pictures) == 22


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "Acrobot-v1", "LunarLander-v3"])
def test_others_draw_themselves(clip: Path, env_id: str) -> None:
    actions = [0, 1] * 8 if env_id == "CartPole-v1" else None  # it must not end early
    render(ClipJob(ClipSpec.of(record(env_id, actions=actions)), clip, 30))
    pictures = inspect_mp4(clip).pictures
    assert max(pictures.shape[1:3]) == CLIP_SIZE
    assert (pictures[0] != pictures[11]).any()


def test_another_episode_is_refused(clip: Path) -> None:
    segment = record("ShortHopper-v1")
    nudged = segment.observations.copy()
    nudged[7, 3] = np.nextafter(nudged[7, 3], np.inf)
    with pytest.raises(ReplayMismatchError, match="observation before step 11 differs") as caught:
        render(ClipJob(ClipSpec.of(dataclasses.replace(segment, observations=nudged)), clip, 40))
    assert not clip.exists()
    assert list(clip.parent.glob("*")) == []
    assert "\n" not in str(caught.value)


def test_a_mismatch_names_both_versions(clip: Path) -> None:
    segment = record("ShortHopper-v1")
    recipe = dataclasses.replace(segment.recipe, seed=6, versions={"mujoco": "3.0.0"})
    with pytest.raises(ReplayMismatchError) as caught:
        render(ClipJob(ClipSpec.of(dataclasses.replace(segment, recipe=recipe)), clip, 40))
    assert "recorded with mujoco 3.0.0" in str(caught.value)
    assert f"mujoco {library_versions()['mujoco']}" in str(caught.value)


def test_a_failing_environment_is_one_line(troubled: str, clip: Path) -> None:
    segment = record(troubled, trouble="fail", at=7)
    with pytest.raises(
        RenderError, match="failed while a clip was being rendered: ValueError: the robot fell apart"
    ):
        render(ClipJob(ClipSpec.of(segment), clip, 10))
    assert not clip.exists()


def test_an_unknown_environment_is_one_line(clip: Path) -> None:
    recipe = dataclasses.replace(record("Hopper-v5").recipe, env_id="Hoper-v5")
    with pytest.raises(RenderError, match="cannot make Hoper-v5 with render_mode='rgb_array'") as caught:
        render(ClipJob(ClipSpec(recipe), clip, 40))
    assert "\n" not in str(caught.value)


def test_a_folder_that_cannot_be_made_is_one_line(clip: Path) -> None:
    clip.parent.write_text("a file where the folder should be")
    with pytest.raises(RenderError, match=r"cannot write the clip .*first\.mp4: File exists"):
        render(ClipJob(ClipSpec.of(record("CartPole-v1", start=0, length=3)), clip, 10))


def test_a_full_disk_is_one_line_and_leaves_the_old_clip(clip: Path) -> None:
    segment = record("Hopper-v5", length=3)
    render(ClipJob(ClipSpec.of(segment), clip, 10))
    before = clip.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    try:
        with pytest.raises(RenderError, match=r"^ffmpeg could not write [^\n]*$"):
            render(ClipJob(ClipSpec.of(segment), clip, 10))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert clip.read_bytes() == before
    assert list(clip.parent.iterdir()) == [clip]


def test_concurrent_renders_leave_a_whole_clip(clip: Path) -> None:
    shades = [np.full((32, 48, 3), 25 * number, np.uint8) for number in range(9)]

    def while_another_makes_it() -> Iterator[Frame]:
        yield from shades[:4]
        encode(shades[:2], clip, 10, 48)
        assert len(inspect_mp4(clip).pictures) == 2 + 2
        yield from shades[4:]

    encode(while_another_makes_it(), clip, 10, 48)
    assert len(inspect_mp4(clip).pictures) == 9 + 2
    assert list(clip.parent.iterdir()) == [clip]


def test_missing_opengl_says_what_to_install(clip: Path) -> None:
    missing = "from teacher.envs import gl; gl.GL_BACKENDS = ('no_such_backend',)"
    failed = render_elsewhere(record("Hopper-v5", length=3), clip, missing)
    assert "RenderError: MuJoCo clips need headless OpenGL" in failed.splitlines()[-1]
    assert "install libegl1 and libgl1-mesa-dri, or libosmesa6" in failed.splitlines()[-1]


@pytest.mark.parametrize(
    ("drivers", "chosen"), [({}, "egl"), ({"__EGL_VENDOR_LIBRARY_FILENAMES": "/nowhere"}, "osmesa")]
)
def test_osmesa_replaces_broken_egl(clip: Path, drivers: dict[str, str], chosen: str) -> None:
    used = "import os; print(os.environ['MUJOCO_GL'])"
    segment = record("Hopper-v5", length=3)
    assert render_elsewhere(segment, clip, after=used, **drivers).splitlines()[-1] == chosen
    assert inspect_mp4(clip).pictures[0].std() > 10


def test_a_chosen_opengl_that_does_not_work_is_one_line(clip: Path) -> None:
    chosen = {"MUJOCO_GL": "egl", "__EGL_VENDOR_LIBRARY_FILENAMES": "/nowhere"}
    failed = render_elsewhere(record("Hopper-v5", length=3), clip, **chosen)
    assert "RenderError: MuJoCo cannot render with MUJOCO_GL=egl" in failed.splitlines()[-1]


def render_elsewhere(
    segment: Segment, clip: Path, before: str = "", after: str = "", **environment: str
) -> str:
    """Render in a new process, between two statements; what it printed, on either stream."""
    render = f"""
import sys
from pathlib import Path
from teacher.clips import ClipJob, ClipSpec, render
from teacher.data.segments import Segment
segment = Segment.from_bytes(sys.stdin.buffer.read())
{before}
render(ClipJob(ClipSpec.of(segment), Path(sys.argv[1]), 10))
{after}
"""
    chosen_here = {"MUJOCO_GL", "PYOPENGL_PLATFORM"}
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", render, str(clip)],
        input=segment.to_bytes(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        env={name: value for name, value in os.environ.items() if name not in chosen_here} | environment,
    )
    return ended.stdout.decode()


SIZE = 256
TASKS = [
    *("Hopper-v1", "Walker-v1", "Cheetah-v1", "Swimmer-v1", "Ant-v1", "Humanoid-v1", "Reacher-v1"),
    *("InvertedPendulum-v1", "DoublePendulum-v1"),
]


Staged = tuple[Any, MujocoScene]


@pytest.fixture(scope="module")
def stage(request: pytest.FixtureRequest) -> Iterator[tuple[gym.Env[Any, Any], MujocoScene]]:
    """An environment and its scene, for all tests of that environment."""
    with make_env(request.param, {}) as env:
        env.reset(seed=1)
        bare: Any = env.unwrapped
        scene = MujocoScene(bare.model, bare.mujoco_renderer.default_cam_config, SIZE)
        yield env, scene
        scene.close()


@pytest.fixture
def staged(stage: tuple[gym.Env[Any, Any], MujocoScene]) -> Staged:
    """Draw it where it begins."""
    stage[0].reset(seed=1)
    return stage[0].unwrapped, stage[1]


def of(*env_ids: str) -> pytest.MarkDecorator:
    """With the environment that ``staged`` shows."""
    return pytest.mark.parametrize("stage", env_ids, indirect=True, scope="module")


@of(*TASKS)
def test_there_is_no_black_void_and_the_body_stands_out(staged: Staged) -> None:
    env, scene = staged
    picture = scene.draw(env.data).astype(int)
    assert picture.shape == (SIZE, SIZE, 3)
    assert (picture.sum(2) < 60).mean() < 0.01, "black"
    colorful = picture.max(2) - picture.min(2) > 80
    assert 0.004 < colorful.mean() < 0.4, "the body"
    rows, columns = np.nonzero(colorful)
    assert 0.15 * SIZE < rows.mean() < 0.85 * SIZE
    assert 0.25 * SIZE < columns.mean() < 0.75 * SIZE


@of("Hopper-v1", "Cheetah-v1", "Ant-v1", "Humanoid-v1")
def test_the_camera_follows_and_the_ground_shows_it(staged: Staged) -> None:
    env, scene = staged
    here = scene.draw(env.data).astype(int)
    env.data.qpos[0] += 33.25  # a quarter of a metre beside the same tiles
    env.set_state(env.data.qpos, env.data.qvel)
    there = scene.draw(env.data).astype(int)
    moved = np.abs(here - there).max(2) > 8
    body = here.max(2) - here.min(2) > 80
    assert moved[body].mean() < 0.1, "the body stays where it was in the picture"
    assert moved.mean() > 0.05, "the tiles moved"


@of("Hopper-v1")
def test_a_jump_is_seen_as_one(staged: Staged) -> None:
    env, scene = staged
    low = body_row(scene.draw(env.data))
    env.data.qpos[1] += 0.5
    env.set_state(env.data.qpos, env.data.qvel)
    high = body_row(scene.draw(env.data))
    assert low - high > 0.1 * SIZE


@of("Ant-v1")
def test_drawing_leaves_the_model_alone(staged: Staged) -> None:
    env, scene = staged
    before = env.model.geom_rgba.copy(), env.model.geom_size.copy(), env.model.tex_data.copy()
    scene.draw(env.data)
    after = env.model.geom_rgba, env.model.geom_size, env.model.tex_data
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(old, new)


@of("Pusher-v5")
def test_a_model_without_a_view_of_ours_is_drawn_with_its_own(staged: Staged) -> None:
    env, scene = staged
    assert scene.draw(env.data).std() > 10


def body_row(picture: Any) -> float:
    picture = picture.astype(int)
    rows, _ = np.nonzero(picture.max(2) - picture.min(2) > 80)
    return float(rows.mean())
