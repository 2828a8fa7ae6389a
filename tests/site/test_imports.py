"""Test what was exported comes back, once, and what does not fit is refused with its line."""

import csv
import io
import re
import shutil
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command
from django.db import transaction
from django.db.models.functions import Now

from human_feedback_site.feedback.management.commands import import_labels
from human_feedback_site.feedback.media.store import FolderMedia, media_store
from human_feedback_site.feedback.models import (
    Comparison,
    Decision,
    Experiment,
    Label,
    Labeler,
    Lease,
    Participation,
    Undo,
)
from human_feedback_site.feedback.models.querysets import lock_comparisons
from human_feedback_site.feedback.services import moderation
from human_feedback_site.feedback.services.clip_store import clips_named
from human_feedback_site.feedback.services.decisions import decide_anew
from human_feedback_site.feedback.services.experiments import set_overlap
from human_feedback_site.feedback.tables.columns import TABLES
from human_feedback_site.feedback.tables.files import write_csv, write_parquet
from tests.conftest import damaged
from tests.site.conftest import Browser, Invited, Trainer

Exported = dict[str, bytes]
BringBack = Callable[..., str]
ADVICE = "if a spreadsheet changed this column, import the file as it was exported"


def export(name: str = "hopper") -> Exported:
    experiment = Experiment.objects.get(name=name)
    return {each.name: b"".join(write_csv(each.columns, each.rows(experiment))) for each in TABLES.values()}


@pytest.fixture
def bring_back(tmp_path: Path) -> BringBack:
    """Import files by the command."""

    def bring_back(exported: Exported, **options: object) -> str:
        paths = []
        for name, content in exported.items():
            is_parquet = content.startswith(b"PAR1\x15")
            paths.append(tmp_path / (f"{name}.parquet" if is_parquet else f"{name}.csv"))
            paths[-1].write_bytes(content)
        out = io.StringIO()
        call_command("import_labels", "hopper", *map(str, paths), stdout=out, **options)
        return out.getvalue().strip()

    return bring_back


def forget() -> None:
    """Delete all that an experiment is."""
    for model in (Undo, Label, Lease, Comparison, Experiment, Participation):
        model._base_manager.all().delete()


def edited(exported: Exported, table: str, **cells: object) -> Exported:
    """Change cells of the last row of a table."""
    rows = list(csv.DictReader(io.StringIO(exported[table].decode(), newline="")))
    rows[-1] |= {name: str(value) for name, value in cells.items()}
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0])
    writer.writeheader()
    writer.writerows(rows)
    return {**exported, table: text.getvalue().encode()}


@pytest.fixture
def story(trainer: Trainer, invite: Invited) -> Exported:
    """Labels of two, weighed, with one taken back, answers to gold pairs, and an open pair."""
    trainer.register(2, gold="first")
    trainer.register(3, phase="pretraining")
    trainer.overlap(2)
    Experiment.objects.update(aggregation="dawid_skene", gold_rate=0.3)
    you, other = invite("you"), invite("-other")
    for _ in range(4):
        for who in (you, other):
            for lease in who.lease():
                who.answer(lease)
    undone = Label.objects.filter(status="counted").latest("pk")
    (you if undone.labeler.name == "you" else other).undo({"uuid": undone.uuid})
    trainer.register()
    [lease] = you.lease()
    you.answer(lease, "cant_tell", shown_ms=5, reason='-it\'s "dark"')
    trainer.register(reason="disagreement:3:2")
    judged = Comparison.objects.filter(status="answered").earliest("pk")
    moderation.settle(Comparison.objects.filter(pk=judged.pk), "equal", trainer.user)
    labels = Label.objects.values_list("status", flat=True)
    assert {"counted", "gold"} <= set(labels)
    return export()


@pytest.mark.both_databases
def test_round_trip(trainer: Trainer, story: Exported, bring_back: BringBack) -> None:
    forget()
    done = bring_back(story, owner="ada", prompt="Which?")
    assert done == "7 comparisons; 9 labels; 1 undone."
    assert export() == story
    experiment = trainer.experiment
    assert (experiment.state, experiment.owner) == ("paused", trainer.user)
    decide_anew(experiment, lock_comparisons(Comparison.objects.exclude(settled=None)))
    assert Decision.objects.latest("seq").decision == "equal", "labelers did not answer it"
    you = Participation.objects.get(labeler__name="you")
    answered = Label.objects.filter(labeler__name="you", undo=None).count()
    assert you.answered == answered > 0


