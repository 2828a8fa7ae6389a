"""The wheel and the source distribution: what they hold, and that a run with labelers needs nothing else."""

import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import sysconfig
import tarfile
import time
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from teacher.labeling.embedded_site import find_running_site
from tests.conftest import MakeOnce
from tests.waiting import completed

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PACKAGES = ("agents", "teacher", "human_feedback_site")
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
EXPERIMENT = "Pendulum-v1-wheel"
TEACH = "-p human -e Pendulum-v1 -n wheel -L 4 -l 6 -t 4096 -V --segment_steps 10 --prompt".split()
WHERE = """
import sys, importlib.metadata, agents, teacher, human_feedback_site
print(importlib.metadata.version("rl-teacher"), *(m.__file__ for m in (agents, teacher, human_feedback_site)))
"""


@pytest.fixture(scope="session")
def dist(make_once: MakeOnce) -> Path:
    """The folder that `make dist` would leave, built without touching the checkout."""
    return make_once("dist", build)


def build(folder: Path) -> None:
    """Build in a folder of links, because setuptools writes beside ``pyproject.toml``."""
    source = folder / "source"
    source.mkdir()
    for path in ROOT.iterdir():
        if (
            not path.name.startswith(".")
            and path.suffix != ".egg-info"
            and path.name not in {"dist", "build"}
        ):
            (source / path.name).symlink_to(path)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(source)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr


def files_of(*packages: str) -> set[str]:
    """The files of packages in the checkout, without what Python leaves there."""
    paths = [path for package in packages for path in (ROOT / package).rglob("*") if path.is_file()]
    return {str(path.relative_to(ROOT)) for path in paths if "__pycache__" not in path.parts}


def test_the_wheel_holds_the_three_packages_and_nothing_else(dist: Path) -> None:
    wheel = dist / f"rl_teacher-{VERSION}-py3-none-any.whl"
    names = set(zipfile.ZipFile(wheel).namelist())
    about = f"rl_teacher-{VERSION}.dist-info/"
    assert {name for name in names if not name.startswith(about)} == files_of(*PACKAGES)
    assert {".pyi", ".mo", ".html", ".js", ".css"} <= {Path(name).suffix for name in names}
    assert any("/migrations/0" in name for name in names)
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(f"{about}METADATA").decode()
        assert "MIT License" in archive.read(f"{about}licenses/LICENSE").decode()
    assert {"License-Expression: MIT", "Author: RL-Teacher contributors"} <= set(metadata.splitlines())
    assert metadata.count("Project-URL: ") == metadata.count(", https://") > 0
    assert not re.search(r"\]\((?!https:)", metadata)


def test_the_source_distribution_holds_no_tests(dist: Path) -> None:
    with tarfile.open(dist / f"rl_teacher-{VERSION}.tar.gz") as archive:
        paths = {member.name.partition("/")[2] for member in archive if member.isfile()}
    assert {"CHANGELOG.md", "README.md", "pyproject.toml", "manage.py", "constraints.txt"} <= paths
    assert {"LICENSE", "CITATION.cff", "SECURITY.md", "setup.py"} <= paths
    assert files_of(*PACKAGES) <= paths
    assert not {path.partition("/")[0] for path in paths} & {"tests", "benchmarks", "stack", "docs"}


class Installed:
    """An environment with the wheel, and a folder outside of the checkout to run its programs in.

    What the wheel requires is read from the environment of the tests, whose ``.pth`` files, which lead to the
    checkout, are not followed.
    """

    def __init__(self, wheel: Path, folder: Path) -> None:
        prefix = folder / "environment"
        venv.create(prefix, with_pip=False)
        self.bin = prefix / "bin"
        self.packages = next(prefix.glob("lib/python*/site-packages"))
        self.folder = folder / "work"
        self.folder.mkdir()
        pip = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(self.bin / "python"),
            "--disable-pip-version-check",
        ]
        subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", wheel], check=True)
        (self.packages / "required.pth").write_text(sysconfig.get_path("purelib") + "\n")
        self.environment = {
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "HOME": str(self.folder),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "TEACHER_PORT": os.environ["TEACHER_PORT"],
        }

    def run(self, *command: str) -> str:
        ran = completed(command, cwd=self.folder, env=self.environment, executable=self.bin / command[0])
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    @contextlib.contextmanager
    def started(self, *command: str) -> Iterator["subprocess.Popen[bytes]"]:
        with (self.folder / f"{command[0]}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment,
                executable=self.bin / command[0],
                stdout=log,
                stderr=log,
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def logs(self) -> str:
        return "\n".join(log.read_text()[-1500:] for log in self.folder.rglob("*.log"))


@pytest.fixture
def installed(dist: Path, tmp_path: Path) -> Iterator[Installed]:
    environment = Installed(next(dist.glob("*.whl")), tmp_path)
    yield environment
    with contextlib.suppress(OSError, ValueError):
        os.kill(json.loads((environment.folder / "state/site/lock").read_text())["pid"], signal.SIGTERM)


def test_people_teach_with_the_wheel_alone(installed: Installed) -> None:
    version, *files = installed.run("python", "-c", WHERE).split()
    assert version == VERSION
    assert files == [str(installed.packages / package / "__init__.py") for package in PACKAGES]
    assert installed.run("teach", "--version") == f"rl-teacher {VERSION}\n"

    with installed.started("teach", *TEACH, "Which pole is up?") as trainer:
        site, token = wait_for_site(installed, trainer)
        see_page(site)
        (installed.folder / "token").write_text(token)
        bots = ["-m", "teacher.bots", "--site", site, "--experiment", EXPERIMENT]
        bots += ["--token-file", "token", "--log", "answers"]
        with installed.started("python", *bots) as labelers:
            assert trainer.wait(120) == 0, installed.logs()
            assert labelers.wait(60) == 0, installed.logs()
    with contextlib.closing(sqlite3.connect(installed.folder / "state/site.sqlite3")) as database:
        (labels,) = database.execute("SELECT count(*) FROM feedback_label").fetchone()
    answers = (installed.folder / "answers").read_text().splitlines()
    assert labels == len(answers) == 6
    assert str(ROOT) not in installed.logs()
    assert re.search(r"wheel .*6", installed.run("teach", "ls"))


def wait_for_site(installed: Installed, trainer: "subprocess.Popen[bytes]") -> tuple[str, str]:
    deadline = time.monotonic() + 120
    while (found := find_running_site(installed.folder / "state")) is None:
        assert trainer.poll() is None, installed.logs()
        assert time.monotonic() < deadline, installed.logs()
        time.sleep(0.1)
    return found


def see_page(site: str) -> None:
    """A page in Chinese and a file that it names: templates, translations and static files are there."""
    with requests.Session() as browser:
        browser.trust_env = False
        page: Any = browser.get(f"{site}/accounts/login/", headers={"Accept-Language": "zh-hans"}, timeout=20)
        assert page.ok
        assert re.search(r"[\u4e00-\u9fff]", page.text)
        (style,) = re.findall(r'href="([^"]*site[^"]*\.css)"', page.text)
        assert browser.get(requests.compat.urljoin(page.url, style), timeout=20).ok
