"""The steps of the images without a container, in a folder that plays ``/``."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import uuid
import venv
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from packaging.requirements import Requirement

from teacher.settings.config import TeachConfig
from teacher.settings.config_files import save_config
from tests.conftest import MakeOnce
from tests.databases import TEMPLATE, database_of
from tests.deployment.backed_up import back_up_embedded
from tests.deployment.kustomization import Resource, Resources, build_all, copy_with_secrets, pod_of

ROOT = Path(__file__).parents[2]
SECRETS = ("SECRET_KEY", "POSTGRES_PASSWORD", "REDIS_PASSWORD", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
FOR_ROOT = ("useradd", "install", "docker/install-gl")
_VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])((?:[^${}]|\$\{[^{}]*\})*))?\}")
_PLACES = re.compile(r"(?<![\w./])/(?=(?:app|opt|source)\b)")


@pytest.fixture(scope="session")
def secrets() -> dict[str, str]:
    """A ``.env`` with the secrets alone."""
    return {name: f"{name.lower()}-{'x' * 40}" for name in SECRETS}


@pytest.fixture(scope="session")
def compose(secrets: Mapping[str, str]) -> Any:
    """docker-compose.yml as Compose reads it beside a ``.env`` with the secrets alone."""
    return composed(secrets)


@pytest.fixture(scope="session")
def compose_with_store_elsewhere(secrets: Mapping[str, str]) -> Any:
    """Read it beside a ``.env`` that names another store; its service is still there."""
    store = {"TEACHER_STORAGE": "s3://lab/clips", "AWS_DEFAULT_REGION": "eu-central-1"}
    urls = dict.fromkeys(("S3_ENDPOINT_URL", "S3_PUBLIC_ENDPOINT_URL"), "https://s3.example.org")
    return composed({**secrets, **store, **urls})


def composed(variables: Mapping[str, str]) -> Any:
    """docker-compose.yml as Compose reads it beside a ``.env`` with these variables."""

    def given(found: re.Match[str]) -> str:
        name, operator, default = found.groups()
        if operator == "?":
            return variables[name]
        return variables.get(name) or _VARIABLE.sub(given, default or "")

    def filled_in(part: Any) -> Any:
        if isinstance(part, dict):
            return {name: filled_in(value) for name, value in part.items()}
        if isinstance(part, list):
            return [filled_in(value) for value in part]
        return _VARIABLE.sub(given, part) if isinstance(part, str) else part

    return filled_in(yaml.safe_load((ROOT / "docker-compose.yml").read_text()))


def check_schema(path: Path) -> None:
    """Check a file against Compose's schema."""
    checker = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*checker, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@dataclass(frozen=True)
class Instruction:
    """One line of a Dockerfile, for example ``COPY`` and ``manage.py ./``."""

    keyword: str
    rest: str


@dataclass(frozen=True)
class Stage:
    """Represent the lines between two ``FROM``."""

    base: str
    instructions: list[Instruction] = field(default_factory=list)


@pytest.fixture(scope="session")
def stages() -> dict[str, Stage]:
    """The Dockerfile's stages by name."""
    found: dict[str, Stage] = {}
    for line in re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text()).splitlines():
        if not line or line.startswith("#"):
            continue
        keyword, rest = line.split(maxsplit=1)
        if keyword == "FROM":
            base, _, name = rest.partition(" AS ")
            stage = found[name] = Stage(base)
        else:
            stage.instructions.append(Instruction(keyword, rest))
    return found


class Image:
    """An image whose files lie in ``place`` instead of ``/``.

    All stages share that folder, because a virtual environment works only where it was made. Steps for root
    are left out, and collected in ``left_out``. Distributions are those that are installed here. Where it
    ``is_built`` already, its files are left as they are.
    """

    def __init__(self, stages: Mapping[str, Stage], role: str, place: Path, *, is_built: bool) -> None:
        self.place = place
        self._is_built = is_built
        self.left_out: list[str] = []
        self.command: list[str] = []
        self._stages = stages
        self._workdir = place
        self._environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        self._follow(f"{role}-build")
        if not is_built:
            shutil.rmtree(place / "source")  # nothing of it is in the image
        self._environment = {"PATH": "/usr/bin:/bin"}
        self._follow(role)

    def here(self, command: str) -> str:
        """``command`` with the image's paths replaced by those in ``place``."""
        return _PLACES.sub(f"{self.place}/", command)

    def start(self, command: str | list[str], environment: Mapping[str, str]) -> "subprocess.Popen[str]":
        """Start a command as the image would, without anything of this process's environment."""
        words = shlex.split(command) if isinstance(command, str) else command
        words = [self.here(word) for word in words]
        everything = {**self._environment, **environment}
        words[0] = shutil.which(words[0], path=everything["PATH"]) or words[0]
        return subprocess.Popen(
            words,
            env=everything,
            cwd=self._workdir,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, command: str | list[str], environment: Mapping[str, str] | None = None) -> str:
        """Run a command to its end and return what it said; fails the test where the command fails."""
        process = self.start(command, environment or {})
        said, _ = process.communicate(timeout=240)
        assert process.returncode == 0, f"{command}: {said}"
        return said

    def _follow(self, name: str) -> None:
        stage = self._stages[name]
        if stage.base in self._stages:
            self._follow(stage.base)
        for instruction in stage.instructions:
            self._do(instruction.keyword, instruction.rest)

    def _do(self, keyword: str, rest: str) -> None:
        match keyword:
            case "WORKDIR":
                self._workdir = Path(self.here(rest))
                if not self._is_built:
                    self._workdir.mkdir(parents=True, exist_ok=True)
            case "ENV":
                for setting in rest.split():
                    name, _, value = setting.partition("=")
                    self._environment[name] = self.here(value).replace("$PATH", self._environment["PATH"])
            case "COPY":
                if not self._is_built:
                    self._copy(*rest.split())
            case "RUN":
                self._run(re.sub(r"--mount=\S+ ", "", rest))
            case "CMD":
                self.command = json.loads(rest)
            case _:
                assert keyword in {"ARG", "LABEL", "USER", "EXPOSE", "ENTRYPOINT"}, keyword

    def _copy(self, *names: str) -> None:
        *sources, target = names
        if sources[0].startswith("--from="):
            assert sources[1:] == [target]  # the same place in both stages: it is there already
            return
        for source in sources:
            path = self._workdir / target
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, path, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                path.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / source, path)

    def _run(self, command: str) -> None:
        script, *arguments = command.split()
        if script in FOR_ROOT:
            self.left_out.append(command)
        elif self._is_built:
            return
        elif script == "docker/install-distributions":
            role, prefix = arguments
            link_distributions(ROOT / f"docker/requirements-{role}.txt", Path(self.here(prefix)))
        else:
            self.run(command)


