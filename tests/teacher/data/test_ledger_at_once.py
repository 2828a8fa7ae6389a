"""A ledger that several open in the same moment, and one that somebody looks at while a run writes it."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest

from teacher.data import ledger_file
from teacher.data.ledger import Ledger, Question
from teacher.errors import DataError
from teacher.queries.kinds import preferences_in
from tests.teacher.conftest import make_segment

ROOT = Path(__file__).parents[3]
OPENERS = """
import multiprocessing, sys, threading
from contextlib import closing
from pathlib import Path
from teacher.data.ledger import Ledger

ROUNDS, THREADS, WRITERS, READERS = 20, 2, 3, 2
processes = multiprocessing.get_context("fork")
begin = processes.Barrier(WRITERS + READERS)
failures = processes.SimpleQueue()

def open_all(work):
    for number in range(ROUNDS):
        path = Path(sys.argv[1]) / f"{number}.sqlite3"
        begin.wait()
        threads = [threading.Thread(target=tried, args=(work, path)) for _ in range(THREADS)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]

def tried(work, path):
    try:
        work(path)
    except BaseException as error:
        failures.put(repr(error))

def write(path):
    with closing(Ledger(path)) as ledger:
        ledger.record([], cursor=1)

def read(path):
    cursor = 0
    while cursor == 0:  # until the first has written
        if path.exists():
            with closing(Ledger(path, read_only=True)) as ledger:
                cursor = ledger.cursor

works = [write] * WRITERS + [read] * READERS
started = [processes.Process(target=open_all, args=(work,)) for work in works]
[process.start() for process in started]
[process.join() for process in started]
while not failures.empty():
    print(failures.get())
"""
LOOK = """
import sys
from pathlib import Path
from teacher.data.ledger import Ledger
print(Ledger(Path(sys.argv[1]), read_only=True).total())
"""


@pytest.fixture
def path(memory_path: Path) -> Path:
    return memory_path / "ledger.sqlite3"


@pytest.fixture
def ask() -> Callable[[Ledger], None]:
    def ask(ledger: Ledger) -> None:
        ledger.write([Question(uuid4(), (make_segment(1), make_segment(2)), "training", 0)])

    return ask


def files_of(path: Path) -> dict[str, bytes]:
    """Return what lies there, but for SQLite's index of its log, which is memory that processes share."""
    return {each.name: each.read_bytes() for each in path.parent.iterdir() if not each.name.endswith("-shm")}


