"""Reading and validating exported tables; each error names the file, line and column."""

import codecs
import csv
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO
from uuid import UUID

from human_feedback_site.feedback.errors import BadFileError
from human_feedback_site.feedback.models.names import normalized
from human_feedback_site.feedback.tables.columns import Column, Kind, Table
from human_feedback_site.feedback.tables.files import CHANGED, is_quoted, read_parquet

_MOST_PROBLEMS = 20
_WHOLE = re.compile(r"-?[0-9]{1,19}")
_MAX_SHOWN = 60  # maximum number of characters of a cell in a message
_DELIMITERS = ",;\t"  # of exports; of spreadsheets with decimal commas; of their "Unicode text"
_SEPARATOR_LINE = re.compile(r'"?sep=(.)"?')
_DECIMAL_COMMA = re.compile(r"[+-]?[0-9]+,[0-9]+([eE][+-]?[0-9]+)?")
_CHANGED_BY_SPREADSHEETS = {Kind.UUID, Kind.WHOLE, Kind.NUMBER, Kind.YES_NO, Kind.TIME}
ADVICE = "; if a spreadsheet changed this column, import the file as it was exported"
_EXAMPLES = {Kind.TIME: " such as 2026-01-31T09:30:00Z"}
_WHOLE_AS_NUMBER = re.compile(r"(-?[0-9]{1,15})\.0+")  # from programs that need floats for empty cells
_JOINERS = dict.fromkeys(map(ord, "\u200c\u200d"))  # in names
_ROUNDED = 5e-6  # relative tolerance: spreadsheets keep at least six digits, as in 1.23457E-05


def is_same_number(known: float | None, told: float | None) -> bool:
    """Return True if two numbers are equal up to spreadsheet rounding, or are both None."""
    if known is None or told is None:
        return known is told
    return math.isclose(known, told, rel_tol=_ROUNDED)


class Problems:
    """Collects up to ``_MOST_PROBLEMS`` distinct errors in imported files.

    Attributes:
        resaved: names of files that a spreadsheet program seems to have saved, because a cell has a format
            that exports never use.
    """

    def __init__(self) -> None:
        self.resaved: set[str] = set()
        self._found: dict[tuple[str, str], str] = {}
        self._lines: Counter[tuple[str, str]] = Counter()

    def add(self, row: "Row", message: str, subject: str | None = None) -> None:
        """Record an error found in one row of a file.

        Errors in the same file with the same ``subject`` (by default, the message) are grouped: only the
        first message is reported, with the number of errors in the group. Raises :class:`BadFileError` once
        there are ``_MOST_PROBLEMS`` groups.
        """
        key = (row.file, message if subject is None else subject)
        self._lines[key] += 1
        self._found.setdefault(key, f"{row.where}: {message}")
        if len(self._found) == _MOST_PROBLEMS:
            self.complain()

    def complain(self) -> None:
        """Raise :class:`BadFileError` if any error was recorded."""
        if self._found:
            lines = ((said, self._lines[key]) for key, said in self._found.items())
            raise BadFileError([said if n == 1 else f"{said} (in {n:,} lines)" for said, n in lines])


@dataclass(frozen=True)
class Row:
    """A row of an imported file."""

    where: str  # file name and line, such as ``labels.csv line 2``
    cells: Mapping[str, Any]  # values by column name
    # names of columns whose text had a leading apostrophe, which marks the cell as literal text
    quoted: frozenset[str] = frozenset()

    @property
    def file(self) -> str:
        """Name of the file."""
        return self.where.rpartition(" ")[0].rpartition(" ")[0]

    def __getitem__(self, column: str) -> Any:
        """Return the value in a column."""
        return self.cells[column]

    def may_be_changed(self, column: str) -> bool:
        """Return True if a spreadsheet that saved the file may have changed the text in this column."""
        return column not in self.quoted and CHANGED.fullmatch(self[column]) is not None


def read_table(table: Table, path: Path, problems: Problems) -> Iterator[Row]:
    """Yield the valid rows of an exported file, Parquet or CSV; errors are added to ``problems``."""
    if path.suffix != ".parquet":
        yield from _read_csv(table, path, problems)
        return
    columns = list(table.columns)
    for number, texts in enumerate(read_parquet(columns, path), 1):
        row = _row(f"{path.name} row {number}", columns, texts, problems)
        if row is not None:
            yield row


def _read_csv(table: Table, path: Path, problems: Problems) -> Iterator[Row]:
    try:
        with path.open(newline="", encoding=_encoding(path)) as file:
            heading = _heading(table, path, file)
            reader = csv.reader(file, strict=True, delimiter=heading.delimiter)
            if heading.delimiter != ",":
                problems.resaved.add(path.name)
            for texts in reader:
                if not any(texts):  # spreadsheets leave empty lines at the end
                    continue
                if heading.delimiter != ",":
                    texts = _decimal_points(heading.columns, texts)  # noqa: PLW2901 (the original is not used)
                where = f"{path.name} line {heading.lines + reader.line_num}"
                row = _row(where, heading.columns, texts, problems)
                if row is not None:
                    yield row
    except (OSError, UnicodeError, csv.Error) as error:
        wanted = "the file is not CSV in UTF-8 or UTF-16; in a spreadsheet, save it as CSV UTF-8"
        raise BadFileError([f"{path.name}: {wanted}: {error}"]) from None


