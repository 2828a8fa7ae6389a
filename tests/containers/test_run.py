"""The images and services of docker-compose.yml: a run on them, kills, backups, two hosts and an upgrade."""

import json
import re
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
import requests

from tests.containers.composed import PAGE, ROOT, SERVERS, SERVICES, Engine, Experiment, Stack, until
from tests.containers.conftest import IMAGES, ROLES, Build, MakeExperiment, MakeStack


def test_all_services_are_healthy(stack: Stack) -> None:
    assert all(stack.is_healthy(service) for service in (*SERVERS, *SERVICES))


def test_a_run_finishes_with_every_label(finished: Experiment) -> None:
    finished.check_labels()


def test_two_render_workers_share_the_clips(stack: Stack, finished: Experiment) -> None:
    inspect = "CELERY_BROKER_URL=$REDIS_URL exec celery --quiet inspect --json stats"
    workers = json.loads(stack.engine("exec", stack.containers("render")[0], "sh", "-c", inspect))
    clips = {
        name: stats["total"]["teacher.render_clip"] for name, stats in workers.items() if "render" in name
    }
    assert len(clips) == 2
    assert min(clips.values()) > 0
    assert sum(clips.values()) >= 2 * finished.labels


def test_the_trainers_service_runs_other_commands(stack: Stack, finished: Experiment) -> None:
    run = "run --rm --no-deps -T trainer"
    assert finished.run_dir in stack.compose(f"{run} ls")
    assert "Nothing is missing." in stack.compose(f"{run} doctor")
    exported = stack.compose(f"{run} export {finished.run_dir} runs/labels.npz")
    assert f"{finished.labels} preferences" in exported


SIZES = {role: int(size) for role, size in re.findall(r"^\| (\w+) \| (\d+) MB\b", PAGE, re.MULTILINE)}
PARQUET = """
import pyarrow, pyarrow.parquet
pyarrow.parquet.write_table(pyarrow.table({"x": [7]}), "/tmp/x")
print(pyarrow.parquet.read_table("/tmp/x"))
"""


def run(engine: Engine, image: str, *command: str) -> str:
    """Run a command in a container without a network, and return its output."""
    program, *arguments = command
    return engine("run", "--rm", "--network", "none", "--entrypoint", program, image, *arguments)


@pytest.mark.parametrize("role", ROLES)
def test_images_have_the_documented_sizes(engine: Engine, images: str, role: str) -> None:
    measure = "du --summarize --one-file-system --block-size 1M /opt/rl-teacher"
    found = run(engine, f"{images}-{role}", *measure.split())
    assert int(found.split()[0]) == pytest.approx(SIZES[role], rel=0.1)


def test_the_site_image_reads_and_writes_parquet(engine: Engine, images: str) -> None:
    """The parts of PyArrow that the image keeps are enough."""
    assert "7" in run(engine, f"{images}-site", "python", "-c", PARQUET)


def test_no_label_is_lost_when_containers_are_killed(stack: Stack, make_experiment: MakeExperiment) -> None:
    experiment = make_experiment(stack, "killed", 50)
    trainer = experiment.start()
    bots = experiment.start_bots(seconds=1.0)
    for number, service in enumerate((*SERVICES, "redis", "database"), 1):
        experiment.wait_for_labels(6 * number)
        stack.kill(service)
    experiment.wait_for_labels(35)
    stack.engine("kill", "--signal", "KILL", experiment.container)
    assert trainer.wait(600) != 0

    stack.wait_until_healthy(*SERVERS, *SERVICES)
    experiment.wait(experiment.resume(), bots)
    experiment.check_labels()


LABELS = "SELECT uuid, choice, swapped FROM feedback_label ORDER BY id"


def test_backup_restores_labels_after_volumes_are_removed(stack: Stack, finished: Experiment) -> None:
    stack.documented("run --rm manage backup backups/monday")
    labels = stack.query(LABELS)
    assert len(labels) >= finished.labels
    stack.down()
    (stack.folder / ".env").unlink()

    assert "cp backups/monday/env .env" in PAGE
    shutil.copy(stack.folder / "backups/monday/env", stack.folder / ".env")
    if not stack.engine.resolves_dependencies:
        stack.start_servers()
    stack.documented("run --rm manage restore backups/monday")
    stack.up()

    assert stack.query(LABELS) == labels
    finished.check_labels()
    finished.wait(finished.resume("-t", "16000"))


PROGRESS = re.compile(r"^ +[\d,]+ +-?\d", re.MULTILINE)
RENDEZVOUS = "--rdzv-backend c10d --rdzv-endpoint"


class Host:
    """A trainer's container in which torchrun starts one process.

    Args:
        stack: the services.
        name: the container's name.
        first: name of the container where the processes meet.
        arguments: command line of teach.
    """

    def __init__(self, stack: Stack, name: str, first: str, arguments: str) -> None:
        self.name = name
        self._engine = stack.engine
        self._log = stack.folder / f"{name}.log"
        options = f"--nnodes 2 --nproc-per-node 1 {RENDEZVOUS} {first}:29400 --rdzv-id two"
        run = f"run --rm --no-deps -T --name {name} --entrypoint torchrun trainer"
        words = f"{run} {options} -m teacher.teach {arguments}".split()
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                self._engine.compose_command(words), cwd=stack.folder, stdout=log, stderr=log
            )

    @property
    def said(self) -> str:
        """Output so far."""
        return self._log.read_text()

    def has_started(self) -> bool:
        """Return True if the first row of progress was printed, or the container has ended."""
        return bool(PROGRESS.search(self.said)) or self.process.poll() is not None

    def kill(self) -> None:
        """Kill the container with SIGKILL."""
        self._engine("kill", "--signal", "KILL", self.name)


