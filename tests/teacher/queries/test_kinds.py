"""Kinds of questions: selection, scripted answers, and the preferences that follow."""

import contextlib
import math
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from uuid import UUID, uuid4

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from rich.console import Console

from agents.numerics.correlation import rank_correlation
from teacher.data.decisions import FeedItem, LabelerAnswer
from teacher.data.ledger import Ledger, Question
from teacher.data.preferences import Preference, PreferenceDataset
from teacher.data.segment_pool import SegmentPool
from teacher.data.segments import Segment
from teacher.errors import ConfigError, DataError
from teacher.queries.collector import SyntheticTeacher
from teacher.queries.judges import ScriptedTeacher, oracle
from teacher.queries.kinds import KINDS, Follower, preferences_in
from teacher.queries.kinds.rating import PARTNERS, SETTLING, VALUES
from teacher.settings.config import TeachConfig
from teacher.settings.options import KindName, QueryConfig
from teacher.settings.teachers import Answerer, ErrorModel, preference
from teacher.training.builder import open_run
from teacher.training.loop import train
from tests.teacher.conftest import MEMORY, make_segment

NAMES: list[KindName] = ["pair", "graded", "rating", "best_worst"]


def answered(
    ledger: Ledger, kind: KindName, error_model: ErrorModel, returns: Sequence[float]
) -> list[Preference]:
    """Ask questions about segments with these returns, in order; return the preferences that follow."""
    items = [make_segment(number, true_return=value) for number, value in enumerate(returns)]
    size = KINDS[kind].size
    questions = [tuple(items[at : at + size]) for at in range(0, len(items), size)]
    collector = SyntheticTeacher(ledger, 1, ScriptedTeacher(error_model, 1))
    collector.submit(questions, "training", 0, kind)
    return collector.receive()


def decisions(ledger: Ledger) -> list[str | None]:
    return [decision for _, decision in ledger.outcomes(0).values()]


def is_right(each: Preference) -> bool:
    difference = each.first.true_return - each.second.true_return
    assert each.value is not None
    return bool(np.sign(difference) == np.sign(each.value - 0.5))


@pytest.mark.parametrize("kind", NAMES)
def test_a_perfect_teacher_implies_true_preferences(ledger: Ledger, kind: KindName) -> None:
    returns = np.random.default_rng(1).normal(size=240).tolist()
    preferences = [each for each in answered(ledger, kind, ErrorModel(), returns) if each.value is not None]
    strict = [each for each in preferences if each.value != 0.5]
    assert ledger.usable() == 240 // KINDS[kind].size
    assert len(preferences) == {"pair": 120, "graded": 120, "rating": 1160, "best_worst": 300}[kind]
    # A rater's scale is what was seen so far, which changes at first.
    assert np.mean(list(map(is_right, strict))) >= (0.97 if kind == "rating" else 1)
    wrong = answered(ledger, kind, ErrorModel(mistake=1.0), returns)
    if kind != "rating":  # whose preferences depend on earlier ones, which are right
        assert not any(is_right(each) for each in wrong if each.value not in {None, 0.5})


def test_grades_tell_differences_above_the_median(ledger: Ledger) -> None:
    differences = [1.0, 3.0, 2.0, 4.0, 0.5, 0.0]
    returns = [value for difference in differences for value in (difference, 0.0)]
    preferences = answered(ledger, "graded", ErrorModel(), returns)
    expected = ["clearly_first", "clearly_first", "clearly_first", "clearly_first", "slightly_first", "equal"]
    assert decisions(ledger) == expected
    assert [each.value for each in preferences] == [0.95, 0.95, 0.95, 0.95, 0.7, 0.5]
    assert [each.weight for each in preferences] == [1.0] * 6


def test_best_and_worst_of_four_give_five_pairs(ledger: Ledger) -> None:
    preferences = answered(ledger, "best_worst", ErrorModel(), [1, 4, 0, 2, 3, 3, 3, 3])
    assert decisions(ledger) == ["2>3", "cant_tell"]
    pairs = dict(zip(combinations(range(4), 2), (each.value for each in preferences), strict=False))
    assert pairs == {(0, 1): 0, (0, 2): 1, (0, 3): None, (1, 2): 1, (1, 3): 1, (2, 3): 0}
    assert [each.value for each in preferences[6:]] == [None] * 6
    dataset = PreferenceDataset()
    dataset.upsert(preferences)
    assert (len(dataset), dataset.labels) == (5, 1)


