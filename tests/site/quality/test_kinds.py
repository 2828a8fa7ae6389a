"""Kinds of questions: each choice has one meaning, and labelers who disagree meet."""

import itertools
import random

import pytest

from human_feedback_site.feedback.kinds import KINDS, Kind, on_screen
from human_feedback_site.feedback.quality.aggregation import majority, weighed


@pytest.mark.parametrize("n_labels", range(4))
@pytest.mark.parametrize("kind", [each for each in KINDS.values() if each.size > 1])
def test_a_verdict_does_not_depend_on_which_clip_is_called_first(kind: Kind, n_labels: int) -> None:
    mirror = {
        kind.meaning_of(each, swapped=False): kind.meaning_of(each, swapped=True) for each in kind.choices
    }
    rng = random.Random(n_labels)
    given = list(itertools.product(kind.answers, repeat=n_labels))
    for answers in rng.sample(given, min(len(given), 200)):
        verdict = majority(kind, answers)
        mirrored = majority(kind, [mirror[answer] for answer in answers])
        assert mirrored.n_labels == verdict.n_labels == n_labels
        if verdict.probability is not None:
            assert mirrored.probability == pytest.approx(1 - verdict.probability)
        if kind.name != "best_worst":  # where several items are the best, it is the first of them
            assert mirrored.decision == (mirror[verdict.decision] if verdict.decision else None)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("swapped", [False, True])
def test_each_choice_has_one_meaning(kind: Kind, swapped: bool) -> None:
    meanings = {choice: kind.meaning_of(choice, swapped=swapped) for choice in kind.choices}
    assert sorted(meanings.values()) == sorted(kind.answers)
    for choice, answer in meanings.items():
        assert kind.choice_for(answer, swapped=swapped) == choice
        best, place = kind.best_of(answer), kind.best_of(choice)
        if best is None or place is None:
            assert best is place
        else:  # the item that is called the best is where it was pressed
            assert on_screen(range(kind.size), swapped=swapped)[place] == best


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_one_answer_and_unanimous_ones_are_the_decision(kind: Kind) -> None:
    for count in (1, 2, 3):
        for answer in kind.classes:
            for verdict in (majority(kind, [answer] * count), weighed(kind, [(answer, None)] * count, None)):
                assert verdict.decision == answer
                assert (verdict.probability is None) == (kind.size != 2)


@pytest.mark.parametrize(
    ("kind", "answers", "expected"),
    [
        ("graded", ["clearly_first", "slightly_first"], "slightly_first"),
        ("graded", ["clearly_second", "slightly_second"], "slightly_second"),
        ("graded", ["clearly_first", "clearly_second"], "equal"),
        ("graded", ["clearly_first", "equal", "equal"], "equal"),
        ("rating", ["1", "2"], "2"),
        ("rating", ["5", "4"], "4"),
        ("rating", ["2", "3"], "3"),
        ("rating", ["2", "5"], "3"),
        ("rating", ["5", "5", "1"], "5"),
        ("rating", ["cant_tell", "4", "4", "1"], "4"),
        ("best_worst", ["1>4", "1>3", "2>4"], "1>4"),
        ("best_worst", ["1>4", "4>1"], "cant_tell"),
    ],
)
def test_labelers_who_disagree_meet(kind: str, answers: list[str], expected: str) -> None:
    assert majority(KINDS[kind], answers).decision == expected
    assert majority(KINDS[kind], answers[::-1]).decision == expected


@pytest.mark.parametrize(
    ("kind", "known", "passing"),
    [
        ("pair", "first", {"first"}),
        ("graded", "clearly_second", {"slightly_second", "clearly_second"}),
        ("graded", "equal", {"equal"}),
        ("rating", "1", {"1", "2"}),
        ("rating", "3", {"2", "3", "4"}),
        ("best_worst", "1>4", {"1>4", "1>2", "1>3", "2>4", "3>4"}),
    ],
)
def test_attention_checks_are_passed_by_answers_close_to_the_known_one(
    kind: str, known: str, passing: set[str]
) -> None:
    assert {answer for answer in KINDS[kind].answers if KINDS[kind].passes(answer, known)} == passing
