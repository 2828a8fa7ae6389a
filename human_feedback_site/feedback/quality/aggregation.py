"""Aggregation of labels into decisions, by majority or the Dawid-Skene model. Independent of Django.

Dawid and Skene (1979): each labeler has a confusion matrix and each item a hidden true class, and EM
alternates between them. Here an item is a comparison, and its true class is ``first`` (the first segment is
better), ``equal`` or ``second``. ``cant_tell`` is treated as a missing label.
"""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

CLASSES = ("first", "equal", "second")
CANT_TELL = "cant_tell"
_PREFERRED = (1.0, 0.5, 0.0)  # preference for the first segment, by class
_LEAST = 1e-10  # lower limit of probabilities, to avoid log(0)
_SAME = 1e-9  # probabilities closer than this differ only by rounding

Triple = tuple[float, float, float]
"""One number per class, in the order of ``CLASSES``."""
Matrix = tuple[Triple, Triple, Triple]
"""Confusion matrix: ``matrix[truth][answer]`` is a probability, and each row sums to 1."""
Item = TypeVar("Item", bound=Hashable)
Labeler = TypeVar("Labeler", bound=Hashable)

NOTHING: Triple = (0.0, 0.0, 0.0)
EVEN: Triple = (1 / 3, 1 / 3, 1 / 3)
# Answers assumed for each labeler in advance, two thirds of them correct. This prior keeps the estimates of
# labelers with few labels moderate, and keeps EM from swapping the classes.
PSEUDO_COUNTS: Matrix = ((4.0, 1.0, 1.0), (1.0, 4.0, 1.0), (1.0, 1.0, 4.0))
UNKNOWN_LABELER: Matrix = ((4 / 6, 1 / 6, 1 / 6), (1 / 6, 4 / 6, 1 / 6), (1 / 6, 1 / 6, 4 / 6))


@dataclass(frozen=True)
class Verdict:
    """Result of aggregating the labels of one comparison."""

    # one of ``CLASSES``, ``cant_tell`` if all labels say so, or None if there are no labels
    decision: str | None
    # probability that the first segment is preferred, where ``equal`` counts as half. None if ``decision`` is
    # None or ``cant_tell``
    probability: float | None
    n_labels: int  # number of labels, including ``cant_tell``


@dataclass(frozen=True)
class Estimate:
    """Result of :func:`dawid_skene`."""

    posteriors: Mapping[Hashable, Triple]  # posterior class probabilities of each item, keyed by item
    confusion: Mapping[Hashable, Matrix]  # confusion matrix of each labeler, keyed by labeler
    prior: Triple  # estimated frequency of each class
    iterations: int  # number of EM iterations


def vote(outcome: str) -> Triple:
    """Return the one-hot encoding of an outcome, or all zeros for ``cant_tell``."""
    if outcome == CANT_TELL:
        return NOTHING
    index = CLASSES.index(outcome)
    return (float(index == 0), float(index == 1), float(index == 2))


def evidence(outcome: str, confusion: Sequence[Sequence[float]] | None) -> Triple:
    """Return the log-likelihood of each class given one label, or zeros for ``cant_tell``."""
    if outcome == CANT_TELL:
        return NOTHING
    answer = CLASSES.index(outcome)
    first, equal, second = (_log(row[answer]) for row in confusion or UNKNOWN_LABELER)
    return first, equal, second


def total(scores: Iterable[Triple]) -> Triple:
    """Return the element-wise (per-class) sum of votes or log-likelihoods."""
    first, equal, second = NOTHING
    for score in scores:
        first, equal, second = first + score[0], equal + score[1], second + score[2]
    return first, equal, second


def majority(votes: Triple, n_labels: int) -> Verdict:
    """Return the majority verdict: ``first`` or ``second``, whichever has more votes; ``equal`` if tied.

    ``votes`` is the sum of the one-hot votes. If it is all zeros, the decision is ``cant_tell``, or None if
    ``n_labels`` is 0.
    """
    opinions = sum(votes)
    if not opinions:
        return _no_opinion(n_labels)
    probability = (votes[0] + votes[1] / 2) / opinions
    if probability == 0.5:
        return Verdict("equal", probability, n_labels)
    return Verdict("first" if probability > 0.5 else "second", probability, n_labels)


def weighed(scores: Triple, n_labels: int, prior: Sequence[float] | None) -> Verdict:
    """Return the verdict for the maximum a posteriori class, with a uniform prior if ``prior`` is None."""
    if not any(scores):  # only cant_tell: any other label has a nonzero log-likelihood
        return _no_opinion(n_labels)
    posterior = posterior_of(scores, prior or EVEN)
    return Verdict(most_probable(posterior), preference(posterior), n_labels)


def posterior_of(scores: Triple, prior: Sequence[float]) -> Triple:
    """Return the posterior of each class, given log-likelihoods and the class prior."""
    logs = [score + _log(share) for score, share in zip(scores, prior, strict=True)]
    highest = max(logs)
    first, equal, second = (math.exp(value - highest) for value in logs)
    whole = first + equal + second
    return first / whole, equal / whole, second / whole


def most_probable(posterior: Triple) -> str:
    """Return the most probable class, or ``equal`` if ``first`` and ``second`` tie."""
    first, equal, second = posterior
    if equal >= max(first, second) or abs(first - second) < _SAME:
        return "equal"
    return "first" if first > second else "second"


