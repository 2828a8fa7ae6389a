"""The audit holds where all is well, and sees each fault that it is there to see."""

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.db.models.functions import Now

from human_feedback_site.feedback.kinds import ITEMS
from human_feedback_site.feedback.models import (
    Comparison,
    Decision,
    Experiment,
    Label,
    Labeler,
    Lease,
)
from stack.audit import Audit, Evidence, audit
from stack.process import StackError
from teacher.data.decisions import FeedItem
from teacher.data.ledger import Ledger
from teacher.data.ledger import Question as Asked
from teacher.data.segments import Segment
from teacher.envs.recipe import EpisodeRecipe
from teacher.settings.options import KindName
from tests.conftest import refusals

pytestmark = pytest.mark.django_db


class World:
    """A finished experiment: what bots wrote down, the site's rows, and the run's ledger."""

    def __init__(self, folder: Path) -> None:
        self.answers = folder / "answers.jsonl"
        self.lines: list[dict[str, Any]] = []
        self.torn = ""
        self.feed: list[FeedItem] = []
        owner = User.objects.create_user("ada")
        self.experiment = Experiment.objects.create(
            name="x", owner=owner, run_id=uuid4(), env_id="Any-v0", prompt="?", fps=20, has_true_reward=True
        )
        self.labelers = {
            name: Labeler.objects.create(user=User.objects.create_user(name), name=name, invited_by=owner)
            for name in ("bot-1", "bot-2", "mia")
        }
        self.ledger = Ledger(folder / "ledger.sqlite3")
        self.asked = 0

    def ask(self, *returns: float, step: int | None = None, kind: KindName = "pair") -> Comparison:
        """A question about segments with these true returns."""
        self.asked += 1
        step = self.asked if step is None else step
        uuid = uuid4()
        self.ledger.write([Asked(uuid, tuple(map(segment, returns)), "training", step, kind)])
        self.ledger.set_status([uuid], "registered")
        items = dict(zip(ITEMS, returns, strict=False))
        return Comparison.objects.create(
            uuid=uuid, experiment=self.experiment, phase="training", step=step, priority=1, kind=kind,
            **{f"{item}_key": item for item in items},
            **{f"{item}_return": value for item, value in items.items()},
        )  # fmt: skip

    def answer(
        self, comparison: Comparison, choice: str, *, swapped: bool = False, by: str = "bot-1"
    ) -> None:
        """An answer that the site keeps, and that a bot sees acknowledged and writes down."""
        lease = Lease.objects.create(
            comparison=comparison, labeler=self.labelers[by], swapped=swapped, expires_at=Now()
        )
        label = Label.objects.create(
            uuid=uuid4(), lease=lease, comparison=comparison, labeler=lease.labeler, choice=choice,
            swapped=swapped, answer=comparison.question.meaning_of(choice, swapped=swapped), status="counted",
        )  # fmt: skip
        if by != "mia":
            line = {"uuid": str(label.uuid), "comparison": str(comparison.uuid), "choice": choice}
            self.lines.append(line)

    def decide(self, comparison: Comparison, decision: str | None, *, seq: int | None = None) -> FeedItem:
        """An item of the feed, which the trainer has not read yet."""
        seq = Decision.objects.count() + 1 if seq is None else seq
        Decision.objects.create(
            experiment=self.experiment, comparison=comparison, seq=seq, decision=decision, n_labels=1
        )
        probability = {"first": 1.0, "second": 0.0, "equal": 0.5}.get(decision or "")
        return FeedItem(seq, comparison.uuid, decision, probability, 1)

    def receive(self, *items: FeedItem) -> None:
        """The trainer reads them."""
        self.ledger.record(items, cursor=max(item.seq for item in items))

    def audit(self, **changes: Any) -> Audit:
        return audit(self.evidence(**changes))

    def evidence(self, **changes: Any) -> Evidence:
        self.answers.write_text("".join(json.dumps(line) + "\n" for line in self.lines) + self.torn)
        sound = Evidence("x", self.asked, 2, self.answers, self.ledger.path, query)
        return replace(sound, **changes)


