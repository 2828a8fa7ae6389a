"""Podman or Docker, whichever is here, and the few things that each wants done its own way."""

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

PROFILES = ("--profile", "trainer", "--profile", "manage")


class Failed(AssertionError):
    """A command ended with another status than 0; the message is all that it printed."""


def call(command: Sequence[str | Path], folder: Path | None = None, said: str | None = None) -> str:
    """Run a command in ``folder`` with ``said`` as its input, and return what it printed on its output.

    Raises:
        Failed: its exit status is not 0.
    """
    done = subprocess.run(command, cwd=folder, input=said, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(f"{command}: status {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-5000:]}")
    return done.stdout


@dataclass(frozen=True)
class Engine:
    """A container engine.

    Attributes:
        program: ``podman`` or ``docker``.
        compose: the words that start its Compose.
    """

    program: str
    compose: tuple[str, ...]

    @property
    def starts_in_order(self) -> bool:
        """True if its Compose waits for the services that a service depends on.

        podman-compose needs Podman 5 for that, so there the tests start services in order themselves.
        """
        return self.program == "docker"

    def __call__(self, *words: str | Path) -> str:
        """Run one of its commands and return what it printed."""
        return call([self.program, *words])

    def composed(self, words: Sequence[str]) -> list[str]:
        """Return the command line of a command of Compose."""
        # Docker's finds a service that a command names in every profile.
        is_without = not self.starts_in_order and words[0] == "run"
        return [*self.compose, *(PROFILES if is_without else ()), *words]

    def understood(self, project: dict[str, Any]) -> dict[str, Any]:
        """Return a parsed compose file without what this engine's Compose can't follow."""
        if not self.starts_in_order:
            for service in project["services"].values():
                service.pop("depends_on", None)
                service.get("healthcheck", {}).pop("start_interval", None)
        return project

    def is_healthy(self, container: str) -> bool:
        """Return True if a container's health check passes."""
        if self.program == "docker":
            return json.loads(self("inspect", container))[0]["State"].get("Health", {}).get("Status") == "healthy"
        # Podman leaves it to systemd to run health checks, and a machine need not have it.
        check = [self.program, "healthcheck", "run", container]
        return subprocess.run(check, capture_output=True, check=False).returncode == 0


def find_engine() -> Engine | str:
    """Return this machine's engine, or the reason why there is none."""
    if shutil.which("podman"):
        return Engine("podman", (str(Path(sys.executable).parent / "podman-compose"),))
    if not shutil.which("docker"):
        return "neither podman nor docker is installed"
    for words in (["info"], ["compose", "version"]):
        done = subprocess.run(["docker", *words], capture_output=True, text=True, check=False)
        if done.returncode:
            return f"docker {' '.join(words)} fails: {done.stderr.strip()[-300:]}"
    return Engine("docker", ("docker", "compose"))
