"""Comparisons and labels as files: complete, streamed, and harmless in a spreadsheet."""

import csv
import io
import sys
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from human_feedback_site.feedback.api.examples import COMPARISONS_CSV, LABELS_CSV
from human_feedback_site.feedback.models import Comparison, Label, Labeler
from human_feedback_site.feedback.tables.columns import LABELS, TABLES, Column, Kind, Table
from human_feedback_site.feedback.tables.files import write_csv
from human_feedback_site.feedback.tables.reader import Problems, read_table
from tests.site.conftest import Browser, Trainer

FILES = [f"{table}.{extension}" for table in TABLES for extension in ("csv", "parquet")]


def exported(trainer: Trainer, file: str, **headers: str) -> bytes:
    response: Any = trainer.client.get(f"/api/v1{trainer.path}/{file}", headers=headers)
    assert response.status_code == 200, response.getvalue()
    assert response.streaming
    assert response["Content-Disposition"] == f'attachment; filename="hopper-{file}"'
    return bytes(response.getvalue())


def exported_rows(trainer: Trainer, table: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(exported(trainer, f"{table}.csv").decode())))


@pytest.fixture
def story(trainer: Trainer, browser: Browser) -> list[str]:
    """A pair whose answer was taken back and given again, one with an answer, an open one, and a gold one."""
    uuids = trainer.register(3, step=2**40)
    first, second = browser.lease(2)
    undone = browser.answer(first)
    browser.answer({"uuid": browser.undo(undone)["lease"]["uuid"]}, "equal", response_ms=None)
    browser.answer(second, "cant_tell", shown_ms=850, reason="=1+1: too dark")
    return uuids + trainer.register(gold="second")


@pytest.mark.both_databases
def test_comparisons_are_exported_with_decisions(trainer: Trainer, story: list[str]) -> None:
    rows = exported_rows(trainer, "comparisons")
    assert [row["comparison"] for row in rows] == story
    assert [row["status"] for row in rows] == ["open", "answered", "answered", "gold"]
    equal, cant_tell = rows[2], rows[1]
    assert (equal["decision"], equal["probability"], equal["n_labels"]) == ("equal", "0.5", "1")
    assert (cant_tell["decision"], cant_tell["probability"]) == ("cant_tell", "")
    assert (rows[0]["decision"], rows[0]["decided_at"], rows[3]["gold"]) == ("", "", "second")
    assert {(row["step"], row["phase"], row["first_return"]) for row in rows[:3]} == {
        (str(2**40), "training", "2.0")
    }
    assert rows[0]["first_key"] == f"hopper/{story[0]}/first.mp4"
    decided = datetime.fromisoformat(equal["decided_at"])
    assert decided == Comparison.objects.get(uuid=story[2]).decisions.latest("seq").created_at
    assert decided.tzinfo == UTC


@pytest.mark.both_databases
def test_every_label_is_exported_with_undos(trainer: Trainer, story: list[str]) -> None:
    rows = exported_rows(trainer, "labels")
    labels = list(Label.objects.order_by("pk"))
    assert [row["label"] for row in rows] == [str(label.uuid) for label in labels]
    assert [row["meaning"] for row in rows] == [label.answer for label in labels]
    assert [row["swapped"] for row in rows] == [str(label.swapped).lower() for label in labels]
    assert [row["comparison"] for row in rows] == [story[2], story[2], story[1]]
    assert [row["undo"] for row in rows] == [str(labels[0].undo.uuid), "", ""]
    assert [bool(row["undone_at"]) for row in rows] == [True, False, False]
    assert [row["response_ms"] for row in rows] == ["900", "", "900"]
    assert [row["shown_ms"] for row in rows] == ["", "", "850"]
    assert [row["reason"] for row in rows] == ["", "", "'=1+1: too dark"]
    assert {(row["labeler"], row["status"], row["purpose"]) for row in rows} == {("you", "counted", "judge")}


@pytest.mark.both_databases
@pytest.mark.usefixtures("story")
@pytest.mark.parametrize("table", TABLES)
def test_parquet_equals_csv(trainer: Trainer, table: str) -> None:
    found = pyarrow.parquet.read_table(io.BytesIO(exported(trainer, f"{table}.parquet")))
    columns = TABLES[table].columns
    assert found.column_names == [column.name for column in columns]
    as_csv = b"".join(write_csv(columns, [tuple(row.values()) for row in found.to_pylist()]))
    assert as_csv == exported(trainer, f"{table}.csv")
    assert str(found.schema.field("created_at").type) == "timestamp[us, tz=UTC]"