def as_parquet(name: str = "hopper") -> Exported:
    experiment = Experiment.objects.get(name=name)
    return {
        each.name: b"".join(write_parquet(each.columns, each.rows(experiment))) for each in TABLES.values()
    }


def test_parquet_round_trip(trainer: Trainer, story: Exported, bring_back: BringBack) -> None:
    exported = as_parquet()
    forget()
    done = bring_back(exported, owner="ada", prompt="Which?")
    assert done == "7 comparisons; 9 labels; 1 undone."
    assert export() == story
    assert bring_back(exported) == "0 comparisons; 0 labels; 0 undone."
    with pytest.raises(CommandError, match=r"comparisons\.parquet: expected the columns comparison,phase"):
        bring_back({**exported, "comparisons": exported["labels"]})


def test_bad_parquet_is_refused(trainer: Trainer, story: Exported, bring_back: BringBack) -> None:
    label = Label.objects.latest("pk")
    Label.objects.filter(pk=label.pk).update(choice="up")
    wrong = as_parquet()
    forget()
    with pytest.raises(CommandError, match=r"labels.parquet row 9: choice: expected one of .*, found up"):
        bring_back(wrong, owner="ada")
    assert not Experiment.objects.exists()


@pytest.mark.both_databases
def test_importing_twice(trainer: Trainer, story: Exported, bring_back: BringBack) -> None:
    for _ in range(2):
        assert bring_back(story) == "0 comparisons; 0 labels; 0 undone."
    assert export() == story
    assert trainer.decisions()["last_seq"] == Decision.objects.count()
    assert (
        Participation.objects.get(labeler__name="you").answers
        == Label.objects.filter(labeler__name="you").count()
    )


@pytest.mark.both_databases
def test_imported_feed_has_no_gap(trainer: Trainer, story: Exported, bring_back: BringBack) -> None:
    forget()
    bring_back(story, owner="ada")
    feed = trainer.decisions()
    assert [item["seq"] for item in feed["items"]] == list(range(1, feed["last_seq"] + 1))
    decided = {row["comparison"]: row for row in rows(story, "comparisons") if row["decided_at"]}
    assert {item["comparison"]: item["decision"] or "" for item in feed["items"]} == {
        uuid: row["decision"] for uuid, row in decided.items()
    }


def rows(exported: Exported, table: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(exported[table].decode(), newline="")))


@pytest.mark.both_databases
def test_lost_labels_come_back(trainer: Trainer, browser: Browser, bring_back: BringBack) -> None:
    trainer.register()
    browser.answer(browser.lease()[0], "equal")
    exported = export()
    before = trainer.decisions()["last_seq"]
    Label.objects.all().delete()
    Comparison.objects.update(n_labels=0, status="open", score_equal=0)
    assert bring_back(exported) == "0 comparisons; 1 label; 0 undone."
    [item] = trainer.decisions(after=before)["items"]
    assert (item["decision"], item["n_labels"]) == ("equal", 1)
    assert Comparison.objects.get().status == "answered"


@pytest.mark.both_databases
def test_undo_of_a_known_label(trainer: Trainer, label: Any, bring_back: BringBack) -> None:
    exported = edited(export(), "labels", undo=uuid4(), undone_at="2026-01-01T00:00:00Z")
    assert bring_back(exported) == "0 comparisons; 0 labels; 1 undone."
    assert trainer.decisions()["items"][-1]["decision"] is None
    assert Comparison.objects.get().status == "open"
    assert Participation.objects.get().answered == 0


@pytest.mark.both_databases
def test_surplus_label(trainer: Trainer, browser: Browser, bring_back: BringBack) -> None:
    trainer.register()
    browser.answer(browser.lease()[0])
    more = edited(export(), "labels", label=uuid4(), lease=uuid4(), labeler="zoe")
    same = edited(export(), "labels", label=uuid4(), lease=uuid4())
    for exported in (more, same):
        assert bring_back(exported) == "0 comparisons; 1 label; 0 undone."
    assert list(Label.objects.order_by("pk").values_list("status", flat=True)) == [
        "counted",
        "surplus",
        "void",
    ]
    assert Comparison.objects.get().n_labels == 1
    assert Labeler.objects.get(name="zoe").invited_by == trainer.user


