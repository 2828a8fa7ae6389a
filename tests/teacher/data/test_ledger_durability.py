"""Test what becomes of the ledger on killed processes, damaged files, full disks and network file systems."""

import contextlib
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from functools import cache
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from human_feedback_site.feedback.backup.folders import copy_folder
from teacher.data import ledger_file
from teacher.data.decisions import FeedItem
from teacher.data.ledger import Ledger, Question
from teacher.data.segments import Segment
from teacher.errors import DataError
from teacher.platforms import is_local
from teacher.queries.kinds import preferences_in
from tests.conftest import damaged
from tests.teacher.conftest import make_segment

BOTH_WAYS = pytest.mark.parametrize("read_only", [False, True], ids=["to be written", "to be read"])
ROOT = Path(__file__).parents[3]
WRITER = """
import resource
import sys
from pathlib import Path
from uuid import uuid4
import numpy as np
from teacher.data.decisions import FeedItem
from teacher.envs.recipe import EpisodeRecipe
from teacher.data.ledger import Ledger, Question
from teacher.data.segments import Segment

if len(sys.argv) > 2:  # the disk is full from so many bytes on
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
random = np.random.default_rng(0)
ledger = Ledger(Path(sys.argv[1]))
for seq in range(1, 100_000):
    actions = random.normal(size=(50, 40))
    segment = Segment(EpisodeRecipe("Any-v0", {}, 0, actions, {}), 0, actions, actions, np.zeros(50))
    comparison = Question(uuid4(), (segment, segment), "training", seq)
    ledger.write([comparison])
    print("written", comparison.uuid, flush=True)
    ledger.record([FeedItem(seq, comparison.uuid, "first", 1.0, 1)], cursor=seq)
    print("decided", comparison.uuid, flush=True)
"""