@pytest.mark.parametrize(("example", "table"), [(COMPARISONS_CSV, "comparisons"), (LABELS_CSV, "labels")])
def test_documentation_lists_the_columns(example: str, table: str) -> None:
    header, row = csv.reader(io.StringIO(example, newline=""))
    assert header == [column.name for column in TABLES[table].columns]
    assert len(row) == len(header)


@pytest.mark.parametrize("file", FILES)
def test_empty_experiment_is_exported(trainer: Trainer, stranger: Trainer, file: str) -> None:
    stranger.register()
    content = exported(trainer, file, Accept="text/csv")
    if file.endswith(".csv"):
        assert content.decode() == ",".join(column.name for column in TABLES[file[:-4]].columns) + "\r\n"
    else:
        assert pyarrow.parquet.read_table(io.BytesIO(content)).num_rows == 0


TEXTS = ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\rx", "'=1", "''-1"]


@pytest.mark.parametrize("text", TEXTS)
def test_formulas_are_escaped(text: str) -> None:
    columns = [Column("text", Kind.TEXT, "text"), Column("number", Kind.NUMBER, "number")]
    written = b"".join(write_csv(columns, [(text, -1.5)])).decode()
    _, [cell, number] = csv.reader(io.StringIO(written, newline=""))
    assert cell == f"'{text}"
    assert number == "-1.5"


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_text_round_trips(tmp_path: Path, delimiter: str) -> None:
    columns = [Column(name, Kind.TEXT, name) for name in ("text", "other")]
    texts = ["".join(each) for n in (1, 2, 3) for each in product("'=+-@7a.,;\" E", repeat=n)]
    texts += ["O'Brien", "'=1+1", "-kim", "3-Mar", "'1e5", "''TRUE"]
    cells = list(
        csv.reader(
            io.StringIO(b"".join(write_csv(columns, zip(texts, texts, strict=True))).decode(), newline="")
        )
    )
    assert not [text for text, _ in cells if text[0] in "=+-@"]
    path, problems = tmp_path / "texts.csv", Problems()
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=delimiter).writerows(cells)
    rows = read_table(Table("texts", columns, Label.objects.filter), path, problems)
    assert [row["text"] for row in rows] == texts
    problems.complain()


def test_nul_is_removed() -> None:
    columns = [Column("text", Kind.TEXT, "text")]
    written = b"".join(write_csv(columns, [("a\x00b",), ('🙂 "quoted",\nand more',), ("it's = fine",)]))
    _, *cells = csv.reader(io.StringIO(written.decode(), newline=""))
    assert cells == [["a\N{REPLACEMENT CHARACTER}b"], ['🙂 "quoted",\nand more'], ["it's = fine"]]


def test_labeler_names_are_no_formulas(trainer: Trainer, label: Any) -> None:
    Labeler.objects.update(name="@SUM(A1:A9)")
    assert exported_rows(trainer, "labels")[0]["labeler"] == "'@SUM(A1:A9)"


@pytest.mark.both_databases
def test_export_is_one_statement(trainer: Trainer, browser: Browser) -> None:
    trainer.register(3)
    for lease in browser.lease(3):
        browser.answer(lease)
    with CaptureQueriesContext(
        connection,
    ) as one:
        list(LABELS.rows(trainer.experiment))
    assert len([query for query in one if "feedback_label" in query["sql"]]) == 1


def test_without_pyarrow_only_csv_works(
    trainer: Trainer, researcher_browser: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    refused = trainer.send("GET", f"{trainer.path}/labels.parquet")
    assert refused.status_code == 501
    assert b"rl-teacher[parquet]" in refused.content
    assert researcher_browser.get("/experiments/hopper/labels.parquet").status_code == 501
    assert exported(trainer, "labels.csv")


@pytest.mark.usefixtures("story")
@pytest.mark.parametrize("file", FILES)
def test_page_and_api_export_the_same_file(trainer: Trainer, researcher_browser: Client, file: str) -> None:
    response: Any = researcher_browser.get(f"/experiments/hopper/{file}")
    assert response.status_code == 200
    assert bytes(response.getvalue()) == exported(trainer, file)
    assert researcher_browser.post(f"/experiments/hopper/{file}").status_code == 405
