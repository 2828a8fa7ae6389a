"""The compose file is valid and keeps its secrets, and docs/deployment.md says what it has."""

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from teacher.teach import COMMANDS, parse_arguments
from tests.deployment.conftest import check_schema, composed

ROOT = Path(__file__).parents[2]
COMPOSE = (ROOT / "docker-compose.yml").read_text()
EXAMPLE = (ROOT / ".env.example").read_text()
PAGE = (ROOT / "docs/deployment.md").read_text()
OWN = ("setup", "web", "beat", "render", "trainer", "manage")
SERVERS = ("database", "redis", "media")
ONE_SHOT = ("setup", "trainer", "manage")
ASKED = set(re.findall(r"\$\{(\w+)", COMPOSE))
OFFERED = set(re.findall(r"^#?([A-Z0-9_]+)=", EXAMPLE, re.MULTILINE))


def settings_of(*modules: str) -> set[str]:
    """The environment variables that modules of the project read."""
    sources = "".join((ROOT / module).read_text() for module in modules)
    return set(re.findall(r'(?:read_\w+|environ\.get)\("([A-Z0-9_]+)"', sources))


def words_of(service: Any) -> list[str]:
    """Entry point and command as one list of words."""
    parts = [service.get("entrypoint", []), service.get("command", [])]
    return [str(word) for part in parts for word in (part.split() if isinstance(part, str) else part)]


def test_the_compose_file_follows_the_compose_schema() -> None:
    check_schema(ROOT / "docker-compose.yml")


def test_the_services_are_those_of_the_documentation(compose: Any) -> None:
    assert set(compose["services"]) == {*OWN, *SERVERS}


@pytest.mark.parametrize(
    ("variables", "origin"),
    [
        ({}, "http://localhost:8000"),
        ({"TEACHER_PUBLIC_URL": "https://host"}, "https://host"),
        (
            {"TEACHER_PUBLIC_URL": "https://host/teacher", "TEACHER_PUBLIC_ORIGIN": "https://host"},
            "https://host",
        ),
    ],
)
def test_store_allows_the_origin(secrets: dict[str, str], variables: dict[str, str], origin: str) -> None:
    media = composed({**secrets, **variables})["services"]["media"]
    assert media["environment"]["MINIO_API_CORS_ALLOW_ORIGIN"] == origin


def test_every_secret_has_to_be_given(secrets: dict[str, str]) -> None:
    assert set(re.findall(r"\$\{(\w+):\?", COMPOSE)) == set(secrets)
    assert not {name for name in secrets if re.search(rf"\$\{{{name}(:-|}})", COMPOSE)}


def test_no_secret_is_in_the_file(compose: Any, secrets: dict[str, str]) -> None:
    """Whatever is called a key, a password or a token comes from ``.env``."""
    for name, service in compose["services"].items():
        for variable, value in service["environment"].items():
            if re.search("KEY|PASSWORD|TOKEN|AUTH|ROOT_USER", variable):
                assert value in {*secrets.values(), ""}, f"{variable} of {name}"
            elif re.search("://[^/]*:[^/]*@", str(value)):
                assert any(secret in value for secret in secrets.values()), f"{variable} of {name}"


def test_the_example_holds_no_secret_and_everything_that_compose_asks_for(secrets: dict[str, str]) -> None:
    given = dict(line.split("=", 1) for line in EXAMPLE.splitlines() if line and not line.startswith("#"))
    assert {name for name, value in given.items() if not value} == set(secrets)
    assert ASKED <= OFFERED


def test_the_example_offers_what_programs_read_and_nothing_else() -> None:
    modules = ("settings", "environment", "celery", "embedded")
    site = settings_of(*(f"human_feedback_site/{module}.py" for module in modules))
    worker = settings_of("teacher/clips/tasks.py", "teacher/storage.py")
    internal = {"TEACHER_INSTANCE_ID", "TEACHER_SIGN_IN_CODE"}  # given by the process that starts a site
    assert len(site) > 8
    assert len(worker) > 2
    assert (site | worker) - internal <= OFFERED
    assert ASKED | site | worker >= OFFERED


def test_example_shows_the_defaults() -> None:
    shown = dict(re.findall(r"^#?([A-Z0-9_]+)=(.+)$", EXAMPLE, re.MULTILINE))
    assumed = dict(re.findall(r"\$\{(\w+):-([^}$]+)}", COMPOSE))
    assert {name: shown[name] for name in assumed} == assumed


