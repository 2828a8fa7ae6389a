"""The images of the site and of render workers, built and started without a container, on real servers.

Each step is the Dockerfile's, each setting and command docker-compose.yml's; only addresses differ. Together
they show that a role's list of distributions is enough, and the rest of the project is not needed.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
import requests
from redis import Redis

from teacher.clips import ClipJob, ClipSpec
from teacher.clips.tasks import TASK, celery_app, clip_request
from teacher.envs.recipe import EpisodeRecipe
from tests.databases import database_of
from tests.waiting import completed, free_port, wait_until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
CONSTRAINTS = (ROOT / "constraints.txt").read_text()
STORAGE = "s3://made-by-setup"
Environment = Callable[[str], dict[str, str]]
_FIND = "import importlib.util as u, sys; print([name for name in sys.argv[1:] if u.find_spec(name)])"


def is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


@contextmanager
def started(image: Any, command: Any, environment: Mapping[str, str]) -> Iterator["subprocess.Popen[str]"]:
    """A service that is stopped as Compose does it: it has to end in peace, and to have left no file."""
    files = set(image.place.rglob("*"))
    # No image has root; these tests may, and Celery says so.
    quiet = {"PYTHONWARNINGS": "ignore:You're running the worker with superuser privileges"}
    process = image.start(command, {**environment, **quiet})
    try:
        yield process
    except BaseException:
        process.kill()
        print(process.communicate()[0])
        raise
    process.terminate()
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert "Traceback" not in said
    if environment.get("LOG_FORMAT") == "json":
        others = [line for line in said.splitlines() if line and not is_object(line)]
        assert set(others) <= {"worker: Warm shutdown (MainProcess)"}
    assert set(image.place.rglob("*")) == files  # there it could write none


@pytest.fixture(scope="module")
def redis_port(compose: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a Redis that was started and found healthy as Compose does it."""
    service, port = compose["services"]["redis"], free_port()
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    place = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(tmp_path_factory.mktemp("redis"))]
    kind, health = service["healthcheck"]["test"]
    assert kind == "CMD-SHELL"
    probe = ["sh", "-c", health.replace("redis-cli", f"redis-cli -p {port}")]
    process = subprocess.Popen([*service["command"], *place], env={"PATH": path}, stdout=subprocess.DEVNULL)
    try:
        environment = {"PATH": path, **service["environment"]}
        wait_until(lambda: subprocess.run(probe, env=environment, check=False).returncode == 0)
        assert subprocess.run(probe, env={"PATH": path}, check=False).returncode != 0  # it wants the password
        yield port
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def environment(compose: Any, postgres_url: str, s3_server: Any, redis_port: int) -> Environment:
    """A service's variables, with the addresses of the servers here."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS images WITH (FORCE)")  # of other tests of this module
        connection.execute("CREATE DATABASE images")
    here = {
        **s3_server.variables,
        "DATABASE_URL": database_of(postgres_url, "images"),
        "TEACHER_STORAGE": STORAGE,
    }

    def environment(service: str) -> dict[str, str]:
        given = compose["services"][service]["environment"]
        replaced = {name: here.get(name, value) for name, value in given.items()}
        if "REDIS_URL" in given:
            replaced["REDIS_URL"] = given["REDIS_URL"].replace("redis:6379", f"127.0.0.1:{redis_port}")
        return replaced

    return environment


@pytest.fixture(scope="module")
def set_up(site_image: Any, compose: Any, environment: Environment) -> None:
    """Set up twice: as on the first start, and as on the second."""
    for _ in range(2):
        site_image.run(compose["services"]["setup"]["command"], environment("setup"))


def healthy(image: Any, service: Any, environment: Mapping[str, str], *arguments: str) -> bool:
    kind, *probe = service["healthcheck"]["test"]
    assert kind == "CMD"
    process = image.start([*probe, *arguments], environment)
    process.communicate(timeout=60)
    return bool(process.returncode == 0)


def test_distributions_are_installed_at_the_versions_of_the_constraints(tmp_path: Path) -> None:
    """With pip and one small distribution; the other tests link what is installed here already."""
    (tmp_path / "docker").mkdir()
    for name in ("constraints.txt", "docker/install-distributions"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "docker/requirements-small.txt").write_text("sqlparse\n")
    subprocess.run([tmp_path / "docker/install-distributions", "small", tmp_path / "prefix"], check=True)
    listed = "import importlib.metadata as m; print([f'{d.name}=={d.version}' for d in m.distributions()])"
    # An editable install leaves its metadata in the root of the project.
    found = completed([tmp_path / "prefix/bin/python", "-c", listed], check=True, cwd=tmp_path)
    assert found.stdout.strip() == str(re.findall("^sqlparse==.*$", CONSTRAINTS, re.MULTILINE))


def test_the_site_image_holds_the_site_alone(site_image: Any) -> None:
    others = ["torch", "gymnasium", "mujoco", "numpy", "teacher", "agents", "pip"]
    assert site_image.run(["python", "-c", _FIND, "django", *others]).strip() == "['django']"


def test_the_render_image_holds_the_trainers_drawing_alone(render_image: Any) -> None:
    others = ["torch", "django", "tensorboard", "human_feedback_site", "agents", "pip"]
    assert render_image.run(["python", "-c", _FIND, "mujoco", *others]).strip() == "['mujoco']"


def test_all_that_was_left_out_of_the_images_here_needs_root(site_image: Any, render_image: Any) -> None:
    assert [step.split()[0] for step in site_image.left_out] == ["useradd", "install"]
    assert [step.split()[0] for step in render_image.left_out] == ["useradd", "docker/install-gl"]


@pytest.mark.usefixtures("set_up")
def test_the_web_service_gets_healthy_serves_and_stops(
    site_image: Any, compose: Any, environment: Environment
) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    command = [word.replace("0.0.0.0:8000", url.removeprefix("http://")) for word in site_image.command]
    variables, service = environment("web"), compose["services"]["web"]
    assert not healthy(site_image, service, variables, url)
    with started(site_image, command, variables):
        wait_until(lambda: healthy(site_image, service, variables, url))
        page = requests.get(f"{url}/accounts/login/", timeout=60)
        assert page.status_code == 200
        style = page.text.split('rel="stylesheet" href="')[1].split('"')[0]
        assert requests.get(url + style, timeout=60).headers["Content-Type"].startswith("text/css")
        assert requests.get(f"{url}/livez", headers={"Host": "web:8000"}, timeout=60).status_code == 200


@pytest.mark.usefixtures("set_up")
def test_the_chores_get_healthy_and_stop(site_image: Any, compose: Any, environment: Environment) -> None:
    variables, service = environment("beat"), compose["services"]["beat"]
    with started(site_image, service["command"], variables):
        wait_until(lambda: healthy(site_image, service, variables))
        assert not healthy(site_image, compose["services"]["render"], variables)  # another's name


@pytest.mark.usefixtures("set_up")
def test_a_render_worker_gets_healthy_puts_a_clip_into_the_store_and_stops(
    render_image: Any, compose: Any, environment: Environment, s3_server: Any
) -> None:
    variables, service = environment("render"), compose["services"]["render"]
    recipe = EpisodeRecipe("ShortHopper-v1", {}, 5, np.zeros((12, 3), np.float32))
    request = clip_request(ClipJob(ClipSpec(recipe), Path("unused"), 40, "hopper/1b4e/first.mp4"), STORAGE)
    with celery_app(variables["REDIS_URL"]) as app, Redis.from_url(variables["REDIS_URL"]) as queue:
        answer = app.send_task(TASK, [request])
        assert queue.llen("render") == 1  # what the page on deployment says to watch
        with started(render_image, render_image.command, variables):
            wait_until(lambda: healthy(render_image, service, variables))
            wait_until(answer.ready)
            stored = answer.get(timeout=60)["bytes"]
        assert queue.llen("render") == 0
    clip = s3_server.root / "made-by-setup" / "hopper/1b4e/first.mp4"
    assert clip.stat().st_size == stored > 500
