"""Test what becomes of the ledger when processes are killed, files are damaged and disks are full."""

import contextlib
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from teacher.data.decisions import FeedItem
from teacher.data.ledger import Comparison, Ledger
from teacher.data.segments import Segment
from teacher.errors import DataError

MakeSegment = Callable[..., Segment]
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
from teacher.data.ledger import Comparison, Ledger
from teacher.data.segments import Segment

if len(sys.argv) > 2:  # the disk is full from so many bytes on
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
random = np.random.default_rng(0)
ledger = Ledger(Path(sys.argv[1]))
for seq in range(1, 100_000):
    actions = random.normal(size=(50, 40))
    segment = Segment(EpisodeRecipe("Any-v0", {}, 0, actions, {}), 0, actions, actions, np.zeros(50))
    comparison = Comparison(uuid4(), segment, segment, "training", seq)
    ledger.write([comparison])
    print("written", comparison.uuid, flush=True)
    ledger.record([FeedItem(seq, comparison.uuid, "first", 1.0, 1)], cursor=seq)
    print("decided", comparison.uuid, flush=True)
"""


def writer(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def written(path: Path, make_segment: MakeSegment) -> Ledger:
    ledger = Ledger(path)
    ledger.write([Comparison(uuid4(), make_segment(1), make_segment(2), "training", 0)])
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
    decided = {preference.uuid for preference in ledger.preferences()}
    held = decided | {comparison.uuid for comparison in ledger.unfinished()}
    assert acknowledged["written"] <= held
    assert acknowledged["decided"] <= decided
    assert len(held) <= len(acknowledged["written"]) + 1
    assert ledger.cursor == len(decided)  # the cursor describes exactly these decisions
    ledger.close()


@pytest.mark.parametrize("copied", [0, 1, 2])
def test_damage_of_what_a_killed_run_left_loses_the_last_changes_and_makes_up_none(
    memory_path: Path,
    make_segment: MakeSegment,
    damaged: Callable[[bytes], Iterator[bytes]],
    monkeypatch: pytest.MonkeyPatch,
    copied: int,
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
        comparison = Comparison(uuid4(), make_segment(seq), make_segment(seq + 50), "training", seq)
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
    decided = [preference.uuid for preference in ledger.preferences()]
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
    held = ledger.preferences() + ledger.unfinished()
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
def test_a_newer_ledger_is_refused(memory_path: Path, make_segment: MakeSegment, read_only: bool) -> None:
    path = memory_path / "ledger.sqlite3"
    written(path, make_segment).close()
    with sqlite3.connect(path) as newer:
        newer.execute("PRAGMA user_version = 2")
    newer.close()
    with pytest.raises(DataError, match=r"has format version 2, but this version .* only reads format 1;"):
        Ledger(path, read_only=read_only)


def test_a_folder_that_is_not_there_is_one_line(memory_path: Path) -> None:
    with pytest.raises(DataError, match=r"ledger.sqlite3 cannot be used: unable to open"):
        Ledger(memory_path / "nowhere" / "ledger.sqlite3")


def test_a_damaged_segment_is_refused(memory_path: Path, make_segment: MakeSegment) -> None:
    path = memory_path / "ledger.sqlite3"
    written(path, make_segment).close()
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
