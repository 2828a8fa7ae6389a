"""The container engine, the services of docker-compose.yml, and a run in a trainer's container."""

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import yaml

from stack.audit import Evidence, audit

SERVERS = ("database", "redis", "media")
"""Services that the others wait for."""
_PROFILES = ("--profile", "trainer", "--profile", "manage")


def call(command: Sequence[str | Path], folder: Path | None = None) -> str:
    """Run a command in ``folder`` and return its output; fail the test if its exit status is not 0."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    said = f"{done.stdout[-3000:]}\n{done.stderr[-5000:]}"
    assert done.returncode == 0, f"{' '.join(map(str, command))}: exit status {done.returncode}\n{said}"
    return done.stdout


@dataclass(frozen=True)
class Engine:
    """A container engine.

    Attributes:
        program: ``podman`` or ``docker``.
        compose: command of its Compose.
    """

    program: str
    compose: tuple[str, ...]

    @property
    def resolves_dependencies(self) -> bool:
        """True if its Compose waits for the services that a service depends on.

        podman-compose can't with Podman 4, so with Podman, the tests start the services in order.
        """
        return self.program == "docker"

    def __call__(self, *words: str | Path) -> str:
        """Run one of the engine's commands and return its output."""
        return call([self.program, *words])

    def compose_command(self, words: Sequence[str]) -> list[str]:
        # Docker Compose finds a service that the command names in any profile.
        names_profiles = words[0] == "run" and self.program == "podman"
        return [*self.compose, *(_PROFILES if names_profiles else ()), *words]

    def simplify(self, project: dict[str, Any]) -> None:
        """Remove from a parsed compose file what this engine's Compose doesn't support."""
        if self.resolves_dependencies:
            return
        for service in project["services"].values():
            service.pop("depends_on", None)
            service.get("healthcheck", {}).pop("start_interval", None)

    def is_healthy(self, container: str) -> bool:
        """Return True if a container's health check passes."""
        if self.program == "docker":
            state = json.loads(self("inspect", container))[0]["State"]
            return bool(state["Health"]["Status"] == "healthy")
        # Podman's health checks are started by systemd, which may not be running.
        check = [self.program, "healthcheck", "run", container]
        return subprocess.run(check, capture_output=True, check=False).returncode == 0


def find_engine() -> Engine | str:
    """Return this machine's container engine, or the reason why it has none."""
    if shutil.which("podman"):
        return Engine("podman", (str(Path(sys.executable).parent / "podman-compose"),))
    if not shutil.which("docker"):
        return "neither Podman nor Docker is installed"
    for words in (["info"], ["compose", "version"]):
        done = subprocess.run(["docker", *words], capture_output=True, text=True, check=False)
        if done.returncode:
            return f"docker {' '.join(words)} fails: {done.stderr.strip()[-300:]}"
    return Engine("docker", ("docker", "compose"))


ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/deployment.md").read_text()
SERVICES = ("web", "beat", "render")
USER = "ada"
_PORTS = {"web": 8000, "media": 9000, "database": 5432}  # in the containers