def query(statement: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    return rows


def segment(true_return: float) -> Segment:
    actions = np.zeros((2, 1), np.float32)
    return Segment(
        EpisodeRecipe("Any-v0", {}, 1, actions), 0, np.zeros((2, 1)), actions, np.full(2, true_return / 2)
    )


@pytest.fixture
def world(tmp_path: Path) -> Any:
    """Three pairs, answered on either side and as equal, all of which reached the trainer."""
    world = World(tmp_path)
    pairs = [world.ask(2, 1), world.ask(2, 1), world.ask(1, 1)]
    world.answer(pairs[0], "left")
    world.answer(pairs[1], "right", swapped=True, by="bot-2")
    world.answer(pairs[2], "equal")
    world.receive(
        *(world.decide(pair, said) for pair, said in zip(pairs, ("first", "first", "equal"), strict=True))
    )
    with contextlib.closing(world.ledger):
        yield world


def test_a_sound_experiment_passes(world: World) -> None:
    found = world.audit()
    assert found.holds
    assert (found.asked, found.acknowledged, found.stored, found.reached) == (3, 3, 3, 3)
    assert not any(found.faults.values())


def lose_an_answer(world: World) -> None:
    world.lines.append({"uuid": str(uuid4()), "comparison": str(uuid4()), "choice": "left"})


def lose_a_decision_on_the_way(world: World) -> None:
    pair, other = world.ask(2, 1), world.ask(2, 1)
    world.answer(pair, "left")
    world.answer(other, "left")
    world.decide(pair, "first")
    world.receive(world.decide(other, "first"))


def lose_the_end_of_the_feed(world: World) -> None:
    for _ in range(3):  # more than one for each of the two bots
        pair = world.ask(2, 1)
        world.answer(pair, "left")
        world.decide(pair, "first")


def acknowledge_twice(world: World) -> None:
    world.lines.append(world.lines[0])


def count_two_labels_of_one_pair(world: World) -> None:
    world.answer(Comparison.objects.all()[0], "left", by="bot-2")


def keep_another_choice_than_was_given(world: World) -> None:
    world.lines[0]["choice"] = "right"


def forget_that_sides_were_swapped(world: World) -> None:
    Label.objects.filter(swapped=True).update(answer="second")


def invert_on_the_way(world: World) -> None:
    pair = world.ask(2, 1)
    world.answer(pair, "left")
    item = world.decide(pair, "first")
    world.receive(FeedItem(item.seq, item.comparison, "second", 0.0, 1))


def swap_the_segments_in_the_ledger(world: World) -> None:
    pair = world.ask(2, 1)
    Comparison.objects.filter(pk=pair.pk).update(first_return=1, second_return=2)
    world.answer(pair, "right")
    world.receive(world.decide(pair, "second"))


def keep_an_answer_nobody_gave(world: World) -> None:
    world.lines.pop()


def leave_one_open_for_long(world: World) -> None:
    world.ask(2, 1, step=0)
    for _ in range(30):
        pair = world.ask(2, 1)
        world.answer(pair, "left")
        world.receive(world.decide(pair, "first"))


def leave_a_number_out(world: World) -> None:
    pair = world.ask(2, 1)
    world.answer(pair, "left")
    world.receive(world.decide(pair, "first", seq=9))


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (lose_an_answer, "lost"),
        (lose_a_decision_on_the_way, "lost"),
        (lose_the_end_of_the_feed, "lost"),
        (acknowledge_twice, "doubled"),
        (count_two_labels_of_one_pair, "doubled"),
        (keep_another_choice_than_was_given, "inverted"),
        (forget_that_sides_were_swapped, "inverted"),
        (invert_on_the_way, "inverted"),
        (swap_the_segments_in_the_ledger, "inverted"),
        (keep_an_answer_nobody_gave, "unknown"),
        (leave_one_open_for_long, "stuck"),
        (leave_a_number_out, "gaps"),
    ],
)
def test_a_fault_is_found_and_named(world: World, spoil: Callable[[World], None], fault: str) -> None:
    spoil(world)
    found = world.audit()
    assert [name for name, count in found.faults.items() if count] == [fault]
    assert not found.holds


