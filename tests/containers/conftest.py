"""Images that are built once, and the stack that the tests share; ``make test-containers`` runs them."""

import functools
import re
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.containers.composed import PAGE, ROOT, Stack
from tests.containers.engine import Engine, find_engine
from tests.containers.experiment import Experiment

IMAGES = "rl-teacher-test"
ROLES = ("site", "render", "trainer")
INDEX_PORT = 18099  # always the same, so that an engine takes an image built before for the same
SECRETS = ("SECRET_KEY", "POSTGRES_PASSWORD", "REDIS_PASSWORD", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


@pytest.fixture(scope="session")
def engine() -> Engine:
    """The engine of this machine; without one, no test of this folder can run."""
    found = find_engine()
    if isinstance(found, str):
        pytest.skip(f"{found}; install Podman or Docker to run the containers")
    return found


@pytest.fixture(scope="session")
def build(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path, str, str], None]:
    """Build a role's image from a version of the project, and name it."""

    def build(version: Path, role: str, name: str) -> None:
        with torch_index(tmp_path_factory.mktemp("index")) as index:
            argument = ["--build-arg", f"PIP_EXTRA_INDEX_URL={index}"] if role == "trainer" else []
            # The host's network, because the index may be served at its loopback interface.
            options = ["--network", "host", "--target", role, "--tag", name]
            engine("build", "--quiet", *options, *argument, version)

    return build


@pytest.fixture(scope="session")
def images(build: Callable[[Path, str, str], None]) -> str:
    """The three images of this version; returns what their names begin with."""
    for role in ROLES:
        build(ROOT, role, f"{IMAGES}-{role}")
    return IMAGES


@contextmanager
def torch_index(folder: Path) -> Iterator[str]:
    """Yield the URL of an index that has PyTorch for processors alone.

    It is the one that the page names, or where pip is set up to look into a folder with PyTorch, that folder.
    """
    asked = [sys.executable, "-m", "pip", "config", "get", "global.find-links"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.split()
    wheels = [wheel for place in found for wheel in Path(place).glob("torch-*.whl")]
    if not wheels:
        (url,) = re.findall(r"PIP_EXTRA_INDEX_URL=([^\s`]+)", PAGE)
        yield url
        return
    (folder / "torch").mkdir()
    for wheel in wheels:
        (folder / "torch" / wheel.name).symlink_to(wheel)
    handler = functools.partial(_Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", INDEX_PORT), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{INDEX_PORT}"
        server.shutdown()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *_: object) -> None:  # noqa: A002
        """Log nothing."""


@pytest.fixture(scope="session")
def make_stack(
    engine: Engine, free_port: Callable[[], int], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Stack]]:
    """Make a stack of a name, which is removed with its volumes in the end."""
    made: list[Stack] = []

    def make(name: str) -> Stack:
        folder = tmp_path_factory.getbasetemp() / name
        folder.mkdir()
        ports = {service: free_port() for service in ("web", "media", "database")}
        made.append(Stack(engine, folder, ports, {name: secrets.token_hex(32) for name in SECRETS}))
        return made[-1]

    yield make
    for stack in made:
        stack.down()


@pytest.fixture(scope="session")
def stack(images: str, make_stack: Callable[[str], Stack]) -> Stack:
    """This version with all services started, and a token for trainers."""
    stack = make_stack("rl-teacher-test")
    stack.write(ROOT, images)
    stack.up()
    stack.sign_up()
    return stack


@pytest.fixture(scope="session")
def make_experiment() -> Iterator[Callable[[Stack, str, int], Experiment]]:
    """Make an experiment of a stack with a name and a number of labels; what it starts is killed in the end."""
    made: list[Experiment] = []

    def make(stack: Stack, name: str, labels: int) -> Experiment:
        made.append(Experiment(stack, name, labels))
        return made[-1]

    yield make
    for experiment in made:
        experiment.kill()


@pytest.fixture(scope="session")
def taught(stack: Stack, make_experiment: Callable[[Stack, str, int], Experiment]) -> Experiment:
    """A finished run."""
    experiment = make_experiment(stack, "taught", 20)
    trainer = experiment.start()
    bots = experiment.start_bots()
    experiment.finish(trainer, bots)
    return experiment
