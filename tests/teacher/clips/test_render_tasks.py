"""Test what a render worker does with a request, and what it refuses."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from prometheus_client import CollectorRegistry, values
from prometheus_client.multiprocess import MultiProcessCollector

from teacher.clips import ClipJob, ClipSpec
from teacher.clips import tasks as render_tasks
from teacher.clips.metrics import FAILURE_KINDS, Exporter, read_bind
from teacher.clips.tasks import clip_request, render_clip
from tests.servers import assert_silence_is_given_up
from tests.teacher.clips.conftest import record
from tests.waiting import completed

Request = dict[str, Any]


@pytest.fixture(scope="module", autouse=True)
def _worker(modules: Path) -> Iterator[None]:
    """Return what a worker keeps, its renderer and its way to the store, goes at the end."""
    yield
    render_tasks._store.cache_clear()
    if render_tasks._renderer.cache_info().currsize:
        render_tasks._renderer().close()
        render_tasks._renderer.cache_clear()


@pytest.fixture
def request_of(s3_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Request]:
    """A request for a new clip of an environment, in a worker for a folder of the bucket."""
    store, key = f"s3://{s3_server.bucket}/tasks", f"reach/{uuid4()}/first.mp4"
    s3_server.use(monkeypatch)
    monkeypatch.setenv("TEACHER_STORAGE", store)

    def request(env_id: str) -> Request:
        spec = ClipSpec.of(record(env_id, start=0, length=5))
        return clip_request(ClipJob(spec, tmp_path / "unused", 10, key), f"{store}/lab")

    return request


def test_a_clip_is_in_the_store_when_the_task_ends(request_of: Callable[[str], Request]) -> None:
    request = request_of("CartPole-v1")
    answer = render_clip(request)
    storage = render_tasks._store(request["storage"])
    assert answer == {"bytes": storage.size(request["key"])}
    assert answer["bytes"] > 500


def test_a_clip_that_is_there_is_not_made_again(request_of: Callable[[str], Request], tmp_path: Path) -> None:
    request = request_of("CartPole-v1")
    (tmp_path / "clip").write_bytes(b"an earlier one")
    render_tasks._store(request["storage"]).put(request["key"], tmp_path / "clip")
    assert render_clip(request) == {"bytes": len(b"an earlier one")}


def test_a_module_is_imported_only_where_it_is_listed(
    request_of: Callable[[str], Request], troubled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = request_of(troubled)
    assert "which this render worker may not import; to allow it, add" in render_clip(request)["error"]
    monkeypatch.setenv("TEACHER_RENDER_MODULES", "another, troubled_environment")
    assert render_clip(request)["bytes"] > 500


def test_a_transform_is_imported_only_where_it_is_listed(request_of: Callable[[str], Request]) -> None:
    request = request_of("CartPole-v1")
    for transform in ("this:s", "this", "this:s:flatten"):
        request["shot"]["recipe"]["kwargs"]["obs_transform"] = transform
        assert f"{transform} imports the module this, which" in render_clip(request)["error"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"storage": "s3://elsewhere"}, "can upload only to s3://clips/"),
        ({"storage": "/etc"}, "can upload only to s3://clips/"),
        ({"key": "../../first.mp4"}, "invalid clip key '../../first.mp4'"),
        ({"fps": 10_000}, "at most 5000 frames, 1 to 240 frames per second"),
        ({"size": 100_000}, "must have at most 5000 frames"),
        ({"size": None}, "invalid clip request"),
        ({"fps": float("inf")}, "invalid clip request"),
        ({"shot": {}}, "invalid clip spec"),
        ({"shot": None}, "invalid clip spec"),
    ],
)
def test_worker_refusals(request_of: Callable[[str], Request], changes: Request, words: str) -> None:
    answer = render_clip({**request_of("CartPole-v1"), **changes})
    assert list(answer) == ["error", "kind"]
    assert answer["kind"] in FAILURE_KINDS
    assert words in answer["error"]
    assert "\n" not in answer["error"]


def test_a_store_beside_its_own_is_refused(request_of: Callable[[str], Request]) -> None:
    request = request_of("CartPole-v1")
    beside = os.environ["TEACHER_STORAGE"] + "-of-others"
    assert "its TEACHER_STORAGE, not to" in render_clip({**request, "storage": beside})["error"]


def test_too_long_clip(request_of: Callable[[str], Request], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render_tasks, "_MAX_FRAMES", 4)
    assert (
        "at most 4 frames, 1 to 240 frames per second and a size of 2 to 2048 pixels, not 5 frames, 10 per "
        "second and 400 pixels" in render_clip(request_of("CartPole-v1"))["error"]
    )


def test_a_shot_survives_the_journey() -> None:
    spec = ClipSpec.of(record("CartPole-v1", start=2, length=5))
    again = ClipSpec.from_dict(spec.to_dict())
    assert (again.start, again.digests) == (2, spec.digests)
    assert again.recipe.to_json() == spec.recipe.to_json()
    assert ClipSpec.from_dict(replace(spec, digests=None).to_dict()).digests is None


NO_STORE = "render worker: TEACHER_STORAGE must be the clip store's URL, such as s3://clips\n"
NO_REDIS = "render worker: REDIS_URL is not set; set it to a URL like redis://:password@host:6379/0\n"
BAD_REDIS = (
    "render worker: REDIS_URL is not a valid Redis URL; set it to a URL like redis://:password@host:6379/0\n"
)
BAD_BIND = (
    "render worker: TEACHER_METRICS_BIND must be a port or HOST:PORT, such as 9101 or 10.0.0.5:9101, not "
    "{!r}\n"
)


GOOD = {"REDIS_URL": "redis://127.0.0.1:1/0", "TEACHER_STORAGE": "s3://clips"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, None),
        ({"REDIS_URL": ""}, NO_REDIS),
        ({"REDIS_URL": "redis://:secret@127.0.0.1:port/0"}, BAD_REDIS),
        ({"REDIS_URL": "localhost:6379"}, BAD_REDIS),
        ({"TEACHER_STORAGE": ""}, NO_STORE),
        ({"TEACHER_STORAGE": "s3:///clips"}, NO_STORE),
        *(
            ({"TEACHER_METRICS_BIND": bind}, BAD_BIND.format(bind))
            for bind in ("x", ":1", "h:", "0", "h:70000")
        ),
    ],
)
def test_settings_are_looked_at_before_a_worker_starts(
    settings: dict[str, str], words: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**GOOD, **settings}.items():
        monkeypatch.setenv(name, value)
    if words is None:
        render_tasks._prepare()
        return
    with pytest.raises(SystemExit) as refused:
        render_tasks._prepare()
    assert f"{refused.value}\n" == words


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", None),
        (" 9101 ", ("127.0.0.1", 9101)),
        ("10.0.0.5:9101", ("10.0.0.5", 9101)),
        ("[::1]:9101", ("::1", 9101)),
    ],
)
def test_metrics_stay_on_this_machine_unless_an_address_is_given(
    value: str, expected: tuple[str, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEACHER_METRICS_BIND", value)
    assert read_bind() == expected


def test_killed_processes_leave_few_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    monkeypatch.setattr(values, "ValueClass", values.ValueClass)
    exporter = Exporter()
    process = SimpleNamespace(index=0)
    monkeypatch.setattr("teacher.clips.metrics.current_process", lambda: process)
    for number in range(1000):  # each replaces a killed one
        process.index = number % 2
        exporter.failures.labels("storage").inc()
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    assert registry.get_sample_value("rl_teacher_render_failures_total", {"kind": "storage"}) == 1000.0
    assert len(list(tmp_path.iterdir())) <= 6


def test_metrics_need_their_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    for name, value in {**GOOD, "TEACHER_METRICS_BIND": "9101"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match=r"to install: pip install 'rl-teacher\[metrics\]'$"):
        render_tasks._prepare()


def test_a_worker_whose_port_is_taken_does_not_start(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        done = start_in_vain(tmp_path, TEACHER_METRICS_BIND=bind)
    assert done.stderr.splitlines()[-1] == (
        f"render worker: cannot serve metrics at TEACHER_METRICS_BIND={bind} ([Errno 98] Address already in "
        "use); use one of this machine's addresses and a port that is free"
    )


def test_a_worker_without_its_settings_does_not_start(tmp_path: Path) -> None:
    assert start_in_vain(tmp_path, TEACHER_STORAGE="").stderr.endswith(NO_STORE)


def start_in_vain(folder: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    """Start a worker that can't start, and return what it said."""
    command = [sys.executable, "-m", "celery", "--app", "teacher.render_tasks", "worker"]
    done = completed(
        command,
        env={**os.environ, **GOOD, **settings, "PYTHONPATH": str(Path.cwd())},
        cwd=folder,
        timeout=120,
    )
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    return done