@pytest.mark.parametrize(
    ("kind", "returns", "choice", "answer", "wrong"),
    [
        ("graded", (2, 1), "slightly_right", "slightly_first", "slightly_second"),
        ("rating", (2,), "4", "4", "cant_tell"),
        ("best_worst", (0, 1, 2, 3), "1>4", "4>1", "1>4"),
    ],
)
def test_questions_of_any_kind_are_audited(
    world: World, kind: KindName, returns: Sequence[float], choice: str, answer: str, wrong: str
) -> None:
    asked = world.ask(*returns, kind=kind)
    world.answer(asked, choice, swapped=True)
    world.receive(world.decide(asked, answer))
    assert world.audit().holds
    Label.objects.filter(comparison=asked).update(answer=wrong)
    assert world.audit().faults["inverted"] == 1


@pytest.mark.parametrize("wanted", [2, 4])
def test_other_labels_than_wanted_do_not_pass(world: World, wanted: int) -> None:
    assert not world.audit(wanted=wanted).holds


def test_another_pair_takes_the_place_of_one_that_nobody_can_tell_apart(world: World) -> None:
    pair = world.ask(2, 1)
    Comparison.objects.filter(pk=pair.pk).update(first_return=None, second_return=None)
    world.answer(pair, "cant_tell")
    world.receive(world.decide(pair, "cant_tell"))
    assert world.audit(wanted=3).holds
    assert not world.audit(wanted=4).holds


def test_people_may_disagree_with_the_true_return(world: World) -> None:
    pair = world.ask(2, 1)
    world.answer(pair, "right", by="mia")
    world.receive(world.decide(pair, "second"))
    assert world.audit().holds


def test_a_bot_that_was_killed_may_have_missed_one_acknowledgement(world: World) -> None:
    world.lines.pop()
    assert world.audit(bots_killed=1).holds
    world.lines.pop()
    assert not world.audit(bots_killed=1).holds


@pytest.mark.parametrize("missing", [1, 2, 30, 120])
def test_a_labeler_that_was_killed_may_have_written_half_a_line(world: World, missing: int) -> None:
    whole = json.dumps(world.lines.pop()) + "\n"
    world.torn = whole[:-missing]
    found = world.audit(bots_killed=1)
    assert found.holds
    assert found.acknowledged == (3 if missing == 1 else 2)
    if missing > 1:
        with pytest.raises(StackError, match=r"answers\.jsonl line 3: expected a label as JSON, got '{"):
            world.audit()


def test_unreadable_line_is_reported(world: World) -> None:
    """Also half a line that was gone on with: it may have been any labeler's."""
    evidence = world.evidence(bots_killed=1)
    intact = evidence.answers.read_bytes()
    refused = refusals(evidence.answers, evidence.acknowledged, StackError)
    assert {words.partition(": ")[0] for words in refused} == {
        f"{evidence.answers} line {line}" for line in (1, 2, 3)
    }
    evidence.answers.write_bytes(intact[:30] + intact)
    with pytest.raises(StackError, match=r"line 1: expected a label as JSON, got [^\n]*$"):
        evidence.acknowledged()


def test_a_pair_that_stays_open_is_no_fault_but_does_not_pass(world: World) -> None:
    world.ask(2, 1)
    found = world.audit()
    assert (found.asked, found.reached, found.unanswered) == (4, 3, 1)
    assert not any(found.faults.values())
    assert not found.holds


def test_an_answer_that_comes_too_late_is_no_fault_but_does_not_pass(world: World) -> None:
    late = world.ask(2, 1)
    world.answer(late, "left")
    world.decide(late, "first")
    found = world.audit()
    assert (found.unanswered, found.late) == (1, 1)
    assert not any(found.faults.values())
    assert not found.holds