def preference(posterior: Triple) -> float:
    """Return the probability that the first segment is preferred, counting ``equal`` as half."""
    return min(1.0, sum(share * each for share, each in zip(posterior, _PREFERRED, strict=True)))


def dawid_skene(
    votes: Iterable[tuple[Item, Labeler, str]],
    *,
    known: Mapping[Item, str] | None = None,
    pseudo_counts: Matrix = PSEUDO_COUNTS,
    max_iterations: int = 100,
    tolerance: float = 1e-4,
) -> Estimate:
    """Estimate true classes and confusion matrices by EM from (item, labeler, outcome) votes.

    Items with identical votes are processed once, weighted by the number of such items. An iteration's cost
    therefore depends on the number of distinct vote patterns, which is small if there are few labelers.

    Args:
        votes: at most one per item and labeler; ``cant_tell`` is ignored.
        known: ground-truth classes, keyed by item; may cover only some of the items.
        pseudo_counts: Dirichlet prior, added to each labeler's answer counts and indexed
            ``[true class][answer]``; all zeros give plain EM.
        max_iterations: maximum number of EM iterations.
        tolerance: EM stops when no item's class probability changes by more than this.
    """
    numbers: dict[Hashable, int] = {}
    ballots: dict[Item, list[int]] = {}
    for item, labeler, outcome in votes:
        if outcome != CANT_TELL:
            number = numbers.setdefault(labeler, len(numbers))
            ballots.setdefault(item, []).append(3 * number + CLASSES.index(outcome))
    truths = known or {}
    patterns = {item: (tuple(sorted(ballot)), truths.get(item)) for item, ballot in ballots.items()}
    weights = Counter(patterns.values())
    posteriors = {pattern: _first_guess(*pattern) for pattern in weights}
    iterations, change = 0, 1.0
    prior, counts = _maximize(posteriors, weights, len(numbers), pseudo_counts)
    while iterations < max_iterations and change > tolerance:
        iterations += 1
        better = _expect(posteriors, prior, counts)
        change = max(
            (abs(a - b) for key, old in posteriors.items() for a, b in zip(old, better[key], strict=True)),
            default=0.0,
        )
        posteriors = better
        prior, counts = _maximize(posteriors, weights, len(numbers), pseudo_counts)
    return Estimate(
        {item: posteriors[pattern] for item, pattern in patterns.items()},
        {labeler: _matrix(counts, number) for labeler, number in numbers.items()},
        prior,
        iterations,
    )


_Pattern = tuple[tuple[int, ...], str | None]
"""An item's votes, each encoded as 3 * labeler + answer, and its true class if known."""


def _first_guess(ballot: Sequence[int], truth: str | None) -> Triple:
    if truth is not None:
        return vote(truth)
    shares = [0.0, 0.0, 0.0]
    for code in ballot:
        shares[code % 3] += 1 / len(ballot)
    return shares[0], shares[1], shares[2]


def _expect(
    posteriors: Mapping[_Pattern, Triple], prior: Triple, counts: Sequence[Sequence[float]]
) -> dict[_Pattern, Triple]:
    """Return the posterior of each vote pattern (the E step).

    ``counts[3 * labeler + answer][truth]`` is P(answer | truth) for the labeler with that index.
    """
    logs = [(_log(first), _log(equal), _log(second)) for first, equal, second in counts]
    return {
        pattern: posterior_of(total(logs[code] for code in pattern[0]), prior) if pattern[1] is None else old
        for pattern, old in posteriors.items()
    }


def _maximize(
    posteriors: Mapping[_Pattern, Triple], weights: Mapping[_Pattern, int], labelers: int, pseudo: Matrix
) -> tuple[Triple, list[list[float]]]:
    """Return class frequencies and P(answer | truth) for each labeler (the M step).

    The probabilities are indexed ``[3 * labeler + answer][truth]``.
    """
    counts = [[pseudo[truth][answer] for truth in range(3)] for _ in range(labelers) for answer in range(3)]
    shares = [0.0, 0.0, 0.0]
    for pattern, posterior in posteriors.items():
        weight = weights[pattern]
        first, equal, second = (weight * share for share in posterior)
        shares[0], shares[1], shares[2] = shares[0] + first, shares[1] + equal, shares[2] + second
        for code in pattern[0]:
            row = counts[code]
            row[0], row[1], row[2] = row[0] + first, row[1] + equal, row[2] + second
    for number in range(0, 3 * labelers, 3):
        for truth in range(3):
            column = [max(counts[number + answer][truth], _LEAST) for answer in range(3)]
            for answer, count in enumerate(column):
                counts[number + answer][truth] = count / sum(column)
    items = sum(shares) or 1.0
    return (shares[0] / items, shares[1] / items, shares[2] / items), counts


def _matrix(counts: Sequence[Sequence[float]], number: int) -> Matrix:
    first, equal, second = (
        (counts[3 * number][truth], counts[3 * number + 1][truth], counts[3 * number + 2][truth])
        for truth in range(3)
    )
    return first, equal, second


def _no_opinion(n_labels: int) -> Verdict:
    return Verdict(CANT_TELL if n_labels else None, None, n_labels)


def _log(probability: float) -> float:
    return math.log(max(probability, _LEAST))