def link_distributions(listed: Path, prefix: Path) -> None:
    """Make a virtual environment of links to what the file lists, and to what that requires in turn.

    It takes a second where pip takes half a minute, because nothing is unpacked.
    """
    venv.create(prefix, with_pip=False)
    target = next(prefix.glob("lib/python*/site-packages"))
    wanted = {line for line in listed.read_text().splitlines() if not line.startswith("#")}
    done: set[str] = set()
    while wanted:
        done.add(text := wanted.pop())
        requirement = Requirement(text)
        distribution = metadata.distribution(requirement.name)
        needed = {
            line for line in distribution.requires or () if _holds(Requirement(line), requirement.extras)
        }
        wanted |= needed - done
        for file in distribution.files or ():
            _link(Path(str(file.locate())), Path(os.path.normpath(target / file)), prefix)
    subprocess.run([sys.executable, "-m", "pip", "--python", prefix / "bin/python", "check"], check=True)


def _holds(requirement: Requirement, extras: set[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in (*extras, ""))


def _link(installed: Path, path: Path, prefix: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() or not installed.exists():
        return
    if path.parent == prefix / "bin":  # its first line names the interpreter
        program = installed.read_bytes().partition(b"\n")[2]
        path.write_bytes(f"#!{prefix}/bin/python\n".encode() + program)
        path.chmod(0o755)
    else:
        path.symlink_to(installed)


@pytest.fixture(scope="session")
def site_image(stages: dict[str, Stage], make_once: MakeOnce) -> Image:
    return _image(stages, "site", make_once)


@pytest.fixture(scope="session")
def render_image(stages: dict[str, Stage], make_once: MakeOnce) -> Image:
    return _image(stages, "render", make_once)


def _image(stages: Mapping[str, Stage], role: str, make_once: MakeOnce) -> Image:
    place = make_once(f"{role}-image", lambda place: Image(stages, role, place, is_built=False))
    return Image(stages, role, place, is_built=True)


@pytest.fixture
def new_database(postgres_url: str) -> Callable[[str], str]:
    """Make an empty database in place of what has the name, and return its address."""
    return lambda name: _make_database(postgres_url, name)


@pytest.fixture
def migrated_postgresql(postgres_url: str) -> Callable[[str], str]:
    """Make a database with the site's tables in place of what has the name, and return its address."""
    return lambda name: _make_database(postgres_url, name, TEMPLATE)


def _make_database(server: str, name: str, template: str = "template1") -> str:
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {name}")
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
    return database_of(server, name)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run's directory as a trainer leaves it, without its ledger."""
    config = TeachConfig(
        env_id="Hopper-v5", predictor="synth", name="x", n_labels=40, runs_dir=str(tmp_path / "runs")
    )
    config.run_dir.mkdir(parents=True)
    save_config(config, uuid.uuid4())
    (config.run_dir / "checkpoint").write_bytes(b"weights")
    return config.run_dir


@pytest.fixture
def embedded(make_once: MakeOnce) -> Callable[[Path], dict[str, str]]:
    """Copy the state folder of an embedded site with a labeled pair; returns its variables."""

    def embedded(state: Path) -> dict[str, str]:
        shutil.copytree(make_once("backed-up", back_up_embedded) / "state", state)
        return {"TEACHER_STATE_DIR": str(state)}

    return embedded


@pytest.fixture
def backed_up(make_once: MakeOnce) -> Callable[[Path], None]:
    """Copy a backup of such a site."""

    def backed_up(folder: Path) -> None:
        shutil.copytree(make_once("backed-up", back_up_embedded) / "backup", folder)

    return backed_up


@pytest.fixture(scope="session")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of deploy/kubernetes whose example has all secrets."""
    return copy_with_secrets(tmp_path_factory.mktemp("deploy") / "kubernetes")


@pytest.fixture(scope="session")
def resources(kubernetes: Path) -> Resources:
    """The resources of the example and its trainer."""
    return build_all(kubernetes)


@pytest.fixture(scope="session")
def pods(resources: Resources) -> dict[str, Resource]:
    return {name: pod for (_, name), each in resources.items() if (pod := pod_of(each))}
