"""The ledger's counts, decisions and order."""

import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args
from uuid import UUID, uuid4

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from teacher.data.decisions import Decision, FeedItem, Phase
from teacher.data.ledger import Ledger, Question, Role, Status
from teacher.data.segments import Segment
from teacher.envs.recipe import EpisodeRecipe
from teacher.errors import DataError
from teacher.queries.kinds import preferences_in
from tests.teacher.conftest import MEMORY, make_segment

Ask = Callable[..., Question]
PROBABILITIES: dict[str | None, float | None] = {
    "first": 1.0, "equal": 0.5, "second": 0.0, "cant_tell": None, None: None
}  # fmt: skip


@pytest.fixture
def ask(ledger: Ledger) -> Ask:
    """Writes one comparison."""

    def ask(phase: Role = "training", step: int = 0) -> Question:
        number = 2 * ledger.total()
        comparison = Question(uuid4(), (make_segment(number), make_segment(number + 1)), phase, step)
        ledger.write([comparison])
        return comparison

    return ask


def item(seq: int, comparison: Question, decision: str | None) -> FeedItem:
    return FeedItem(seq, comparison.uuid, decision, PROBABILITIES[decision], n_labels=1)


def assert_same_segment(one: Segment, other: Segment) -> None:
    for name in ("observations", "actions", "true_rewards"):
        expected = getattr(other, name)
        np.testing.assert_array_equal(getattr(one, name), expected)
        assert getattr(one, name).dtype == expected.dtype
    assert one.start == other.start
    assert one.recipe.to_json() == other.recipe.to_json()


