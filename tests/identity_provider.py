"""A real identity provider, which runs beside the tests: see :mod:`tests.identity_provider_site`."""

import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import requests

from stack.process import Service, running
from tests.identity_provider_site import CLIENT_ID, CLIENT_SECRET


@dataclass(frozen=True)
class IdentityProvider:
    """A provider at a port; its users are :data:`~tests.identity_provider_site.PEOPLE`."""

    folder: Path
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables with which the labeling site signs people in here."""
        return {
            "OIDC_ISSUER": self.url,
            "OIDC_CLIENT_ID": CLIENT_ID,
            "OIDC_CLIENT_SECRET": CLIENT_SECRET,
            "OIDC_RESEARCHERS": "researchers",
            "OIDC_ADMINS": "admins",
        }

    @contextmanager
    def serving(self, *origins: str) -> Iterator[None]:
        """Run the provider for labeling sites at these origins."""
        program = [sys.executable, "-m", "tests.identity_provider_site", str(self.folder), str(self.port)]
        environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
        service = Service(
            name="provider",
            command=lambda: [*program, *origins],
            environment=environment,
            is_ready=self._is_ready,
        )
        with running(service, self.folder):
            yield

    def _is_ready(self) -> bool:
        try:
            return requests.get(f"{self.url}/.well-known/openid-configuration", timeout=1).ok
        except requests.RequestException:
            return False

    def set_group(self, username: str, group: str) -> None:
        self._write(
            "UPDATE auth_user_groups SET group_id = (SELECT id FROM auth_group WHERE name = ?) "
            "WHERE user_id = (SELECT id FROM auth_user WHERE username = ?)",
            group,
            username,
        )

    def set_active(self, username: str, *, active: bool) -> None:
        """Remove a user, or bring a removed one back."""
        self._write("UPDATE auth_user SET is_active = ? WHERE username = ?", active, username)

    def _write(self, statement: str, *values: object) -> None:
        with closing(sqlite3.connect(self.folder / "provider.sqlite3", timeout=60)) as database, database:
            assert database.execute(statement, values).rowcount == 1