def until(holds: Callable[[], bool], what: str, seconds: float = 600.0) -> None:
    """Wait until a condition holds; fail the test if it doesn't within a time that is ample."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"{what}: not within {seconds:.0f} s"
        time.sleep(0.5)


@dataclass
class Stack:
    """The services of one docker-compose.yml.

    Attributes:
        engine: the engine that runs them.
        folder: folder of docker-compose.yml, .env and backups; its name is the project's.
        ports: ports of web, media and database on this machine, by service.
        variables: contents of .env.
    """

    engine: Engine
    folder: Path
    ports: dict[str, int]
    variables: dict[str, str] = field(repr=False)

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports['web']}"

    @property
    def store_url(self) -> str:
        return f"http://127.0.0.1:{self.ports['media']}"

    def write(self, version: Path, images: str) -> None:
        """Write .env and a copy of a version's docker-compose.yml, with other ports and images.

        Args:
            version: root folder of that version of the project.
            images: prefix of the images' names.
        """
        project = yaml.safe_load((version / "docker-compose.yml").read_text())
        project["name"] = self.name
        for name, service in project["services"].items():
            service["image"] = re.sub("^rl-teacher-", f"{images}-", service["image"])
            service.pop("build", None)
            service.pop("ports", None)
            if name in self.ports:
                service["ports"] = [f"127.0.0.1:{self.ports[name]}:{_PORTS[name]}"]
        self.engine.simplify(project)
        (self.folder / "docker-compose.yml").write_text(yaml.safe_dump(project, sort_keys=False))
        (self.folder / "backups").mkdir(exist_ok=True)
        self.set({"TEACHER_PUBLIC_URL": self.url, "S3_PUBLIC_ENDPOINT_URL": self.store_url})

    def set(self, variables: dict[str, str]) -> None:
        self.variables.update(variables)
        text = "".join(f"{name}={value}\n" for name, value in self.variables.items())
        (self.folder / ".env").write_text(text)

    def compose(self, words: str, *more: str) -> str:
        """Run a Compose command and return its output."""
        return call(self.engine.compose_command([*words.split(), *more]), self.folder)

    def documented(self, words: str) -> str:
        """Run a Compose command that docs/deployment.md contains."""
        assert f"docker compose {words}" in PAGE
        return self.compose(words)

    def up(self, *services: str) -> None:
        """Start services (by default, all), with two render workers, and wait until they are healthy."""
        if not self.engine.resolves_dependencies:
            self.start_servers()
            self.compose("run --rm --no-deps -T setup")
        assert "docker compose up --detach --scale render=" in PAGE
        self.compose("up --detach --scale render=2", *services)
        self.wait_until_healthy(*SERVERS, *(services or SERVICES))

    def start_servers(self) -> None:
        """Start PostgreSQL, Redis and the clip store, and wait until they are healthy."""
        self.compose("up --detach", *SERVERS)
        self.wait_until_healthy(*SERVERS)

    def wait_until_healthy(self, *services: str) -> None:
        until(lambda: all(map(self.is_healthy, services)), f"{', '.join(services)} of {self.name} healthy")

    def is_healthy(self, service: str) -> bool:
        """Return True if a service has containers and all are healthy."""
        found = self.containers(service)
        return bool(found) and all(map(self.engine.is_healthy, found))

    def containers(self, service: str) -> list[str]:
        """Return the IDs of a service's running containers."""
        labels = {"project": self.name, "service": service}
        filters = (f"--filter=label=com.docker.compose.{name}={value}" for name, value in labels.items())
        return self.engine("ps", "--quiet", *filters).split()

    def kill(self, service: str) -> None:
        """Kill one of a service's containers with SIGKILL, and wait until it runs again.

        Docker doesn't restart a container that its user has killed, so all processes except the first are
        killed from inside. In the servers' containers, the first is the server, so these are started again.
        """
        container = self.containers(service)[0]
        started = self._started(container)
        if service in SERVERS:
            self.engine("kill", "--signal", "KILL", container)
            self.engine("start", container)
        else:
            kill = [self.engine.program, "exec", container, "sh", "-c", "kill -KILL -1"]
            subprocess.run(kill, capture_output=True, check=False)  # fails because the container ends
        until(lambda: self._started(container) not in {started, ""}, f"{service} runs again")

    def _started(self, container: str) -> str:
        """Return a running container's start time, or an empty string if it is not running."""
        shown = "{{if .State.Running}}{{.State.StartedAt}}{{end}}"
        return self.engine("inspect", "--format", shown, container).strip()

    def sign_up(self) -> None:
        """Create a superuser and an API token, and give the token to trainers and bots."""
        password = f"DJANGO_SUPERUSER_PASSWORD={self.variables['SECRET_KEY']}"
        manage = f"exec -T -e {password} web python manage.py"
        self.compose(f"{manage} createsuperuser --no-input --username {USER} --email {USER}@example.org")
        token = self.compose(f"{manage} create_token {USER}").split()[-1]
        self.set({"TEACHER_TOKEN": token})
        (self.folder / "token").touch(0o600)
        (self.folder / "token").write_text(token)

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a SELECT statement on the site's database and return the rows."""
        server = f"127.0.0.1:{self.ports['database']}"
        url = f"postgresql://teacher:{self.variables['POSTGRES_PASSWORD']}@{server}/teacher"
        with psycopg.connect(url, client_encoding="utf8") as connection:
            return connection.execute(statement.encode()).fetchall()

    def copy_runs(self) -> Path:
        """Copy the run directories from their volume, as documented, and return their folder."""
        words = "run --rm --no-deps -T --entrypoint tar trainer --create runs"
        assert f"docker compose {words} | tar -xf -" in PAGE
        command = self.engine.compose_command(words.split())
        with subprocess.Popen(command, cwd=self.folder, stdout=subprocess.PIPE) as tar:
            subprocess.run(["tar", "-xf", "-"], cwd=self.folder, stdin=tar.stdout, check=True)
        assert tar.returncode == 0
        return self.folder / "runs"

    def down(self) -> None:
        """Remove all containers and volumes."""
        if found := self.engine(
            "ps", "--all", "--quiet", f"--filter=label=com.docker.compose.project={self.name}"
        ):
            self.engine("rm", "--force", *found.split())  # Compose's own may miss a second render worker
        self.compose("down --volumes")

    def logs(self) -> str:
        """Return the last log lines of web, chores and render workers."""
        found = [(service, container) for service in SERVICES for container in self.containers(service)]
        return "\n".join(f"{name}: {self.engine('logs', '--tail', '20', id_)}" for name, id_ in found)