def assert_same_items(found: Sequence[Segment], expected: Sequence[Segment]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert_same_segment(one, other)


def test_ledger_round_trips(memory_path: Path, ledger: Ledger, ask: Ask) -> None:
    written = [ask("pretraining", 0), ask("training", 4096)]
    ledger.close()
    reopened = Ledger(memory_path / "ledger.sqlite3")
    for expected, found in zip(written, reopened.unfinished(), strict=True):
        assert (found.uuid, found.phase, found.step) == (expected.uuid, expected.phase, expected.step)
        assert_same_items(found.items, expected.items)
    reopened.close()


def test_gold_is_carried_on_like_others_and_counted_apart(ledger: Ledger, ask: Ask) -> None:
    ask()
    gold = ask("gold")
    assert (ledger.gold(), ledger.asked(), ledger.open(), ledger.on_their_way()) == (1, 1, 1, 1)
    assert [found.phase for found in ledger.unfinished()] == ["training", "gold"]
    ledger.set_status([gold.uuid], "registered")
    assert (ledger.gold(), ledger.asked(), len(ledger.unfinished())) == (1, 1, 1)
    ledger.set_status([gold.uuid], "failed")
    assert (ledger.gold(), ledger.asked()) == (0, 1)


def test_writing_a_comparison_again_changes_nothing(ledger: Ledger, ask: Ask) -> None:
    comparison = ask()
    ledger.record([item(1, comparison, "first")], cursor=1)
    ledger.write([comparison])
    assert (ledger.total(), ledger.usable()) == (1, 1)


def test_each_decision_gives_its_target(ledger: Ledger, ask: Ask) -> None:
    decisions: list[Decision | None] = ["first", "second", "equal", "cant_tell", None]
    asked = [ask() for _ in decisions]
    ledger.record([item(seq, *pair) for seq, pair in enumerate(zip(asked, decisions, strict=True), 1)], 5)
    assert [preference.value for preference in preferences_in(ledger)] == [1.0, 0.0, 0.5]
    everything = list(ledger.answered(comparison.uuid for comparison in reversed(asked)))
    assert [answered.probability for answered in everything] == [None, None, 0.5, 0.0, 1.0]
    assert_same_items(everything[4].items, asked[0].items)


def test_preferences_follow_decisions(ledger: Ledger, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a resumed run keeps the ones decided last, as the run itself did."""
    asked = [ask() for _ in range(4)]
    ledger.record([item(seq, asked[index], "first") for seq, index in enumerate((2, 0, 3, 1), 1)], 4)
    ledger.record([item(5, asked[0], "second")], 5)
    expected = [asked[n].uuid for n in (2, 3, 1, 0)]
    assert [preference.uuid for preference in preferences_in(ledger)] == expected
    monkeypatch.setattr("teacher.data.ledger._ANSWERED_AT_ONCE", 3)
    assert [preference.uuid for preference in preferences_in(ledger)] == expected


def test_cant_tell_failed_and_cancelled_do_not_use_up_the_budget(ledger: Ledger, ask: Ask) -> None:
    asked = [ask("pretraining"), *(ask() for _ in range(5))]
    ledger.record(
        [item(1, asked[0], "equal"), item(2, asked[1], "cant_tell"), item(3, asked[2], "second")], 3
    )
    ledger.set_status([asked[3].uuid], "failed")
    ledger.set_status([asked[4].uuid], "cancelled")
    assert (ledger.asked(), ledger.usable(), ledger.open(), ledger.total()) == (3, 2, 1, 6)
    assert (ledger.asked("pretraining"), ledger.asked("training")) == (1, 2)
    assert (ledger.usable("pretraining"), ledger.usable("training")) == (1, 1)
    assert (ledger.open("pretraining"), ledger.open("training")) == (0, 1)


def test_an_undone_decision_opens_the_comparison_again(ledger: Ledger, ask: Ask) -> None:
    comparison = ask()
    ledger.set_status([comparison.uuid], "registered")
    ledger.record([item(1, comparison, "first")], cursor=1)
    assert (ledger.usable(), ledger.open()) == (1, 0)
    ledger.record([item(2, comparison, None)], cursor=2)
    assert (ledger.usable(), ledger.open(), ledger.asked()) == (0, 1, 1)
    assert list(preferences_in(ledger)) == []


def test_an_answer_given_before_the_cancellation_stays(ledger: Ledger, ask: Ask) -> None:
    comparison = ask()
    ledger.set_status([comparison.uuid], "cancelled")
    ledger.record([item(1, comparison, "first")], cursor=1)
    assert (ledger.asked(), ledger.usable(), ledger.open()) == (1, 1, 0)


def test_only_comparisons_on_their_way_are_unfinished(ledger: Ledger, ask: Ask) -> None:
    written, registered, failed, decided = (ask() for _ in range(4))
    ledger.set_status([registered.uuid], "registered")
    ledger.set_status([failed.uuid], "failed")
    ledger.record([item(1, decided, "first")], cursor=1)
    assert [comparison.uuid for comparison in ledger.unfinished()] == [written.uuid]


@settings(max_examples=30, deadline=None)
@given(st.permutations([(1, "first"), (2, None), (3, "equal"), (4, "second")]), st.data())
def test_decisions_in_any_order(items: list[tuple[int, Decision | None]], data: st.DataObject) -> None:
    with (
        tempfile.TemporaryDirectory(dir=MEMORY) as folder,
        closing(Ledger(Path(folder) / "ledger.sqlite3")) as ledger,
    ):
        comparison = tiny_comparison()
        ledger.write([comparison])
        highest = 0
        for seq, decision in items + data.draw(st.lists(st.sampled_from(items), max_size=3)):
            ledger.record([item(seq, comparison, decision)], cursor=seq)
            highest = max(highest, seq)
            assert ledger.cursor == highest
            (answered,) = ledger.answered([comparison.uuid])
            assert answered.probability == PROBABILITIES[dict(items)[highest]]


def tiny_comparison(uuid: UUID | None = None, phase: Role = "training", step: int = 0) -> Question:
    actions = np.zeros((1, 1), np.float32)
    first, second = (
        Segment(EpisodeRecipe("Any-v0", {}, seed, actions, {}), 0, actions, actions, np.zeros(1))
        for seed in (step, step + 1)
    )
    return Question(uuid or uuid4(), (first, second), phase, step)


@dataclass
class Known:
    """Model a ledger's knowledge of one comparison."""

    phase: Role
    step: int
    status: Status = "written"
    decision: str | None = None
    seq: int | None = None

    @property
    def usable(self) -> bool:
        return self.decision in ("first", "second", "equal")

    @property
    def open(self) -> bool:
        return self.decision is None and self.status in ("written", "registered")


decoded = cache(Segment.from_bytes)  # which takes longer than all else


class LedgerMachine(RuleBasedStateMachine):
    """A ledger beside a dictionary that does the same."""

    written = Bundle("written")

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(Segment, "from_bytes", decoded)
        self.folder = tempfile.TemporaryDirectory(dir=MEMORY)
        self.path = Path(self.folder.name) / "ledger.sqlite3"
        self.ledger = Ledger(self.path)
        self.known: dict[UUID, Known] = {}
        self.feed: list[FeedItem] = []
        self.cursor = 0

    def teardown(self) -> None:
        self.ledger.close()
        self.folder.cleanup()
        self.patch.undo()

    @rule(target=written, phases=st.lists(st.sampled_from(["pretraining", "training", "gold"]), max_size=3))
    def write(self, phases: list[Role]) -> Any:
        comparisons = [
            tiny_comparison(UUID(int=number), phase, 2 * number)
            for number, phase in enumerate(phases, len(self.known))
        ]
        self.ledger.write(comparisons)
        self.known |= {one.uuid: Known(one.phase, one.step) for one in comparisons}
        return multiple(*comparisons)

    @rule(comparison=written)
    def write_again(self, comparison: Question) -> None:
        self.ledger.write([comparison])

    @rule(
        comparisons=st.lists(written, max_size=3),
        status=st.sampled_from(["written", "registered", "failed", "cancelled"]),
    )
    def set_status(self, comparisons: list[Question], status: Status) -> None:
        self.ledger.set_status([one.uuid for one in comparisons], status)
        for one in comparisons:
            self.known[one.uuid].status = status

    @rule(comparison=written, decision=st.sampled_from(list(PROBABILITIES)))
    def decide(self, comparison: Question, decision: str | None) -> None:
        """On the site; the ledger hears of it later."""
        self.feed.append(item(len(self.feed) + 1, comparison, decision))

    @rule(data=st.data())
    def record(self, data: st.DataObject) -> None:
        """Any part of the feed, in any order, and also what came before."""
        items = data.draw(st.lists(st.sampled_from(self.feed), max_size=4)) if self.feed else []
        cursor = max((one.seq for one in items), default=0)
        self.ledger.record(items, cursor)
        self.cursor = max(self.cursor, cursor)
        for one in items:
            known = self.known[one.comparison]
            if one.seq > (known.seq or 0):
                known.decision, known.seq = one.decision, one.seq

    @rule(comparison=written)
    def record_a_strangers(self, comparison: Question) -> None:
        seq = len(self.feed) + 1
        with pytest.raises(DataError, match="which is not in"):
            self.ledger.record([item(seq, comparison, "first"), item(seq, tiny_comparison(), "first")], seq)

    @rule()
    def reopen(self) -> None:
        self.ledger.close()
        self.ledger = Ledger(self.path)

    @rule()
    def look(self) -> None:
        """Open it as another process does."""
        with closing(Ledger(self.path, read_only=True)) as reader:
            assert (reader.total(), reader.cursor) == (len(self.known), self.cursor)

    @invariant()
    def counts_are_right(self) -> None:
        ledger, known = self.ledger, self.known.values()
        assert (ledger.total(), ledger.cursor) == (len(known), self.cursor)
        phases: list[Phase | None] = ["pretraining", "training", None]
        for phase in phases:
            asked = [one for one in known if one.phase == phase or (phase is None and one.phase != "gold")]
            assert ledger.asked(phase) == sum(one.open or one.usable for one in asked)
            assert ledger.usable(phase) == sum(one.usable for one in asked)
            assert ledger.open(phase) == sum(one.open for one in asked)
        assert ledger.on_their_way() == sum(one.open and one.status == "written" for one in asked)
        shown = ("written", "registered")
        assert ledger.gold() == sum(one.phase == "gold" and one.status in shown for one in known)

    @invariant()
    def what_is_read_is_what_was_written(self) -> None:
        for status in get_args(Status):
            expected = [
                (uuid, one.phase, one.step, one.step, one.step + 1)
                for uuid, one in self.known.items()
                if one.status == status and one.seq is None
            ]
            found = [
                (one.uuid, one.phase, one.step, *(item.recipe.seed for item in one.items))
                for one in self.ledger.unfinished(status)
            ]
            assert found == expected
        usable = sorted((one.seq or 0, uuid) for uuid, one in self.known.items() if one.usable)
        assert [one.uuid for one in preferences_in(self.ledger)] == [uuid for _, uuid in usable]
        values = {one.uuid: one.probability for one in self.ledger.answered(self.known)}
        assert values == {uuid: PROBABILITIES[one.decision] for uuid, one in self.known.items()}
        decided = [one.step for one in self.known.values() if one.decision is not None]
        pairs = self.ledger.decided_items(3)
        assert [first.recipe.seed for first, _ in pairs] == decided[-3:]


LedgerMachine.TestCase.settings = settings(max_examples=15, stateful_step_count=25, deadline=None)
TestLedgerMachine = LedgerMachine.TestCase


def test_decisions_and_cursor_are_stored_together_or_not_at_all(ledger: Ledger, ask: Ask) -> None:
    comparison = ask()
    stranger = FeedItem(2, UUID(int=7), "first", 1.0, 1)
    with pytest.raises(DataError, match=r"decision for comparison 00000000-.*-000000000007, which is not in"):
        ledger.record([item(1, comparison, "first"), stranger], cursor=2)
    assert (ledger.cursor, ledger.usable()) == (0, 0)


@pytest.mark.parametrize(
    ("decision", "probability"),
    [("first", None), ("second", 1.5), ("equal", float("nan")), ("cant_tell", 0.5), (None, 1.0)],
)
def test_a_probability_that_does_not_fit_its_decision_is_refused(
    ledger: Ledger, ask: Ask, decision: Decision | None, probability: float | None
) -> None:
    comparison = ask()
    with pytest.raises(DataError, match=r"has decision .* and probability"):
        ledger.record([FeedItem(1, comparison.uuid, decision, probability, 1)], cursor=1)
    assert ledger.cursor == 0


def test_two_threads_share_a_ledger(ledger: Ledger) -> None:
    """One asks while the other decides what it finds; nothing is lost and nothing breaks."""
    segments = make_segment(1), make_segment(2)
    asked = [Question(uuid4(), segments, "training", step) for step in range(60)]
    errors: list[BaseException] = []

    def decide() -> None:
        try:
            while (seq := ledger.cursor) < len(asked):
                waiting = ledger.unfinished()
                decisions = [item(seq + i, found, "first") for i, found in enumerate(waiting, 1)]
                ledger.record(decisions, cursor=seq + len(decisions))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=decide)
    thread.start()
    for comparison in asked:
        ledger.write([comparison])
        assert ledger.open() >= 0
    thread.join(240)
    assert errors == []
    assert {preference.uuid for preference in preferences_in(ledger)} == {c.uuid for c in asked}


def test_decided_pairs_come_back_in_order_also_where_nobody_could_tell(ledger: Ledger, ask: Ask) -> None:
    asked = [ask() for _ in range(5)]
    decisions: list[Decision] = ["first", "cant_tell", "equal", "second"]
    ledger.record([item(seq, asked[seq], decision) for seq, decision in enumerate(decisions, 1)], 4)
    for count in (2, 10):
        decided = ledger.decided_items(count)
        expected = asked[1:][-count:]
        assert len(decided) == len(expected)
        for pair, comparison in zip(decided, expected, strict=True):
            assert_same_items(pair, comparison.items)


def test_any_pair_tells_how_long_segments_are(ledger: Ledger, ask: Ask) -> None:
    assert ledger.segment_length() is None
    comparison = ask("gold")
    assert ledger.segment_length() == len(comparison.items[0])


def test_hard_labels_make_each_decision_certain(memory_path: Path, ledger: Ledger, ask: Ask) -> None:
    probable: list[tuple[Decision, float]] = [("first", 0.8), ("equal", 0.55), ("second", 0.4)]
    asked = [ask() for _ in probable]
    items = [
        FeedItem(seq, comparison.uuid, decision, probability, n_labels=3)
        for seq, (comparison, (decision, probability)) in enumerate(
            zip(asked, probable, strict=True), start=1
        )
    ]
    ledger.record(items, cursor=3)
    assert [preference.value for preference in preferences_in(ledger)] == [0.8, 0.55, 0.4]
    hard = Ledger(memory_path / "ledger.sqlite3", hard_labels=True, read_only=True)
    assert [preference.value for preference in preferences_in(hard)] == [1.0, 0.5, 0.0]
    assert [answered.probability for answered in hard.answered([asked[1].uuid])] == [0.5]
    hard.close()
