"""The Kubernetes manifests fit together, and their pods run as Compose's services do, with few rights."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import yaml
from django.test import Client, override_settings

from teacher.teach import parse_arguments
from tests.deployment.backed_up import SITE_KEY, done
from tests.deployment.kustomization import (
    OVERLAYS,
    Resource,
    Resources,
    build,
    by_name,
    containers_of,
    offered_in,
    pod_of,
    template_of,
)
from tests.documents import blocks_of, page_of

ROOT = Path(__file__).parents[2]
METADATA = ("169.254.169.254", "fd00:ec2::254")
"""Addresses of the metadata service of clouds, which gives out keys, in IPv4 and IPv6."""
KUBECTL = shutil.which(str(Path(sys.executable).parent / "kubectl")) or shutil.which("kubectl")
VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
SIZES = {"m": 1e-3, "": 1.0, "Mi": 2.0**20, "Gi": 2.0**30}


def labels_of(resource: Resource) -> dict[str, str]:
    template = template_of(resource)
    assert template
    labels: dict[str, str] = template["metadata"]["labels"]
    return labels


@pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kubectl_builds_the_same_resources(kubernetes: Path, overlay: str) -> None:
    """So that what the other tests look at is what a cluster gets."""
    command = [str(KUBECTL), "kustomize", str(kubernetes / overlay)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    built, ours = list(yaml.safe_load_all(done.stdout)), build(kubernetes / overlay)
    for secret in (each for each in built if each["kind"] == "Secret"):
        secret["data"] = {name: value.replace("\n", "") for name, value in secret["data"].items()}
    assert by_name(built) == by_name(ours)


def test_every_file_is_part_of_a_kustomization(kubernetes: Path) -> None:
    named = {
        (path.parent / name).resolve()
        for path in kubernetes.rglob("kustomization.yaml")
        for name in re.findall(r"[\w./-]+", path.read_text())
    }
    unused = {path for path in kubernetes.rglob("*") if path.is_file() and path.resolve() not in named}
    assert {path.name for path in unused} == {"kustomization.yaml"}


def test_there_are_no_secrets_until_somebody_writes_them(kubernetes: Path, tmp_path: Path) -> None:
    shutil.copytree(kubernetes, tmp_path / "kubernetes", ignore=shutil.ignore_patterns("secrets.env"))
    with pytest.raises(FileNotFoundError, match=r"secrets\.env"):
        build(tmp_path / "kubernetes/example")
    assert "/deploy/kubernetes/**/secrets.env" in (ROOT / ".gitignore").read_text().splitlines()


def test_resources_named_by_pods_exist(resources: Resources, pods: dict[str, Resource]) -> None:
    for name, pod in pods.items():
        claims = {
            each["persistentVolumeClaim"]["claimName"]
            for each in pod["volumes"]
            if len(each) == 2 and "persistentVolumeClaim" in each
        }
        assert {("PersistentVolumeClaim", claim) for claim in claims} <= set(resources), name
        for container in containers_of(pod):
            mounted = {mount["name"] for mount in container["volumeMounts"]}
            assert mounted <= {volume["name"] for volume in pod["volumes"]}, name
            (source,) = container["envFrom"]
            assert ("ConfigMap", source["configMapRef"]["name"]) in resources, name
            for variable in container["env"]:
                if "value" not in variable:
                    key = variable["valueFrom"]["secretKeyRef"]
                    assert key["key"] in {variable["name"], f"MIGRATION_{variable['name']}"}, name
                    assert key["key"] in resources["Secret", key["name"]]["data"] or key["optional"], name


def test_selectors_choose_the_pods_of_their_own(resources: Resources) -> None:
    labels = {name: labels_of(each) for (_, name), each in resources.items() if pod_of(each)}
    trainers = {name for name in labels if name.startswith("trainer-")}
    assert len({tuple(sorted(each.items())) for each in labels.values()}) == len(labels) - len(trainers) + 1

    def chosen(selector: dict[str, str]) -> set[str]:
        return {name for name, given in labels.items() if selector.items() <= given.items()}

    for (kind, name), each in resources.items():
        if kind == "Deployment":
            assert chosen(each["spec"]["selector"]["matchLabels"]) == {name}
    assert chosen(resources["Service", "web"]["spec"]["selector"]) == {"web"}
    assert chosen(resources["PodDisruptionBudget", "web"]["spec"]["selector"]["matchLabels"]) == {"web"}
    policies = {name: each["spec"] for (kind, name), each in resources.items() if kind == "NetworkPolicy"}
    assert {name: chosen(each["podSelector"]["matchLabels"]) for name, each in policies.items()} == {
        "deny-ingress": set(labels),
        "web": {"web"},
        "egress": set(labels),
        "database": set(labels),  # but for its expressions
        "redis": set(labels),
        "trainer": trainers,
        "render-metrics": {"render"},
    }
    for kind, name in (("ServiceMonitor", "web"), ("PodMonitor", "render")):
        (monitor,) = [each["spec"] for (other, _), each in resources.items() if other == kind]
        assert chosen(monitor["selector"]["matchLabels"]) == {name}
    spread = resources["Deployment", "web"]["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert [chosen(each["labelSelector"]["matchLabels"]) for each in spread] == [{"web"}, {"web"}]


def test_pods_connect_to_the_services_that_they_have_secrets_of(
    resources: Resources, pods: dict[str, Resource]
) -> None:
    for policy, secret in (("database", "DATABASE_URL"), ("redis", "REDIS_URL")):
        (expression,) = resources["NetworkPolicy", policy]["spec"]["podSelector"]["matchExpressions"]
        names = {
            name for name, pod in pods.items() for each in containers_of(pod) if secret in secrets_of(each)
        }
        assert set(expression["values"]) == {name.partition("-")[0] for name in names}
        assert expression["key"] == "app.kubernetes.io/component"
    allowed = resources["NetworkPolicy", "egress"]["spec"]["egress"]
    assert [port["port"] for rule in allowed for port in rule["ports"]] == [53, 53, 443]
    assert [
        port["port"]
        for rule in allowed
        for to in rule.get("to", ())
        for port in rule["ports"]
        if "ipBlock" in to
    ]
    for block in (to["ipBlock"] for rule in allowed for to in rule.get("to", ()) if "ipBlock" in to):
        assert any(ip_address(METADATA[":" in block["cidr"]]) in ip_network(each) for each in block["except"])


def test_only_migrations_and_backups_have_the_user_who_owns_the_tables(pods: dict[str, Resource]) -> None:
    urls = {
        (container["name"], variable["valueFrom"]["secretKeyRef"]["key"])
        for pod in pods.values()
        for container in containers_of(pod)
        for variable in container["env"]
        if variable["name"] == "DATABASE_URL"
    }
    owner, other = "MIGRATION_DATABASE_URL", "DATABASE_URL"
    assert urls == {("setup", owner), ("manage", owner), ("backup", owner), ("web", other), ("chores", other)}


MISSING_RIGHTS = b"""
SELECT c.relname, p.name FROM pg_class c, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) p(name)
WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r'
AND NOT has_table_privilege('lab_users', c.oid, p.name)
"""


def test_the_site_works_as_a_user_who_may_not_change_tables(
    postgres_url: str, migrated_postgresql: Callable[[str], str], tmp_path: Path
) -> None:
    """With the statements of the page on Kubernetes."""
    (statements,) = blocks_of(page_of("kubernetes"), "sql")
    url = migrated_postgresql("lab_users")
    try:
        with psycopg.connect(url, autocommit=True) as connection:
            for statement in statements.replace("teacher", "lab_users").split(";")[:-1]:
                connection.execute(statement.encode())
            missing = connection.execute(MISSING_RIGHTS).fetchall()
        assert missing == []
        host = urlsplit(url).netloc.rpartition("@")[2]
        site = {"DATABASE_URL": f"postgresql://lab_users:PASSWORD@{host}/lab_users", "SECRET_KEY": SITE_KEY}
        site["DJANGO_SUPERUSER_PASSWORD"] = "long-enough-for-anybody"
        done("createsuperuser --noinput --username ann --email ann@example.org", site, tmp_path)
        done("chores", site, tmp_path)
        with (
            psycopg.connect(site["DATABASE_URL"]) as user,
            pytest.raises(psycopg.errors.InsufficientPrivilege),
        ):
            user.execute("ALTER TABLE feedback_label ADD COLUMN more integer")
    finally:
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute("DROP DATABASE IF EXISTS lab_users WITH (FORCE)")
            connection.execute("DROP ROLE IF EXISTS lab_users")
            connection.execute("DROP ROLE IF EXISTS lab_users_owner")


def test_scaled_deployments_and_their_metrics_exist(resources: Resources) -> None:
    rules = yaml.safe_load(blocks_of(page_of("kubernetes"), "yaml")[0])["rules"]["external"]
    scaled = [each["spec"] for (kind, _), each in resources.items() if kind == "HorizontalPodAutoscaler"]
    external = [each["external"] for spec in scaled for each in spec["metrics"] if each["type"] == "External"]
    assert {each["metric"]["name"] for each in external} == {rule["seriesQuery"] for rule in rules}
    assert all(f"`{rule['seriesQuery']}`" in page_of("monitoring").read_text() for rule in rules)
    assert {("Deployment", spec["scaleTargetRef"]["name"]) for spec in scaled} <= set(resources)
    assert all(0 < spec["minReplicas"] < spec["maxReplicas"] for spec in scaled)


@pytest.mark.django_db
def test_prometheus_scrapes_the_site_under_a_name_that_it_serves(resources: Resources) -> None:
    """Not under a pod's IP address, to which the site answers 400."""
    (endpoint,) = resources["ServiceMonitor", "site"]["spec"]["endpoints"]
    (address,) = [each for each in endpoint["relabelings"] if each.get("targetLabel") == "__address__"]
    parts = ";".join(("web", resources["Deployment", "web"]["metadata"]["namespace"]))
    host = re.sub(address["regex"], re.sub(r"\$(\d)", r"\\\1", address["replacement"]), parts)
    hosts = resources["ConfigMap", "settings"]["data"]["ALLOWED_HOSTS"].split(",")
    headers = {"Authorization": f"Bearer {'t' * 32}"}
    with override_settings(ALLOWED_HOSTS=hosts, METRICS_TOKEN="t" * 32):
        for name, status in ((host, 200), ("10.0.0.7:8000", 400)):
            answer = Client().get(endpoint["path"], headers=headers | {"Host": name})
            assert answer.status_code == status, name
    jobs = {each["replacement"] for each in endpoint["relabelings"] if each.get("targetLabel") == "job"}
    assert jobs == {"rl-teacher-site"}  # as in the alerts


