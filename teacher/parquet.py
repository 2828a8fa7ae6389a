"""Columns as Parquet files: one row for each preference, its UUID as text, arrays flattened.

Needs pyarrow, which is installed with ``rl-teacher[parquet]``.
"""

from collections.abc import Mapping
from typing import IO, Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from teacher.columns import Column, ids_of, require_numbers, uuids_of
from teacher.errors import DataError, one_line
from teacher.extras import needed

_DESCRIPTION = b"rl-teacher"
_IDS, _UUID = "ids", "uuid"


def write(file: IO[bytes], description: str, columns: Mapping[str, Column], rows: NDArray[np.intp]) -> None:
    """Write a description, and these rows of columns.

    Raises:
        ConfigError: pyarrow is not installed.
    """
    arrow = _arrow()
    fields = [(_UUID, arrow.string())] + [
        (name, _type(column)) for name, column in columns.items() if name != _IDS
    ]
    schema = arrow.schema(fields, metadata={_DESCRIPTION: description})
    step = min(column.rows_at_once for column in columns.values())
    with arrow.parquet.ParquetWriter(file, schema, write_page_checksum=True) as writer:
        for start in range(0, len(rows), step):
            taken = {name: column.take(rows[start : start + step]) for name, column in columns.items()}
            uuids = [str(uuid) for uuid in uuids_of(taken.pop(_IDS))]
            arrays = [arrow.array(uuids), *map(_to_arrow, taken.values())]
            writer.write_batch(arrow.record_batch(arrays, schema=schema))


def read_description(file: IO[bytes]) -> str:
    """What :func:`write` was told.

    Raises:
        ConfigError: pyarrow is not installed.
    """
    try:
        metadata = _arrow().parquet.ParquetFile(file).schema_arrow.metadata or {}
    except _arrow().ArrowException as error:
        raise DataError(f"it is cut off, or no Parquet file: {one_line(error)}") from error
    if _DESCRIPTION not in metadata:
        raise DataError("it is a Parquet file of something else")
    return str(metadata[_DESCRIPTION].decode())


def read_columns(file: IO[bytes], names: Mapping[str, Any]) -> dict[str, Column]:
    """The columns of these names, with the row shapes and types that go with them."""
    columns = {name: Column(tuple(said["shape"]), np.dtype(said["dtype"])) for name, said in names.items()}
    step = min(column.rows_at_once for column in columns.values())
    try:
        archive = _arrow().parquet.ParquetFile(file, page_checksum_verification=True)
        for batch in archive.iter_batches(batch_size=step):
            for name, column in columns.items():
                rows = (
                    ids_of(map(UUID, batch[_UUID].to_pylist()))
                    if name == _IDS
                    else _from_arrow(batch[name], column)
                )
                require_numbers(name, rows)
                column.extend(rows)
    except _arrow().ArrowException as error:
        raise DataError(f"it is damaged: {one_line(error)}") from error
    return columns


def _arrow() -> Any:
    purpose = "a .parquet file (an .npz needs nothing more)"
    needed("pyarrow.parquet", purpose, "parquet")
    return needed("pyarrow", purpose, "parquet")


def _type(column: Column) -> Any:
    """One number, or all numbers of a row as a list of fixed size."""
    number = _arrow().from_numpy_dtype(column.rows.dtype)
    size = int(np.prod(column.rows.shape[1:]))
    return number if column.rows.ndim == 1 else _arrow().list_(number, size)


def _to_arrow(rows: NDArray[Any]) -> Any:
    arrow = _arrow()
    if rows.ndim == 1:
        return arrow.array(rows)
    flat = rows.reshape(len(rows), -1)
    return arrow.FixedSizeListArray.from_arrays(arrow.array(flat.ravel()), flat.shape[1])


def _from_arrow(array: Any, column: Column) -> NDArray[Any]:
    numbers = array.flatten() if column.rows.ndim > 1 else array
    found: NDArray[Any] = numbers.to_numpy(zero_copy_only=False)
    if found.dtype != column.rows.dtype:
        raise DataError(f"expected numbers of {column.rows.dtype}, got {found.dtype}")
    return found.reshape(-1, *column.rows.shape[1:])
