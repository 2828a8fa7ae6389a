"""What a render worker does with a request, and what it refuses."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from teacher import render_tasks
from teacher.clips import ClipJob, Shot
from teacher.render_tasks import clip_request, render_clip
from teacher.segments import Segment
from teacher.storage import open_storage

Request = dict[str, Any]


@pytest.fixture
def request_of(
    s3_server: Any, tmp_path: Path, record: Callable[..., Segment], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], Request]]:
    """A request for a clip of an environment, in a worker for the bucket's folder of this test."""
    store = f"s3://{s3_server.bucket}/{tmp_path.name}"
    for name, value in {**s3_server.environment(), "TEACHER_STORAGE": store}.items():
        monkeypatch.setenv(name, value)

    def request(env_id: str) -> Request:
        shot = Shot.of(record(env_id, start=0, length=5))
        return clip_request(ClipJob(shot, tmp_path / "unused", 10, "reach/1b4e/first.mp4"), f"{store}/lab")

    yield request
    if render_tasks._renderer.cache_info().currsize:
        render_tasks._renderer().close()
        render_tasks._renderer.cache_clear()


def test_a_clip_is_in_the_store_when_the_task_ends(request_of: Callable[[str], Request]) -> None:
    request = request_of("CartPole-v1")
    answer = render_clip(request)
    storage = open_storage(request["storage"])
    assert answer == {"bytes": storage.size("reach/1b4e/first.mp4")}
    assert answer["bytes"] > 500


def test_a_clip_that_is_there_is_not_made_again(request_of: Callable[[str], Request], tmp_path: Path) -> None:
    request = request_of("CartPole-v1")
    (tmp_path / "clip").write_bytes(b"an earlier one")
    open_storage(request["storage"]).put(request["key"], tmp_path / "clip")
    assert render_clip(request) == {"bytes": len(b"an earlier one")}


def test_a_module_is_imported_only_where_it_is_listed(
    request_of: Callable[[str], Request], troubled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = request_of(troubled)
    assert "TEACHER_RENDER_MODULES of this render worker does not list" in render_clip(request)["error"]
    monkeypatch.setenv("TEACHER_RENDER_MODULES", "another, troubled_environment")
    assert render_clip(request)["bytes"] > 500


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"storage": "s3://elsewhere"}, "expected clips for s3://clips/"),
        ({"storage": "/etc"}, "expected clips for s3://clips/"),
        ({"key": "../../first.mp4"}, "expected a key such as"),
        ({"fps": 10_000}, "expected at most 5000 frames, 240 a second"),
        ({"size": 100_000}, "expected at most 5000 frames"),
        ({"size": None}, "not a request for a clip"),
        ({"shot": {}}, "not a shot"),
        ({"shot": None}, "not a shot"),
    ],
)
def test_what_a_worker_should_not_do_is_refused(
    request_of: Callable[[str], Request], changes: Request, words: str
) -> None:
    answer = render_clip({**request_of("CartPole-v1"), **changes})
    assert list(answer) == ["error"]
    assert words in answer["error"]
    assert "\n" not in answer["error"]


def test_a_store_beside_its_own_is_refused(request_of: Callable[[str], Request]) -> None:
    request = request_of("CartPole-v1")
    beside = os.environ["TEACHER_STORAGE"] + "-of-others"
    assert "expected clips for" in render_clip({**request, "storage": beside})["error"]


def test_too_long_a_clip_is_refused(
    request_of: Callable[[str], Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(render_tasks, "_MAX_FRAMES", 4)
    assert "got 5, 10 and 400" in render_clip(request_of("CartPole-v1"))["error"]


def test_a_shot_survives_the_journey(record: Callable[..., Segment]) -> None:
    shot = Shot.of(record("CartPole-v1", start=2, length=5))
    again = Shot.from_dict(shot.to_dict())
    assert (again.start, again.digests) == (2, shot.digests)
    assert again.recipe.to_json() == shot.recipe.to_json()
    assert Shot.from_dict(replace(shot, digests=None).to_dict()).digests is None


@pytest.mark.parametrize(
    ("missing", "words"),
    [("REDIS_URL", "render worker: expected REDIS_URL"), ("TEACHER_STORAGE", "expected TEACHER_STORAGE")],
)
def test_a_worker_without_its_settings_does_not_start(missing: str, words: str, tmp_path: Path) -> None:
    settings = {"REDIS_URL": "redis://127.0.0.1:1/0", "TEACHER_STORAGE": "s3://clips"}
    environment = {**os.environ, **settings, "PYTHONPATH": str(Path.cwd())}
    environment.pop(missing)
    command = [sys.executable, "-m", "celery", "--app", "teacher.render_tasks", "worker"]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode != 0
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_worker_needs_neither_torch_nor_django() -> None:
    program = (
        "import sys\n"
        "sys.modules |= dict.fromkeys(['torch', 'django', 'human_feedback_site', 'agents'])\n"
        "import teacher.render_tasks, teacher.clips.worker\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
