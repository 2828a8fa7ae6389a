"""Images and services for the tests in this folder; ``make test-containers`` runs them."""

import functools
import re
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.containers.composed import PAGE, ROOT, Engine, Experiment, Stack, find_engine
from tests.servers import serving
from tests.waiting import free_port

IMAGES = "rl-teacher-test"
ROLES = ("site", "render", "trainer")
SECRETS = ("SECRET_KEY", "POSTGRES_PASSWORD", "REDIS_PASSWORD", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
INDEX_PORT = 18099  # fixed: the index's URL is part of the image, so another would build it again

Build = Callable[[Path, str, str], None]
MakeStack = Callable[[str], Stack]
MakeExperiment = Callable[[Stack, str, int], Experiment]


@pytest.fixture(scope="session")
def engine() -> Engine:
    """Return this machine's container engine; skip the test if there is none."""
    found = find_engine()
    if isinstance(found, str):
        pytest.skip(found)
    return found


@pytest.fixture(scope="session")
def build(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Build an image, given a version's root folder, the Dockerfile's target and the image's name."""

    def build(version: Path, role: str, name: str) -> None:
        with torch_index(tmp_path_factory.mktemp("index")) as index:
            argument = ["--build-arg", f"PIP_EXTRA_INDEX_URL={index}"] if role == "trainer" else []
            # With the host's network, because the index may be on the loopback interface.
            options = ["--network", "host", "--target", role, "--tag", name]
            engine("build", "--quiet", *options, *argument, version)

    return build


@contextmanager
def torch_index(folder: Path) -> Iterator[str]:
    """Yield the URL of a package index with PyTorch for CPUs.

    It is the one in docs/deployment.md, unless pip is configured to find PyTorch in a folder (find-links):
    containers can't see that folder, so it is served by HTTP.
    """
    command = [sys.executable, "-m", "pip", "config", "get", "global.find-links"]
    places = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    wheels = [wheel for place in places for wheel in Path(place).glob("torch-*.whl")]
    if not wheels:
        (url,) = re.findall(r"PIP_EXTRA_INDEX_URL=([^\s`]+)", PAGE)
        yield url
        return
    (folder / "torch").mkdir()
    for wheel in wheels:
        (folder / "torch" / wheel.name).symlink_to(wheel)
    handler = functools.partial(_QuietHandler, directory=str(folder))
    with serving(ThreadingHTTPServer(("127.0.0.1", INDEX_PORT), handler)) as url:
        yield url


class _QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        pass


@pytest.fixture(scope="session")
def images(build: Build) -> str:
    """Build the three images of this version, and return the prefix of their names."""
    for role in ROLES:
        build(ROOT, role, f"{IMAGES}-{role}")
    return IMAGES


@pytest.fixture(scope="session")
def make_stack(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeStack]:
    """Make a stack, given a project name; its containers and volumes are removed after the tests."""
    made: list[Stack] = []

    def make_stack(name: str) -> Stack:
        folder = tmp_path_factory.getbasetemp() / name
        folder.mkdir()
        ports = {service: free_port() for service in ("web", "media", "database")}
        made.append(Stack(engine, folder, ports, {secret: secrets.token_hex(32) for secret in SECRETS}))
        return made[-1]

    yield make_stack
    for stack in made:
        stack.down()


@pytest.fixture(scope="session")
def stack(images: str, make_stack: MakeStack) -> Stack:
    """Start all services of this version, and create a token for trainers."""
    stack = make_stack("rl-teacher-test")
    stack.write(ROOT, images)
    stack.up()
    stack.sign_up()
    return stack


@pytest.fixture(scope="session")
def make_experiment() -> Iterator[MakeExperiment]:
    """Make an experiment, given a stack, a name and a number of labels."""
    made: list[Experiment] = []

    def make_experiment(stack: Stack, name: str, labels: int) -> Experiment:
        made.append(Experiment(stack, name, labels))
        return made[-1]

    yield make_experiment
    for experiment in made:
        experiment.kill()


@pytest.fixture(scope="session")
def finished(stack: Stack, make_experiment: MakeExperiment) -> Experiment:
    """Run an experiment to its end."""
    experiment = make_experiment(stack, "finished", 20)
    trainer = experiment.start()
    bots = experiment.start_bots()
    experiment.wait(trainer, bots)
    return experiment
