"""Real servers for the tests that need one; each starts with the first test that asks for it."""

import fcntl
import gc
import importlib.util
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import hypothesis
import numpy as np
import pytest

from stack.process import running
from stack.servers import S3
from tests.waiting import free_port

pytest_plugins = ["tests.databases", "tests.network_file_system"]


SUITES = {
    "dm_control": "test-dmc",
    "metaworld": "test-metaworld",
    "kubernetes_validate": "test-kubernetes",
    "onnxruntime": "test-onnx",
    **dict.fromkeys(("mlflow", "optuna", "trackio", "wandb"), "test-tracking"),
}
"""Packages that need an environment of their own, each with the make target that runs the tests there."""
_LEFT_OUT = {
    f"suites/test_{name}.py": f"make {target} runs it"
    for name, target in SUITES.items()
    if importlib.util.find_spec(name) is None
}
if "TEST_BENCHMARKS" not in os.environ:
    _LEFT_OUT["suites/test_benchmarks.py"] = "make test-benchmarks runs it"
if "TEST_CONTAINERS" not in os.environ:
    _LEFT_OUT |= dict.fromkeys(("containers/*", "deployment/test_images.py"), "make test-containers runs it")
if not Path("/dev/nvidia0").exists():
    _LEFT_OUT["gpu/*"] = "this machine has no NVIDIA GPU"
collect_ignore_glob = list(_LEFT_OUT)


def pytest_report_header() -> list[str]:
    return [f"not collected: tests/{name}: {why}" for name, why in _LEFT_OUT.items()]


def pytest_configure() -> None:
    """Let Ctrl-C and hang-ups mean what they mean: a job in the background or under nohup ignores them."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    gc.disable()  # until all tests are collected
    # However busy the machine is: no test is about time.
    hypothesis.settings.register_profile("suite", deadline=None)
    hypothesis.settings.load_profile("suite")
    # The port of a site that is killed stays free until it is back: other workers' sites have others.
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    os.environ["TEACHER_PORT"] = str(8100 + 100 * int(worker.removeprefix("gw")))
    # Workers, and what they start, share the cores: more threads each would only wait for one another.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let one worker compile the tests: the others only have to read what it wrote."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run is None:
        return (yield)
    with (Path(tempfile.gettempdir()) / f"collected-{run}").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if lock.tell() == 0:
            collected = yield
            lock.write("done")
            return collected
    return (yield)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each worker its share of the files that hold slow tests, early, so that all end at one time.

    Every other worker begins with it, the others come to it later: most slow tests wait, and meanwhile those
    others have the processors.
    """
    slow = dict.fromkeys(item.path for item in items if _is_slow(item))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    dealt = {path: place % workers for place, path in enumerate(slow)}
    rest = [item for item in items if item.path not in dealt]
    order: list[pytest.Item] = []
    for worker in range(workers):
        share = [item for item in items if dealt.get(item.path) == worker]
        # As --dist worksteal cuts what is left: into equal parts of tests that are beside each other.
        count = max(0, (len(items) - len(order)) // (workers - worker) - len(share))
        before = worker % 2 * count // 2
        order += [*rest[:before], *share, *rest[before:count]]
        del rest[:count]
    items[:] = order + rest


def _is_slow(item: pytest.Item) -> bool:
    """Return whether a test takes long, or waits for a browser, as most of its folder do."""
    return bool(item.get_closest_marker("slow")) or item.path.parent == BROWSER


def pytest_collection_finish() -> None:
    """Look for garbage from here on, seldom, and not among modules and tests: it took a tenth of the time."""
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    gc.enable()


MakeOnce: TypeAlias = Callable[[str, Callable[[Path], object]], Path]
BROWSER = Path(__file__).parent / "e2e" / "browser"
_FLIPS = 40  # of bytes in a file


@pytest.fixture(scope="session")
def make_once(tmp_path_factory: pytest.TempPathFactory) -> MakeOnce:
    """Let a function fill a folder once for all workers of a run, and return it: it is there to be read."""
    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared

    def make_once(name: str, fill: Callable[[Path], object]) -> Path:
        folder, filled = shared / name, shared / f"{name}.filled"
        with (shared / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not filled.exists():
                shutil.rmtree(folder, ignore_errors=True)  # of a worker that failed
                folder.mkdir()
                fill(folder)
                filled.touch()
        return folder

    return make_once


@dataclass(frozen=True)
class S3Server:
    """A running S3 server whose buckets are the folders in ``root``."""

    endpoint_url: str
    bucket: str
    root: Path
    variables: dict[str, str]

    def use(self, patch: pytest.MonkeyPatch, settings: Any = None) -> None:
        """Set these variables, and the site's settings if they are given."""
        for name, value in self.variables.items():
            patch.setenv(name, value)
        if settings is not None:
            settings.S3_ENDPOINT_URL = settings.S3_PUBLIC_ENDPOINT_URL = self.endpoint_url


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 server with one empty bucket, ``clips``; it sets no environment variable by itself."""
    folder = tmp_path_factory.mktemp("s3")
    server = S3(folder / "root", free_port(), "teacher-access-key", "teacher-secret-key")
    with running(server.service(), folder):
        (folder / "root" / "clips").mkdir()
        yield S3Server(server.url, "clips", folder / "root", server.environment())


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def no_opengl(tmp_path: Path) -> dict[str, str]:
    """Variables with which a new process finds neither EGL's drivers nor OSMesa."""
    folder = tmp_path / "no-opengl"
    folder.mkdir()
    for name in ("libOSMesa.so.6", "libOSMesa.so.8"):  # empty ones are found before those of the system
        (folder / name).touch()
    kept = {
        name: value for name, value in os.environ.items() if name not in {"MUJOCO_GL", "PYOPENGL_PLATFORM"}
    }
    return {**kept, "LD_LIBRARY_PATH": str(folder), "__EGL_VENDOR_LIBRARY_FILENAMES": "/nowhere"}


def refusals(path: Path, read: Callable[[], object], error: type[BaseException]) -> list[str]:
    """Damage a file in many ways, and return what is said where it is refused; elsewhere it is read."""
    said = []
    for content in damaged(path.read_bytes()):
        path.write_bytes(content)
        try:
            read()
        except error as refusal:
            said.append(str(refusal))
    return said


def damaged(intact: bytes) -> Iterator[bytes]:
    """Contents of a file in its place: cut off, with bytes changed, and something else altogether."""
    size = len(intact)
    yield from (intact[: size * share // 8] for share in range(8))
    yield from (intact[:-1], intact + b"\0" * 100, bytes(size))
    random = np.random.default_rng(1)
    # Half of them where files say how large things are.
    near = [*random.integers(min(size, 400), size=_FLIPS // 2), *random.integers(size, size=_FLIPS // 2)]
    for position in map(int, near):
        changed = bytes([int(random.integers(256))])
        yield intact[:position] + changed + intact[position + 1 :]
        yield intact[:position] + b"\xff\xff\x7f" + intact[position + 3 :]
    yield from (
        b"null",
        b"[]",
        b"{}",
        b"7",
        b'"\xff"',
        b"[" * 100_000,
        b"PK\x05\x06" + bytes(18),
        b"\x89HDF\r\n",
    )
    for number in set(re.findall(rb"\b\d{1,6}\b", intact[:2000])):
        yield intact.replace(number, b"9" * 18, 1)