@pytest.fixture
def start(stack: Stack) -> Iterator[Callable[[str], list[Host]]]:
    """Start a command line of teach on two hosts."""
    started: list[Host] = []

    def start(arguments: str) -> list[Host]:
        names = [f"{stack.name}-host-{len(started) + number}" for number in (1, 2)]
        started.extend(Host(stack, name, names[0], arguments) for name in names)
        return started[-2:]

    yield start
    for host in started:
        host.process.kill()
        host.process.wait()


def test_run_on_two_hosts_resumes_after_a_kill(start: Callable[[str], list[Host]]) -> None:
    assert RENDEZVOUS in PAGE
    hosts = start("-p synth -e ShortHopper-v1 -n two -l 40 -L 20 -i 20 -t 40000 -V")
    until(lambda: any(host.has_started() for host in hosts), "progress")
    assert [host.process.poll() for host in hosts] == [None, None], output(hosts)
    leader, other = sorted(hosts, key=lambda host: "Training ShortHopper-v1" not in host.said)
    other.kill()
    assert all(host.process.wait(600) != 0 for host in hosts)
    assert leader.said.count("To resume") == 1, output(hosts)

    hosts = start("--resume runs/ShortHopper-v1/two")
    assert [host.process.wait(600) for host in hosts] == [0, 0], output(hosts)
    assert output(hosts).count("Done after") == 1


def output(hosts: list[Host]) -> str:
    return "\n".join(f"{host.name}: {host.said[-3000:]}" for host in hosts)


MIGRATION = "0002_0_2_0"
"""First migration that the earlier version lacks."""
MIGRATIONS = "SELECT name FROM django_migrations"
SIDES = ("first", "second")


class Labeler:
    """A trainer that submits pairs, and a labeler's browser; both work with any version of the site.

    Attributes:
        labels: the choices that the site acknowledged, by the label's UUID.
    """

    def __init__(self, stack: Stack) -> None:
        self._api = f"{stack.url}/api/v1"
        self._trainer = {"Authorization": f"Bearer {stack.variables['TEACHER_TOKEN']}"}
        self._browser = requests.Session()
        self.labels: dict[uuid.UUID, str] = {}
        store = boto3.client(
            "s3",
            endpoint_url=stack.store_url,
            region_name="us-east-1",
            aws_access_key_id=stack.variables["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=stack.variables["AWS_SECRET_ACCESS_KEY"],
        )
        for side in SIDES:
            store.put_object(Bucket="clips", Key=f"older/{side}.mp4", Body=b"a clip")
        experiment = {"run_id": str(uuid.uuid4()), "env_id": "x", "prompt": "Which one?", "fps": 20}
        experiment |= {"has_true_reward": False, "invite": "you"}
        created = self._submit("PUT", "/experiments/older", experiment)
        self._browser.get(created["invite_url"], timeout=60).raise_for_status()

    def label(self, choice: str) -> None:
        """Submit a pair and label it."""
        pair = {side: {"key": f"older/{side}.mp4"} for side in SIDES}
        comparison = {"uuid": str(uuid.uuid4()), "phase": "training", "step": 1, "priority": 1, **pair}
        self._submit("POST", "/experiments/older/comparisons", {"comparisons": [comparison]})
        (lease,) = self._answer("/experiments/older/leases", {"count": 1})["leases"]
        label = uuid.uuid4()
        answer = {"uuid": str(label), "lease": lease["uuid"], "choice": choice, "response_ms": 900}
        self._answer("/labels", answer)
        self.labels[label] = choice

    def _submit(self, method: str, path: str, body: dict[str, Any]) -> Any:
        url = self._api + path
        return _json(requests.request(method, url, json=body, headers=self._trainer, timeout=60))

    def _answer(self, path: str, body: dict[str, Any]) -> Any:
        (token,) = [cookie.value for cookie in self._browser.cookies if cookie.name.startswith("csrftoken")]
        headers = {"X-CSRFToken": token or ""}
        return _json(self._browser.post(self._api + path, json=body, headers=headers, timeout=60))


def _json(response: requests.Response) -> Any:
    assert response.ok, response.text
    return response.json()


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """Extract the last version without the migration; skip the test if Git doesn't have it."""
    git = ["git", "-C", str(ROOT)]
    path = f"human_feedback_site/feedback/migrations/{MIGRATION}.py"
    log = [*git, "log", "--format=%H", "--diff-filter=A", "--", path]
    commits = subprocess.run(log, capture_output=True, text=True, check=False).stdout.split()
    archive = [*git, "archive", f"{commits[-1] if commits else 'none'}^"]
    packed = subprocess.run(archive, capture_output=True, check=False)
    if packed.returncode:
        pytest.skip("needs a Git clone with its whole history")
    subprocess.run(["tar", "-x", "-C", str(tmp_path)], input=packed.stdout, check=True)
    return tmp_path


def test_upgrade_keeps_every_label(earlier: Path, images: str, build: Build, make_stack: MakeStack) -> None:
    build(earlier, "site", f"{IMAGES}-earlier-site")
    stack = make_stack("rl-teacher-test-upgrade")
    stack.write(earlier, f"{IMAGES}-earlier")
    stack.up("web", "beat")
    stack.sign_up()
    labeler = Labeler(stack)
    for choice in ("left", "right", "equal", "cant_tell") * 5:
        labeler.label(choice)
    assert (MIGRATION,) not in stack.query(MIGRATIONS)

    stack.write(ROOT, images)
    stack.documented("run --rm --no-deps setup")
    assert (MIGRATION,) in stack.query(MIGRATIONS)
    labeler.label("left")  # the earlier version still serves
    stack.up()
    labeler.label("right")

    kept = stack.query("SELECT uuid, choice FROM feedback_label WHERE status = 'counted'")
    assert dict(kept) == labeler.labels