def test_the_nightly_backup_checks_what_it_wrote_and_keeps_seven(
    pods: dict[str, Resource], here: Path
) -> None:
    for name, script in {
        "python": 'echo "$@" >> log; [ $2 != backup ] || mkdir $3',
        "date": "echo 9",
    }.items():
        (here / name).write_text(f"#!/bin/sh\n{script}\n")
        (here / name).chmod(0o755)
    for name in (".nightly-1.part", "monday", *(f"nightly-{day}" for day in range(1, 9))):
        (here / "backups" / name).mkdir(parents=True)
    command, environment = main_container(pods["backup"])["command"], {"PATH": f"{here}:/usr/bin:/bin"}
    subprocess.run(command, env=environment, cwd=here, check=True)
    left = {path.name for path in (here / "backups").iterdir()}
    assert left == {"monday", *(f"nightly-{day}" for day in range(3, 10))}
    assert (here / "log").read_text().splitlines() == [
        "manage.py backup backups/nightly-9",
        "manage.py restore --check backups/nightly-9",
    ]


def test_a_trainer_gets_a_gpu_on_a_node_that_has_one(pods: dict[str, Resource]) -> None:
    pod = pods["trainer-gpu"]
    container = main_container(pod)
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert pod["nodeSelector"] == {"nvidia.com/gpu.present": "true"}
    config = parse_arguments(container["args"][1:]).config
    assert (config.device, str(config.run_dir)) == ("cuda", container["args"][0])


