"""Decisions and agreement from several labels, against independent numbers and the database."""

import itertools
import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from human_feedback_site.feedback.kinds import KINDS, PAIR, Kind
from human_feedback_site.feedback.models import (
    Comparison,
    Decision,
    Experiment,
    Label,
    Participation,
)
from human_feedback_site.feedback.quality import aggregation
from human_feedback_site.feedback.quality.aggregation import (
    dawid_skene,
    majority,
    pseudo_counts,
    weighed,
)
from human_feedback_site.feedback.quality.agreement import Rate, krippendorff_alpha, wilson_interval
from human_feedback_site.feedback.selectors import crowd
from human_feedback_site.feedback.services import aggregate, chores, moderation
from tests.site.conftest import Invited, Trainer, side_of

NO_COUNTS: aggregation.Matrix = ((0.0,) * 3, (0.0,) * 3, (0.0,) * 3)
Vote = tuple[int, int, str]


def crowd_votes(seed: int, items: int, labelers: int, spread: float = 0.1) -> list[Vote]:
    """Votes of labelers of whom each is worse than the one before."""
    rng = random.Random(seed)
    votes = []
    for item in range(items):
        truth = rng.choice(PAIR.classes)
        for labeler in rng.sample(range(labelers), rng.choice([2, 3])):
            right = rng.random() < 0.9 - spread * labeler
            votes.append((item, labeler, truth if right else rng.choice(PAIR.classes)))
    return votes


