"""Columns are arrays that grow, wherever they lie."""

import resource
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from teacher.data.columns import Column, require_numbers
from teacher.errors import DataError, StorageError

ROW = (2, 3)
Limits = Callable[[int, int], None]


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Limits:
    """Sets what a column may have in memory, and at work, in bytes."""

    def limit(in_memory: int, at_work: int) -> None:
        monkeypatch.setattr(Column, "MAX_IN_MEMORY", in_memory)
        monkeypatch.setattr(Column, "MAX_AT_WORK", at_work)

    return limit


def rows(count: int, first: int = 0) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return (np.arange(count * 6, dtype=np.float32) + 6 * first).reshape(count, *ROW)


@pytest.fixture
def of_file(tmp_path: Path) -> Iterator[Column]:
    """Five rows, 13 bytes into a file."""
    path = tmp_path / "rows"
    path.write_bytes(b"x" * 13 + rows(5).tobytes())
    with path.open("rb") as file:
        column = Column.of_file(file, 13, (5, *ROW), np.dtype(np.float32))
    yield column
    assert path.read_bytes() == b"x" * 13 + rows(5).tobytes()


@pytest.mark.parametrize("in_memory", [2**20, 3000, 0], ids=["memory", "both", "file"])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.sampled_from(["extend", "replace", "pop"]), st.integers(0, 60))))
def test_a_column_is_a_list_of_rows(limit: Limits, in_memory: int, changes: list[tuple[str, int]]) -> None:
    limit(in_memory, 100)
    column, model = (
        Column(ROW, np.dtype(np.float32)),
        list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]](),
    )
    for change, number in changes:
        if change == "extend":
            column.extend(rows(number, first=number))
            model.extend(rows(number, first=number))
        elif model and change == "replace":
            column.replace(number % len(model), rows(1, first=-number)[0])
            model[number % len(model)] = rows(1, first=-number)[0]
        elif model:
            column.pop()
            model.pop()
    assert len(column) == len(model)
    if model:
        np.testing.assert_array_equal(column.rows, model)
        order = np.arange(len(model))[::-1]
        np.testing.assert_array_equal(np.concatenate(list(column.parts(order))), model[::-1])
        np.testing.assert_array_equal(column.take(order[:, None]), np.array(model)[order[:, None]])


def test_a_file_is_read_where_it_lies_and_never_written(of_file: Column) -> None:
    np.testing.assert_array_equal(of_file.rows, rows(5))
    with pytest.raises(ValueError, match="read-only"):
        of_file.rows[0] = 1
    of_file.replace(2, rows(1, first=9)[0])
    of_file.extend(rows(1, first=7))
    np.testing.assert_array_equal(of_file.rows[[0, 2, 5]], np.stack([rows(1)[0], *rows(1, 9), *rows(1, 7)]))


@pytest.mark.parametrize("on_macos", [False, True])
def test_views_stay_while_file_grows(limit: Limits, monkeypatch: pytest.MonkeyPatch, on_macos: bool) -> None:
    if on_macos:
        monkeypatch.delattr("os.posix_fallocate")
    limit(0, 10**6)
    column = Column(ROW, np.dtype(np.float32))
    column.extend(rows(3))
    before = column.rows
    column.extend(rows(5000))
    np.testing.assert_array_equal(before, rows(3))
    np.testing.assert_array_equal(column.rows[:3], rows(3))


def resident_bytes() -> int:
    """Count files mapped into this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssFile"))


def test_memory_is_given_back_after_the_work(limit: Limits) -> None:
    """Without that, all 64 MB would be resident after each of both."""
    limit(0, 2**20)
    column = Column((2**18,), np.dtype(np.float32))  # a megabyte
    before = resident_bytes()
    for number in range(64):
        column.extend(np.full((1, 2**18), number, np.float32))
    assert resident_bytes() - before < 2**24
    assert [float(part.mean()) for part in column.parts(np.arange(64))] == list(range(64))
    assert resident_bytes() - before < 2**24


def test_a_full_disk_is_one_line_and_leaves_what_is_there(limit: Limits) -> None:
    limit(0, 10**6)
    column = Column(ROW, np.dtype(np.float32))
    column.extend(rows(10))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, before[1]))
    try:
        with pytest.raises(StorageError, match=r"^cannot store .* GB of labeled segments .* TMPDIR to .*$"):
            column.extend(rows(10_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    np.testing.assert_array_equal(column.rows, rows(10))
    column.extend(rows(10_000))
    assert len(column) == 10_010


def test_folder_follows_tmpdir(limit: Limits, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    limit(0, 10**6)
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    column = Column(ROW, np.dtype(np.float32))
    column.extend(rows(10))
    maps = Path("/proc/self/maps").read_text()
    assert f"{tmp_path}/" in maps


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_nan_is_found(number: float) -> None:
    array = rows(3).copy()
    require_numbers("observations", array)
    require_numbers("actions", np.array([1, 2]))
    array[1, 1, 1] = number
    with pytest.raises(DataError, match=r"^observations contains NaN or infinity$"):
        require_numbers("observations", array)
