"""Pods of the Kubernetes manifests run what Compose's services run, with the same settings."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from django.test import Client, override_settings

from teacher.teach import parse_arguments
from tests.deployment.backed_up import done
from tests.deployment.kustomization import Resource, Resources, containers_of, offered_in

ROOT = Path(__file__).parents[2]
SERVICES = {
    "web": "web",
    "chores": "beat",
    "render": "render",
    "manage": "manage",
    "trainer-crowd": "trainer",
}
"""The service of docker-compose.yml that each pod stands for."""
EXAMPLE = ROOT / "deploy/kubernetes/example"
SETTINGS = offered_in((EXAMPLE / "settings.env").read_text())
SECRETS = offered_in((EXAMPLE / "secrets.env.example").read_text())
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


def seconds(period: str) -> int:
    return int(period.removesuffix("s"))


def main_container(pod: Resource) -> Resource:
    (container,) = pod["containers"]
    found: Resource = container
    return found


def secrets_of(container: Resource) -> dict[str, bool]:
    """The secrets that a container gets; True for those that it can do without."""
    references = [each["valueFrom"]["secretKeyRef"] for each in container["env"] if "valueFrom" in each]
    return {each["key"]: each.get("optional", False) for each in references}


def test_every_service_of_the_project_has_a_pod(compose: Any, pods: dict[str, Resource]) -> None:
    own = {
        name for name, service in compose["services"].items() if service["image"].startswith("rl-teacher-")
    }
    assert own - {"setup"} == {SERVICES[name] for name in pods}
    assert {each["name"] for pod in pods.values() for each in pod.get("initContainers", ())} == {"setup"}


def test_variables_are_those_of_compose(compose: Any, pods: dict[str, Resource]) -> None:
    services = compose["services"]
    assert not SECRETS.keys() & SETTINGS.keys()
    of_compose = {each for name in SERVICES.values() for each in services[name]["environment"]}
    assert SECRETS.keys() | SETTINGS.keys() == of_compose
    for name, pod in pods.items():
        given = services[SERVICES[name]]["environment"]
        secrets = secrets_of(main_container(pod))
        assert secrets.keys() == given.keys() & SECRETS.keys(), name
        optional = {each for each, is_optional in secrets.items() if is_optional}
        assert optional == {each for each in secrets if not given[each]} - {"TEACHER_TOKEN"}, name
        assert all(secrets_of(setup) == secrets for setup in pod.get("initContainers", ())), name
    others = {each["name"] for pod in pods.values() for c in containers_of(pod) for each in c["env"]}
    assert others - SECRETS.keys() == {"TMPDIR"}


def test_commands_and_images_are_those_of_compose(compose: Any, pods: dict[str, Resource]) -> None:
    services = compose["services"]
    for name, pod in pods.items():
        service, container = services[SERVICES[name]], main_container(pod)
        assert container["image"].split("/")[1].split(":")[0] == service["image"]
        for setup in pod.get("initContainers", ()):
            assert setup["args"][2:] == services["setup"]["command"]
            assert setup["args"][:2] == ["env", "PGOPTIONS=-c lock_timeout=5s"]
            assert setup["args"][1].partition("=")[2] in (ROOT / "docs/deployment.md").read_text()
            assert setup["image"] == container["image"]
    assert main_container(pods["chores"])["args"] == services["beat"]["command"].split()
    for name in ("web", "render"):  # the image's own
        assert not {"command", "args"} & (set(main_container(pods[name])) | set(services[name]))


def test_workers_are_checked_as_in_compose(compose: Any, pods: dict[str, Resource]) -> None:
    for name in ("chores", "render"):
        container, health = main_container(pods[name]), compose["services"][SERVICES[name]]["healthcheck"]
        probes = {each: container[each] for each in PROBES if each in container}
        assert set(probes) == {"startupProbe", "livenessProbe"}
        for probe in probes.values():
            assert ["CMD", *probe["exec"]["command"]] == health["test"]
            assert probe["timeoutSeconds"] == seconds(health["timeout"])
        startup, liveness = probes.values()
        assert startup["periodSeconds"] == seconds(health["start_interval"])
        assert startup["periodSeconds"] * startup["failureThreshold"] >= seconds(health["start_period"])
        assert liveness["periodSeconds"] == seconds(health["interval"])


@pytest.mark.django_db
def test_the_site_answers_its_probes(compose: Any, resources: Resources, pods: dict[str, Resource]) -> None:
    """With the example's settings; kubelet sends the pod's IP address as host unless it is told another."""
    container, health = main_container(pods["web"]), compose["services"]["web"]["healthcheck"]
    assert re.search(r'"/readyz"', (ROOT / health["test"][1].removeprefix("/app/")).read_text())
    assert {name: container[name]["httpGet"]["path"] for name in PROBES} == {
        "startupProbe": "/livez",
        "livenessProbe": "/livez",
        "readinessProbe": "/readyz",
    }
    assert container["readinessProbe"]["periodSeconds"] == seconds(health["interval"])
    hosts = [
        "127.0.0.1",
        "localhost",
        *resources["ConfigMap", "settings"]["data"]["ALLOWED_HOSTS"].split(","),
    ]
    with override_settings(ALLOWED_HOSTS=hosts):
        for name in PROBES:
            probe = container[name]["httpGet"]
            (header,) = probe["httpHeaders"]
            assert header["name"] == "Host"
            assert Client().get(probe["path"], headers={"Host": header["value"]}).status_code == 200
            assert Client().get(probe["path"], headers={"Host": "10.0.0.7:8000"}).status_code == 400


def test_a_pod_gets_the_time_that_compose_gives(compose: Any, pods: dict[str, Resource]) -> None:
    for name in ("web", "chores", "render", "trainer-crowd"):
        hook = (
            main_container(pods[name])
            .get("lifecycle", {})
            .get("preStop", {"exec": {"command": ["sleep", "0"]}})
        )
        waiting = int(hook["exec"]["command"][1])
        given = seconds(compose["services"][SERVICES[name]]["stop_grace_period"])
        assert pods[name]["terminationGracePeriodSeconds"] == given + waiting, name
    assert "lifecycle" in main_container(pods["web"])


def test_site_accepts_the_settings(resources: Resources, pods: dict[str, Resource], tmp_path: Path) -> None:
    needed = {
        name: SECRETS[name]
        for name, optional in secrets_of(main_container(pods["web"])).items()
        if not optional
    }
    for variables in (resources["ConfigMap", "settings"]["data"] | needed, SETTINGS | SECRETS):
        assert "identified no issues" in done("check --deploy", variables, tmp_path)


def test_trainers_reach_the_service_web(resources: Resources, pods: dict[str, Resource]) -> None:
    words = " ".join(main_container(pods["trainer-crowd"])["command"])
    assert re.findall(r"http://([\w-]+):8000", words) == ["web"]
    assert ("Service", "web") in resources
    assert "web" in resources["ConfigMap", "settings"]["data"]["ALLOWED_HOSTS"].split(",")


def test_a_trainer_starts_its_run_and_a_pod_that_replaces_it_resumes(
    compose: Any, pods: dict[str, Resource], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = main_container(pods["trainer-crowd"])
    for name, script in {"teach": 'printf "%s\\n" "$@"', "trainer": 'printf "%s\\n" trainer "$@"'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    command = [word.replace("/app/docker/trainer", "trainer") for word in container["command"]]

    def said(arguments: list[str]) -> list[str]:
        words, environment = [*command, *arguments], {"PATH": f"{tmp_path}:/usr/bin:/bin"}
        return subprocess.check_output(words, env=environment, cwd=tmp_path, text=True).splitlines()

    run, *arguments = container["args"]
    entrypoint = compose["services"]["trainer"]["entrypoint"]
    assert said([run, *arguments]) == ["trainer", *entrypoint[1:], *arguments]
    monkeypatch.chdir(tmp_path)
    config = parse_arguments(arguments).config
    assert Path(run) == config.run_dir  # otherwise a new pod would try to start the run again
    config.run_dir.mkdir(parents=True)
    (config.run_dir / "config.json").write_text("{}")
    assert said([run, *arguments]) == ["--resume", run]
    longer = ["--resume", run, "-t", "2000000"]
    assert said([run, *longer]) == ["trainer", *entrypoint[1:], *longer]
