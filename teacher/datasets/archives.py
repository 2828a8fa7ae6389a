"""Reading and writing of columns as ``.npz`` files that :func:`numpy.load` can read.

The files are not compressed, so that large columns can be memory-mapped instead of loaded.
"""

import struct
import zipfile
from collections.abc import Iterator, Mapping
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from teacher.data.columns import Column, require_numbers
from teacher.errors import DataError

_DESCRIPTION = "about.npy"
_LOCAL_HEADER = 30  # bytes of a member's local header before its name (PKWARE's APPNOTE, section 4.3.7)
_READ_HEADER = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def write(file: IO[bytes], description: str, columns: Mapping[str, Column], rows: NDArray[np.intp]) -> None:
    """Write a description and the columns; ``rows`` selects and orders the rows of each column."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        with archive.open(_DESCRIPTION, "w") as member:
            npy.write_array(member, np.array(description), allow_pickle=False)
        for name, column in columns.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                npy.write_array_header_1_0(member, npy.header_data_from_array_1_0(column.rows))
                for part in column.parts(rows):
                    member.write(part.tobytes())


def read_description(file: IO[bytes]) -> str:
    """Return the description that was passed to :func:`write`."""
    with _opened(file) as archive:
        if _DESCRIPTION not in archive.namelist():
            raise DataError("the .npz file has no 'about' array describing its contents; export it again")
        with archive.open(_DESCRIPTION) as member:
            return str(npy.read_array(member, allow_pickle=False))


def read_columns(file: IO[bytes], names: Mapping[str, Any]) -> dict[str, Column]:
    """Read the named columns, and check them for damage, NaN and infinite values."""
    with _opened(file) as archive:
        if missing := {f"{name}.npy" for name in names}.difference(archive.namelist()):
            raise DataError(f"the file lacks the arrays {', '.join(sorted(missing))}; export it again")
        return {name: _read_column(file, archive, archive.getinfo(f"{name}.npy")) for name in names}


def _opened(file: IO[bytes]) -> zipfile.ZipFile:
    if not zipfile.is_zipfile(file):
        raise DataError("the file is truncated, or not an .npz file")
    return zipfile.ZipFile(file)


def _read_column(file: IO[bytes], archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Column:
    with archive.open(info) as member:
        shape, is_fortran, dtype = _READ_HEADER[npy.read_magic(member)](member)
        if is_fortran or not shape or dtype.kind not in "iufb":
            raise DataError(
                f"{info.filename} must be a numeric array in C order with at least one dimension; got "
                f"{'Fortran order, ' if is_fortran else ''}shape {shape}, type {dtype}"
            )
        start, column = member.tell(), Column(shape[1:], dtype)
        size = shape[0] * column.row_bytes
        if info.file_size != start + size:
            raise DataError(f"{info.filename} is truncated; export the file again")
        is_mapped = size > Column.MAX_IN_MEMORY and info.compress_type == zipfile.ZIP_STORED
        for part in _parts(member, column, shape[0]):
            require_numbers(info.filename, part)
            if not is_mapped:
                column.extend(part)
    if not is_mapped:
        return column
    file.seek(info.header_offset + _LOCAL_HEADER - 4)
    lengths = struct.unpack("<HH", file.read(4))  # of the name and the extra field
    return Column.of_file(file, info.header_offset + _LOCAL_HEADER + sum(lengths) + start, shape, dtype)


def _parts(member: IO[bytes], like: Column, count: int) -> Iterator[NDArray[Any]]:
    """Yield an array's rows in chunks; zipfile verifies the checksum when the last chunk is read."""
    for start in range(0, count, like.rows_at_once):
        data = member.read(min(like.rows_at_once, count - start) * like.row_bytes)
        yield np.frombuffer(data, like.rows.dtype).reshape(-1, *like.rows.shape[1:])