def test_temporary_files_are_limited(pods: dict[str, Resource]) -> None:
    volumes = [
        (name, each["emptyDir"])
        for name, pod in pods.items()
        for each in pod["volumes"]
        if "emptyDir" in each
    ]
    assert {name for name, _ in volumes} == set(pods)
    assert all(size(volume["sizeLimit"]) > 0 for _, volume in volumes)
    assert all(pod["imagePullSecrets"] == [{"name": "registry"}] for pod in pods.values())


def test_requests_reach_the_port_that_the_site_listens_on(
    resources: Resources, pods: dict[str, Resource], stages: dict[str, Any]
) -> None:
    (container,) = pods["web"]["containers"]
    (exposed,) = [step.rest for step in stages["site"].instructions if step.keyword == "EXPOSE"]
    assert container["ports"] == [{"name": "http", "containerPort": int(exposed)}]
    assert resources["Service", "web"]["spec"]["ports"] == [
        {"name": "http", "port": int(exposed), "targetPort": "http"}
    ]
    (rule,) = resources["Ingress", "web"]["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    assert path["backend"] == {"service": {"name": "web", "port": {"name": "http"}}}
    (allowed,) = resources["NetworkPolicy", "web"]["spec"]["ingress"]
    assert [port["port"] for port in allowed["ports"]] == [int(exposed)]


def test_the_ingress_serves_the_public_url(resources: Resources) -> None:
    ingress = resources["Ingress", "web"]["spec"]
    hosts = {rule["host"] for rule in ingress["rules"]} | {
        host for tls in ingress["tls"] for host in tls["hosts"]
    }
    settings = resources["ConfigMap", "settings"]["data"]
    assert {f"https://{host}" for host in hosts} == {settings["TEACHER_PUBLIC_URL"]}
    assert settings["TEACHER_PROXIES"] == "1"


def test_all_pods_have_the_same_version(pods: dict[str, Resource]) -> None:
    images = {each["image"] for pod in pods.values() for each in containers_of(pod)}
    named = [re.fullmatch(r"registry\.example\.org/rl-teacher-(\w+):(.+)", image) for image in images]
    assert {found[1] for found in named if found} == {"site", "render", "trainer"}
    assert len({found[2] for found in named if found}) == 1


def test_exactly_one_pod_runs_the_chores(resources: Resources) -> None:
    chores = resources["Deployment", "chores"]["spec"]
    assert (chores["replicas"], chores["strategy"]) == (1, {"type": "Recreate"})


def obstacles(pod: Resource) -> set[str]:
    """List what the pod does although the Pod Security Standards' profile "restricted" forbids it."""
    found = {name for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name)}
    found |= {f"volume {kind}" for each in pod["volumes"] for kind in each.keys() - {"name"} - VOLUMES}
    for container in containers_of(pod):
        security = pod["securityContext"] | container["securityContext"]
        probes = [container[name] for name in container if name.endswith("Probe")]
        hooks = container.get("lifecycle", {}).values()
        checks = {
            "privilege escalation": security.get("allowPrivilegeEscalation") is False,
            "privileged": not security.get("privileged"),
            "user": security.get("runAsNonRoot") is True and security.get("runAsUser") != 0,
            "seccomp": security.get("seccompProfile", {}).get("type") == "RuntimeDefault",
            "capabilities": security.get("capabilities") == {"drop": ["ALL"]},
            "unusual": not security.keys() & {"procMount", "seLinuxOptions", "sysctls", "appArmorProfile"},
            "host ports": not [port for port in container.get("ports", ()) if "hostPort" in port],
            "hosts of probes": not [each for each in (*probes, *hooks) if "host" in each.get("httpGet", {})],
        }
        found |= {name for name, is_met in checks.items() if not is_met}
    return found


