"""The site's databases in tests: SQLite for all, and PostgreSQL once more for what may differ there.

``both_databases`` marks what runs on each: locks, isolation, clocks, statements written out by hand, counts
and orders of many rows, and values that one of them cannot hold. ``postgresql_only`` marks what SQLite cannot
do.
With ``DATABASE_URL=postgresql://... SECRET_KEY=...`` all tests run once, on that server.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import psycopg
import pytest
from django.conf import settings
from django.core.management import call_command
from django.core.management.commands import flush
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import load_backend
from pytest_django import DjangoDbBlocker

from human_feedback_site.environment import read_database
from stack.postgres import SHARED, PostgreSQL
from stack.process import Service, running
from tests.conftest import MakeOnce
from tests.waiting import free_port

Using: TypeAlias = Callable[[str], AbstractContextManager[None]]
TEMPLATE = "migrated"
"""The name of a PostgreSQL database with the site's tables, to be copied."""
_PASSWORD = "teacher-password"
MARKERS = {"postgresql_only": ("postgresql",), "both_databases": ("sqlite", "postgresql")}


def is_sqlite() -> bool:
    """Return whether the settings of this run name a SQLite database, as they do without ``DATABASE_URL``."""
    database: dict[str, Any] = settings.DATABASES["default"]
    return str(database["ENGINE"]).endswith("sqlite3")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what is marked on the databases of its marker."""
    marked = [names for marker, names in MARKERS.items() if metafunc.definition.get_closest_marker(marker)]
    if marked and is_sqlite():
        metafunc.parametrize("database", marked[0], indirect=True)


@pytest.fixture(scope="session", autouse=True)
def database(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let a test use PostgreSQL where its parameter says so; which of them is first makes no difference."""
    if getattr(request, "param", None) != "postgresql":
        yield
        return
    before = _use(request.getfixturevalue("postgresql"))
    yield
    _use(before)


@pytest.fixture(scope="session", autouse=True)
def _quick_flush() -> Iterator[None]:
    """Between tests with transactions, keep the content types and permissions, which take time to make."""
    kept = {"django_content_type", "auth_permission"}

    def flushed(style: Any, connection: BaseDatabaseWrapper, **_: bool) -> list[str]:
        tables = connection.introspection.django_table_names(only_existing=True, include_views=False)
        names = [connection.ops.quote_name(each) for each in tables if each not in kept]
        deletions = [f"DELETE FROM {name}" for name in names]  # noqa: S608
        # PostgreSQL takes them in one go, and 70 times as fast as it truncates the tables.
        return ["; ".join(deletions)] if connection.vendor == "postgresql" else deletions

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flush, "sql_flush", flushed)
        patch.setattr(flush, "emit_post_migrate_signal", lambda *_: None)
        yield


@pytest.fixture(scope="session")
def new_postgres(_postgres_data: Path) -> Callable[[Path], PostgreSQL]:
    """Make the data of a PostgreSQL server that has an empty database, and :data:`TEMPLATE` besides."""

    def new_postgres(folder: Path) -> PostgreSQL:
        data = tempfile.mkdtemp(prefix="rl-teacher-", dir=_place(folder))
        (folder / "data").symlink_to(data)
        subprocess.run(["tar", "-C", data, "-xf", _postgres_data], check=True)
        return PostgreSQL(folder / "data", free_port(), _PASSWORD)

    return new_postgres


def _place(folder: Path) -> Path:
    """Return where a server's data can be: in memory where there is room, for they are thousands of files."""
    memory = Path("/dev/shm")
    if memory.is_dir() and shutil.disk_usage(memory).free > 4_000_000_000:
        return memory
    return SHARED if os.geteuid() == 0 else folder  # another user than root runs it


@pytest.fixture(scope="session")
def postgres_url(
    tmp_path_factory: pytest.TempPathFactory, new_postgres: Callable[[Path], PostgreSQL]
) -> Iterator[str]:
    """The address of an empty database on a real PostgreSQL, which has :data:`TEMPLATE` besides."""
    folder = tmp_path_factory.mktemp("postgres")
    server = new_postgres(folder)
    try:
        with running(_careless(server), folder):
            yield server.url
    finally:
        server.remove()


