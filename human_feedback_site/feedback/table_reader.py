"""Files of a table, read back cell by cell: each refusal says the line and the column."""

import csv
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from human_feedback_site.feedback.errors import BadFileError
from human_feedback_site.feedback.table_files import FORMULA, read_parquet
from human_feedback_site.feedback.tables import Column, Kind, Table

_MOST_PROBLEMS = 20
_WHOLE = re.compile(r"-?[0-9]{1,19}")
_SHOWN = 60  # characters of a cell in a message


class Problems:
    """What is wrong with files; when it is a lot, the rest does not matter."""

    def __init__(self) -> None:
        self._found: list[str] = []

    def add(self, row: "Row", message: str) -> None:
        """Note what is wrong with a row; raises :class:`BadFileError` when it is enough."""
        self._found.append(f"{row.where}: {message}")
        if len(self._found) == _MOST_PROBLEMS:
            self.complain()

    def complain(self) -> None:
        """Raise :class:`BadFileError` where anything was wrong."""
        if self._found:
            raise BadFileError(self._found)


@dataclass(frozen=True)
class Row:
    """A line of a file, its cells by column; ``where`` names file and line."""

    where: str
    cells: Mapping[str, Any]

    def __getitem__(self, column: str) -> Any:
        """Return a cell."""
        return self.cells[column]


def read_table(table: Table, path: Path, problems: Problems) -> Iterator[Row]:
    """Yield the rows of a file that was exported, those that cannot be understood left out.

    It is Parquet if its name says so, else CSV. What is wrong goes to ``problems``; raises
    :class:`BadFileError` where it is no such file at all, :class:`NotInstalledError` for Parquet without
    pyarrow.
    """
    if path.suffix != ".parquet":
        yield from _read_csv(table, path, problems)
        return
    columns = list(table.columns)
    for number, texts in enumerate(read_parquet(columns, path), 1):
        row = _row(f"{path.name} row {number}", columns, texts, problems)
        if row is not None:
            yield row


def _read_csv(table: Table, path: Path, problems: Problems) -> Iterator[Row]:
    names = [column.name for column in table.columns]
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            header = next(reader, [])
            if sorted(header) != sorted(names):
                raise BadFileError([f"{path.name} line 1: expected the columns {','.join(names)}"])
            columns = {column.name: column for column in table.columns}
            in_order = [columns[name] for name in header]
            for texts in reader:
                row = _row(f"{path.name} line {reader.line_num}", in_order, texts, problems)
                if row is not None:
                    yield row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadFileError([f"{path.name}: it is no CSV file in UTF-8: {error}"]) from None


def _row(where: str, columns: list[Column], texts: list[str], problems: Problems) -> Row | None:
    row = Row(where, {})
    if len(texts) != len(columns):
        problems.add(row, f"expected {len(columns)} cells, found {len(texts)}")
        return None
    cells: dict[str, Any] = {}
    for column, text in zip(columns, texts, strict=True):
        try:
            cells[column.name] = _cell(column, text)
        except ValueError as error:
            problems.add(row, f"{column.name}: expected {error}, found {text[:_SHOWN]!r}")
    return Row(where, cells) if len(cells) == len(columns) else None


def _cell(column: Column, text: str) -> Any:
    """Return what a text says; raises ``ValueError`` that says what was expected."""
    if not text:
        if column.nullable:
            return None
        raise ValueError(f"a {column.kind}")
    if column.kind == Kind.TEXT:
        return _text(column, text)
    try:
        value = _READ[column.kind](text)
    except (ValueError, KeyError):
        raise ValueError(f"a {column.kind}") from None
    if column.kind == Kind.WHOLE and not column.least <= value <= column.most:
        raise ValueError(f"a whole number from {column.least} to {column.most}")
    return value


def _text(column: Column, text: str) -> str:
    if FORMULA.match(text) and text.startswith("'"):
        text = text[1:]
    if column.choices is not None and text not in column.choices:
        raise ValueError(f"one of {', '.join(sorted(column.choices))}")
    if not text.isprintable():
        raise ValueError("a text without control characters")
    return text


def _whole(text: str) -> int:
    if not _WHOLE.fullmatch(text):
        raise ValueError
    return int(text)


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError
    return value


def _time(text: str) -> datetime:
    value = datetime.fromisoformat(text)
    if value.tzinfo is None:
        raise ValueError
    return value


_READ: Mapping[Kind, Callable[[str], Any]] = {
    Kind.UUID: UUID,
    Kind.WHOLE: _whole,
    Kind.NUMBER: _number,
    Kind.YES_NO: {"true": True, "false": False}.__getitem__,
    Kind.TIME: _time,
}