def test_pairs_without_clips(trainer: Trainer, story: Exported, bring_back: BringBack) -> None:
    store = media_store()
    assert isinstance(store, FolderMedia)
    uuid = rows(story, "comparisons")[-1]["comparison"]
    store.path(f"hopper/{uuid}/second.mp4").unlink()
    forget()
    assert "1 of them cancelled" in bring_back(story, owner="ada")
    pair = Comparison.objects.filter(uuid=uuid)
    assert pair.get().status == "cancelled"
    assert (moderation.reopen(pair), moderation.make_gold(pair, "first")) == (0, 0)


def without_clips() -> set[str]:
    return {str(row.uuid) for row in Comparison.objects.all() if row.clips_gone}


@pytest.mark.both_databases
@pytest.mark.parametrize("seen", [False, True], ids=["imported", "a trainer asked"])
def test_decided_pairs_know_whether_their_clips_are_there(
    story: Exported, bring_back: BringBack, media_folder: Path, *, seen: bool
) -> None:
    answered = [row["comparison"] for row in rows(story, "comparisons") if row["status"] == "answered"]
    lost = answered[0]
    clip, kept = media_folder / f"hopper/{lost}/first.mp4", media_folder / "kept.mp4"
    clip.rename(kept)
    forget()
    assert "cancelled" not in bring_back(story, owner="ada")
    assert without_clips() == {lost}
    pair = Comparison.objects.filter(uuid=lost)
    assert pair.get().status == "answered"
    assert (moderation.request_label(pair), moderation.make_gold(pair, "first")) == (0, 0)
    experiment = pair.get().experiment
    assert clips_named(experiment) == 2 * (Comparison.objects.count() - 1)
    set_overlap(experiment, 3)
    assert pair.get().status == "answered"
    assert Comparison.objects.get(uuid=answered[1]).status == "open"

    if seen:
        Experiment.objects.update(trainer_seen_at=Now())
    kept.rename(clip)
    bring_back(story)
    assert without_clips() == set()
    assert clips_named(experiment) == 2 * Comparison.objects.count()


def test_second_import(story: Exported, bring_back: BringBack, media_folder: Path) -> None:
    """Only where all comparisons were imported: a trainer's have clips, in another store if not here."""
    shutil.rmtree(media_folder)
    bring_back(story)
    assert without_clips() == set()
    Experiment.objects.update(trainer_seen_at=None)
    bring_back(story)
    status = {row["comparison"]: row["status"] for row in rows(story, "comparisons")}
    assert without_clips() == {uuid for uuid in status if status[uuid] == "answered"}


def test_clips_return(trainer: Trainer, bring_back: BringBack, media_folder: Path) -> None:
    asked = [trainer.comparison(), trainer.comparison()]
    body = {"comparisons": asked}
    trainer.post(f"{trainer.path}/comparisons", body)
    exported = export()
    shutil.rmtree(media_folder)
    forget()
    bring_back(exported, owner="ada")
    trainer.post(f"{trainer.path}/comparisons", body)
    assert without_clips() == {pair["uuid"] for pair in asked}
    for side in ("first", "second"):
        trainer.upload(asked[0][side]["key"])
    trainer.post(f"{trainer.path}/comparisons", body)
    assert without_clips() == {asked[1]["uuid"]}


