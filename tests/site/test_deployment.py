"""The compose file is valid, starts what the settings need, and keeps its secrets out of the repository."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SECRETS = {"SECRET_KEY", "POSTGRES_PASSWORD", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}


@pytest.fixture(scope="module")
def compose() -> Any:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def test_the_compose_file_follows_the_compose_schema() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run(
        [*command, str(ROOT / "docker-compose.yml")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_secret_has_to_be_given(compose: Any) -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    assert set(re.findall(r"\$\{(\w+):\?", text)) == SECRETS
    assert not {name for name in SECRETS if re.search(rf"\$\{{{name}(:-|}})", text)}


def test_the_example_lists_what_compose_asks_for_and_no_secret() -> None:
    lines = (ROOT / ".env.example").read_text().splitlines()
    given = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    asked = set(re.findall(r"\$\{(\w+)", (ROOT / "docker-compose.yml").read_text()))
    assert asked <= {line.removeprefix("#").split("=")[0] for line in lines}
    assert {name for name in given if given[name] == ""} == SECRETS


def test_every_setting_of_the_site_is_in_the_example() -> None:
    sources = [ROOT / "human_feedback_site" / name for name in ("settings.py", "environment.py")]
    read = {
        name
        for source in sources
        for name in re.findall(r'(?:read_\w+|environ\.get)\("([A-Z0-9_]+)"', source.read_text())
    }
    internal = {"TEACHER_INSTANCE_ID"}  # given by the process that starts an embedded site
    example = (ROOT / ".env.example").read_text()
    assert len(read) > 8
    assert {name for name in read - internal if not re.search(rf"^#?{name}=", example, re.MULTILINE)} == set()


def test_the_composed_site_starts_with_its_settings(compose: Any, tmp_path: Path) -> None:
    secrets = dict.fromkeys(SECRETS, "s" * 40)
    variable = re.compile(r"\$\{(\w+)(?::[-?]([^}]*))?\}")
    environment = {
        name: variable.sub(lambda found: secrets.get(found[1], found[2]), str(value))
        for name, value in compose["services"]["site"]["environment"].items()
    }
    code = "from human_feedback_site.settings import *; print(DATABASES['default']['HOST'], ALLOWED_HOSTS)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, "PATH": "/usr/bin:/bin", "TEACHER_STATE_DIR": str(tmp_path)},
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("database ['127.0.0.1', 'localhost'")


def test_the_composed_site_takes_the_hosts_and_origins_of_the_env_file(compose: Any) -> None:
    given = compose["services"]["site"]["environment"]
    assert {name: given[name] for name in ("ALLOWED_HOSTS", "CSRF_TRUSTED_ORIGINS")} == {
        "ALLOWED_HOSTS": "${ALLOWED_HOSTS:-}",
        "CSRF_TRUSTED_ORIGINS": "${CSRF_TRUSTED_ORIGINS:-}",
    }


def test_the_image_is_built_from_what_is_there() -> None:
    for line in (ROOT / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY"):
            assert all((ROOT / name).exists() for name in line.split()[1:-1])
