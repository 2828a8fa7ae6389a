"""From several labels to one decision, against independent numbers, and what labelers' labels count."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from human_feedback_site.feedback.models import Comparison, Decision, Experiment, Outcome, Participation
from human_feedback_site.feedback.quality import aggregation
from human_feedback_site.feedback.quality.aggregation import (
    CLASSES,
    PSEUDO_COUNTS,
    UNKNOWN_LABELER,
    dawid_skene,
    evidence,
    majority,
    preference,
    total,
    vote,
    weighed,
)
from human_feedback_site.feedback.services import aggregate, chores, moderation
from tests.site.conftest import Browser, Trainer

NO_COUNTS: aggregation.Matrix = ((0.0,) * 3, (0.0,) * 3, (0.0,) * 3)
Vote = tuple[int, int, str]


def crowd(seed: int, items: int, labelers: int, spread: float = 0.1) -> list[Vote]:
    """Votes of labelers of whom each is worse than the one before."""
    rng = random.Random(seed)
    votes = []
    for item in range(items):
        truth = rng.choice(CLASSES)
        for labeler in rng.sample(range(labelers), rng.choice([2, 3])):
            right = rng.random() < 0.9 - spread * labeler
            votes.append((item, labeler, truth if right else rng.choice(CLASSES)))
    return votes


def recurrence(
    votes: Sequence[Vote], steps: int, pseudo: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Dawid and Skene as in their paper, on a dense array [item, labeler, answer]."""
    items, labelers = 1 + max(item for item, _, _ in votes), 1 + max(labeler for _, labeler, _ in votes)
    said = np.zeros((items, labelers, 3))
    for item, labeler, outcome in votes:
        said[item, labeler, CLASSES.index(outcome)] = 1
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
@pytest.mark.parametrize("pseudo", [NO_COUNTS, PSEUDO_COUNTS], ids=["plain", "with counts"])
def test_em_matches_dawid_and_skene(seed: int, steps: int, pseudo: aggregation.Matrix) -> None:
    votes = crowd(seed, items=60, labelers=7)
    found = dawid_skene(votes, pseudo_counts=pseudo, max_iterations=steps, tolerance=-1.0)
    truth, confusion, prior = recurrence(votes, steps, np.array(pseudo))
    assert found.iterations == steps
    np.testing.assert_allclose([found.posteriors[item] for item in range(60)], truth, atol=1e-8)
    np.testing.assert_allclose([found.confusion[labeler] for labeler in range(7)], confusion, atol=1e-8)
    np.testing.assert_allclose(found.prior, prior, atol=1e-8)


def test_em_matches_crowd_kit() -> None:
    """``DawidSkene(n_iter=10, tol=-1)`` of crowd-kit 1.4.2 on these votes, three of each item."""
    answers = "ssseeessseeeeffseseeesefeseeeeeffsesffeeeefsfefsfffeeeefffefsssssssesssseeesefeeessffffffe"
    labelers = "243103014103140142310024310031410230304401230421320013312231320201231032421134324431432140"
    names = {name[0]: name for name in CLASSES}
    votes = [(n // 3, int(labelers[n]), names[answers[n]]) for n in range(90)]
    found = dawid_skene(votes, pseudo_counts=NO_COUNTS, max_iterations=10, tolerance=-1.0)
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
    votes = crowd(1, items=80, labelers=5)
    found = dawid_skene(votes)
    assert 1 < found.iterations < 100
    further = dawid_skene(votes, max_iterations=found.iterations + 50, tolerance=-1.0)
    for item, posterior in found.posteriors.items():
        assert posterior == pytest.approx(further.posteriors[item], abs=2e-3)


def test_cant_tell_is_a_missing_label() -> None:
    votes = crowd(2, items=30, labelers=4)
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
        assert aggregation.most_probable(found.posteriors[item]) == truth
    assert found.confusion["honest"][0][0] > 0.8
    assert found.confusion["one"][0][0] < 0.2


@pytest.mark.parametrize("seed", range(3))
def test_em_is_symmetric_in_first_and_second(seed: int) -> None:
    votes = crowd(seed, items=40, labelers=5)
    mirror = {"first": "second", "second": "first"}
    one = dawid_skene(votes)
    other = dawid_skene([(item, labeler, mirror.get(said, said)) for item, labeler, said in votes])
    for item, posterior in one.posteriors.items():
        assert other.posteriors[item] == pytest.approx(posterior[::-1], abs=1e-9)


@pytest.mark.parametrize(
    "answers", [["first"], ["equal", "first"], ["second", "second", "first"], ["equal"] * 2]
)
def test_equally_good_labelers_decide_by_majority(answers: list[str]) -> None:
    scores = total(evidence(answer, UNKNOWN_LABELER) for answer in answers)
    alike = weighed(scores, len(answers), prior=None)
    if len(set(answers)) == 1:
        assert alike.decision == answers[0] == majority(total(map(vote, answers)), len(answers)).decision
    assert preference(aggregation.posterior_of(scores, aggregation.EVEN)) == alike.probability


def test_better_labeler_has_more_weight() -> None:
    good = ((0.9, 0.05, 0.05), (0.05, 0.9, 0.05), (0.05, 0.05, 0.9))
    poor = ((0.4, 0.3, 0.3), (0.3, 0.4, 0.3), (0.3, 0.3, 0.4))
    scores = total([evidence("first", good), evidence("second", poor), evidence("second", poor)])
    verdict = weighed(scores, 3, prior=None)
    assert verdict.decision == "first"
    likelihood = (0.9 * 0.3 * 0.3, 0.05 * 0.3 * 0.3, 0.05 * 0.4 * 0.4)
    assert verdict.probability == pytest.approx((likelihood[0] + likelihood[1] / 2) / sum(likelihood))


@pytest.mark.parametrize("rule", ["majority", "weighed"])
def test_no_probability_without_votes(rule: str) -> None:
    def decide(n_labels: int) -> aggregation.Verdict:
        return majority((0.0,) * 3, n_labels) if rule == "majority" else weighed((0.0,) * 3, n_labels, None)

    assert decide(2) == aggregation.Verdict("cant_tell", None, 2)
    assert decide(0) == aggregation.Verdict(None, None, 0)


def test_no_votes_give_no_estimate() -> None:
    found = dawid_skene([])
    assert (found.posteriors, found.confusion) == ({}, {})


SideOf = Callable[[Any, str], str]
Invite = Callable[[str], Browser]


@pytest.fixture
def judge(trainer: Trainer, invite: Invite, side_of: SideOf) -> Callable[..., None]:
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
    trainer: Trainer, weighing: Experiment, judge: Callable[..., None], invite: Invite, side_of: SideOf
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
    moderation.make_gold(Comparison.objects.filter(uuid__in=known), Outcome.FIRST)
    uuids = trainer.register(4)
    judge("ann", lambda _: "first")
    for name in ("one", "two"):
        judge(name, lambda _: "second")
    aggregate.weigh_labelers(trainer.experiment)
    assert {newest(trainer)[uuid][0] for uuid in uuids} == {"first"}


def test_undo_is_weighed(trainer: Trainer, weighing: Experiment, invite: Invite, side_of: SideOf) -> None:
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
    assert Comparison.objects.filter(score_first=2.0, score_second=1.0).count() == 3


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
