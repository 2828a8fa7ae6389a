"""Growable arrays of rows, kept in memory while small and in a memory-mapped file once large.

Only the pages of a mapped file that are in use occupy memory, and the operating system can reclaim them at
any time. Columns also release these pages regularly, to keep the process's memory use low.
"""

import mmap
import os
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from typing import IO, Any, ClassVar
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from teacher.errors import DataError, StorageError
from teacher.platforms import reserve

_FEWEST_ROWS = 64


class Column:
    """A growable array of rows that all have the same shape and dtype.

    A large column is stored in an unnamed file in ``$TMPDIR``, or in ``/var/tmp`` if ``TMPDIR`` is not set.

    Attributes:
        MAX_IN_MEMORY: size in bytes above which a column is stored in a file.
        MAX_AT_WORK: number of bytes to read or write before releasing the mapped file's memory.
    """

    MAX_IN_MEMORY: ClassVar[int] = 2**28
    MAX_AT_WORK: ClassVar[int] = 2**24

    def __init__(self, row_shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._length = 0
        self._room: NDArray[Any] = np.empty((0, *row_shape), dtype)
        self._file: IO[bytes] | None = None  # stores the rows once they are large
        self._mapping: mmap.mmap | None = None
        self._at_work = 0

    @classmethod
    def of_file(cls, file: IO[bytes], offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> "Column":
        """Return a column that reads the array at byte ``offset`` of a file through a memory map.

        The file is never modified: the first append or replacement copies all rows to the column's storage.
        """
        column = cls(shape[1:], dtype)
        column._mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        column._room = np.ndarray(shape, dtype, column._mapping, offset)
        column._length = shape[0]
        return column

    def __len__(self) -> int:
        return self._length

    @property
    def rows(self) -> NDArray[Any]:
        """Return a view of all rows."""
        return self._room[: self._length]

    @property
    def row_bytes(self) -> int:
        """Return the size of one row in bytes."""
        return self._room.itemsize * int(np.prod(self._room.shape[1:]))

    @property
    def rows_at_once(self) -> int:
        """Return the number of rows to process at a time to limit memory use."""
        return max(1, self.MAX_AT_WORK // max(1, self.row_bytes))

    def take(self, rows: NDArray[np.integer[Any]]) -> NDArray[Any]:
        """Return copies of the rows at indices ``rows``, with shape ``(*rows.shape, *row_shape)``."""
        taken: NDArray[Any] = self.rows[rows]
        self._worked_on(taken.nbytes)
        return taken

    def parts(self, rows: NDArray[np.integer[Any]]) -> Iterator[NDArray[Any]]:
        """Yield copies of the rows with these indices, at most :attr:`rows_at_once` rows at a time."""
        for start in range(0, len(rows), self.rows_at_once):
            yield self.take(rows[start : start + self.rows_at_once])

    def all_parts(self) -> Iterator[NDArray[Any]]:
        """Yield copies of all rows in order, at most :attr:`rows_at_once` rows at a time."""
        return self.parts(np.arange(len(self)))

    def as_type(self, dtype: np.dtype[Any]) -> "Column":
        """Return a copy of the column with a different dtype."""
        column = Column(self.rows.shape[1:], dtype)
        for part in self.all_parts():
            column.extend(part)
        return column

    def extend(self, rows: NDArray[Any]) -> None:
        """Append rows, cast to the column's dtype; raise StorageError if the disk is full."""
        stop = self._length + len(rows)
        self.reserve(stop)
        self._room[self._length : stop] = rows
        self._length = stop
        self._worked_on(rows.nbytes)

    def replace(self, row: int, value: Any) -> None:
        """Overwrite one row; raise StorageError if the disk is full."""
        self.reserve(self._length)
        self._room[row] = value

    def pop(self) -> None:
        """Remove the last row."""
        self._length -= 1

    def reserve(self, length: int) -> None:
        """Allocate space for ``length`` rows in total, so that growing to that length can't fail.

        Raises:
            StorageError: the disk is full.
        """
        if length <= len(self._room) and self._room.flags.writeable:
            return
        if self._file is not None:  # a file grows without copying, so a small increment is enough
            self._map(self._file, length + length // 4)
            return
        before, length = self.rows, max(_FEWEST_ROWS, 2 * length)
        if length * self.row_bytes > self.MAX_IN_MEMORY:
            folder = None if "TMPDIR" in os.environ else "/var/tmp"  # noqa: S108 (the file has no name)
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (closed with the column)
            weakref.finalize(self, self._file.close)
            self._map(self._file, length)
        else:
            self._mapping, self._room = None, np.empty((length, *self._room.shape[1:]), self._room.dtype)
        for start in range(0, self._length, self.rows_at_once):
            part = before[start : start + self.rows_at_once]
            self._room[start : start + len(part)] = part
            self._worked_on(part.nbytes)

    def _map(self, file: IO[bytes], length: int) -> None:
        size = length * self.row_bytes
        try:
            reserve(file, size)
        except OSError as error:
            raise StorageError(
                f"cannot store {size / 1e9:.1f} GB of labeled segments on disk: {error.strerror}; free up "
                "space, or set TMPDIR to a folder with enough space"
            ) from error
        self._mapping = mmap.mmap(file.fileno(), size)
        self._room = np.ndarray((length, *self._room.shape[1:]), self._room.dtype, self._mapping)

    def _worked_on(self, size: int) -> None:
        # Release early: the kernel also maps many pages around the requested ones.
        self._at_work += size
        if self._mapping is not None and self._at_work > self.MAX_AT_WORK:
            self._mapping.madvise(mmap.MADV_DONTNEED)  # writes stay in the file
            self._at_work = 0


def ids_of(uuids: Iterable[UUID]) -> NDArray[np.uint64]:
    """Return the upper and lower 64 bits of each UUID as an array of shape ``(n, 2)``."""
    return np.array([(uuid.int >> 64, uuid.int & (2**64 - 1)) for uuid in uuids], np.uint64)


def uuids_of(ids: NDArray[np.uint64]) -> list[UUID]:
    """Convert rows returned by :func:`ids_of` back to UUIDs."""
    return [UUID(int=(high << 64) | low) for high, low in ids.tolist()]


def require_numbers(name: str, array: NDArray[Any]) -> None:
    """Raise :class:`DataError` if the array contains NaN or infinity."""
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise DataError(f"{name} contains NaN or infinity")
