"""Tables as files, written and read bit by bit: CSV, and Parquet where pyarrow is installed."""

import csv
import importlib.util
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from itertools import islice
from pathlib import Path
from typing import Any

from human_feedback_site.feedback.errors import BadFileError, NotInstalledError
from human_feedback_site.feedback.tables.columns import Column, Kind

_CSV_ROWS_AT_ONCE = 500
_PARQUET_ROWS_AT_ONCE = 20_000
# A spreadsheet takes a cell that begins so for a formula. An apostrophe before it makes it text; one more
# before those that have one already, so that it can be taken away again.
_FORMULA = re.compile(r"'*[=+\-@\t\r]")
CHANGED = re.compile(
    r"[+-]?[0-9]+([.,][0-9]+)?(E[+-]?[0-9]+)?|TRUE|FALSE"
    r"|[0-9]+([/.-][0-9]+){1,2}|[0-9]{1,2}-[A-Z][a-z]{2}|[A-Z][a-z]{2}-[0-9]{2}"
)
"""What a spreadsheet makes of texts that look like numbers, truth or dates, such as 7 of 007.

An export leaves such a text alone; an apostrophe before it says that it is as it should be.
"""

Row = Sequence[Any]


@dataclass(frozen=True)
class FileType:
    """How a table is written."""

    content_type: str
    write: Callable[[Sequence[Column], Iterable[Row]], Iterator[bytes]]


def is_quoted(text: str) -> bool:
    """Say whether a text that begins with an apostrophe has one more than it means."""
    return _FORMULA.match(text) is not None or CHANGED.fullmatch(text.lstrip("'")) is not None


def csv_cell(kind: Kind, value: Any) -> str:
    """Return a cell as CSV has it."""
    if value is None:
        return ""
    if kind == Kind.TEXT:
        text = str(value).replace("\x00", "\N{REPLACEMENT CHARACTER}")
        must_be = _FORMULA.match(text) or (text.startswith("'") and is_quoted(text))
        return f"'{text}" if must_be else text
    if kind == Kind.TIME:
        return f"{value.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
    if kind == Kind.YES_NO:
        return "true" if value else "false"
    return repr(value) if kind == Kind.NUMBER else str(value)


def write_csv(columns: Sequence[Column], rows: Iterable[Row]) -> Iterator[bytes]:
    """Yield the pieces of a CSV file (RFC 4180, UTF-8) with a header line."""
    kinds = [column.kind for column in columns]
    remaining = iter(rows)
    piece = [[column.name for column in columns]]
    while piece:
        text = io.StringIO()
        csv.writer(text).writerows(piece)
        yield text.getvalue().encode()
        piece = [
            [csv_cell(kind, value) for kind, value in zip(kinds, row, strict=True)]
            for row in islice(remaining, _CSV_ROWS_AT_ONCE)
        ]


def has_parquet() -> bool:
    """Say whether Parquet files can be written here."""
    return importlib.util.find_spec("pyarrow") is not None


class _Pieces(io.RawIOBase):
    """A file that is handed on while it is written."""

    def __init__(self) -> None:
        self._written: list[bytes] = []
        self._position = 0

    def writable(self) -> bool:
        """Say yes."""
        return True

    def write(self, data: Any) -> int:
        """Keep ``data`` until it is taken."""
        self._written.append(bytes(data))
        self._position += len(self._written[-1])
        return len(self._written[-1])

    def tell(self) -> int:
        """Return how much was written."""
        return self._position

    def take(self) -> bytes:
        """Return what was written since the last time."""
        taken = b"".join(self._written)
        self._written.clear()
        return taken


def write_parquet(columns: Sequence[Column], rows: Iterable[Row]) -> Iterator[bytes]:
    """Yield the pieces of a Parquet file.

    Raises:
        NotInstalledError: pyarrow is not installed.
    """
    arrow = _arrow()
    fields = [
        arrow.field(column.name, _arrow_type(arrow, column.kind), nullable=column.nullable)
        for column in columns
    ]
    return _parquet_pieces(arrow, arrow.schema(fields), [column.kind for column in columns], rows)


def read_parquet(columns: Sequence[Column], path: Path) -> Iterator[list[str]]:
    """Yield the rows of a file that :func:`write_parquet` wrote, each cell as CSV has it.

    Raises:
        BadFileError: it is damaged, or no such file.
        NotInstalledError: pyarrow is not installed.
    """
    arrow = _arrow()
    expected = {column.name: _arrow_type(arrow, column.kind) for column in columns}
    try:
        with arrow.parquet.ParquetFile(path, page_checksum_verification=True) as file:
            found = {field.name: field.type for field in file.schema_arrow}
            if found != expected:
                names = ",".join(expected)
                raise BadFileError([f"{path.name}: expected the columns {names}, of the types of an export"])
            for batch in file.iter_batches(_PARQUET_ROWS_AT_ONCE, columns=list(expected)):
                cells = (batch.column(column.name).to_pylist() for column in columns)
                for row in zip(*cells, strict=True):
                    yield [csv_cell(column.kind, cell) for column, cell in zip(columns, row, strict=True)]
    except (OSError, ValueError, arrow.ArrowException) as error:
        raise BadFileError([f"{path.name}: it is damaged, or no Parquet file: {error}"]) from None


def _parquet_pieces(arrow: Any, schema: Any, kinds: Sequence[Kind], rows: Iterable[Row]) -> Iterator[bytes]:
    file = _Pieces()
    remaining = iter(rows)
    with arrow.parquet.ParquetWriter(file, schema, write_page_checksum=True) as writer:
        while batch := list(islice(remaining, _PARQUET_ROWS_AT_ONCE)):
            arrays = [
                arrow.array(_arrow_cells(kind, cells), type=field.type)
                for kind, field, cells in zip(kinds, schema, zip(*batch, strict=True), strict=True)
            ]
            writer.write_batch(arrow.record_batch(arrays, schema=schema))
            yield file.take()
    yield file.take()


def _arrow_cells(kind: Kind, cells: Row) -> Row:
    return [cell and str(cell) for cell in cells] if kind == Kind.UUID else cells


def _arrow_type(arrow: Any, kind: Kind) -> Any:
    return {
        Kind.TEXT: arrow.string(),
        Kind.UUID: arrow.string(),
        Kind.WHOLE: arrow.int64(),
        Kind.NUMBER: arrow.float64(),
        Kind.YES_NO: arrow.bool_(),
        Kind.TIME: arrow.timestamp("us", tz="UTC"),
    }[kind]


def _arrow() -> Any:
    try:
        import pyarrow  # noqa: PLC0415
        import pyarrow.parquet  # noqa: PLC0415
    except ImportError:
        raise NotInstalledError(
            "Parquet needs pyarrow on the site: pip install 'rl-teacher[parquet]'. CSV has the same columns."
        ) from None
    return pyarrow


FILE_TYPES: Mapping[str, FileType] = {
    "csv": FileType("text/csv; charset=utf-8", write_csv),
    "parquet": FileType("application/vnd.apache.parquet", write_parquet),
}