def writer(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def written(path: Path) -> Ledger:
    ledger = Ledger(path)
    ledger.write([Question(uuid4(), (make_segment(1), make_segment(2)), "training", 0)])
    return ledger


@pytest.mark.parametrize("lines", [1, 14, 29])
def test_everything_acknowledged_survives_kill_9(memory_path: Path, lines: int) -> None:
    path = memory_path / "ledger.sqlite3"
    with writer(path) as process:
        assert process.stdout is not None
        said = [process.stdout.readline().split() for _ in range(lines)]
        process.send_signal(signal.SIGKILL)
        said += [line.split() for line in process.stdout.read().splitlines()]
    acknowledged: dict[str, set[UUID]] = {"written": set(), "decided": set()}
    for what, uuid in (words for words in said if len(words) == 2 and len(words[1]) == 36):
        acknowledged[what].add(UUID(uuid))
    ledger = Ledger(path)
    decided = {preference.uuid for preference in preferences_in(ledger)}
    held = decided | {comparison.uuid for comparison in ledger.unfinished()}
    assert acknowledged["written"] <= held
    assert acknowledged["decided"] <= decided
    assert len(held) <= len(acknowledged["written"]) + 1
    assert ledger.cursor == len(decided)  # the cursor describes exactly these decisions
    ledger.close()


@pytest.mark.parametrize("copied", [0, 1, 2])
def test_damage_of_what_a_killed_run_left_loses_the_last_changes_and_makes_up_none(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch, copied: int
) -> None:
    """They lie in the -wal file until SQLite has copied them ``copied`` times; the run is killed after that.

    SQLite goes by its checksums. Where it has copied later changes than it can read, it cannot go back to all
    that was before; then comparisons are missing, which a resumed run says.
    """
    monkeypatch.setattr(Segment, "from_bytes", cache(Segment.from_bytes))  # it takes longer than all else
    path, journal = memory_path / "ledger.sqlite3", memory_path / "ledger.sqlite3-wal"
    ledger = Ledger(path)
    states = [held(ledger)]
    for seq in range(1, 9):
        comparison = Question(uuid4(), (make_segment(seq), make_segment(seq + 50)), "training", seq)
        ledger.write([comparison])
        states.append(held(ledger))
        ledger.record([FeedItem(seq, comparison.uuid, "first", 1.0, 1)], cursor=seq)
        states.append(held(ledger))
        if (seq == 4 and copied == 2) or (seq == 8 and copied > 0):
            with contextlib.closing(sqlite3.connect(path)) as other:
                other.execute("PRAGMA wal_checkpoint")
    intact = path.read_bytes(), journal.read_bytes()
    ledger.close()
    found = []
    for content in damaged(intact[1]):
        path.write_bytes(intact[0])
        journal.write_bytes(content)
        Path(f"{path}-shm").unlink(missing_ok=True)
        with contextlib.suppress(DataError), contextlib.closing(Ledger(path)) as ledger:
            found.append(held(ledger))
    assert len({state[0] for state in found}) > 3
    assert all(state in states or (copied == 2 and state[0] < 8) for state in found)


def held(ledger: Ledger) -> tuple[int, int, list[UUID], list[UUID]]:
    """All that a run reads of it when it goes on."""
    decided = [preference.uuid for preference in preferences_in(ledger)]
    return ledger.total(), ledger.cursor, decided, [comparison.uuid for comparison in ledger.unfinished()]


def test_a_full_disk_is_one_line_and_leaves_what_was_written(memory_path: Path) -> None:
    path = memory_path / "ledger.sqlite3"
    with writer(path, 300_000) as process:
        output, errors = process.communicate(timeout=240)
    assert process.returncode == 1
    last = errors.strip().splitlines()[-1]
    assert last.startswith("teacher.errors.DataError: ")
    assert str(path) in last
    assert "the free disk space" in last
    acknowledged = {UUID(line.split()[1]) for line in output.splitlines() if line.startswith("written")}
    ledger = Ledger(path)
    held = list(preferences_in(ledger)) + ledger.unfinished()
    assert {entry.uuid for entry in held} >= acknowledged
    ledger.close()


@BOTH_WAYS
def test_a_file_that_is_no_database_is_refused_and_left_alone(memory_path: Path, read_only: bool) -> None:
    path = memory_path / "ledger.sqlite3"
    path.write_text("these are the labels of last summer, " * 50)
    with pytest.raises(DataError, match="is damaged or not a ledger"):
        Ledger(path, read_only=read_only)
    assert path.read_text().startswith("these are the labels")
    assert list(memory_path.iterdir()) == [path]


@BOTH_WAYS
def test_another_programs_database_is_refused_and_left_alone(memory_path: Path, read_only: bool) -> None:
    path = memory_path / "ledger.sqlite3"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE comparison (id INTEGER)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(DataError, match="is not a ledger; expected"):
        Ledger(path, read_only=read_only)
    assert path.read_bytes() == before
    assert list(memory_path.iterdir()) == [path]


@BOTH_WAYS
def test_a_newer_ledger_is_refused(memory_path: Path, read_only: bool) -> None:
    path = memory_path / "ledger.sqlite3"
    written(path).close()
    with sqlite3.connect(path) as newer:
        newer.execute("PRAGMA user_version = 3")
    newer.close()
    with pytest.raises(DataError, match=r"has format version 3, but this version .* only reads format 2;"):
        Ledger(path, read_only=read_only)


def test_a_folder_that_is_not_there_is_one_line(memory_path: Path) -> None:
    with pytest.raises(DataError, match=r"ledger.sqlite3 cannot be used: unable to open"):
        Ledger(memory_path / "nowhere" / "ledger.sqlite3")


def test_a_damaged_segment_is_refused(memory_path: Path) -> None:
    path = memory_path / "ledger.sqlite3"
    written(path).close()
    with sqlite3.connect(path) as connection:
        (blob,) = connection.execute("SELECT first FROM pair").fetchone()
        middle = len(blob) // 2
        damaged = (
            blob[:middle] + bytes(255 - byte for byte in blob[middle : middle + 40]) + blob[middle + 40 :]
        )
        connection.execute("UPDATE pair SET first = ?", (damaged,))
    connection.close()
    ledger = Ledger(path)
    with pytest.raises(DataError, match=r"ledger.sqlite3 is damaged: a stored segment"):
        ledger.unfinished()
    ledger.close()


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
    paths: Clients, monkeypatch: pytest.MonkeyPatch, *, seems_local: bool
) -> None:
    here, there = paths
    if seems_local:  # the shared memory that fails must do
        monkeypatch.setattr(ledger_file, "is_local", lambda _: True)
        monkeypatch.setattr(ledger_file, "PATIENCE_SECONDS", 0.1)
    with closing(Ledger(here)) as ledger:
        ledger.write([Question(uuid4(), (make_segment(1), make_segment(2)), "training", 0)])
        with pytest.raises(DataError) as caught:
            Ledger(there)
        assert str(caught.value) == (
            f"{there} is in use by another process, perhaps on another machine; end that run first"
        )
    with closing(Ledger(there)) as ledger:
        assert ledger.total() == 1
    assert [file.name for file in there.parent.iterdir()] == ["ledger.sqlite3"]


def test_readers_elsewhere_use_a_copy(paths: Clients, tmp_path: Path) -> None:
    here, there = paths
    comparisons = [Question(uuid4(), (make_segment(n), make_segment(n + 9)), "training", 0) for n in range(3)]
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
        assert [preference.value for preference in preferences_in(reader)] == [1.0]
        assert copy_folder(there.parent, tmp_path / "backup") == 1
        assert _files(there) == before
    with closing(Ledger(there, read_only=True)) as reader:
        assert reader.cursor == 1
    assert list(_files(there)) == ["ledger.sqlite3"]
    with closing(Ledger(tmp_path / "backup" / "ledger.sqlite3", read_only=True)) as reader:
        assert (reader.total(), reader.cursor) == (3, 1)


def test_a_backup_without_a_copy_says_so_and_a_failed_copy_ends_nothing(
    paths: Clients, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    here, there = paths
    with closing(Ledger(here)) as ledger:
        ledger_file.path_of_copy(here).unlink()
        ledger_file.path_of_copy(here).mkdir()  # so that no copy can be made
        for number in range(3):
            ledger._next_copy = 0.0
            ledger.write([Question(uuid4(), (make_segment(number), make_segment(9)), "training", 0)])
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