def test_pods_meet_the_restricted_profile(resources: Resources, pods: dict[str, Resource]) -> None:
    assert {name: found for name, pod in pods.items() if (found := obstacles(pod))} == {}
    labels = resources["Namespace", "rl-teacher"]["metadata"]["labels"]
    assert labels == {"pod-security.kubernetes.io/enforce": "restricted"}


@pytest.mark.parametrize(
    ("obstacle", "pod_change", "container_change"),
    [
        ("hostPID", {"hostPID": True}, {}),
        ("volume hostPath", {"volumes": [{"name": "tmp", "hostPath": {"path": "/"}}]}, {}),
        ("user", {"securityContext": {"seccompProfile": {"type": "RuntimeDefault"}}}, {}),
        ("seccomp", {"securityContext": {"runAsNonRoot": True}}, {}),
        ("capabilities", {}, {"securityContext": {"allowPrivilegeEscalation": False}}),
        ("privilege escalation", {}, {"securityContext": {"capabilities": {"drop": ["ALL"]}}}),
        ("hosts of probes", {}, {"livenessProbe": {"httpGet": {"host": "10.0.0.1"}}}),
    ],
)
def test_a_pod_that_may_do_more_would_be_noticed(
    pods: dict[str, Resource], obstacle: str, pod_change: Resource, container_change: Resource
) -> None:
    pod = deepcopy(pods["render"]) | pod_change
    pod["containers"][0] |= container_change
    assert obstacles(pod) == {obstacle}


def test_pods_have_least_privileges(pods: dict[str, Resource], stages: dict[str, Any]) -> None:
    (user,) = {
        step.rest
        for role in ("site", "render", "trainer")
        for step in stages[role].instructions
        if step.keyword == "USER"
    }
    for name, pod in pods.items():
        assert pod["automountServiceAccountToken"] is False, name
        assert pod["enableServiceLinks"] is False, name  # variables that collide with the project's
        security = pod["securityContext"]
        assert f"{security['runAsUser']}:{security['runAsGroup']}" == user, name
        has_claim = any("persistentVolumeClaim" in each for each in pod["volumes"])
        assert security.get("fsGroup") == (security["runAsGroup"] if has_claim else None), name
        for container in containers_of(pod):
            assert container["securityContext"]["readOnlyRootFilesystem"], name
            assert "/tmp" in {mount["mountPath"] for mount in container["volumeMounts"]}, name
            requests, limits = (container["resources"][each] for each in ("requests", "limits"))
            assert set(requests) == set(limits) - {"nvidia.com/gpu"} == {"cpu", "memory"}, name
            assert all(size(requests[each]) <= size(limits[each]) for each in requests), name