def test_the_web_process_knows_no_queue_and_workers_know_no_database(compose: Any) -> None:
    given = {name: set(service["environment"]) for name, service in compose["services"].items()}
    assert "REDIS_URL" not in given["web"] | given["setup"]
    assert {"REDIS_URL", "MEDIA_KEEP_DAYS", "DATABASE_URL"} <= given["beat"]
    for name in ("render", "trainer"):
        assert not {"DATABASE_URL", "SECRET_KEY"} & given[name]
        assert {"REDIS_URL", "S3_ENDPOINT_URL", "AWS_ACCESS_KEY_ID"} <= given[name]


def test_all_parts_use_one_store(compose: Any) -> None:
    services = compose["services"]
    for variable in ("TEACHER_STORAGE", "S3_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        assert len({services[name]["environment"][variable] for name in OWN}) == 1
    keys = [services["media"]["environment"][f"MINIO_ROOT_{name}"] for name in ("USER", "PASSWORD")]
    store = services["web"]["environment"]
    assert keys == [store["AWS_ACCESS_KEY_ID"], store["AWS_SECRET_ACCESS_KEY"]]


def test_page_lists_everything_to_remove_for_another_store(
    compose_with_store_elsewhere: Any, tmp_path: Path
) -> None:
    project = deepcopy(compose_with_store_elsewhere)
    del project["services"]["media"], project["volumes"]["media"]
    waiting = [name for name, s in project["services"].items() if s.get("depends_on", {}).pop("media", None)]
    *others, last = (f"`{name}`" for name in waiting)
    assert f"under `depends_on` of {', '.join(others)} and {last}." in " ".join(PAGE.split())
    (tmp_path / "docker-compose.yml").write_text(text := yaml.safe_dump(project))
    assert "media" not in re.findall(r"[\w-]+", text)
    check_schema(tmp_path / "docker-compose.yml")
    for variable in ("TEACHER_STORAGE", "S3_ENDPOINT_URL", "AWS_DEFAULT_REGION"):
        assert len({project["services"][name]["environment"][variable] for name in OWN}) == 1


def test_hosts_in_addresses_are_services(compose: Any) -> None:
    text = re.sub(r"#.*", "", COMPOSE).replace("localhost", "").replace("s3://clips", "")
    hosts = set(re.findall(r"(?:@|http://)([a-z]+)(?=[:/])", text))
    assert hosts == {"web", "database", "redis", "media"}
    assert hosts <= set(compose["services"])
    assert "web" in compose["services"]["web"]["environment"]["ALLOWED_HOSTS"].split(",")


@pytest.mark.parametrize("name", [*OWN, *SERVERS])
def test_every_service_can_be_left_alone(compose: Any, name: str) -> None:
    service = compose["services"][name]
    assert service["restart"] == ("no" if name in ONE_SHOT else "unless-stopped")
    assert ("healthcheck" in service) == (name not in ONE_SHOT)
    assert service["logging"]["options"]["max-size"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "container_name" not in service
    assert "hostname" not in service
    assert "privileged" not in service
    assert ("ports" in service) == (name in {"web", "media"})
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))


@pytest.mark.parametrize("name", SERVERS)
def test_tools_of_images_that_are_not_the_projects_get_no_long_options(compose: Any, name: str) -> None:
    """Alpine's grep and its like are BusyBox's, which know short options alone."""
    service = compose["services"][name]
    servers_own = {"redis-server", "redis-cli", "pg_isready", "mc", "server"}
    kind, *probe = service["healthcheck"]["test"]
    probes = [part.split() for part in re.split(r"[|;&]+", probe[0])] if kind == "CMD-SHELL" else [probe]
    for program, *arguments in filter(None, [words_of(service), *probes]):
        assert program in servers_own or not [word for word in arguments if word.startswith("--")], program


@pytest.mark.parametrize("name", OWN)
def test_own_services_write_to_volumes_alone(compose: Any, name: str) -> None:
    service = compose["services"][name]
    assert service["read_only"]
    assert service["tmpfs"] == ["/tmp"]
    assert service["cap_drop"] == ["ALL"]


def test_everything_that_a_service_waits_for_gets_there(compose: Any) -> None:
    services = compose["services"]
    for service in services.values():
        for other, how in service.get("depends_on", {}).items():
            finishes = other in ONE_SHOT
            assert how["condition"] == ("service_completed_successfully" if finishes else "service_healthy")
            assert finishes or "healthcheck" in services[other]