def run(program: str, *arguments: object, prefix: tuple[str, ...] = ()) -> str:
    command = [*prefix, sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def test_processes_and_threads_may_make_a_ledger_and_look_at_it_in_the_same_moment(memory_path: Path) -> None:
    assert run(OPENERS, memory_path) == ""


def test_check_and_creation_are_one_transaction(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look = ledger_file._is_empty

    def look_while_another_opens_it(connection: sqlite3.Connection, path: Path) -> bool:
        with closing(sqlite3.connect(path, timeout=0)) as other, pytest.raises(sqlite3.OperationalError):
            other.execute("BEGIN IMMEDIATE")
        return look(connection, path)

    monkeypatch.setattr(ledger_file, "_is_empty", look_while_another_opens_it)
    Ledger(path).close()


def test_creation_waits_for_readers(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite itself would fail at once: the reader may be about to write."""
    make = ledger_file._make_tables
    pauses: list[float] = []
    with closing(sqlite3.connect(path, isolation_level=None)) as other:

        def let_another_write_next(connection: sqlite3.Connection) -> None:
            make(connection)
            connection.execute("COMMIT")
            other.execute("BEGIN IMMEDIATE")

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            other.execute("ROLLBACK")

        monkeypatch.setattr(ledger_file, "_make_tables", let_another_write_next)
        monkeypatch.setattr("teacher.data.ledger_file.time.sleep", pause)
        with closing(Ledger(path)):
            assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert len(pauses) == 1


def test_reader_sees_fresh_writes_and_changes_nothing(path: Path, ask: Callable[[Ledger], None]) -> None:
    with closing(Ledger(path)) as ledger:
        for count in (1, 2):
            ask(ledger)
            before = files_of(path)
            assert before["ledger.sqlite3-wal"]
            with closing(Ledger(path, read_only=True)) as reader:
                assert reader.total() == count
                assert files_of(path) == before
            assert files_of(path) == before


def test_reader_leaves_no_files_beside_a_free_ledger(path: Path, ask: Callable[[Ledger], None]) -> None:
    with closing(Ledger(path)) as ledger:
        ask(ledger)
    before = files_of(path)
    with closing(Ledger(path, read_only=True)) as reader:
        assert reader.total() == 1
    assert files_of(path) == before
    assert list(path.parent.iterdir()) == [path]


def test_reader_keeps_a_killed_runs_wal(path: Path, memory_path: Path, ask: Callable[[Ledger], None]) -> None:
    with closing(Ledger(path)) as ledger:
        ask(ledger)
        left = files_of(path)
    killed = memory_path / "killed" / path.name
    killed.parent.mkdir()
    for name, content in left.items():
        killed.with_name(name).write_bytes(content)
    for _ in range(2):
        with closing(Ledger(killed, read_only=True)) as reader:
            assert reader.total() == 1
        assert files_of(killed) == left


def test_unreadable_copy_is_closed(path: Path, memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(Ledger(path)), closing(sqlite3.connect(path)) as other:
        other.execute("DROP TABLE feed")
        left = files_of(path)
    killed = memory_path / "killed" / path.name
    killed.parent.mkdir()
    for name, content in left.items():
        killed.with_name(name).write_bytes(content)
    copies: list[sqlite3.Connection] = []
    copied = ledger_file._copied

    def noted(path: Path) -> sqlite3.Connection:
        copies.append(copied(path))
        return copies[-1]

    monkeypatch.setattr(ledger_file, "_copied", noted)
    with pytest.raises(DataError, match="no such table: feed"):
        Ledger(killed, read_only=True)
    assert len(copies) == 1
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        copies[0].execute("SELECT 1")


def test_file_about_to_be_filled_is_an_empty_ledger(path: Path, ask: Callable[[Ledger], None]) -> None:
    path.touch()
    with closing(Ledger(path, read_only=True)) as reader:
        assert (reader.total(), reader.cursor, reader.unfinished()) == (0, 0, [])
        assert list(preferences_in(reader)) == []
        assert files_of(path) == {path.name: b""}
        with closing(Ledger(path)) as ledger:
            ask(ledger)
    with closing(Ledger(path, read_only=True)) as reader:
        assert reader.total() == 1


def test_a_ledger_that_is_not_there_is_not_made(path: Path) -> None:
    with pytest.raises(
        DataError, match=r"ledger\.sqlite3 does not exist; expected the ledger file of a run$"
    ):
        Ledger(path, read_only=True)
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize(
    "write",
    [
        lambda ledger: ledger.write([]),
        lambda ledger: ledger.set_status([], "failed"),
        lambda ledger: ledger.record([], 1),
    ],
    ids=["write", "set_status", "record"],
)
def test_a_reader_writes_nothing(path: Path, write: Callable[[Ledger], None]) -> None:
    Ledger(path).close()
    with (
        closing(Ledger(path, read_only=True)) as reader,
        pytest.raises(DataError, match=r"ledger\.sqlite3 was opened read-only and cannot be written to"),
    ):
        write(reader)


@pytest.mark.parametrize("name", ["what?mode=memory#1", "100%41 of it", "übung & mehr"])
def test_odd_characters_in_a_path(memory_path: Path, name: str, ask: Callable[[Ledger], None]) -> None:
    path = memory_path / name / f"{name}.sqlite3"
    path.parent.mkdir()
    with closing(Ledger(path)) as ledger:
        ask(ledger)
    assert list(path.parent.iterdir()) == [path]
    with closing(Ledger(path, read_only=True)) as reader:
        assert reader.total() == 1


def test_read_only_folder_is_readable(path: Path, ask: Callable[[Ledger], None]) -> None:
    unprivileged = ("setpriv", "--bounding-set=-dac_override") if os.geteuid() == 0 else ()
    with closing(Ledger(path)) as ledger:
        ask(ledger)
        path.parent.chmod(0o500)
        try:
            assert run(LOOK, path, prefix=unprivileged) == "1\n"
        finally:
            path.parent.chmod(0o700)
    path.chmod(0o400)
    path.parent.chmod(0o500)
    try:
        assert run(LOOK, path, prefix=unprivileged) == "1\n"
        assert list(path.parent.iterdir()) == [path]
    finally:
        path.parent.chmod(0o700)
