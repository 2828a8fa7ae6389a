"""The teacher made from the true reward."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from teacher.data.ledger import Ledger, Question
from teacher.data.segments import Segment
from teacher.errors import BehaviorError
from teacher.queries.collector import SyntheticTeacher
from teacher.queries.judges import Judge, ScriptedTeacher
from teacher.queries.kinds import preferences_in
from teacher.settings.teachers import ErrorModel

MakeSegment = Callable[..., Segment]


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = Ledger(tmp_path / "ledger.sqlite3")
    yield ledger
    ledger.close()


def test_the_larger_true_return_is_preferred(ledger: Ledger, make_segment: MakeSegment) -> None:
    teacher = SyntheticTeacher(ledger, seed=1)
    low, high = make_segment(1, true_return=-1.0), make_segment(2, true_return=3.0)
    teacher.submit([(high, low), (low, high), (low, make_segment(3, true_return=-1.0))], "training", 8)
    preferences = teacher.receive()
    assert [preference.value for preference in preferences] == [1.0, 0.0, 0.5]
    assert preferences[0].first.true_return == pytest.approx(3.0)
    assert preferences[1].first.true_return == pytest.approx(-1.0)


def test_answers_are_returned_once_and_kept(ledger: Ledger, make_segment: MakeSegment) -> None:
    teacher = SyntheticTeacher(ledger, seed=1)
    teacher.submit([(make_segment(1), make_segment(2))], "pretraining", 0)
    teacher.submit([(make_segment(3), make_segment(4))], "training", 2048)
    received = teacher.receive()
    assert teacher.receive() == []
    assert [preference.uuid for preference in received] == [
        kept.uuid for kept in list(preferences_in(ledger))
    ]
    assert (ledger.asked(), ledger.usable(), ledger.open()) == (2, 2, 0)
    assert (ledger.asked("pretraining"), ledger.asked("training")) == (1, 1)
    assert ledger.unfinished() == []


def test_a_run_repeats_its_uuids_and_never_uses_one_twice(tmp_path: Path, make_segment: MakeSegment) -> None:
    pairs = [(make_segment(seed), make_segment(seed + 1)) for seed in range(4)]
    uuids = []
    for name, seed in [("a", 1), ("b", 1), ("c", 2)]:
        ledger = Ledger(tmp_path / name)
        SyntheticTeacher(ledger, seed).submit(pairs[:2], "training", 0)
        SyntheticTeacher(ledger, seed).submit(pairs[2:], "training", 0)  # as after a resume
        uuids.append([preference.uuid for preference in list(preferences_in(ledger))])
        ledger.close()
    assert uuids[0] == uuids[1]
    assert len({*uuids[0], *uuids[2]}) == 8


def test_unanswered_labels_of_a_killed_run_are_answered(ledger: Ledger, make_segment: MakeSegment) -> None:
    low, high = make_segment(1, true_return=0.0), make_segment(2, true_return=1.0)
    comparison = Question(uuid4(), (low, high), "training", 64)
    ledger.write([comparison])
    teacher = SyntheticTeacher(ledger, seed=1)
    assert [(answer.uuid, answer.value) for answer in teacher.receive()] == [(comparison.uuid, 0.0)]
    assert (ledger.open(), ledger.usable()) == (0, 1)


def test_a_soft_answer_is_kept_as_a_probability(ledger: Ledger, make_segment: MakeSegment) -> None:
    first, second = make_segment(1), make_segment(2)
    for number, probability in enumerate([0.8, 0.3, 0.5]):
        judge: Judge = lambda _, __, answer=probability: answer  # type: ignore[misc]  # noqa: E731
        teacher = SyntheticTeacher(ledger, seed=number, judge=judge)
        teacher.submit([(first, second)], "training", 0)
        assert [answer.value for answer in teacher.receive()] == [probability]


def test_a_resumed_teacher_answers_as_if_it_had_gone_on(tmp_path: Path, make_segment: MakeSegment) -> None:
    error_model = ErrorModel.parse("skip:0.6,equal:0.4,mistake:0.3")
    pairs = [(make_segment(n, true_return=n * 0.9**n), make_segment(n + 100)) for n in range(40)]
    given = []
    for name, batches in [("through", [pairs]), ("resumed", [pairs[:7], pairs[7:25], pairs[25:]])]:
        with contextlib.closing(Ledger(tmp_path / name)) as ledger:
            values = []
            for batch in batches:
                judge = ScriptedTeacher(error_model, 1, ledger.decided_items(100))
                teacher = SyntheticTeacher(ledger, 1, judge)
                teacher.submit(batch, "training", 0)
                values += [answer.value for answer in teacher.receive()]
            given.append(values)
    assert given[0] == given[1]
    assert set(given[0]) == {0.0, 0.5, 1.0, None}


def test_answers_before_a_judge_fails_are_kept(ledger: Ledger, make_segment: MakeSegment) -> None:
    answers = iter(["first", "cant_tell"])
    judge: Judge = lambda *_: next(answers)  # type: ignore[assignment]  # noqa: E731
    teacher = SyntheticTeacher(ledger, seed=1, judge=judge)
    with pytest.raises(BehaviorError, match="failed: StopIteration"):
        teacher.submit([(make_segment(seed), make_segment(seed + 1)) for seed in range(4)], "training", 0)
    assert [answer.value for answer in teacher.receive()] == [1.0, None]
    assert (ledger.cursor, ledger.open(), ledger.usable()) == (2, 2, 1)


def test_it_is_never_paused_or_finished(ledger: Ledger) -> None:
    assert SyntheticTeacher(ledger, seed=1).status.state == "running"
