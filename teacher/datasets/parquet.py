"""Reading and writing of columns as Parquet files with one row per preference, for dataset viewers.

The columns are ``uuid``, ``preference`` and ``complete``, ``weight`` and ``question`` if questions have more
than one preference, then a ``first_...`` and a ``second_...`` column for each array of a segment. Arrays are
lists of steps, each a number or a list of numbers. If clips are included, ``first_clip`` and ``second_clip``
contain MP4 files in the video format of Hugging Face's ``datasets``, which the file's metadata declares.

Requires pyarrow, which the extra ``parquet`` installs.
"""

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from teacher.data.columns import Column, ids_of, require_numbers, uuids_of
from teacher.errors import DataError, one_line
from teacher.extras import require_extra

Clips = Callable[[UUID], tuple[bytes, bytes]]
"""Function that returns the MP4 data of the first and second clip of a preference, given its UUID."""

SIDES = ("first", "second")
_DESCRIPTION = b"rl-teacher"
_UUIDS = {"ids": "uuid", "questions": "question"}
_PLAIN = {"values": "preference", "complete": "complete", "weights": "weight"}
_SIDED = {
    "true_returns": "true_return",
    "terminated": "terminated",
    "observations": "observations",
    "actions": "actions",
}
"""Per-segment columns, small ones first, mapped to names in the file without ``first_`` or ``second_``."""


def write(
    file: IO[bytes],
    description: str,
    columns: Mapping[str, Column],
    rows: NDArray[np.intp],
    clips: Clips | None = None,
) -> None:
    """Write a description and the columns; ``rows`` selects and orders the rows of each column.

    Args:
        description: JSON metadata: the environment, and the columns' shapes and dtypes.
        clips: function that maps a preference's UUID to its two clips; None to omit clips.
    """
    step = min(column.rows_at_once for column in columns.values())
    batches = (_batch(columns, rows[start : start + step], clips) for start in range(0, len(rows), step))
    first = next(batches)  # determines the types of all batches
    metadata = {_DESCRIPTION: description}
    if clips is not None:  # Hugging Face's ``datasets`` can't detect videos by itself
        features = {field.name: _feature(field.type) for field in first.schema}
        metadata[b"huggingface"] = json.dumps({"info": {"features": features}})
    schema = first.schema.with_metadata(metadata)
    with _arrow().parquet.ParquetWriter(file, schema, write_page_checksum=True) as writer:
        for batch in itertools.chain([first], batches):
            writer.write_batch(batch)


def read_description(file: IO[bytes]) -> str:
    """Return the description that was passed to :func:`write`.

    Raises:
        ConfigError: pyarrow is not installed.
    """
    try:
        metadata = _arrow().parquet.ParquetFile(file).schema_arrow.metadata or {}
    except _arrow().ArrowException as error:
        raise DataError(f"the file is truncated, or not a Parquet file: {one_line(error)}") from error
    if _DESCRIPTION not in metadata:
        raise DataError("the Parquet file was not written by RL-Teacher")
    return str(metadata[_DESCRIPTION].decode())


def read_columns(file: IO[bytes], names: Mapping[str, Any]) -> dict[str, Column]:
    """Read the named columns, and check them for damage, NaN and infinite values; clips aren't read.

    Args:
        names: each column's ``dtype`` and the ``shape`` of one row, keyed by column name.
    """
    columns = {name: Column(tuple(said["shape"]), np.dtype(said["dtype"])) for name, said in names.items()}
    step = min(column.rows_at_once for column in columns.values())
    wanted = [there for here, there in {**_UUIDS, **_PLAIN}.items() if here in names]
    wanted += [f"{side}_{name}" for name in _SIDED.values() for side in SIDES]
    try:
        archive = _arrow().parquet.ParquetFile(file, page_checksum_verification=True)
        if missing := set(wanted) - set(archive.schema_arrow.names):
            raise DataError(f"the file lacks the columns {', '.join(sorted(missing))}; export it again")
        for batch in archive.iter_batches(batch_size=step, columns=wanted):
            for name, column in columns.items():
                rows = _rows(batch, name, column)
                require_numbers(name, rows)
                column.extend(rows)
    except _arrow().ArrowException as error:
        raise DataError(f"the file is damaged: {one_line(error)}") from error
    return columns