BAD: list[tuple[str, str, dict[str, object], str]] = [
    ("comparisons", "a bad uuid", {"comparison": "x"}, "comparison: expected a UUID, found 'x'"),
    ("comparisons", "a bad phase", {"phase": "later"}, "phase: expected one of pretraining, training, found"),
    ("comparisons", "a bad step", {"step": "-1"}, "step: expected a whole number from 0"),
    ("comparisons", "no step", {"step": ""}, "step: expected a whole number, found ''"),
    ("comparisons", "infinity", {"first_return": "inf"}, "first_return: expected a number"),
    (
        "comparisons",
        "a foreign key",
        {"comparison": uuid4(), "first_key": "walker/x/first.mp4"},
        "under hopper/",
    ),
    ("comparisons", "a way out", {"comparison": uuid4(), "first_key": "hopper/../x.mp4"}, "under hopper/"),
    ("comparisons", "other content", {"step": 7}, "step: recorded as 100 for this comparison, found 7"),
    ("comparisons", "a likely decision", {"comparison": uuid4(), "probability": 2}, "probability must be"),
    ("comparisons", "gold that nobody knows", {"comparison": uuid4(), "status": "gold"}, "gold must contain"),
    (
        "comparisons",
        "settled by a rating",
        {"comparison": uuid4(), "settled": "5"},
        "settled: 5 is no answer to pair",
    ),
    ("comparisons", "a bad reason", {"comparison": uuid4(), "reason": "why"}, "reason: why is none that"),
    ("comparisons", "no time", {"created_at": "2026-01-01T00:00:00"}, "created_at: expected a time"),
    ("labels", "an unknown comparison", {"comparison": uuid4()}, "there is no comparison"),
    ("labels", "another meaning", {"meaning": "cant_tell"}, "meaning: expected equal, found cant_tell"),
    (
        "labels",
        "no such choice",
        {"choice": "up"},
        "choice: expected one of left, equal, right, cant_tell, found up",
    ),
    ("labels", "other content", {"labeler": "zoe"}, "labeler: recorded as 'you' for this label, found 'zoe'"),
    (
        "labels",
        "another's lease",
        {"label": uuid4(), "labeler": "zoe"},
        "the lease is already recorded with different content",
    ),
    ("labels", "a long name", {"label": uuid4(), "labeler": "z" * 51}, "at most 50 characters"),
    (
        "labels",
        "a name with NUL",
        {"labeler": "z\x00"},
        "labeler: expected text without control characters",
    ),
    ("labels", "half an undo", {"undo": uuid4()}, "undo and undone_at must both be set or both be empty"),
    ("labels", "no gold answer", {"status": "gold"}, "status: gold is not allowed for purpose judge"),
    ("labels", "maybe", {"swapped": "maybe"}, "swapped: expected true or false"),
]


def test_bad_values_are_refused_with_their_line(
    trainer: Trainer, browser: Browser, bring_back: BringBack
) -> None:
    trainer.register()
    browser.answer(browser.lease()[0], "equal")
    exported = export()
    for table, what, cells, message in BAD:
        with pytest.raises(CommandError) as refused:
            bring_back(edited(exported, table, **cells))
        assert f"{table}.csv line 2: " in str(refused.value), what
        assert message in str(refused.value), what
    assert export() == exported


def test_labels_of_another_export(trainer: Trainer, story: Exported, bring_back: BringBack) -> None:
    other = story
    for column in ("comparison", "label", "undo"):
        other = changed(other, "labels", column, lambda text: str(uuid4()) if text else "")
    with pytest.raises(CommandError) as refused:
        bring_back(other)
    [line] = str(refused.value).splitlines()[1:]
    assert re.fullmatch(r"labels\.csv line 2: there is no comparison \S+ in this .* \(in 9 lines\)", line)


def test_foreign_comparison(trainer: Trainer, stranger: Trainer, bring_back: BringBack) -> None:
    stranger.register()
    with pytest.raises(CommandError, match="belongs to another experiment"):
        bring_back(export("walker"))


@pytest.mark.both_databases
def test_many_mistakes(trainer: Trainer, story: Exported, bring_back: BringBack) -> None:
    forget()
    wrong = {name: content.replace(b"hopper/", b"walker/") for name, content in story.items()}
    wrong = edited(wrong, "comparisons", step="x", priority="1001")
    with pytest.raises(CommandError) as refused:
        bring_back(wrong, owner="ada")
    assert [line.partition(": ")[2] for line in str(refused.value).splitlines()] == [
        "",
        f"step: expected a whole number, found 'x'; {ADVICE}",
        f"priority: expected a whole number from -1000 to 1000, found '1001'; {ADVICE}",
        "first_key and second_key must be clip keys under hopper/ (in 6 lines)",
    ]
    assert not Experiment.objects.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected the columns comparison,"),
        (b"label\n", "expected the columns comparison,"),
        (b"\xff\xfe", "expected the columns comparison,"),
        (b"\xff\xfea", "not CSV in UTF-8 or UTF-16"),
        (b"Pr\xfcfung", "in a spreadsheet, save it as CSV UTF-8"),
        (b"PAR1", "expected the columns"),
    ],
)
def test_other_files_are_refused(
    trainer: Trainer, bring_back: BringBack, content: bytes, message: str
) -> None:
    with pytest.raises(CommandError, match=message):
        bring_back({**export(), "comparisons": content})


