"""A ledger on a file system without shared memory, such as NFS, that two machines see."""

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest

from human_feedback_site.feedback.backup.folders import copy_folder
from teacher.data import ledger_file
from teacher.data.decisions import FeedItem
from teacher.data.ledger import Comparison, Ledger
from teacher.data.segments import Segment
from teacher.errors import DataError
from teacher.platforms import is_local

MakeSegment = Callable[..., Segment]
Clients = tuple[Path, Path]


@pytest.fixture
def paths(two_clients: Clients, monkeypatch: pytest.MonkeyPatch) -> Clients:
    """The path of one ledger on each of two machines."""
    monkeypatch.setattr(ledger_file, "_HELD_SECONDS", 0.1)
    name = uuid4().hex
    (two_clients[0] / name).mkdir()
    here, there = (client / name / "ledger.sqlite3" for client in two_clients)
    return here, there


def _files(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.parent.iterdir()}


def test_the_kind_of_file_system_is_known(two_clients: Clients, memory_path: Path) -> None:
    assert is_local(memory_path)
    assert not any(map(is_local, two_clients))


@pytest.mark.parametrize("seems_local", [False, True])
def test_only_one_machine_has_a_ledger_open(
    paths: Clients, make_segment: MakeSegment, monkeypatch: pytest.MonkeyPatch, *, seems_local: bool
) -> None:
    here, there = paths
    if seems_local:  # the shared memory that fails must do
        monkeypatch.setattr(ledger_file, "is_local", lambda _: True)
        monkeypatch.setattr(ledger_file, "PATIENCE_SECONDS", 0.1)
    with closing(Ledger(here)) as ledger:
        ledger.write([Comparison(uuid4(), make_segment(1), make_segment(2), "training", 0)])
        with pytest.raises(DataError) as caught:
            Ledger(there)
        assert str(caught.value) == (
            f"{there} is in use by another process, perhaps on another machine; end that run first"
        )
    with closing(Ledger(there)) as ledger:
        assert ledger.total() == 1
    assert [file.name for file in there.parent.iterdir()] == ["ledger.sqlite3"]


def test_readers_elsewhere_use_a_copy(paths: Clients, make_segment: MakeSegment, tmp_path: Path) -> None:
    here, there = paths
    comparisons = [Comparison(uuid4(), make_segment(n), make_segment(n + 9), "training", 0) for n in range(3)]
    with closing(Ledger(here)) as ledger, closing(Ledger(there, read_only=True)) as reader:
        ledger.write(comparisons[:1])
        assert reader.total() == 0  # the copy is a minute behind
        ledger.copy_for_readers()  # as before a checkpoint
        assert reader.total() == 1
        ledger._next_copy = 0.0  # a minute later
        ledger.write(comparisons[1:])
        assert reader.total() == 3
        ledger._next_copy = 0.0
        ledger.record([FeedItem(1, comparisons[0].uuid, "first", 1.0, 1)], cursor=1)
        before = _files(there)
        assert [preference.value for preference in reader.targets()] == [1.0]
        assert copy_folder(there.parent, tmp_path / "backup") == 1
        assert _files(there) == before
    with closing(Ledger(there, read_only=True)) as reader:
        assert reader.cursor == 1
    assert list(_files(there)) == ["ledger.sqlite3"]
    with closing(Ledger(tmp_path / "backup" / "ledger.sqlite3", read_only=True)) as reader:
        assert (reader.total(), reader.cursor) == (3, 1)


def test_a_backup_without_a_copy_says_so_and_a_failed_copy_ends_nothing(
    paths: Clients, make_segment: MakeSegment, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    here, there = paths
    with closing(Ledger(here)) as ledger:
        ledger_file.path_of_copy(here).unlink()
        ledger_file.path_of_copy(here).mkdir()  # so that no copy can be made
        for number in range(3):
            ledger._next_copy = 0.0
            ledger.write([Comparison(uuid4(), make_segment(number), make_segment(9), "training", 0)])
        assert ledger.total() == 3
        ledger_file.path_of_copy(here).rmdir()
        with pytest.raises(DataError, match="is in use by another process, perhaps on another machine"):
            Ledger(there, read_only=True)
    (warning,) = caplog.messages
    assert warning.startswith(f"cannot copy {here} for backups and other readers: ")


def test_changes_of_a_killed_run_are_kept(paths: Clients) -> None:
    here, there = paths
    code = (
        "import os, sys; from pathlib import Path; from teacher.data.ledger import Ledger\n"
        "ledger = Ledger(Path(sys.argv[1])); ledger.record([], cursor=7)\n"
        "ledger._opened.execute('BEGIN'); ledger._opened.execute('PRAGMA cache_spill = 1')\n"
        "ledger._opened.execute('UPDATE feed SET cursor = 8'); os._exit(9)"
    )
    root = Path(__file__).parents[3]
    assert subprocess.run([sys.executable, "-c", code, here], cwd=root, check=False).returncode == 9
    with closing(Ledger(there, read_only=True)) as reader:
        assert reader.cursor == 7
    with closing(Ledger(there)) as ledger:
        assert ledger.cursor == 7


def test_ledger_with_an_older_log_is_taken_over(paths: Clients, memory_path: Path) -> None:
    here, there = paths
    with closing(Ledger(memory_path / "ledger.sqlite3")) as ledger:
        ledger.record([], cursor=7)
        for end in ("", "-wal"):  # as after a crash
            shutil.copyfile(memory_path / f"ledger.sqlite3{end}", f"{here}{end}")
    assert Path(f"{here}-wal").stat().st_size
    before = _files(there)
    with closing(Ledger(there, read_only=True)) as reader:
        assert reader.cursor == 7
    assert _files(there) == before
    with closing(Ledger(here)) as ledger:
        assert ledger.cursor == 7
        assert ledger._opened.execute("PRAGMA journal_mode").fetchone() == ("delete",)  # type: ignore[union-attr]
    assert list(_files(here)) == ["ledger.sqlite3"]
    assert here.read_bytes()[18:20] == b"\1\1"  # no write-ahead log


def test_another_programs_database_is_left_alone(paths: Clients) -> None:
    here, _ = paths
    with closing(sqlite3.connect(here)) as other:
        other.execute("CREATE TABLE theirs (x)")
    before = _files(here)
    with pytest.raises(DataError, match="is not a ledger"):
        Ledger(here)
    assert _files(here) == before