def test_ratings_are_fifths_of_what_was_seen(ledger: Ledger) -> None:
    returns = [0.0, 1.0, -1.0, *np.linspace(-5, 5, 100), 9.0, -9.0, 0.0]
    preferences = answered(ledger, "rating", ErrorModel(), returns)
    ratings = decisions(ledger)
    assert ratings[:3] == ["3", "4", "1"]  # 1 of 1, 2 of 2 and the lowest of 3, by the middle of each rank
    assert ratings[-3:] == ["5", "1", "3"]
    by_rating: dict[UUID | None, list[Preference]] = {}
    for each in preferences:
        by_rating.setdefault(each.question, []).append(each)
    assert [len(own) for own in by_rating.values()] == [*range(1, PARTNERS), *[PARTNERS] * 96]
    assert {each.second.recipe.seed for each in preferences[:10]} == set(range(SETTLING, SETTLING + 4))
    for own in by_rating.values():
        assert sum(each.weight for each in own) == pytest.approx(1)
        assert len({each.first.recipe.seed for each in own}) == 1
    last = by_rating[preferences[-1].question]
    expected = [0.5 if rating == "3" else VALUES[2] for rating in ratings[-1 - PARTNERS : -1]]
    assert [max(each.value or 0, 1 - (each.value or 0)) for each in last] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("kind", "answer", "reversed_"),
    [
        ("pair", "second", "first"),
        ("graded", "clearly_second", "clearly_first"),
        ("best_worst", "4>1", "1>4"),
        ("rating", "5", "1"),
    ],
)
def test_mistakes_reverse_an_answer(memory_path: Path, kind: KindName, answer: str, reversed_: str) -> None:
    for name, mistake, expected in (("right", 0.0, answer), ("wrong", 1.0, reversed_)):
        with_errors = Ledger(memory_path / name)
        returns = [float(value) for value in range(8)]
        answered(with_errors, kind, ErrorModel(mistake=mistake), returns)
        assert decisions(with_errors)[-1] == expected
        with_errors.close()


@pytest.mark.parametrize("kind", NAMES)
def test_low_returns_are_skipped(ledger: Ledger, kind: KindName) -> None:
    preferences = answered(ledger, kind, ErrorModel(skip=10.0), [1.0, 2.0, 3.0, 4.0])
    assert set(decisions(ledger)) == {"cant_tell"}
    assert [each for each in preferences if each.value is not None] == []
    assert list(preferences_in(ledger)) == []


@pytest.mark.parametrize("margin", [0.2, 1.0, 3.0])
def test_noise_on_returns_gives_bradley_terry_probabilities(margin: float) -> None:
    """The larger of two returns with Gumbel noise has a logistic probability (Yellott 1977)."""
    answerer = Answerer(ErrorModel(noisy=0.7), seed=1)
    seen = [answerer.perceive([margin, 0.0], str(key)) for key in range(20_000)]
    chosen = np.mean([each is not None and each.returns[0] > each.returns[1] for each in seen])
    assert chosen == pytest.approx(preference(margin, 0.7), abs=0.01)


@pytest.mark.parametrize("kind", ["graded", "rating", "best_worst"])
def test_judges_of_pairs_are_refused(ledger: Ledger, kind: KindName) -> None:
    items = tuple(make_segment(number) for number in range(KINDS[kind].size))
    collector = SyntheticTeacher(ledger, 1, oracle)
    with pytest.raises(ConfigError, match=f"^{kind} questions need a scripted teacher"):
        collector.submit([items], "training", 0, kind)
    assert (ledger.total(), ledger.open()) == (1, 1)


_LEVELS = st.sampled_from([None, "cant_tell", "1", "2", "3", "4", "5"])


@settings(max_examples=40, deadline=None)
@given(events=st.lists(st.tuples(st.integers(0, 14), _LEVELS), max_size=40), restart=st.integers(0, 40))
def test_changes_of_ratings_add_up_to_those_from_the_start(
    events: Sequence[tuple[int, str | None]], restart: int
) -> None:
    """Also if answers are changed and withdrawn in any order, and in a process that began later."""
    with rated_questions(15) as (ledger, rated):
        dataset, follower = PreferenceDataset(), Follower(ledger)
        for seq, (number, answer) in enumerate(events, 1):
            if seq == restart:
                follower = Follower(ledger)
            ledger.record([FeedItem(seq, rated[number], answer, None, 1)], cursor=seq)
            dataset.upsert(follower.changes(ledger.answered([rated[number]])))
        assert content(dataset) == content(from_start(ledger))
        newest = {number: (seq, answer) for seq, (number, answer) in enumerate(events)}
        usable = [answer for _, answer in newest.values() if answer not in {None, "cant_tell"}]
        assert len(dataset) == sum(min(PARTNERS, earlier) for earlier in range(len(usable) - SETTLING))