ENVIRONMENT = "InvertedPendulum-v1"
BOTS = 3
Process = subprocess.Popen[bytes]


@dataclass
class Experiment:
    """A run and its labelers.

    Attributes:
        stack: the services.
        name: the run's name.
        labels: number of labels that the run collects.
    """

    stack: Stack
    name: str
    labels: int
    _processes: list[Process] = field(default_factory=list)

    @property
    def run_dir(self) -> str:
        """The run's directory in trainers' containers."""
        return f"runs/{ENVIRONMENT}/{self.name}"

    @property
    def container(self) -> str:
        return f"{self.stack.name}-{self.name}"

    @property
    def answers(self) -> Path:
        """Log of the labels that the site acknowledged, as JSON Lines."""
        return self.stack.folder / f"{self.name}.jsonl"

    def start(self) -> Process:
        """Start a trainer with a new run."""
        settings = f"-p human -e {ENVIRONMENT} -n {self.name} -t 12000 -l {self.labels} -L 10 -V"
        return self._train(*settings.split())

    def resume(self, *options: str) -> Process:
        """Start a trainer that resumes the run."""
        return self._train("--resume", self.run_dir, *options)

    def start_bots(self, seconds: float = 0.0) -> Process:
        """Start the bots, which look at each pair for some seconds."""
        site = ["--site", self.stack.url, "--experiment", f"{ENVIRONMENT}-{self.name}"]
        files = ["--token-file", str(self.stack.folder / "token"), "--log", str(self.answers)]
        options = ["--count", str(BOTS), "--seconds", str(seconds)]
        return self._start([sys.executable, "-m", "teacher.bots", *site, *files, *options])

    def wait_for_labels(self, count: int) -> None:
        """Wait until the site has acknowledged this many labels."""

        def are_there() -> bool:
            assert not any(process.poll() for process in self._processes), self.said()
            return self.answers.exists() and len(self.answers.read_text().splitlines()) >= count

        until(are_there, f"{count} labels of {self.name}")

    def wait(self, *processes: Process) -> None:
        """Wait until processes end with exit status 0."""
        for process in processes:
            try:
                assert process.wait(900) == 0, self.said()
            except subprocess.TimeoutExpired:
                raise AssertionError(self.said()) from None

    def check_labels(self) -> None:
        """Check that all labels are on the site and in the run, exactly once and not inverted."""
        found = audit(
            Evidence(
                experiment=f"{ENVIRONMENT}-{self.name}",
                wanted=self.labels,
                bots=BOTS,
                answers=self.answers,
                ledger=self.stack.copy_runs() / ENVIRONMENT / self.name / "ledger.sqlite3",
                query=self.stack.query,
            )
        )
        assert found.holds, found

    def said(self) -> str:
        """Return the last output of trainers, bots and services."""
        logs = sorted(self.stack.folder.glob(f"{self.name}-*.log"))
        return "\n".join(f"{log.name}: {log.read_text()[-2000:]}" for log in logs) + self.stack.logs()

    def kill(self) -> None:
        """Kill the processes that are still running."""
        for process in self._processes:
            process.kill()
            process.wait()

    def _train(self, *arguments: str) -> Process:
        words = f"run --rm --no-deps -T --name {self.container} trainer"
        return self._start(self.stack.engine.compose_command([*words.split(), *arguments]))

    def _start(self, command: list[str]) -> Process:
        log = self.stack.folder / f"{self.name}-{len(self._processes)}.log"
        with log.open("w") as file:
            self._processes.append(subprocess.Popen(command, cwd=self.stack.folder, stdout=file, stderr=file))
        return self._processes[-1]
