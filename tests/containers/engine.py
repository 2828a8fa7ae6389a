"""The container engine of this machine, Podman or Docker."""

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
        """Return the command line of a Compose command."""
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