def recurrence(
    votes: Sequence[Vote], steps: int, pseudo: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Dawid and Skene as in their paper, on a dense array [item, labeler, answer]."""
    items, labelers = 1 + max(item for item, _, _ in votes), 1 + max(labeler for _, labeler, _ in votes)
    said = np.zeros((items, labelers, 3))
    for item, labeler, outcome in votes:
        said[item, labeler, PAIR.classes.index(outcome)] = 1
    truth = said.sum(1) / said.sum((1, 2))[:, None]

    def maximise() -> tuple[np.ndarray, np.ndarray]:
        counts = np.maximum(np.einsum("it,ila->lta", truth, said) + pseudo, 1e-10)
        return truth.mean(0), counts / counts.sum(2, keepdims=True)

    prior, confusion = maximise()
    for _ in range(steps):
        likelihood = np.exp(np.einsum("ila,lta->it", said, np.log(confusion)))
        truth = likelihood * prior
        truth /= truth.sum(1, keepdims=True)
        prior, confusion = maximise()
    return truth, confusion, prior


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("steps", [1, 4, 25])
@pytest.mark.parametrize("pseudo", [NO_COUNTS, None], ids=["plain", "with counts"])
def test_em_matches_dawid_and_skene(seed: int, steps: int, pseudo: aggregation.Matrix | None) -> None:
    votes = crowd_votes(seed, items=60, labelers=7)
    found = dawid_skene(votes, assumed=pseudo, max_iterations=steps, tolerance=-1.0)
    truth, confusion, prior = recurrence(votes, steps, np.array(pseudo or pseudo_counts(3)))
    assert found.iterations == steps
    np.testing.assert_allclose([found.posteriors[item] for item in range(60)], truth, atol=1e-8)
    np.testing.assert_allclose([found.confusion[labeler] for labeler in range(7)], confusion, atol=1e-8)
    np.testing.assert_allclose(found.prior, prior, atol=1e-8)


def test_em_matches_crowd_kit() -> None:
    """``DawidSkene(n_iter=10, tol=-1)`` of crowd-kit 1.4.2 on these votes, three of each item."""
    answers = "ssseeessseeeeffseseeesefeseeeeeffsesffeeeefsfefsfffeeeefffefsssssssesssseeesefeeessffffffe"
    labelers = "243103014103140142310024310031410230304401230421320013312231320201231032421134324431432140"
    names = {name[0]: name for name in PAIR.classes}
    votes = [(n // 3, int(labelers[n]), names[answers[n]]) for n in range(90)]
    found = dawid_skene(votes, assumed=NO_COUNTS, max_iterations=10, tolerance=-1.0)
    of_crowd_kit = {
        3: (0.016898026, 0.983101974, 0.0),
        12: (1.0, 0.0, 0.0),
        15: (0.997909352, 0.002084009, 6.639e-06),
        18: (0.999925705, 7.3275e-05, 1.02e-06),
        21: (0.0, 0.000168928, 0.999831072),
        27: (8e-08, 0.0, 0.99999992),
    }
    for item, expected in of_crowd_kit.items():
        assert found.posteriors[item] == pytest.approx(expected, abs=1e-8)
    assert found.prior == pytest.approx((0.352280145, 0.347972594, 0.299747261), abs=1e-8)


def test_em_stops_when_converged() -> None:
    votes = crowd_votes(1, items=80, labelers=5)
    found = dawid_skene(votes)
    assert 1 < found.iterations < 100
    further = dawid_skene(votes, max_iterations=found.iterations + 50, tolerance=-1.0)
    for item, posterior in found.posteriors.items():
        assert posterior == pytest.approx(further.posteriors[item], abs=2e-3)


def test_cant_tell_is_a_missing_label() -> None:
    votes = crowd_votes(2, items=30, labelers=4)
    silent = [*votes, *((item, 9, "cant_tell") for item in range(30)), (99, 1, "cant_tell")]
    assert dawid_skene(silent) == dawid_skene(votes)


def test_gold_labels_reveal_a_wrong_majority() -> None:
    rng = random.Random(3)
    opposite = {"first": "second", "second": "first", "equal": "equal"}
    votes, truths = [], {}
    for item in range(60):
        truths[item] = rng.choice(("first", "second"))
        votes += [(item, "honest", truths[item])]
        votes += [(item, liar, opposite[truths[item]]) for liar in ("one", "two")]
    known = {item: truths[item] for item in range(12)}
    found = dawid_skene(votes, known=known)
    for item, truth in truths.items():
        assert PAIR.most_probable(found.posteriors[item]) == truth
    assert found.confusion["honest"][0][0] > 0.8
    assert found.confusion["one"][0][0] < 0.2


@pytest.mark.parametrize("seed", range(3))
def test_em_is_symmetric_in_first_and_second(seed: int) -> None:
    votes = crowd_votes(seed, items=40, labelers=5)
    mirror = {"first": "second", "second": "first"}
    one = dawid_skene(votes)
    other = dawid_skene([(item, labeler, mirror.get(said, said)) for item, labeler, said in votes])
    for item, posterior in one.posteriors.items():
        assert other.posteriors[item] == pytest.approx(posterior[::-1], abs=1e-9)


@pytest.mark.parametrize(
    "answers", [["first"], ["equal", "first"], ["second", "second", "first"], ["equal"] * 2]
)
def test_equally_good_labelers_decide_by_majority(answers: list[str]) -> None:
    alike = weighed(PAIR, [(answer, None) for answer in answers], prior=None)
    likelihood = [1.0, 1.0, 1.0]
    for answer in answers:
        likelihood = [
            each * (4 / 6 if truth == answer else 1 / 6)
            for each, truth in zip(likelihood, PAIR.classes, strict=True)
        ]
    first, equal, _ = likelihood
    assert alike.probability == pytest.approx((first + equal / 2) / sum(likelihood))
    if len(set(answers)) == 1:
        assert alike.decision == answers[0] == majority(PAIR, answers).decision


def test_better_labeler_has_more_weight() -> None:
    good = ((0.9, 0.05, 0.05), (0.05, 0.9, 0.05), (0.05, 0.05, 0.9))
    poor = ((0.4, 0.3, 0.3), (0.3, 0.4, 0.3), (0.3, 0.3, 0.4))
    verdict = weighed(PAIR, [("first", good), ("second", poor), ("second", poor)], prior=None)
    assert verdict.decision == "first"
    likelihood = (0.9 * 0.3 * 0.3, 0.05 * 0.3 * 0.3, 0.05 * 0.4 * 0.4)
    assert verdict.probability == pytest.approx((likelihood[0] + likelihood[1] / 2) / sum(likelihood))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("rule", ["majority", "weighed"])
def test_no_probability_without_votes(kind: Kind, rule: str) -> None:
    def decide(n_labels: int) -> aggregation.Verdict:
        answers = ["cant_tell"] * n_labels
        if rule == "majority":
            return majority(kind, answers)
        return weighed(kind, [(answer, None) for answer in answers], None)

    assert decide(2) == aggregation.Verdict("cant_tell", None, 2)
    assert decide(0) == aggregation.Verdict(None, None, 0)


@pytest.mark.parametrize("name", ["graded", "rating", "best_worst"])
def test_em_finds_careless_labelers_of_any_kind(name: str) -> None:
    rng, classes = random.Random(5), KINDS[name].classes
    truths = {item: rng.choice(classes) for item in range(150)}
    votes = [
        (item, labeler, truth if rng.random() < right else rng.choice(classes))
        for item, truth in truths.items()
        for labeler, right in (("good", 0.9), ("fair", 0.7), ("other", 0.7), ("careless", 0.1))
    ]
    found = dawid_skene(votes, classes=classes)
    rates = {
        labeler: sum(row[at] for at, row in enumerate(matrix)) / len(classes)
        for labeler, matrix in found.confusion.items()
    }
    assert rates["good"] > rates["fair"] > rates["careless"]
    decided = {item: KINDS[name].most_probable(shares) for item, shares in found.posteriors.items()}
    right = sum(decided[item] == truth for item, truth in truths.items())
    agreed = sum(said == truths[item] for item, labeler, said in votes if labeler == "fair")
    assert right > agreed
    assert right > 0.85 * len(truths)
    for matrix in found.confusion.values():
        np.testing.assert_allclose(np.sum(matrix, axis=1), 1.0)


def test_no_votes_give_no_estimate() -> None:
    found = dawid_skene([])
    assert (found.posteriors, found.confusion) == ({}, {})


@pytest.fixture
def judge(trainer: Trainer, invite: Invited) -> Callable[..., None]:
    """Let a labeler of that name answer everything there is by a rule: UUID to outcome."""

    def judge(name: str, rule: Callable[[str], str]) -> None:
        browser = invite(name)
        while leases := browser.lease(5):
            for lease in leases:
                outcome = rule(lease["comparison"])
                side = side_of(lease, outcome) if outcome in {"first", "second"} else outcome
                browser.answer(lease, side)

    return judge


@pytest.fixture
def weighing(trainer: Trainer) -> Experiment:
    """Three labelers judge each pair, and are weighed."""
    trainer.overlap(3)
    Experiment.objects.update(aggregation="automatic")
    assert trainer.experiment.weighs_labelers
    return trainer.experiment


def newest(trainer: Trainer) -> dict[str, Any]:
    items = trainer.decisions()["items"]
    return {item["comparison"]: (item["decision"], item["probability"]) for item in items}


def test_overlap_one_is_decided_by_the_one_label(trainer: Trainer, judge: Callable[..., None]) -> None:
    assert not trainer.experiment.weighs_labelers
    [uuid] = trainer.register()
    judge("ann", lambda _: "second")
    assert newest(trainer) == {uuid: ("second", 0.0)}


def test_unknown_labelers_equal(trainer: Trainer, weighing: Experiment, judge: Callable[..., None]) -> None:
    [uuid] = trainer.register()
    for name, outcome in (("ann", "first"), ("bea", "first"), ("cid", "second")):
        judge(name, lambda _, outcome=outcome: outcome)
    probabilities = [item["probability"] for item in trainer.decisions()["items"]]
    assert [round(probability, 3) for probability in probabilities] == [0.75, 0.917, 0.786]
    assert newest(trainer)[uuid][0] == "first"


@pytest.mark.both_databases
def test_chore_revises_decisions(trainer: Trainer, weighing: Experiment, judge: Callable[..., None]) -> None:
    uuids = trainer.register(20)
    truth = {uuid: "first" if number % 2 else "second" for number, uuid in enumerate(uuids)}
    opposite = {"first": "second", "second": "first"}
    judge("ann", truth.__getitem__)
    judge("bea", lambda uuid: "equal" if uuid == uuids[3] else truth[uuid])
    judge("liar", lambda uuid: opposite[truth[uuid]])
    before, last = newest(trainer), trainer.decisions()["last_seq"]
    assert max(abs(probability - 0.5) for _, probability in before.values()) < 0.4
    assert chores.weigh_labelers() == f"{len(trainer.decisions(last)['items'])} decisions revised"
    after = newest(trainer)
    assert {uuid: decision for uuid, (decision, _) in after.items()} == truth
    assert min(abs(probability - 0.5) for _, probability in after.values()) > 0.4
    seqs = [item["seq"] for item in trainer.decisions()["items"]]
    assert seqs == list(range(1, len(seqs) + 1))
    matrices: dict[str, Any] = dict(Participation.objects.values_list("labeler__name", "confusion"))
    assert matrices["ann"][0][0] > 0.7
    assert matrices["liar"][0][0] < 0.3
    assert chores.weigh_labelers() == "0 decisions revised"


@pytest.mark.both_databases
def test_a_new_label_is_weighed_at_once_by_what_its_labeler_turned_out_to_be(
    trainer: Trainer, weighing: Experiment, judge: Callable[..., None], invite: Invited
) -> None:
    trainer.register(12)
    for name, outcome in (("ann", "first"), ("bea", "first"), ("liar", "second")):
        judge(name, lambda _, outcome=outcome: outcome)
    aggregate.weigh_labelers(trainer.experiment)
    [uuid] = trainer.register()
    liar = invite("liar")
    [lease] = liar.lease()
    liar.answer(lease, side_of(lease, "second"))
    assert newest(trainer)[uuid][0] == "first"


def test_gold_beats_majority(trainer: Trainer, weighing: Experiment, judge: Callable[..., None]) -> None:
    known = trainer.register(10)
    judge("ann", lambda _: "first")
    for name in ("one", "two"):
        judge(name, lambda _: "second")
    moderation.make_gold(Comparison.objects.filter(uuid__in=known), "first")
    uuids = trainer.register(4)
    judge("ann", lambda _: "first")
    for name in ("one", "two"):
        judge(name, lambda _: "second")
    aggregate.weigh_labelers(trainer.experiment)
    assert {newest(trainer)[uuid][0] for uuid in uuids} == {"first"}


def test_undo_is_weighed(trainer: Trainer, weighing: Experiment, invite: Invited) -> None:
    [uuid] = trainer.register()
    ann, bea = invite("ann"), invite("bea")
    [lease] = ann.lease()
    ann.answer(lease, side_of(lease, "first"))
    alone = newest(trainer)[uuid]
    [lease] = bea.lease()
    label = bea.answer(lease, side_of(lease, "second"))
    assert newest(trainer)[uuid] == ("equal", pytest.approx(0.5))
    bea.undo(label)
    assert newest(trainer)[uuid] == (alone[0], pytest.approx(alone[1]))


def test_new_rule_decides_again(trainer: Trainer, weighing: Experiment, judge: Callable[..., None]) -> None:
    uuids = trainer.register(3)
    for name, outcome in (("ann", "first"), ("bea", "first"), ("cid", "second")):
        judge(name, lambda _, outcome=outcome: outcome)
    Experiment.objects.update(aggregation="majority")
    assert aggregate.revise_everything(trainer.experiment) == 3
    assert newest(trainer) == dict.fromkeys(uuids, ("first", pytest.approx(2 / 3)))


@pytest.mark.both_databases
def test_few_statements(trainer: Trainer, weighing: Experiment, judge: Callable[..., None]) -> None:
    counts = []
    for _ in range(2):
        trainer.register(15)
        for name, outcome in (("ann", "first"), ("bea", "second"), ("cid", "second")):
            judge(name, lambda _, outcome=outcome: outcome)
        with CaptureQueriesContext(connection) as captured:
            aggregate.weigh_labelers(trainer.experiment)
        counts.append(len(captured))
    assert counts[1] <= counts[0] + 2
    assert Decision.objects.count() == trainer.decisions()["last_seq"]


def alpha_by_pairs(units: Sequence[Sequence[str]]) -> float:
    """Krippendorff's definition, one pair of values after the other: 1 - observed / expected disagreement."""
    pairable = [unit for unit in units if len(unit) > 1]
    values = [value for unit in pairable for value in unit]
    observed = sum(
        sum(a != b for a, b in itertools.permutations(unit, 2)) / (len(unit) - 1) for unit in pairable
    ) / len(values)
    expected = sum(a != b for a, b in itertools.permutations(values, 2)) / (len(values) * (len(values) - 1))
    return 1 - observed / expected


def counted(units: Sequence[Sequence[str]], values: Sequence[str]) -> Counter[Sequence[int]]:
    return Counter(tuple(unit.count(value) for value in values) for unit in map(list, units))


def test_alpha_of_krippendorffs_example() -> None:
    """In *Computing Krippendorff's Alpha-Reliability* (2011), C: four observers, missing data, 0.743."""
    observers = ["123321412...", "1233224125.3", ".3332342251.", "12332441251."]
    units = [[row[unit] for row in observers if row[unit] != "."] for unit in range(12)]
    assert krippendorff_alpha(counted(units, "12345")) == pytest.approx(0.743, abs=5e-4)


@pytest.mark.parametrize("seed", range(5))
def test_alpha_matches_its_definition(seed: int) -> None:
    rng = random.Random(seed)
    units = [
        [rng.choice("aab" if rng.random() < 0.5 else "abc") for _ in range(rng.randrange(5))]
        for _ in range(25)
    ]
    assert krippendorff_alpha(counted(units, "abc")) == pytest.approx(alpha_by_pairs(units))


def test_alpha_needs_two_labels_of_a_comparison() -> None:
    assert krippendorff_alpha({}) is None
    assert krippendorff_alpha({(1, 0, 0): 9}) is None
    assert krippendorff_alpha({(2, 0, 0): 9}) is None
    assert krippendorff_alpha({(2, 0, 0): 9, (0, 2, 0): 4}) == 1.0


@pytest.mark.parametrize(("hits", "total"), [(7, 10), (0, 10), (10, 10), (512, 1000)])
def test_wilsons_interval(hits: int, total: int) -> None:
    from scipy.stats import binomtest  # takes as long to import as all else here

    expected = binomtest(hits, total).proportion_ci(method="wilson")
    assert wilson_interval(hits, total) == pytest.approx((expected.low, expected.high), abs=1e-9)
    assert wilson_interval(0, 0) == (0.0, 1.0)


@pytest.fixture
def labeled(trainer: Trainer, invite: Invited) -> Experiment:
    """Four labelers at overlap 3 with gold, repeats, withdrawals and all choices."""
    rng = random.Random(7)
    trainer.overlap(3)
    trainer.register(24)
    trainer.register(4, gold="first")
    Experiment.objects.update(gold_rate=0.2, repeat_rate=0.5, stop_failures=100)
    browsers = [invite(name) for name in ("ann", "bea", "cid", "dan")]
    for _ in range(20):
        for browser in browsers:
            for lease in browser.lease():
                choice = rng.choice(("left", "left", "right", "equal", "cant_tell"))
                label = browser.answer(lease, choice, response_ms=rng.randrange(500, 5000))
                if rng.random() < 0.1:
                    browser.answer(browser.undo(label)["lease"], "equal")
    return trainer.experiment


@pytest.mark.both_databases
def test_sql_counts_match_the_labels(labeled: Experiment) -> None:
    standing = list(Label.objects.filter(undo=None).select_related("comparison", "labeler"))
    opinions = [label for label in standing if label.status == "counted" and label.choice != "cant_tell"]
    units: dict[int, list[Any]] = defaultdict(list)
    for label in opinions:
        units[label.comparison_id].append(label)
    verdicts = [[str(label.answer) for label in unit] for unit in units.values()]
    found_together = crowd.agreement(labeled)
    assert found_together.alpha == pytest.approx(alpha_by_pairs(verdicts))
    found = {each.name: each for each in crowd.labelers(labeled)}
    assert list(found) == ["ann", "bea", "cid", "dan"]
    for name, quality in found.items():
        own = [label for label in standing if label.labeler.name == name]
        assert quality.answers == len(own)
        gold = [label for label in own if label.status == "gold"]
        assert quality.gold == Rate(sum(label.answer == "first" for label in gold), len(gold))
        sides = [label.choice for label in own if label.choice in {"left", "right"}]
        assert quality.side == Rate(sides.count("left"), len(sides))
        times = [label.response_ms for label in own if label.response_ms is not None]
        assert quality.seconds == pytest.approx(statistics.median(times) / 1000)
        assert quality.consensus == leave_one_out(units.values(), name)
        repeats = [label for label in own if label.status == "repeat"]
        before = {label.comparison_id: label.answer for label in own if label.status == "counted"}
        same = sum(before[label.comparison_id] == label.answer for label in repeats)
        assert quality.consistency == Rate(same, len(repeats))
    # Who is shown which of them is drawn, but nearly all are shown some.
    assert {"gold", "repeat"} <= {label.status for label in standing}


def leave_one_out(units: Any, name: str) -> Rate:
    hits = total = 0
    for unit in units:
        for label in unit:
            others = Counter(str(other.answer) for other in unit if other is not label).most_common(2)
            if label.labeler.name != name or not others or (len(others) > 1 and others[0][1] == others[1][1]):
                continue
            total += 1
            hits += others[0][0] == label.answer
    return Rate(hits, total)


def test_number_of_statements_is_constant(labeled: Experiment) -> None:
    with CaptureQueriesContext(connection) as captured:
        crowd.labelers(labeled)
        crowd.agreement(labeled)
    assert len(captured) <= 9


def test_nothing_is_shown_without_labels(trainer: Trainer) -> None:
    assert crowd.agreement(trainer.experiment) == crowd.Agreement(None, 0)
    assert crowd.labelers(trainer.experiment) == []
    assert not Comparison.objects.exists()