def size(quantity: str) -> float:
    """A quantity as Kubernetes writes it, such as 250m or 2Gi, as a number."""
    found = re.fullmatch(r"(\d+)(m|Mi|Gi|)", quantity)
    assert found, quantity
    return int(found[1]) * SIZES[found[2]]


def test_commands_of_the_page_name_what_is_there(resources: Resources, kubernetes: Path) -> None:
    text = "\n".join(blocks_of(page_of("kubernetes"), ""))
    found = {
        (kind.capitalize(), name)
        for kind, name in re.findall(r"\b(deployment|job|cronjob)[ /]([\w-]+)", text)
    }
    (restarted,) = re.findall(r"rollout restart deployment (.*)", text)
    found |= {("Deployment", name) for name in restarted.split()}
    found = {(kind.replace("Cronjob", "CronJob"), name) for kind, name in found}
    pods = {(kind, name) for kind, name in resources if kind in {"Deployment", "Job", "CronJob"}}
    assert found == pods - {("Job", "trainer-gpu")} | {("Job", "backup-now")}
    folders = {kubernetes / name.replace("lab", "example") for name in re.findall(r"--kustomize (\S+)", text)}
    assert folders == {kubernetes / overlay for overlay in ("example", "example/trainer")}
    assert all((kubernetes / each).is_dir() for each in re.findall(r"`deploy/kubernetes/([\w/-]+)`", text))
    assert (kubernetes / "example/secrets.env.example").exists()
    assert "lab/secrets.env.example lab/secrets.env\n" in text


SERVICES = {
    "web": "web",
    "chores": "beat",
    "render": "render",
    "manage": "manage",
    "backup": "manage",
    "trainer-crowd": "trainer",
    "trainer-gpu": "trainer",
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
    references = {e["name"]: e["valueFrom"]["secretKeyRef"] for e in container["env"] if "valueFrom" in e}
    return {name: each.get("optional", False) for name, each in references.items()}


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
    assert SECRETS.keys() | SETTINGS.keys() == of_compose | {"MIGRATION_DATABASE_URL"}
    for name, pod in pods.items():
        given = services[SERVICES[name]]["environment"]
        secrets = secrets_of(main_container(pod))
        assert secrets.keys() == given.keys() & SECRETS.keys(), name
        optional = {each for each, is_optional in secrets.items() if is_optional}
        assert optional == {each for each in secrets if not given[each]} - {"TEACHER_TOKEN"}, name
        for setup in pod.get("initContainers", ()):
            assert secrets_of(setup).items() <= secrets.items(), name
            assert secrets.keys() - secrets_of(setup).keys() <= {"TEACHER_METRICS_TOKEN", "REDIS_URL"}, name
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
    compose: Any, pods: dict[str, Resource], here: Path
) -> None:
    container = main_container(pods["trainer-crowd"])
    for name, script in {"teach": 'printf "%s\\n" "$@"', "trainer": 'printf "%s\\n" trainer "$@"'}.items():
        (here / name).write_text(f"#!/bin/sh\n{script}\n")
        (here / name).chmod(0o755)
    command = [word.replace("/app/docker/trainer", "trainer") for word in container["command"]]

    def said(arguments: list[str]) -> list[str]:
        words, environment = [*command, *arguments], {"PATH": f"{here}:/usr/bin:/bin"}
        return subprocess.check_output(words, env=environment, cwd=here, text=True).splitlines()

    run, *arguments = container["args"]
    entrypoint = compose["services"]["trainer"]["entrypoint"]
    assert said([run, *arguments]) == ["trainer", *entrypoint[1:], *arguments]
    config = parse_arguments(arguments).config
    assert Path(run) == config.run_dir  # otherwise a new pod would try to start the run again
    config.run_dir.mkdir(parents=True)
    (config.run_dir / "config.json").write_text("{}")
    assert said([run, *arguments]) == ["--resume", run]
    longer = ["--resume", run, "-t", "2000000"]
    assert said([run, *longer]) == ["trainer", *entrypoint[1:], *longer]
