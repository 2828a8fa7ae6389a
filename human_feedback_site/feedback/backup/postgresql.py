"""Backup and restore of PostgreSQL tables with ``COPY``, so that ``pg_dump`` need not be installed.

Each table is a file in the format of ``COPY ... TO STDOUT``, with one row per line. A restore first creates
the tables by running Django's migrations up to the backup's version.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
from django.db import connections, transaction
from psycopg import sql

from human_feedback_site.feedback.backup.manifest import Database, Table
from human_feedback_site.feedback.errors import BackupError

Cursor = psycopg.Cursor[tuple[object, ...]]

_TABLES = "SELECT tablename::text FROM pg_tables WHERE schemaname = current_schema() ORDER BY tablename"
_COLUMNS = """
    SELECT column_name::text FROM information_schema.columns
    WHERE table_schema = current_schema() AND table_name = %s AND is_generated = 'NEVER'
    ORDER BY ordinal_position
"""
_SEQUENCES = """
    SELECT sequence.relname::text, pg_sequence_last_value(sequence.oid), owner.relname::text
    FROM pg_class sequence
    JOIN pg_depend owned ON owned.objid = sequence.oid AND owned.deptype IN ('a', 'i')
      AND owned.classid = 'pg_class'::regclass AND owned.refclassid = 'pg_class'::regclass
    JOIN pg_class owner ON owner.oid = owned.refobjid
    WHERE sequence.relkind = 'S' AND sequence.relnamespace = current_schema()::regnamespace
"""
_SET_SEQUENCE = "SELECT setval(quote_ident(%s)::regclass, %s)"
_BLOCK = 2**20


@contextmanager
def _cursor() -> Iterator[Cursor]:
    """Yield a cursor on a new connection, whose queries all see the same snapshot of the database."""
    with closing(connections["default"].copy()) as connection:
        connection.set_autocommit(False)
        with connection.wrap_database_errors, psycopg.Cursor(connection.connection) as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            yield cursor


def dump(folder: Path, migrations: Mapping[str, str]) -> tuple[Database, set[str]]:
    """Copy the tables from one snapshot; return a description, and the keys of clips in use."""
    folder.mkdir()
    with _cursor() as cursor:
        names = [name for name in _tables(cursor) if name in own_tables()]
        tables = {name: _dump_table(cursor, name, folder / f"{name}.copy") for name in names}
        found = cursor.execute(_SEQUENCES).fetchall()
        last = [(name, value) for name, value, table in found if str(table) in tables]
        needed = cursor.execute(NEEDED_CLIPS).fetchall()
    sequences = {str(name): None if value is None else int(str(value)) for name, value in last}
    return Database("postgresql", tables, migrations, sequences), keys_in(needed)


NEEDED_CLIPS = """
    SELECT first_key, second_key, third_key, fourth_key FROM feedback_comparison comparison
    JOIN feedback_experiment experiment ON experiment.id = comparison.experiment_id
    WHERE comparison.status <> 'cancelled' AND NOT comparison.clips_missing
      AND (experiment.media_deleted_at IS NULL OR comparison.created_at > experiment.media_deleted_at)
    UNION
    SELECT episode.key, '', '', '' FROM feedback_episode episode
    JOIN feedback_experiment experiment ON experiment.id = episode.experiment_id
    WHERE experiment.media_deleted_at IS NULL OR episode.created_at > experiment.media_deleted_at
"""
"""Query for the keys of clips and videos that the site may show, except deleted ones; some are empty."""


def keys_in(rows: Iterable[Sequence[object]]) -> set[str]:
    """Return the keys in the rows that :data:`NEEDED_CLIPS` selects."""
    return {str(key) for row in rows for key in row if key}


def _dump_table(cursor: Cursor, name: str, path: Path) -> Table:
    columns = [str(column) for (column,) in cursor.execute(_COLUMNS, (name,)).fetchall()]
    with path.open("wb") as file, cursor.copy(_copy(name, columns, "TO STDOUT")) as blocks:
        for block in blocks:
            file.write(block)
    rows, lines = _count(cursor, name), _lines(path)
    if rows != lines:
        raise BackupError(f"The table {name} has {rows} rows, but its copy has {lines}; try again")
    return Table(columns, rows)


def _count(cursor: Cursor, name: str) -> int:
    query = sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(name))
    (rows,) = cursor.execute(query).fetchone() or (0,)
    return int(str(rows))


def _copy(name: str, columns: Sequence[str], how: str) -> sql.Composed:
    listed = sql.SQL(", ").join(map(sql.Identifier, columns))
    return sql.SQL("COPY {} ({}) {}").format(sql.Identifier(name), listed, sql.SQL(how))


def _lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(_BLOCK), b""))


def _tables(cursor: Cursor) -> list[str]:
    return [str(name) for (name,) in cursor.execute(_TABLES).fetchall()]


def own_tables() -> set[str]:
    """Return the names of this version's tables; the database may also contain other programs'."""
    return {*connections["default"].introspection.django_table_names(), "django_migrations"}


def first_row() -> str | None:
    """Return the name of a table that isn't empty, or None; tables populated by migrations are ignored."""
    kept = own_tables() - MADE_BY_MIGRATIONS
    with _cursor() as cursor:
        for name in sorted(kept.intersection(_tables(cursor))):
            query = sql.SQL("SELECT 1 FROM {} LIMIT 1").format(sql.Identifier(name))
            if cursor.execute(query).fetchone():
                return name
    return None


MADE_BY_MIGRATIONS = {"django_migrations", "django_content_type", "auth_permission"}


def drop_empty_tables() -> None:
    """Drop the tables of an empty site, because their schema may be newer than the backup's."""
    found = first_row()
    if found is not None:
        raise BackupError(
            f"The database must be empty, but the table {found} has rows; restore into a new database"
        )
    with connections["default"].cursor() as cursor:
        for name in own_tables().intersection(connections["default"].introspection.table_names(cursor)):
            cursor.execute(f"DROP TABLE {connections['default'].ops.quote_name(name)} CASCADE")


def load(folder: Path, database: Database) -> None:
    """Replace the rows of the existing tables with a backup's rows, in one transaction."""
    connection = connections["default"]
    with transaction.atomic(), connection.wrap_database_errors:
        connection.ensure_connection()
        with psycopg.Cursor(connection.connection) as cursor:
            names = sql.SQL(", ").join(map(sql.Identifier, database.tables))
            cursor.execute(sql.SQL("TRUNCATE {}").format(names))
            for name, table in database.tables.items():
                _load_table(cursor, name, table, folder / f"{name}.copy")
            for name, last in database.sequences.items():
                if last is not None:
                    cursor.execute(_SET_SEQUENCE, (name, last))


def _load_table(cursor: Cursor, name: str, table: Table, path: Path) -> None:
    with path.open("rb") as file, cursor.copy(_copy(name, table.columns, "FROM STDIN")) as copy:
        for block in iter(lambda: file.read(_BLOCK), b""):
            copy.write(block)
    rows = _count(cursor, name)
    if rows != table.rows:
        raise BackupError(
            f"Loaded {rows} rows instead of {table.rows} into the table {name}; the database is unchanged"
        )
