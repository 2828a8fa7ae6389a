"""The services of docker-compose.yml in containers, separate from any other stack on this machine."""

import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import yaml

from tests.containers.engine import SERVERS, Engine, call

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
        """Name of the project."""
        return self.folder.name

    @property
    def url(self) -> str:
        """URL of the site."""
        return f"http://127.0.0.1:{self.ports['web']}"

    @property
    def store_url(self) -> str:
        """URL of the clip store."""
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
        """Set variables in .env."""
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
        """Wait until all containers of these services are healthy."""
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