@pytest.fixture(scope="session")
def _postgres_data(make_once: MakeOnce, using: Using) -> Path:
    """An archive of the data of such a server."""

    def make(folder: Path) -> None:
        server = PostgreSQL(folder / "data", free_port(), _PASSWORD)
        try:
            with (
                running(_careless(server), folder),
                psycopg.connect(server.url, autocommit=True) as connection,
            ):
                # Each thread connects, and the password is checked slowly on purpose.
                connection.execute("SET scram_iterations = 1")
                connection.execute(f"ALTER ROLE CURRENT_USER PASSWORD '{_PASSWORD}'")
                connection.execute(f"CREATE DATABASE {TEMPLATE}")
                with using(database_of(server.url, TEMPLATE)):
                    call_command("migrate", verbosity=0, interactive=False)
            subprocess.run(["tar", "-C", server.data, "-cf", folder / "data.tar", "."], check=True)
        finally:
            server.remove()

    return make_once("postgres", make) / "data.tar"


def _careless(server: PostgreSQL) -> Service:
    """A server that does not wait for its disk: no test cuts the power."""
    service = server.service()
    command = [*service.command(), "-c", "fsync=off"]
    return replace(service, command=lambda: command)


def database_of(url: str, name: str) -> str:
    """The address of another database on the server of one."""
    return f"{url.rpartition('/')[0]}/{name}"


@pytest.fixture(scope="session")
def postgresql(postgres_url: str, django_db_setup: None) -> Iterator[BaseDatabaseWrapper]:
    """A connection to a PostgreSQL database that has the site's tables."""
    with psycopg.connect(postgres_url, autocommit=True) as server:
        server.execute(f"CREATE DATABASE tests TEMPLATE {TEMPLATE}")
    database = _connection(database_of(postgres_url, "tests"))
    yield database
    database.close()


@pytest.fixture(scope="session")
def using(django_db_blocker: DjangoDbBlocker) -> Using:
    """Let this process use the database at an address for a while, as a command that is given it would."""

    @contextmanager
    def using(url: str) -> Iterator[None]:
        database = _connection(url)
        with django_db_blocker.unblock():
            before = _use(database)
            try:
                yield
            finally:
                database.close()
                _use(before)

    return using


@pytest.fixture(scope="session")
def migrated_database(make_once: MakeOnce, using: Using) -> Path:
    """A SQLite file with the site's tables, to be copied."""

    def migrate(folder: Path) -> None:
        with using(f"sqlite:///{folder / 'site.sqlite3'}"):
            call_command("migrate", verbosity=0, interactive=False)

    return make_once("migrated", migrate) / "site.sqlite3"


@pytest.fixture(scope="session")
def django_db_keepdb() -> bool:
    """Return whether the test database is there already: it is, as a copy of the migrated one."""
    return is_sqlite()


@pytest.fixture(scope="session")
def django_db_modify_db_settings(tmp_path_factory: pytest.TempPathFactory, migrated_database: Path) -> None:
    """Keep SQLite's test database in a file: in memory, threads cannot share it."""
    if is_sqlite():
        copy = shutil.copy(migrated_database, tmp_path_factory.mktemp("site") / "test.sqlite3")
        settings.DATABASES["default"]["TEST"]["NAME"] = str(copy)


def _connection(url: str) -> BaseDatabaseWrapper:
    """A connection as the site makes it; nothing is connected yet."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DATABASE_URL", url)
        described = connections.configure_settings({"default": read_database(Path())})["default"]
    wrapper: BaseDatabaseWrapper = load_backend(described["ENGINE"]).DatabaseWrapper(described, "default")
    return wrapper


def _use(database: BaseDatabaseWrapper) -> BaseDatabaseWrapper:
    """Make this the default connection, and other threads connect to the same; return the one before."""
    from django.contrib.contenttypes.models import ContentType  # Django is set up by then

    before = connections["default"]
    connections.settings["default"] = database.settings_dict
    connections["default"] = database
    ContentType.objects.clear_cache()  # their numbers are those of a database
    return before
