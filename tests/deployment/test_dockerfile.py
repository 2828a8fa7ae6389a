"""The Dockerfile is clean, copies what is there, and each image has what its role needs and no more."""

import re
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
ROLES = ("site", "render", "trainer")
SCRIPTS = sorted(path for path in (ROOT / "docker").iterdir() if path.suffix != ".txt")


def requirements(role: str) -> set[str]:
    """The bare names of a role's distributions, those of the files it includes among them."""
    names: set[str] = set()
    for line in (ROOT / f"docker/requirements-{role}.txt").read_text().splitlines():
        if included := re.fullmatch(r"--requirement requirements-(\w+)\.txt", line):
            names |= requirements(included[1])
        elif not line.startswith("#"):
            names.add(line)
    return names


def extras_by_name(requirements: set[str]) -> dict[str, set[str]]:
    """``celery[redis,s3]>=5.7`` as celery -> redis, s3; merged where a name comes twice."""
    found: dict[str, set[str]] = {}
    for requirement in requirements:
        name, extras = re.fullmatch(r"([\w-]+)(?:\[([\w,-]+)\])?[^\[]*", requirement).groups()  # type: ignore[union-attr]
        found.setdefault(name, set()).update((extras or "").split(",") if extras else ())
    return found


def ignored(path: str) -> bool:
    """Whether ``.dockerignore`` keeps a top-level file or folder from the builder: the last match decides."""
    decision = False
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if line and not line.startswith("#") and fnmatch(path, line.removeprefix("!")):
            decision = not line.startswith("!")
    return decision


def test_hadolint_finds_nothing_with_no_rule_switched_off() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    command = [str(hadolint), "--config", "/dev/null", "--disable-ignore-pragma", "Dockerfile"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_copied_files_exist_in_the_build_context(stages: dict[str, Any]) -> None:
    copied = {
        name
        for stage in stages.values()
        for instruction in stage.instructions
        if instruction.keyword == "COPY" and not instruction.rest.startswith("--from=")
        for name in instruction.rest.split()[:-1]
    }
    assert {"manage.py", "teacher", "human_feedback_site", "docker/health-worker"} <= copied
    assert [name for name in copied if not (ROOT / name).exists()] == []
    assert [name for name in copied if ignored(name.split("/")[0])] == []


def test_nothing_private_or_large_reaches_the_builder() -> None:
    present = {path.name for path in ROOT.iterdir()} | {".env", ".git", ".venv", "runs", "state"}
    sent = {name for name in present if not ignored(name)}
    assert sent == {
        *("agents", "teacher", "human_feedback_site", "docker"),
        *("constraints.txt", "manage.py", "pyproject.toml", "README.md"),
    }


@pytest.mark.parametrize("role", ROLES)
def test_no_image_runs_as_root(stages: dict[str, Any], role: str) -> None:
    users = [step.rest for step in stages[role].instructions if step.keyword == "USER"]
    assert users == ["10001:10001"]
    steps_after = stages[role].instructions[-2:]
    assert all(step.keyword in {"USER", "EXPOSE", "CMD", "ENTRYPOINT"} for step in steps_after)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_the_scripts_can_be_run(script: Path) -> None:
    assert script.stat().st_mode & 0o111 == 0o111
    interpreter = script.read_text().splitlines()[0].split()[-1].removeprefix("#!")
    checks = {"bash": ["bash", "-n"], "/bin/sh": ["sh", "-n"], "python3": [sys.executable, "-m", "ast"]}
    done = subprocess.run([*checks[interpreter], script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_roles_need_nothing_that_the_project_does_not_require() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = extras_by_name(set(project["dependencies"]))
    for extra in ("metrics", "parquet", "sso"):
        wanted |= extras_by_name(set(project["optional-dependencies"][extra]))
    assert extras_by_name(requirements("trainer")) == wanted
    assert "pyarrow" in requirements("site")
    for role in ("site", "render"):
        needed = extras_by_name(requirements(role))
        assert needed.keys() < wanted.keys()
        assert all(extras <= wanted[name] for name, extras in needed.items())
    assert not {"torch", "gymnasium"} & requirements("site")
    assert not {"torch", "django"} & requirements("render")


def test_every_distribution_is_pinned() -> None:
    pinned = {line.split("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert set(extras_by_name(requirements("trainer"))) <= pinned


def test_opengl_comes_from_the_packages_that_make_installs() -> None:
    make, image = (ROOT / "Makefile").read_text(), (ROOT / "docker/install-gl").read_text()
    wanted = re.findall(r"^GL_PACKAGES := (.*)$", make, re.MULTILINE)
    installed = re.findall(r"^apt-get install .* --no-install-recommends (.*)$", image, re.MULTILINE)
    assert installed == wanted