def _encoding(path: Path) -> str:
    """Return the encoding of a CSV file: UTF-8, or UTF-16, which spreadsheets use for "Unicode text"."""
    with path.open("rb") as file:
        beginning = file.read(2)
    if beginning in {codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE}:
        return "utf-16"
    if beginning.endswith(b"\0"):
        return "utf-16-le"
    return "utf-16-be" if beginning.startswith(b"\0") else "utf-8-sig"


@dataclass(frozen=True)
class _Heading:
    """Header of a CSV file."""

    columns: list[Column]  # the columns in file order
    delimiter: str  # character that separates cells
    lines: int  # number of header lines, 1 or 2


def _heading(table: Table, path: Path, file: TextIO) -> _Heading:
    """Read the column names and find the delimiter, which Excel may declare in an initial ``sep=;`` line."""
    columns = {column.name: column for column in table.columns}
    line, lines = file.readline(), 1
    declared = _SEPARATOR_LINE.fullmatch(line.rstrip("\r\n"))
    if declared:
        line, lines = file.readline(), 2
    required = {column.name for column in table.columns if not column.optional}
    for delimiter in (declared[1] if declared else "") + _DELIMITERS:
        with suppress(csv.Error, ValueError):  # quoted names with another delimiter; no delimiter at all
            names = next(csv.reader([line], strict=True, delimiter=delimiter), [])
            if len(names) == len(set(names)) and required <= set(names) <= set(columns):
                return _Heading([columns[name] for name in names], delimiter, lines)
    raise BadFileError([f"{path.name} line {lines}: expected the columns {','.join(columns)}"])


def _decimal_points(columns: list[Column], texts: list[str]) -> list[str]:
    """Return ``texts`` with decimal commas replaced by decimal points in numeric columns."""
    numbers = {at for at, column in enumerate(columns) if column.kind == Kind.NUMBER}
    return [
        text.replace(",", ".") if at in numbers and _DECIMAL_COMMA.fullmatch(text) else text
        for at, text in enumerate(texts)
    ]


def _row(where: str, columns: list[Column], texts: Sequence[str | None], problems: Problems) -> Row | None:
    row = Row(where, {})
    if len(texts) != len(columns):
        problems.add(row, f"expected {len(columns)} cells, found {len(texts)}")
        return None
    cells: dict[str, Any] = {}
    quoted = set()
    given = [(column, text) for column, text in zip(columns, texts, strict=True) if text is not None]
    for column, text in given:
        try:
            cells[column.name] = _cell(column, text)
        except ValueError as error:
            message = f"{column.name}: expected {error}, found {text[:_MAX_SHOWN]!r}"
            if text and column.kind in _CHANGED_BY_SPREADSHEETS:
                problems.add(row, message + ADVICE, column.name)
            else:
                problems.add(row, message)
            continue
        if _is_resaved(column.kind, text):
            problems.resaved.add(row.file)
        if column.kind == Kind.TEXT and text.startswith("'") and cells[column.name] != text:
            quoted.add(column.name)
    return Row(where, cells, frozenset(quoted)) if len(cells) == len(given) else None


def _is_resaved(kind: Kind, text: str) -> bool:
    if kind == Kind.YES_NO:
        return text in {"TRUE", "FALSE"}
    return kind == Kind.NUMBER and text != "" and ("E" in text or not set(text) & set(".e"))


def _cell(column: Column, text: str) -> Any:
    """Convert a cell's text to the column's type."""
    if not text:
        if column.nullable:
            return None
        raise ValueError(column.kind)
    if column.kind == Kind.TEXT:
        return _text(column, text)
    try:
        value = _READ[column.kind](text)
    except (ValueError, KeyError):
        raise ValueError(f"{column.kind}{_EXAMPLES.get(column.kind, '')}") from None
    if column.kind == Kind.WHOLE and not column.least <= value <= column.most:
        raise ValueError(f"a whole number from {column.least} to {column.most}")
    return value


def _text(column: Column, text: str) -> str:
    if text.startswith("'") and is_quoted(text):
        text = text[1:]
    if column.choices is not None and text not in column.choices:
        raise ValueError(f"one of {', '.join(sorted(column.choices))}")
    if not text.translate(_JOINERS).isprintable():
        raise ValueError("text without control characters")
    return normalized(text)


def _whole(text: str) -> int:
    if as_number := _WHOLE_AS_NUMBER.fullmatch(text):
        text = as_number[1]
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


def _yes_no(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]  # spreadsheets write TRUE


_READ: Mapping[Kind, Callable[[str], Any]] = {
    Kind.UUID: UUID,
    Kind.WHOLE: _whole,
    Kind.NUMBER: _number,
    Kind.YES_NO: _yes_no,
    Kind.TIME: _time,
}
