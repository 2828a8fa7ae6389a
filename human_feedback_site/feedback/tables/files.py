"""CSV and Parquet files of tables, written, read and downloaded in chunks. Parquet needs pyarrow."""

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

from django.http import StreamingHttpResponse

from human_feedback_site.feedback.errors import BadFileError, NotInstalledError
from human_feedback_site.feedback.models import Experiment
from human_feedback_site.feedback.tables.columns import TABLES, Column, Kind

_CSV_ROWS_AT_ONCE = 500
_PARQUET_ROWS_AT_ONCE = 20_000
# A spreadsheet treats a cell that starts like this as a formula. An export writes an apostrophe in front,
# which makes it plain text. Text that already starts with apostrophes gets one more, so that an import can
# always remove one.
_FORMULA = re.compile(r"'*[=+\-@\t\r]")
CHANGED = re.compile(
    r"[+-]?[0-9]+([.,][0-9]+)?(E[+-]?[0-9]+)?|TRUE|FALSE"
    r"|[0-9]+([/.-][0-9]+){1,2}|[0-9]{1,2}-[A-Z][a-z]{2}|[A-Z][a-z]{2}-[0-9]{2}"
)
"""Matches text that a spreadsheet may have converted from other text, such as 7 from 007.

Spreadsheets convert text that looks like a number, a truth value or a date. An export writes such text
unchanged. In an import, a leading apostrophe marks a cell as literal text.
"""

Row = Sequence[Any]


@dataclass(frozen=True)
class FileType:
    """A file format for tables."""

    content_type: str  # MIME type
    # function that yields a file in chunks, given columns and rows
    write: Callable[[Sequence[Column], Iterable[Row]], Iterator[bytes]]


def is_quoted(text: str) -> bool:
    """Return True if a leading apostrophe in the cell's text is an escape to remove on import."""
    return _FORMULA.match(text) is not None or CHANGED.fullmatch(text.lstrip("'")) is not None


def csv_cell(kind: Kind, value: Any) -> str:
    """Return a cell as CSV text.

    Text that looks like a formula is escaped with a leading apostrophe. To survive a round trip, so is text
    whose own leading apostrophe would be stripped on import.
    """
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
    """Yield a CSV file (RFC 4180, UTF-8) with a header line, in chunks."""
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
    """Return True if Parquet is supported, that is, if pyarrow is installed."""
    return importlib.util.find_spec("pyarrow") is not None


class _ChunkBuffer(io.RawIOBase):
    """Write-only file object that buffers the written bytes until :meth:`take` removes them."""

    def __init__(self) -> None:
        self._written: list[bytes] = []
        self._position = 0

    def writable(self) -> bool:
        """Return True, which pyarrow requires of an output file."""
        return True

    def write(self, data: Any) -> int:
        """Append ``data`` to the buffer and return its length in bytes."""
        self._written.append(bytes(data))
        self._position += len(self._written[-1])
        return len(self._written[-1])

    def tell(self) -> int:
        """Return the number of bytes written so far, including those already taken."""
        return self._position

    def take(self) -> bytes:
        """Return the buffered bytes and clear the buffer."""
        taken = b"".join(self._written)
        self._written.clear()
        return taken


def write_parquet(columns: Sequence[Column], rows: Iterable[Row]) -> Iterator[bytes]:
    """Return an iterator over the chunks of a Parquet file."""
    arrow = _arrow()
    fields = [
        arrow.field(column.name, _arrow_type(arrow, column.kind), nullable=column.nullable)
        for column in columns
    ]
    return _parquet_chunks(arrow, arrow.schema(fields), [column.kind for column in columns], rows)


def read_parquet(columns: Sequence[Column], path: Path) -> Iterator[list[str | None]]:
    """Yield the rows of a Parquet file, with each cell as CSV text, or None if its column is missing."""
    arrow = _arrow()
    expected = {column.name: _arrow_type(arrow, column.kind) for column in columns}
    try:
        with arrow.parquet.ParquetFile(path, page_checksum_verification=True) as file:
            found = {field.name: field.type for field in file.schema_arrow}
            given = [column for column in columns if column.name in found or not column.optional]
            if found != {column.name: expected[column.name] for column in given}:
                names = ",".join(expected)
                raise BadFileError([f"{path.name}: expected the columns {names}, with an export's types"])
            for batch in file.iter_batches(_PARQUET_ROWS_AT_ONCE, columns=list(found)):
                cells = [batch.column(column.name).to_pylist() for column in given]
                for row in zip(*cells, strict=True):
                    texts = {
                        column.name: csv_cell(column.kind, cell)
                        for column, cell in zip(given, row, strict=True)
                    }
                    yield [texts.get(column.name) for column in columns]
    except (OSError, ValueError, arrow.ArrowException) as error:
        raise BadFileError([f"{path.name}: the file is damaged or not a Parquet file: {error}"]) from None


def _parquet_chunks(arrow: Any, schema: Any, kinds: Sequence[Kind], rows: Iterable[Row]) -> Iterator[bytes]:
    file = _ChunkBuffer()
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
            "Parquet files need pyarrow on the site; use CSV files, or run: pip install 'rl-teacher[parquet]'"
        ) from None
    return pyarrow


FILE_TYPES: Mapping[str, FileType] = {
    "csv": FileType("text/csv; charset=utf-8", write_csv),
    "parquet": FileType("application/vnd.apache.parquet", write_parquet),
}


def download(experiment: Experiment, table: str, extension: str) -> StreamingHttpResponse:
    """Return a streaming response with an experiment's table as a file."""
    file_type, columns = FILE_TYPES[extension], TABLES[table].columns
    return StreamingHttpResponse(
        file_type.write(columns, TABLES[table].rows(experiment)),
        content_type=file_type.content_type,
        headers={
            "Content-Disposition": f'attachment; filename="{experiment.name}-{table}.{extension}"',
            "Cache-Control": "no-store",
        },
    )
