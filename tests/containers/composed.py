"""The whole system in containers, from a copy of docker-compose.yml that leaves a stack of this machine alone."""

import re
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import yaml

from tests.containers.engine import SERVERS, Engine, Failed, call

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/deployment.md").read_text()
SERVICES = ("web", "beat", "render")
USER = "ada"


def until(holds: Callable[[], bool], what: str, seconds: float = 600.0) -> None:
    """Wait for a condition; fails the test after a time that a busy machine does not need."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"{what}: not within {seconds:.0f} s"
        time.sleep(0.5)


@dataclass
class Stack:
    """The services of a docker-compose.yml.

    Attributes:
        engine: the engine that runs them.
        folder: the folder of docker-compose.yml, .env and backups; its name is the project's.
        ports: the ports of web, media and database on this machine.
        secrets: what .env sets.
    """

    engine: Engine
    folder: Path
    ports: dict[str, int]
    secrets: dict[str, str] = field(repr=False)

    @property
    def url(self) -> str:
        """Where the site is."""
        return f"http://127.0.0.1:{self.ports['web']}"

    def write(self, version: Path, images: str) -> None:
        """Write .env and a copy of a version's docker-compose.yml with ports and images of the tests' own."""
        project = yaml.safe_load((version / "docker-compose.yml").read_text())
        project["name"] = self.folder.name
        for name, service in project["services"].items():
            service["image"] = re.sub("^rl-teacher-", f"{images}-", service["image"])
            service.pop("build", None)
            service.pop("ports", None)
            if name in self.ports:
                inner = {"web": 8000, "media": 9000, "database": 5432}[name]
                service["ports"] = [f"127.0.0.1:{self.ports[name]}:{inner}"]
        text = yaml.safe_dump(self.engine.understood(project), sort_keys=False)
        (self.folder / "docker-compose.yml").write_text(text)
        self.set({**self.secrets, "TEACHER_PUBLIC_URL": self.url})
        self.set({"S3_PUBLIC_ENDPOINT_URL": f"http://127.0.0.1:{self.ports['media']}"})
        (self.folder / "backups").mkdir(exist_ok=True)

    def set(self, variables: dict[str, str]) -> None:
        """Set variables in .env."""
        self.secrets.update(variables)
        text = "".join(f"{name}={value}\n" for name, value in self.secrets.items())
        (self.folder / ".env").write_text(text)

    def compose(self, words: str, *more: str) -> str:
        """Run a command of Compose, and return what it printed."""
        return call(self.engine.composed([*words.split(), *more]), self.folder)

    def documented(self, words: str) -> str:
        """Run a command of Compose that is on the page about deployment as it stands here."""
        assert f"docker compose {words}" in PAGE
        return self.compose(words)

    def up(self, *services: str) -> None:
        """Start services, by default all, the render worker twice, and wait until they are healthy."""
        if not self.engine.starts_in_order:
            self.start_servers()
            self.compose("run --rm --no-deps -T setup")
        assert "docker compose up --detach --scale render=" in PAGE
        self.compose("up --detach --scale render=2", *services)
        self.wait_until_healthy(*SERVERS, *(services or SERVICES))

    def start_servers(self) -> None:
        """Start the services that the others wait for, and wait until they are healthy."""
        self.compose("up --detach", *SERVERS)
        self.wait_until_healthy(*SERVERS)

    def wait_until_healthy(self, *services: str) -> None:
        """Wait until all containers of services are healthy."""
        for service in services:
            until(lambda service=service: self.is_healthy(service), f"{self.folder.name}: {service} healthy")

    def is_healthy(self, service: str) -> bool:
        """Return True if a service has containers and all of them are healthy."""
        found = self.containers(service)
        return bool(found) and all(self.engine.is_healthy(container) for container in found)

    def containers(self, service: str) -> list[str]:
        """Return the IDs of a service's running containers."""
        return self._found(project=self.folder.name, service=service)

    def _found(self, *options: str, **labels: str) -> list[str]:
        filters = (f"--filter=label=com.docker.compose.{name}={value}" for name, value in labels.items())
        return self.engine("ps", "--quiet", *options, *filters).split()

    def kill(self, service: str) -> None:
        """Kill one of a service's containers by SIGKILL, and wait until it runs again.

        The project's own are killed from inside, all processes but the first, because Docker does not restart
        what its operator has killed. The first process of a server is itself, and cannot be killed so.
        """
        container = self.containers(service)[0]
        started = self._started(container)
        if service in SERVERS:
            self.engine("kill", "--signal", "KILL", container)
            self.engine("start", container)
        else:
            kill = [self.engine.program, "exec", container, "sh", "-c", "kill -KILL -1"]
            subprocess.run(kill, capture_output=True, check=False)  # the container ends under it
        until(lambda: self._started(container) .strip() not in {started, ""}, f"{service} runs again")

    def _started(self, container: str) -> str:
        """Return when a container was started, or nothing if it does not run."""
        shown = "{{if .State.Running}}{{.State.StartedAt}}{{end}}"
        return self.engine("inspect", "--format", shown, container).strip()

    def sign_up(self) -> None:
        """Create the superuser, and give trainers the token, as the page says."""
        assert "manage.py createsuperuser" in PAGE
        password = f"DJANGO_SUPERUSER_PASSWORD={self.secrets['SECRET_KEY']}"
        user = f"createsuperuser --no-input --username {USER} --email {USER}@example.org"
        self.compose(f"exec -T -e {password} web python manage.py {user}")
        token = self.compose(f"exec -T web python manage.py create_token {USER}").split()[-1]
        self.set({"TEACHER_TOKEN": token})
        (self.folder / "token").touch(0o600)
        (self.folder / "token").write_text(token)

    def query(self, statement: str) -> Sequence[Sequence[Any]]:
        """Return the rows of a SELECT on the site's database."""
        url = f"postgresql://teacher:{self.secrets['POSTGRES_PASSWORD']}@127.0.0.1:{self.ports['database']}/teacher"
        with psycopg.connect(url, client_encoding="utf8") as connection:
            return connection.execute(statement.encode()).fetchall()

    def store(self) -> dict[str, str]:
        """Return what a client of the clip store needs."""
        return {
            "endpoint_url": f"http://127.0.0.1:{self.ports['media']}",
            "region_name": "us-east-1",
            "aws_access_key_id": self.secrets["AWS_ACCESS_KEY_ID"],
            "aws_secret_access_key": self.secrets["AWS_SECRET_ACCESS_KEY"],
        }

    def copy_runs(self) -> Path:
        """Copy the volume of the trainers' results as the page says, and return the folder."""
        words = "run --rm --no-deps -T --entrypoint tar trainer --create runs"
        assert f"docker compose {words} | tar -xf -" in PAGE
        command = self.engine.composed(words.split())
        with subprocess.Popen(command, cwd=self.folder, stdout=subprocess.PIPE) as tar:
            subprocess.run(["tar", "-xf", "-"], cwd=self.folder, stdin=tar.stdout, check=True)
        assert tar.returncode == 0
        return self.folder / "runs"

    def down(self) -> None:
        """Remove all containers and volumes, whatever state they are in."""
        if found := self._found("--all", project=self.folder.name):
            self.engine("rm", "--force", *found)
        self.compose("down --volumes")

    def logs(self) -> str:
        """Return the last lines of all containers, for the message of a failed test."""
        said = []
        for service in SERVICES:
            for container in self.containers(service):
                try:
                    said.append(f"{service}: {self.engine('logs', '--tail', '20', container)}")
                except Failed as error:
                    said.append(str(error))
        return "\n".join(said)
