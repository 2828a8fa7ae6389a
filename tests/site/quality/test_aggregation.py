"""From several labels to one decision: against an independent recurrence, crowd-kit's numbers and truths."""

import random
from collections.abc import Sequence

import numpy as np
import pytest

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