def _arrow() -> Any:
    purpose = "a .parquet file (unlike .npz)"
    require_extra("pyarrow.parquet", purpose, "parquet")
    return require_extra("pyarrow", purpose, "parquet")


def _batch(columns: Mapping[str, Column], rows: NDArray[np.intp], clips: Clips | None) -> Any:
    arrow = _arrow()
    taken = {name: column.take(rows) for name, column in columns.items()}
    arrays = {
        there: arrow.array(map(str, uuids_of(taken[here]))) for here, there in _UUIDS.items() if here in taken
    }
    arrays |= {there: _to_arrow(taken[here]) for here, there in _PLAIN.items() if here in taken}
    if clips is not None:
        arrays |= _clip_columns(uuids_of(taken["ids"]), clips)
    for here, there in _SIDED.items():
        arrays |= {f"{side}_{there}": _to_arrow(taken[here][:, index]) for index, side in enumerate(SIDES)}
    return arrow.record_batch(arrays)


def _sizes(rows: NDArray[Any]) -> Sequence[int]:
    """Return the list length at each nesting level of a row, outermost first; empty for a single value.

    The lengths are the number of steps and, unless a step is a scalar, the number of values per step.
    """
    steps, numbers = rows.shape[1:2], rows.shape[2:]
    return [*steps, *([math.prod(numbers)] if numbers else [])]


def _feature(kind: Any) -> dict[str, Any]:
    types = _arrow().types
    if types.is_struct(kind):
        return {"_type": "Video"}
    if types.is_fixed_size_list(kind):
        return {"feature": _feature(kind.value_type), "length": kind.list_size, "_type": "Sequence"}
    return {"dtype": {"float": "float32", "double": "float64"}.get(str(kind), str(kind)), "_type": "Value"}


def _clip_columns(uuids: Sequence[UUID], clips: Clips) -> dict[str, Any]:
    pairs = [clips(uuid) for uuid in uuids]
    return {
        f"{side}_clip": _arrow().array(
            [
                {"bytes": pair[index], "path": f"{uuid}-{side}.mp4"}
                for uuid, pair in zip(uuids, pairs, strict=True)
            ]
        )
        for index, side in enumerate(SIDES)
    }


def _to_arrow(rows: NDArray[Any]) -> Any:
    arrow = _arrow()
    array = arrow.array(np.ascontiguousarray(rows).ravel())
    for size in reversed(_sizes(rows)):
        array = arrow.FixedSizeListArray.from_arrays(array, size)
    return array


def _rows(batch: Any, name: str, column: Column) -> NDArray[Any]:
    if name in _UUIDS:
        return ids_of(map(UUID, batch[_UUIDS[name]].to_pylist()))
    if name in _PLAIN:
        return _from_arrow(batch[_PLAIN[name]], column.rows)
    halves = [_from_arrow(batch[f"{side}_{_SIDED[name]}"], column.rows[:, 0]) for side in SIDES]
    return np.stack(halves, axis=1)


def _from_arrow(array: Any, like: NDArray[Any]) -> NDArray[Any]:
    expected = _arrow().from_numpy_dtype(like.dtype)
    for size in reversed(_sizes(like)):
        expected = _arrow().list_(expected, size)
    if array.type != expected:
        raise DataError(
            f"a column's values have type {array.type}, but the file's metadata declares {expected}; "
            "export the file again"
        )
    for _ in _sizes(like):
        array = array.flatten()
    found: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return found.reshape(-1, *like.shape[1:])