# Files that a spreadsheet opened and saved


def resaved(
    exported: Exported,
    *,
    delimiter: str = ",",
    encoding: str = "utf-8",
    prefix: str = "",
    quoting: Literal[0, 1] = csv.QUOTE_MINIMAL,
) -> Exported:
    """Save as spreadsheets do: truth in capitals, a delimiter of the country, empty lines at the end."""

    def cell(text: str) -> str:
        if text in {"true", "false"}:
            return text.upper()
        is_number = delimiter != "," and re.fullmatch(r"-?\d+\.\d+", text)
        return text.replace(".", ",") if is_number else text

    def table(content: bytes) -> bytes:
        lines = list(csv.reader(io.StringIO(content.decode(), newline="")))
        text = io.StringIO(prefix)
        text.seek(0, io.SEEK_END)
        writer = csv.writer(text, delimiter=delimiter, quoting=quoting)
        writer.writerows([cell(each) for each in line] for line in [*lines, [""] * len(lines[0]), []])
        return text.getvalue().encode(encoding)

    return {name: table(content) for name, content in exported.items()}


SAVED: list[dict[str, Any]] = [
    {},
    {"encoding": "utf-8-sig"},
    {"delimiter": ";"},
    {"delimiter": ";", "encoding": "utf-8-sig"},
    {"delimiter": ";", "prefix": "sep=;\r\n"},
    {"quoting": csv.QUOTE_ALL},
    {"delimiter": ";", "quoting": csv.QUOTE_ALL},
    {"delimiter": ";", "encoding": "utf-8-sig", "quoting": csv.QUOTE_ALL, "prefix": '"sep=;"\r\n'},
    {"delimiter": "\t", "quoting": csv.QUOTE_ALL},
    {"delimiter": "\t", "prefix": "sep=\t\r\n"},
    {"delimiter": "|", "prefix": "sep=|\r\n"},
    {"delimiter": "\t", "encoding": "utf-16", "quoting": csv.QUOTE_ALL},
    {"delimiter": "\t", "encoding": "utf-16"},
    {"delimiter": "\t", "encoding": "utf-16-le"},
    {"delimiter": "\t", "encoding": "utf-16-be"},
]


def test_files_saved_by_a_spreadsheet_round_trip(
    trainer: Trainer, story: Exported, bring_back: BringBack
) -> None:
    for how in SAVED:
        saved = resaved(story, **how)
        assert b"TRUE" in saved["labels"].replace(b"\0", b"").replace(b"FALSE", b"TRUE")
        forget()
        assert bring_back(saved, owner="ada") == "7 comparisons; 9 labels; 1 undone.", how
        assert export() == story, how


@pytest.mark.parametrize("is_parquet", [False, True])
def test_labels_from_before_prompts_had_versions_are_of_the_first(
    trainer: Trainer, story: Exported, bring_back: BringBack, is_parquet: bool
) -> None:
    table = TABLES["labels"]
    columns = [column for column in table.columns if column.name != "prompt_version"]
    old = replace(table, columns=columns)
    write = write_parquet if is_parquet else write_csv
    saved = {**story, "labels": b"".join(write(columns, old.rows(trainer.experiment)))}
    Label.objects.update(prompt_version=2)
    assert bring_back(saved) == "0 comparisons; 0 labels; 0 undone."  # the known version stays
    assert export() != story
    forget()
    assert bring_back(saved, owner="ada") == "7 comparisons; 9 labels; 1 undone."
    assert export() == story


A_TIME = "a time such as 2026-01-31T09:30:00Z"