def test_every_volume_is_used_and_every_data_folder_is_one(compose: Any) -> None:
    used = {
        (name, volume.split(":")[0])
        for name, s in compose["services"].items()
        for volume in s.get("volumes", ())
    }
    servers = {(name, name) for name in ("database", "redis", "media")}
    backup = {("manage", folder) for folder in ("runs", "./backups", "./.env")}
    assert used == {*servers, ("trainer", "runs"), *backup}
    assert set(compose["volumes"]) == {folder for _, folder in used if not folder.startswith("./")}


def test_every_image_is_built_once_and_others_are_pinned(compose: Any, stages: dict[str, Any]) -> None:
    services = compose["services"]
    built = {
        service["image"]: service["build"]["target"] for service in services.values() if "build" in service
    }
    assert built == {f"rl-teacher-{role}": role for role in ("site", "render", "trainer")}
    assert set(built.values()) <= set(stages)
    assert all(services[name]["image"] in built for name in OWN)
    assert all(
        services[name]["pull_policy"] == "never" for name in ("web", "beat", "manage")
    )  # no registry has it
    assert all(re.search(r":[\w.-]*\d", services[name]["image"]) for name in SERVERS)


@pytest.mark.parametrize("name", OWN)
def test_started_programs_exist(compose: Any, stages: dict[str, Any], name: str) -> None:
    service = compose["services"][name]
    role = {"render": "render", "trainer": "trainer"}.get(name, "site")
    copied = {
        word for step in stages[role].instructions if step.keyword == "COPY" for word in step.rest.split()
    }
    words = [*words_of(service), *service.get("healthcheck", {}).get("test", ())]
    default = [step.rest for step in stages[role].instructions if step.keyword in {"CMD", "ENTRYPOINT"}]
    words += re.findall(r'"([^"]+)"', " ".join(default))
    scripts = [word.removeprefix("/app/") for word in words if word.startswith("/app/")]
    modules = [
        word.removeprefix("python:")
        for word in words
        if re.match(r"(python:)?(teacher|human_feedback_site)\.", word)
    ]
    assert scripts or name in {"trainer", "manage"}
    assert set(scripts) <= copied
    assert all(os.access(ROOT / script, os.X_OK) for script in scripts)
    assert [module for module in modules if importlib.util.find_spec(module) is None] == []


def test_a_service_gets_the_time_that_its_work_takes(compose: Any) -> None:
    """Longer than the 30 s of a web request, and the 60 s of a task."""
    seconds = {name: int(s.get("stop_grace_period", "10s")[:-1]) for name, s in compose["services"].items()}
    assert 30 < seconds["web"] < seconds["beat"]
    assert all(seconds[name] > 60 for name in ("beat", "render", "trainer"))


SITE_AND_STORE = ["--site_url", "http://web:8000", "--storage", "s3://clips"]


def test_the_trainer_gets_site_and_store_where_it_needs_them(tmp_path: Path) -> None:
    teach = tmp_path / "teach"
    teach.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    teach.chmod(0o755)

    def said(*arguments: str) -> list[str]:
        command = [str(ROOT / "docker/trainer"), "http://web:8000", *arguments]
        environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "TEACHER_STORAGE": "s3://clips"}
        return subprocess.check_output(command, env=environment, text=True).splitlines()

    new = ["-p", "human", "--prompt", "Which one? --resume is no setting here"]
    assert said(*new) == [*SITE_AND_STORE, *new]
    assert said("--resume", "runs/Hopper-v1/x") == ["--resume", "runs/Hopper-v1/x"]
    for option in ("--help", "-h", "--help-all"):
        assert said(option) == [option]
    assert said("doctor", "--runs_dir", "x") == ["doctor", *SITE_AND_STORE, "--runs_dir", "x"]
    for command in {*COMMANDS, "exprot"} - {"doctor"}:
        assert said(command, "runs/Hopper-v1/x", "-p") == [command, "runs/Hopper-v1/x", "-p"]
    assert said() == [""]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_one_of_the_trainers(command: str) -> None:
    """With the real teach: it prints the help of that command, or obeys."""
    words = [str(ROOT / "docker/trainer"), "http://web:8000", command, "--help"]
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    environment = {"PATH": path, "PYTHONPATH": str(ROOT), "TEACHER_STORAGE": "s3://clips"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: teach {command}")


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


def test_settings_of_composed_trainers_are_accepted(here: Path) -> None:
    (line,) = [line for line in LINES if line.startswith("docker compose run --rm trainer -p")]
    words = shlex.split(line)
    settings = parse_arguments(words[words.index("-p") :])
    assert settings.config.name == "crowd"
    assert not settings.resumed


def test_override_follows_schema(compose: Any, tmp_path: Path) -> None:
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