@settings(max_examples=40, deadline=None)
@given(
    events=st.lists(st.tuples(st.integers(0, 8), st.integers(1, 3), _LEVELS), max_size=60),
    restart=st.integers(0, 60),
    read_at_once=st.integers(1, 5),
)
def test_ratings_are_compared_within_one_labelers_scale(
    events: Sequence[tuple[int, int, str | None]], restart: int, read_at_once: int
) -> None:
    """Against a simple model: what each labeler said, in order, as the site's feed tells it."""
    model: dict[int, dict[int, tuple[int, str]]] = {labeler: {} for labeler in range(1, 4)}
    with rated_questions(9) as (ledger, rated):
        dataset, follower, items = PreferenceDataset(), Follower(ledger), list[FeedItem]()
        for seq, (number, labeler, answer) in enumerate(events, 1):
            if (known := model[labeler].pop(number, None)) is not None and known[1] == answer:
                model[labeler][number] = known  # not changed
            elif answer is not None:
                model[labeler][number] = (seq, answer)
            given = [LabelerAnswer(each, own[number][1]) for each, own in model.items() if number in own]
            opinions = sorted(each.answer for each in given if each.answer != "cant_tell")
            decision = opinions[len(opinions) // 2] if opinions else "cant_tell" if given else None
            items.append(FeedItem(seq, rated[number], decision, None, len(given), None, tuple(given)))
            if seq == restart:
                follower = Follower(ledger)
            if len(items) == read_at_once or seq == len(events):
                ledger.record(items, cursor=seq)
                dataset.upsert(follower.changes(ledger.answered(item.comparison for item in items)))
                items.clear()
        assert content(dataset) == content(from_start(ledger))
        scales = [
            [
                number
                for number, (_, answer) in sorted(own.items(), key=lambda one: one[1][0])
                if answer != "cant_tell"
            ]
            for own in model.values()
        ]
        expected = [
            (rated[number], rated[earlier])
            for ratings in (scale[SETTLING:] for scale in scales)
            for at, number in enumerate(ratings)
            for earlier in ratings[max(0, at - PARTNERS) : at]
        ]
        assert len(dataset) == len(expected)
        if len(dataset):
            questions = {bytes(row): 0.0 for row in dataset.questions}
            for row, weight in zip(dataset.questions, dataset.weights, strict=True):
                questions[bytes(row)] += weight
            assert list(questions.values()) == pytest.approx([1.0] * len(questions))
            assert len(questions) == len({number for number, _ in expected})


@contextlib.contextmanager
def rated_questions(count: int) -> Iterator[tuple[Ledger, list[UUID]]]:
    """A ledger with this number of ratings asked for."""
    with (
        tempfile.TemporaryDirectory(dir=MEMORY) as folder,
        contextlib.closing(Ledger(Path(folder) / "ledger.sqlite3")) as ledger,
    ):
        rated = [Question(UUID(int=n), (make_segment(n),), "training", 0, "rating") for n in range(count)]
        ledger.write(rated)
        yield ledger, [question.uuid for question in rated]


def from_start(ledger: Ledger) -> PreferenceDataset:
    dataset = PreferenceDataset()
    dataset.upsert(preferences_in(ledger))
    return dataset


def test_two_labelers_compare_the_same_segments_on_their_own_scales() -> None:
    """One finds the last of seven clips better than the one before, the other worse."""
    told = {1: "1111124", 2: "5555542"}
    with rated_questions(7) as (ledger, rated):
        for seq, uuid in enumerate(rated, 1):
            answers = tuple(LabelerAnswer(labeler, levels[seq - 1]) for labeler, levels in told.items())
            ledger.record([FeedItem(seq, uuid, "3", None, 2, None, answers)], cursor=seq)
        first, second = preferences_in(ledger)
        assert first.uuid != second.uuid
        assert {first.question, second.question} == {rated[-1]}
        assert [(each.first.recipe.seed, each.second.recipe.seed) for each in (first, second)] == [(6, 5)] * 2
        assert [first.value, second.value] == pytest.approx([VALUES[2], 1 - VALUES[2]])
        assert [first.weight, second.weight] == [0.5, 0.5]
        # One of them takes it back.
        follower = Follower(ledger)
        ledger.record([FeedItem(9, rated[-1], "4", None, 1, None, (LabelerAnswer(1, "4"),))], cursor=9)
        changes = {each.uuid: each for each in follower.changes(ledger.answered([rated[-1]]))}
        assert (changes[second.uuid].value, changes[first.uuid].weight) == (None, 1.0)
        # An older item of the feed changes nothing.
        ledger.record([FeedItem(8, rated[-1], "1", None, 1, None, (LabelerAnswer(2, "1"),))], cursor=9)
        assert [answer for uuid, _, answer in ledger.answers("rating") if uuid == rated[-1]] == ["4"]


@pytest.mark.parametrize(
    ("kind", "answer"),
    [("rating", "6"), ("rating", "0"), ("best_worst", "1>1"), ("best_worst", "0>3"), ("graded", "first")],
)
def test_an_answer_that_the_kind_lacks_is_refused_in_one_line(
    ledger: Ledger, kind: KindName, answer: str
) -> None:
    items = tuple(make_segment(number) for number in range(KINDS[kind].size))
    ledger.write([question := Question(uuid4(), items, "training", 0, kind)])
    ledger.record([FeedItem(1, question.uuid, answer, 1.0 if answer == "first" else None, 1)], cursor=1)
    with pytest.raises(DataError, match=f"has the answer {answer} to a {kind} question, but the .*; update"):
        list(preferences_in(ledger))
    assert ledger.usable() == 1


def test_a_labelers_rating_that_does_not_exist_is_refused_in_one_line(ledger: Ledger) -> None:
    ledger.write([question := Question(uuid4(), (make_segment(1),), "training", 0, "rating")])
    answers = (LabelerAnswer(1, "9"),)
    ledger.record([FeedItem(1, question.uuid, "5", None, 1, None, answers)], cursor=1)
    with pytest.raises(DataError, match=rf"has the rating 9 of {question.uuid}; expected 1, 2, 3, 4, 5"):
        list(preferences_in(ledger))


@pytest.mark.parametrize("kind", NAMES)
def test_attention_checks_have_clear_answers(kind: KindName) -> None:
    pool = SegmentPool(6)
    pool.add([make_segment(seed, true_return=value) for seed, value in enumerate(range(100))])
    checks = KINDS[kind].checks(pool, 8, QueryConfig(recency=math.inf), lambda each: each.true_return)
    assert len(checks) == 8
    assert {*pool.asked} >= {items for items, _ in checks}
    answers = [answer for _, answer in checks]
    assert {*answers} <= {*KINDS[kind].answers}
    assert len({*answers}) > 1
    for items, answer in checks:
        returns = [item.true_return for item in items]
        assert KINDS[kind].fits(answer, returns)
        gaps = np.diff(sorted(returns))
        match kind:
            case "rating":
                assert returns[0] >= 80 if answer == "5" else returns[0] < 20
            case "best_worst":
                assert min(gaps[0], gaps[-1]) > 15
            case _:
                assert gaps[0] > 50


def content(dataset: PreferenceDataset) -> set[tuple[object, ...]]:
    if len(dataset) == 0:
        return set()
    columns = dataset.ids, dataset.questions, dataset.values, dataset.weights, dataset.true_returns
    return {tuple(map(bytes, row)) for row in zip(*columns, strict=True)}


@pytest.mark.parametrize("kind", NAMES)
def test_questions_come_back_from_the_ledger(ledger: Ledger, memory_path: Path, kind: KindName) -> None:
    """Ledgers of pairs keep the format of 0.1.0."""
    items = tuple(make_segment(number) for number in range(KINDS[kind].size))
    ledger.write([Question(uuid4(), items, "pretraining", 3, kind)])
    ledger.write([question := Question(uuid4(), items, "training", 7, kind)])
    ledger.write([question])
    _, found = ledger.unfinished()
    assert (found.uuid, found.kind, found.phase, found.step) == (question.uuid, kind, "training", 7)
    assert [item.recipe.seed for item in found.items] == list(range(len(items)))
    assert ledger.segment_length() == 6
    with sqlite3.connect(memory_path / "ledger.sqlite3") as file:
        assert file.execute("PRAGMA user_version").fetchone() == (1 if kind == "pair" else 2,)
    file.close()


def test_a_kind_of_a_later_version_is_refused_in_one_line(ledger: Ledger) -> None:
    ledger.write([question := Question(uuid4(), (make_segment(1),), "training", 0, "sketch")])
    ledger.decide([(question.uuid, "a circle", None)])
    with pytest.raises(DataError, match=r"questions of the kind sketch, but .* knows only pair, .*update"):
        list(preferences_in(ledger))


class Members:
    """An ensemble with given returns of each segment, identified by its seed."""

    def __init__(self, returns: NDArray[np.float64]) -> None:
        self.returns = returns

    def member_returns(self, segments: Sequence[Segment]) -> NDArray[np.float64]:
        return self.returns[:, [segment.recipe.seed for segment in segments]]


@pytest.mark.parametrize("kind", ["rating", "best_worst"])
def test_no_group_is_asked_about_twice_and_none_has_a_segment_twice(kind: KindName) -> None:
    pool = SegmentPool(6)
    pool.add([make_segment(seed) for seed in range(9)])
    selected = [group for _ in range(3) for group in KINDS[kind].select(pool, 2, None, None)]
    assert len(selected) == len(set(map(frozenset, selected))) == 6
    assert all(len(set(group)) == KINDS[kind].size for group in selected)
    used = Counter(segment for group in selected[:2] for segment in group)
    assert max(used.values()) == 1  # in one round, if there are enough
    assert set(selected) <= set(pool.asked)
    rest = KINDS[kind].select(pool, 1000, None, None)
    assert len(rest) <= math.comb(9, KINDS[kind].size) - 6
    assert kind != "rating" or len(rest) == 3
    assert KINDS["best_worst"].select(SegmentPool(6), 1, None, None) == []


def test_active_selection_takes_the_groups_that_members_disagree_about() -> None:
    random = np.random.default_rng(2)
    returns = random.normal(size=(3, 200)) * random.uniform(0, 3, size=200) ** 2
    config, members = QueryConfig(selection="active", candidates=20), Members(returns)  # all segments
    centered = returns - returns.mean(axis=1, keepdims=True)
    for kind, size in (("rating", 1), ("best_worst", 4)):
        pool = SegmentPool(6)
        pool.add([make_segment(seed) for seed in range(200)])
        chosen = [
            [segment.recipe.seed for segment in group]
            for group in KINDS[kind].select(pool, 10, config, members)
        ]

        def disagreement(group: Sequence[int]) -> float:
            if len(group) == 1:
                return float(centered[:, group[0]].var())
            logits = [returns[:, one] - returns[:, other] for one, other in combinations(group, 2)]
            return float(np.mean([(1 / (1 + np.exp(-each))).var() for each in logits]))

        at_random = [random.permutation(200)[:size].tolist() for _ in range(400)]
        typical = np.quantile([disagreement(group) for group in at_random], 0.8)
        assert min(disagreement(group) for group in chosen) > typical
        assert [disagreement(group) for group in chosen] == sorted(
            (disagreement(group) for group in chosen), reverse=True
        )


@pytest.mark.parametrize("kind", ["graded", "rating", "best_worst"])
def test_a_run_learns_from_any_kind(memory_path: Path, kind: KindName) -> None:
    config = TeachConfig(
        env_id="teacher/ShortReacher-v1", predictor="synth", name="x", feedback=kind, n_labels=40,
        num_timesteps=3000, no_videos=True, runs_dir=str(memory_path),
    )  # fmt: skip
    with open_run(config, Console(quiet=True)) as run:
        assert train(run)
        assert run.teaching is not None
        assert run.teaching.ledger.usable() == 40
        segments = run.teaching.pool.segments
        predicted = run.teaching.predictor.segment_returns(segments)
        assert rank_correlation(predicted, np.array([each.true_return for each in segments])) > 0.5
        expected = PreferenceDataset()
        expected.upsert(preferences_in(run.teaching.ledger))
        assert content(run.teaching.dataset) == content(expected)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"teacher": "soft:1"}, "soft gives probabilities of pairs"),
        ({"queries": QueryConfig(diversity=3)}, "--queries.diversity: compares pairs"),
        (
            {"predictor": "human", "feedback": "graded", "lowest_rating": "falls"},
            "--lowest_rating: has no effect without --feedback=rating; leave it out; got 'falls'",
        ),
        ({"predictor": "human", "highest_rating": "x" * 41}, "--highest_rating: expected 1 to 40 char"),
        ({"predictor": "rl", "n_labels": None}, "--feedback: has no effect with -p rl"),
    ],
)
def test_settings_that_do_not_fit_the_kind_are_refused(changes: dict[str, object], problem: str) -> None:
    values = {
        "env_id": "Pendulum-v1",
        "predictor": "synth",
        "name": "x",
        "n_labels": 40,
        "feedback": "rating",
    }
    with pytest.raises(ConfigError, match=problem):
        TeachConfig(**{**values, "feedback": "rating", **changes})  # type: ignore[arg-type]