@pytest.mark.parametrize(
    "mangled",
    [
        ("labels", "created_at", "1/31/26 9:30", A_TIME),
        ("labels", "created_at", "2026-01-31 09:30:00", A_TIME),
        ("labels", "created_at", "46053.39583", A_TIME),
        ("labels", "label", "1.2E+35", "a UUID"),
        ("labels", "swapped", "WAHR", "true or false"),
        ("labels", "response_ms", "1,234", "a whole number"),
        ("comparisons", "step", "1.23457E+12", "a whole number"),
        ("comparisons", "first_return", "1,5", "a number"),
    ],
    ids=str,
)
def test_mangled_columns_are_reported_in_one_line(
    trainer: Trainer, story: Exported, bring_back: BringBack, mangled: tuple[str, str, str, str]
) -> None:
    table, column, found, expected = mangled
    wrong = rows(story, table)
    text = io.StringIO()
    writer = csv.DictWriter(text, wrong[0])
    writer.writeheader()
    writer.writerows({**row, column: found} for row in wrong)
    forget()
    with pytest.raises(CommandError) as refused:
        bring_back({**story, table: text.getvalue().encode()}, owner="ada")
    told = f"{column}: expected {expected}, found {found!r}; {ADVICE} (in {len(wrong)} lines)"
    assert str(refused.value).splitlines() == ["Nothing was imported.", f"{table}.csv line 2: {told}"]
    assert not Experiment.objects.exists()


def changed(exported: Exported, table: str, column: str, change: Callable[[str], str]) -> Exported:
    changed = [{**row, column: change(row[column])} for row in rows(exported, table)]
    text = io.StringIO()
    writer = csv.DictWriter(text, changed[0])
    writer.writeheader()
    writer.writerows(changed)
    return {**exported, table: text.getvalue().encode()}


RETURNS = (1234.5678901234567, -1.2345678901234567e-05)


@pytest.fixture
def exact(story: Exported) -> Exported:
    """An export in which true returns have all their digits."""
    Comparison.objects.update(first_return=RETURNS[0], second_return=RETURNS[1])
    return export()


def rounded(digits: int) -> Callable[[str], str]:
    return lambda text: f"{float(text):.{digits}G}" if text else ""


@pytest.mark.parametrize("digits", [6, 10, 15])
def test_rounded_numbers_match(exact: Exported, bring_back: BringBack, digits: int) -> None:
    saved = exact
    for column in ("first_return", "second_return"):
        saved = changed(saved, "comparisons", column, rounded(digits))
    assert b"-1.2345" in saved["comparisons"]
    assert bring_back(saved) == "0 comparisons; 0 labels; 0 undone."
    assert export() == exact


def test_different_numbers_are_refused(exact: Exported, bring_back: BringBack) -> None:
    with pytest.raises(CommandError) as refused:
        bring_back(changed(exact, "comparisons", "first_return", rounded(4)))
    told = f"first_return: recorded as {RETURNS[0]} for this comparison, found 1235.0; {ADVICE}"
    assert str(refused.value).splitlines()[1:] == [f"comparisons.csv line 2: {told} (in 7 lines)"]


@pytest.mark.parametrize(("digits", "told"), [(10, True), (17, False)])
def test_new_comparisons_with_rounded_numbers_are_imported_and_it_is_said(
    exact: Exported, bring_back: BringBack, digits: int, told: bool
) -> None:
    saved = exact
    for column in ("first_return", "second_return", "probability"):
        saved = changed(saved, "comparisons", column, rounded(digits))
    forget()
    said = bring_back(saved, owner="ada")
    assert said.startswith("7 comparisons; 9 labels; 1 undone.")
    assert ("NOTICE: no number in comparisons.csv has more than 11 digits" in said) == told
    assert bring_back(exact) == "0 comparisons; 0 labels; 0 undone."


def test_a_trainer_that_registers_again_what_came_by_a_spreadsheet_is_not_refused(trainer: Trainer) -> None:
    pair = trainer.comparison()
    pair["first"]["true_return"] = RETURNS[0]
    trainer.post(f"{trainer.path}/comparisons", {"comparisons": [pair]})
    Comparison.objects.update(first_return=1234.567890)
    answer = trainer.post(f"{trainer.path}/comparisons", {"comparisons": [pair]})
    assert answer == {"registered": 0, "existing": 1}


def test_whole_numbers_with_a_point_are_whole(story: Exported, bring_back: BringBack) -> None:
    """Write integers as programs do that read a column with empty cells as floats."""
    saved = changed(story, "labels", "response_ms", lambda text: f"{text}.0" if text else "")
    forget()
    bring_back(saved, owner="ada")
    assert export() == story


NUMBERED = {"007": "7", "1e5": "1.00E+05", "mar-3": "3-Mar", "2026-01-02": "1/2/2026", "true": "TRUE"}


