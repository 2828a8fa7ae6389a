"""Test what docs/deployment.md says of services, commands, ports and variables is what the files have."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from teacher.teach import parse_arguments

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/deployment.md").read_text()
BLOCKS = re.findall(r"^```(\w*)[^\n]*\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
LINES = [
    line.split("  #")[0].strip()
    for language, block in BLOCKS
    if language in {"", "sh"}
    for line in block.replace("\\\n", " ").splitlines()
]


def block(language: str) -> str:
    (found,) = [text for name, text in BLOCKS if name == language]
    return str(found)


def command_of(service: str) -> str:
    (found,) = re.findall(rf"^\| {service} \| \w+ \| `([^`]+)`", PAGE, re.MULTILINE)
    return str(found)


def default_of(stages: dict[str, Any], role: str) -> str:
    (command,) = [step.rest for step in stages[role].instructions if step.keyword == "CMD"]
    return " ".join(json.loads(command))


def test_services_start_with_the_same_commands_everywhere(compose: Any, stages: dict[str, Any]) -> None:
    assert command_of("web").replace("HOST:PORT", "0.0.0.0:8000") == default_of(stages, "site")
    assert command_of("chores") == compose["services"]["beat"]["command"]
    assert command_of("render") == default_of(stages, "render")


def test_render_workers_do_not_tell_each_other_how_they_are() -> None:
    """Check what they would tell is the square of their number."""
    shown = [line for line in LINES if "teacher.render_tasks worker" in line]
    assert shown
    for command in (command_of("render"), *shown):
        assert {"--without-gossip", "--without-mingle"} <= set(command.split())


@pytest.mark.parametrize("service", ["web", "beat", "render"])
def test_the_page_names_what_a_service_of_compose_is_given(compose: Any, service: str) -> None:
    optional = {"ALLOWED_HOSTS", "CSRF_TRUSTED_ORIGINS", "LOG_FORMAT", "TEACHER_PROXIES", "WEB_CONCURRENCY"}
    optional.add("WEBHOOK_ALLOWED_HOSTS")
    optional |= {"TEACHER_METRICS_BIND", "TEACHER_METRICS_TOKEN"}
    (table,) = re.findall(r"^\| service \|.*?\n\n", PAGE, re.DOTALL | re.MULTILINE)
    given = {re.sub("^AWS_.*", "AWS_...", name) for name in compose["services"][service]["environment"]}
    optional |= {name for name in given if name.startswith("OIDC_")}  # have a page of their own
    assert given - optional <= set(re.findall(r"[A-Z][A-Z0-9_]+(?:_\.\.\.)?", table)) | {"AWS_..."}


def test_every_variable_on_the_page_is_explained_in_the_example() -> None:
    example = (ROOT / ".env.example").read_text()
    named = set(re.findall(r"`([A-Z][A-Z0-9]*_[A-Z0-9_]+)(?:=[^`]*)?`", PAGE))
    assert len(named) > 10
    assert {name for name in named if not re.search(rf"^#?{name}=", example, re.MULTILINE)} == set()


def test_commands_of_compose_name_its_services(compose: Any) -> None:
    commands = [line for line in LINES if line.startswith("docker compose ")]
    option = r"(?: --(?:entrypoint|publish) \S+| --?[\w-]+)"
    named = {
        found[1]
        for line in commands
        if (found := re.match(rf"docker compose (?:exec|run){option}* (\w+)", line))
    }
    assert named == {"web", "trainer", "setup", "manage"}
    assert named <= set(compose["services"])
    assert len(commands) > 10


def test_settings_of_composed_trainers_are_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (line,) = [line for line in LINES if line.startswith("docker compose run --rm trainer -p")]
    words = shlex.split(line)
    settings = parse_arguments(words[words.index("-p") :])
    assert settings.config.name == "crowd"
    assert not settings.resumed


def test_override_follows_schema(compose: Any, tmp_path: Path, check_schema: Callable[[Path], None]) -> None:
    override = tmp_path / "docker-compose.override.yml"
    override.write_text(block("yaml"))
    check_schema(override)
    assert set(re.findall(r"^  (\w+):$", block("yaml"), re.MULTILINE)) <= set(compose["services"])


@pytest.mark.parametrize("proxy", ["nginx", "caddy"])
def test_proxies_lead_to_what_compose_publishes(compose: Any, proxy: str) -> None:
    published = {port.rsplit(":", 1)[0] for s in compose["services"].values() for port in s.get("ports", ())}
    assert set(re.findall(r"127\.0\.0\.1:\d+", block(proxy))) == published
    hosts = set(re.findall(r"https://(\w+\.example\.org)", PAGE))
    assert hosts == set(re.findall(r"(?<![/\w])\w+\.example\.org", block(proxy)))
