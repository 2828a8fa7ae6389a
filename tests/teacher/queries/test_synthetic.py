"""The teacher made from the true reward, and what answers tell of the predictor before it learns."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from gymnasium.spaces import Box

from teacher.data.ledger import Ledger, Question
from teacher.data.preferences import Preference, PreferenceDataset
from teacher.data.segment_pool import SegmentPool
from teacher.errors import BehaviorError
from teacher.queries.collector import SyntheticTeacher
from teacher.queries.judges import Judge, ScriptedTeacher
from teacher.queries.kinds import preferences_in
from teacher.queries.learning import PreferenceLearning
from teacher.queries.schedules import AllAtOnce
from teacher.reward.predictor import RewardPredictor
from teacher.settings.options import RewardConfig
from teacher.settings.teachers import ErrorModel
from tests.teacher.conftest import make_segment


def test_the_larger_true_return_is_preferred(ledger: Ledger) -> None:
    teacher = SyntheticTeacher(ledger, seed=1)
    low, high = make_segment(1, true_return=-1.0), make_segment(2, true_return=3.0)
    teacher.submit([(high, low), (low, high), (low, make_segment(3, true_return=-1.0))], "training", 8)
    preferences = teacher.receive()
    assert [preference.value for preference in preferences] == [1.0, 0.0, 0.5]
    assert preferences[0].first.true_return == pytest.approx(3.0)
    assert preferences[1].first.true_return == pytest.approx(-1.0)


def test_answers_are_returned_once_and_kept(ledger: Ledger) -> None:
    teacher = SyntheticTeacher(ledger, seed=1)
    teacher.submit([(make_segment(1), make_segment(2))], "pretraining", 0)
    teacher.submit([(make_segment(3), make_segment(4))], "training", 2048)
    received = teacher.receive()
    assert teacher.receive() == []
    assert [preference.uuid for preference in received] == [kept.uuid for kept in preferences_in(ledger)]
    assert (ledger.asked(), ledger.usable(), ledger.open()) == (2, 2, 0)
    assert (ledger.asked("pretraining"), ledger.asked("training")) == (1, 1)
    assert ledger.unfinished() == []


def test_a_run_repeats_its_uuids_and_never_uses_one_twice(tmp_path: Path) -> None:
    pairs = [(make_segment(seed), make_segment(seed + 1)) for seed in range(4)]
    uuids = []
    for name, seed in [("a", 1), ("b", 1), ("c", 2)]:
        ledger = Ledger(tmp_path / name)
        SyntheticTeacher(ledger, seed).submit(pairs[:2], "training", 0)
        SyntheticTeacher(ledger, seed).submit(pairs[2:], "training", 0)  # as after a resume
        uuids.append([preference.uuid for preference in preferences_in(ledger)])
        ledger.close()
    assert uuids[0] == uuids[1]
    assert len({*uuids[0], *uuids[2]}) == 8


def test_unanswered_labels_of_a_killed_run_are_answered(ledger: Ledger) -> None:
    low, high = make_segment(1, true_return=0.0), make_segment(2, true_return=1.0)
    comparison = Question(uuid4(), (low, high), "training", 64)
    ledger.write([comparison])
    teacher = SyntheticTeacher(ledger, seed=1)
    assert [(answer.uuid, answer.value) for answer in teacher.receive()] == [(comparison.uuid, 0.0)]
    assert (ledger.open(), ledger.usable()) == (0, 1)


def test_a_soft_answer_is_kept_as_a_probability(ledger: Ledger) -> None:
    first, second = make_segment(1), make_segment(2)
    for number, probability in enumerate([0.8, 0.3, 0.5]):
        judge: Judge = lambda _, __, answer=probability: answer  # type: ignore[misc]  # noqa: E731
        teacher = SyntheticTeacher(ledger, seed=number, judge=judge)
        teacher.submit([(first, second)], "training", 0)
        assert [answer.value for answer in teacher.receive()] == [probability]


def test_a_resumed_teacher_answers_as_if_it_had_gone_on(tmp_path: Path) -> None:
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


def test_answers_before_a_judge_fails_are_kept(ledger: Ledger) -> None:
    answers = iter(["first", "cant_tell"])
    judge: Judge = lambda *_: next(answers)  # type: ignore[assignment]  # noqa: E731
    teacher = SyntheticTeacher(ledger, seed=1, judge=judge)
    with pytest.raises(BehaviorError, match="failed: StopIteration"):
        teacher.submit([(make_segment(seed), make_segment(seed + 1)) for seed in range(4)], "training", 0)
    assert [answer.value for answer in teacher.receive()] == [1.0, None]
    assert (ledger.cursor, ledger.open(), ledger.usable()) == (2, 2, 1)


def test_it_is_never_paused_or_finished(ledger: Ledger) -> None:
    assert SyntheticTeacher(ledger, seed=1).status.state == "running"


@pytest.fixture
def learner(tmp_path: Path) -> Iterator[PreferenceLearning]:
    segment = make_segment(0)
    spaces = (Box(-9, 9, segment.observations.shape[1:]), Box(-9, 9, segment.actions.shape[1:]))
    predictor = RewardPredictor(*spaces, RewardConfig(hidden=8), seed=1)
    ledger = Ledger(tmp_path / "ledger.sqlite3")
    collector: Any = SimpleNamespace(receive=list)
    pool, schedule = SegmentPool(len(segment)), AllAtOnce(1)
    yield PreferenceLearning(ledger, PreferenceDataset(), pool, schedule, predictor, collector=collector)
    ledger.close()


def hear(learner: PreferenceLearning, preferences: Sequence[Preference]) -> None:
    learner.collector.receive = lambda: list(preferences)  # type: ignore[method-assign]
    assert learner.receive()


def test_fresh_labels_are_held_out(learner: PreferenceLearning) -> None:
    def labels(count: int, start: int, value: float | None = 1.0) -> list[Preference]:
        """About pairs of which ``first`` is the better one for the predictor, if it was fitted."""
        found = []
        for seed in range(start, start + count):
            segments = [make_segment(2 * seed), make_segment(2 * seed + 1)]
            worse, better = sorted(
                segments, key=lambda segment: learner.predictor.step_rewards(segment).sum()
            )
            found.append(Preference(uuid4(), better, worse, value))
        return found

    hear(learner, labels(20, start=0))
    assert math.isnan(learner.fresh_accuracy)  # there was no predictor yet
    learner.fit(max_updates=20)
    right = labels(6, start=100, value=0.9)
    hear(learner, [*right, *labels(3, start=200, value=0.0)])
    assert math.isnan(learner.fresh_accuracy)  # nine are few
    hear(learner, [*labels(1, start=300, value=0.3), *labels(1, 400, value=0.5), *labels(1, 500, value=None)])
    assert learner.fresh_accuracy == pytest.approx(6 / 10)
    hear(learner, right)  # of which nothing is new
    assert learner.fresh_accuracy == pytest.approx(6 / 10)
    hear(learner, labels(100, start=600))
    assert learner.fresh_accuracy == 1.0