@pytest.mark.parametrize("name", NUMBERED)
def test_ambiguous_names_are_refused(story: Exported, bring_back: BringBack, name: str) -> None:
    Labeler.objects.filter(name="you").update(name=name)
    exported = export()
    saved = changed(resaved(exported), "labels", "labeler", lambda text: NUMBERED.get(text, text))
    with pytest.raises(
        CommandError, match=rf"labeler: recorded as '{name}' for this label, found .* \(in \d lines"
    ):
        bring_back(saved)
    Labeler.objects.filter(name=name).update(name="gone")
    forget()
    found = NUMBERED[name]
    with pytest.raises(CommandError) as refused:
        bring_back(saved, owner="ada")
    [line] = str(refused.value).splitlines()[1:]
    assert f"labeler: a spreadsheet saved this file and may have changed a name to {found!r}" in line
    assert not Experiment.objects.exists()
    meant = changed(saved, "labels", "labeler", lambda text: f"'{text}" if text == found else text)
    assert bring_back(meant, owner="ada").startswith("7 comparisons; 9 labels")
    assert Labeler.objects.filter(name=found).exists()
    assert bring_back(saved) == "0 comparisons; 0 labels; 0 undone."  # now there is somebody of that name


def test_names_match_in_any_unicode_form(story: Exported, bring_back: BringBack) -> None:
    Labeler.objects.filter(name="you").update(name="Jos\u00e9")
    Labeler.objects.filter(name="-other").update(name="\u0639\u0644\u06cc\u200c\u0631\u0636\u0627")
    exported = export()
    decomposed = {
        name: unicodedata.normalize("NFD", content.decode()).encode() for name, content in exported.items()
    }
    assert decomposed != exported
    assert bring_back(decomposed) == "0 comparisons; 0 labels; 0 undone."
    forget()
    assert bring_back(decomposed, owner="ada") == "7 comparisons; 9 labels; 1 undone."
    assert export() == exported


@pytest.mark.parametrize("name", ["7", "'7", "''7", "'-7", "it's"])
def test_names_with_apostrophes(story: Exported, bring_back: BringBack, name: str) -> None:
    Labeler.objects.filter(name="you").update(name=name)
    exported = export()
    forget()
    Labeler.objects.all().delete()
    bring_back(exported, owner="ada")
    assert Labeler.objects.filter(name=name).exists()
    assert export() == exported


def test_a_new_experiment_needs_an_owner(trainer: Trainer, bring_back: BringBack) -> None:
    exported = export()
    forget()
    with pytest.raises(CommandError, match="pass --owner USER to create it"):
        bring_back(exported)
    with pytest.raises(CommandError, match="existing staff user, not 'nobody'"):
        bring_back(exported, owner="nobody")
    bring_back(exported, owner="ada")
    assert Experiment.objects.get().name == "hopper"


def test_nothing_is_imported_during_deletion(trainer: Trainer, bring_back: BringBack) -> None:
    exported = export()
    Experiment.objects.update(deletion_asked_at=Now())
    with pytest.raises(
        CommandError, match=r"Nothing was imported\. The experiment 'hopper' is being deleted"
    ):
        bring_back(exported, owner="ada")


def test_an_experiment_that_another_import_makes_in_the_same_moment_is_filled_once(
    story: Exported, bring_back: BringBack, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = import_labels._new_experiment
    forget()

    def make_after_another(options: dict[str, Any]) -> Experiment:
        monkeypatch.undo()
        bring_back(story, owner="ada")
        return made(options)

    monkeypatch.setattr(import_labels, "_new_experiment", make_after_another)
    assert bring_back(story, owner="ada") == "0 comparisons; 0 labels; 0 undone."
    assert export() == story


@pytest.mark.parametrize("kind", [export, as_parquet], ids=["csv", "parquet"])
@pytest.mark.parametrize("table", ["comparisons", "labels"])
def test_a_damaged_file_is_refused_or_says_something_else(
    story: Exported, bring_back: BringBack, table: str, kind: Callable[[], Exported]
) -> None:
    refused, intact = 0, kind()
    for content in damaged(intact[table]):
        with transaction.atomic():
            try:
                bring_back({**intact, table: content})
            except CommandError:
                refused += 1
            transaction.set_rollback(True)
    assert refused > 50