def test_tasks_are_kept_until_done_and_killed_in_time() -> None:
    conf = render_tasks.app.conf
    assert conf.task_acks_late
    assert conf.task_reject_on_worker_lost
    assert conf.task_time_limit == 1800
    assert conf.broker_transport_options["visibility_timeout"] > conf.task_time_limit
    assert conf.accept_content == ["json"]
    assert conf.worker_prefetch_multiplier == 1


def test_files_of_killed_tasks_are_removed(request_of: Callable[[str], Request]) -> None:
    old, new = (Path(tempfile.mkdtemp(prefix=render_tasks._FOLDER_PREFIX)) for _ in range(2))
    os.utime(old, (0, 0))
    render_clip(request_of("CartPole-v1"))
    assert not old.exists()
    new.rmdir()


def test_files_in_use_stay(request_of: Callable[[str], Request], monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 600)
    other = Path(tempfile.mkdtemp(prefix=render_tasks._FOLDER_PREFIX))
    render_clip(request_of("CartPole-v1"))
    other.rmdir()


def test_worker_needs_neither_torch_nor_django(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGER_IMPORT", "1")
    program = (
        "import sys\n"
        "sys.modules |= dict.fromkeys(['torch', 'django', 'human_feedback_site', 'agents'])\n"
        "import teacher.render_tasks\n"
        "assert not {'mujoco', 'OpenGL', 'pygame'} & set(sys.modules)\n"
        "import teacher.clips.worker\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_a_redis_that_says_no_more_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redis.retry.sleep", lambda _: None)  # between its tries
    assert_silence_is_given_up(render_tasks.app.conf.broker_transport_options)
