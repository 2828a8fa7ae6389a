"""Aggregation of labels into decisions, by majority or the Dawid-Skene model. Independent of the database.

Dawid and Skene (1979): each labeler has a confusion matrix and each item a hidden true class, and EM
alternates between them. Here an item is a question, and its true class is one of its kind's answers, such as
``first`` (the first segment is better), ``equal`` or ``second``. ``cant_tell`` is treated as a missing label.
"""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from human_feedback_site.feedback.kinds import CANT_TELL, PAIR, Kind

_LEAST = 1e-10  # lower limit of probabilities, to avoid log(0)

Scores = Sequence[float]
"""One number per class, in the order of the kind's classes."""
Matrix = Sequence[Scores]
"""Confusion matrix: ``matrix[truth][answer]`` is a probability, and each row sums to 1."""
Item = TypeVar("Item", bound=Hashable)
Labeler = TypeVar("Labeler", bound=Hashable)


def pseudo_counts(size: int) -> Matrix:
    """Return the answers assumed for each labeler in advance, two thirds of them correct, for a few classes.

    This prior keeps the estimates of labelers with few labels moderate, and keeps EM from swapping the
    classes.
    """
    right = 2.0 * (size - 1)
    return [[right if truth == answer else 1.0 for answer in range(size)] for truth in range(size)]


def _unknown_labeler(size: int) -> Matrix:
    return [[count / sum(row) for count in row] for row in pseudo_counts(size)]


@dataclass(frozen=True)
class Verdict:
    """Result of aggregating the labels of one question."""

    # one of the kind's answers, ``cant_tell`` if all labels say so, or None if there are no labels
    decision: str | None
    # probability that the first of two segments is preferred, where ``equal`` counts as half. None if
    # ``decision`` is None or ``cant_tell``, and for kinds that don't compare two segments
    probability: float | None
    n_labels: int  # number of labels, including ``cant_tell``


@dataclass(frozen=True)
class Estimate:
    """Result of :func:`dawid_skene`."""

    posteriors: Mapping[Hashable, Scores]  # posterior class probabilities of each item, keyed by item
    confusion: Mapping[Hashable, Matrix]  # confusion matrix of each labeler, keyed by labeler
    prior: Scores  # estimated frequency of each class
    iterations: int  # number of EM iterations


def vote(answer: str, classes: Sequence[str]) -> Scores:
    """Return the one-hot encoding of an answer, or all zeros for ``cant_tell``."""
    return [float(answer == each) for each in classes]


def evidence(answer: str, confusion: Matrix | None, classes: Sequence[str]) -> Scores:
    """Return the log-likelihood of each class given one label, or zeros for ``cant_tell``."""
    if answer == CANT_TELL:
        return [0.0] * len(classes)
    place = classes.index(answer)
    return [_log(row[place]) for row in confusion or _unknown_labeler(len(classes))]


def total(scores: Iterable[Scores], size: int) -> Scores:
    """Return the element-wise (per-class) sum of votes or log-likelihoods."""
    whole = [0.0] * size
    for score in scores:
        whole = [one + other for one, other in zip(whole, score, strict=True)]
    return whole


def majority(kind: Kind, answers: Sequence[str]) -> Verdict:
    """Return the verdict that follows from a question's answers, all of which have the same weight."""
    votes = total((vote(answer, kind.classes) for answer in answers), len(kind.classes))
    opinions = sum(votes)
    if not opinions:
        return _no_opinion(len(answers))
    return Verdict(kind.majority(votes), preference(kind, votes, opinions), len(answers))


def weighed(
    kind: Kind, labels: Sequence[tuple[str, Matrix | None]], prior: Sequence[float] | None
) -> Verdict:
    """Return the verdict for the most probable class, with a uniform prior if ``prior`` is None.

    Args:
        kind: the question's kind.
        labels: each answer, with its labeler's confusion matrix, or None if it is not known.
        prior: frequency of each class.
    """
    size = len(kind.classes)
    scores = total((evidence(*label, kind.classes) for label in labels), size)
    if not any(scores):  # only cant_tell: any other label has a nonzero log-likelihood
        return _no_opinion(len(labels))
    posterior = posterior_of(scores, prior or [1 / size] * size)
    decision = kind.most_probable(posterior)
    return Verdict(decision, preference(kind, posterior), len(labels))


def preference(kind: Kind, weights: Sequence[float], whole: float = 1.0) -> float | None:
    """Return the probability that the first of two segments is preferred; None for other kinds.

    ``whole`` is the sum of the weights, of which each class has one.
    """
    if kind.first_share is None:
        return None
    return min(
        1.0, sum(weight * each for weight, each in zip(weights, kind.first_share, strict=True)) / whole
    )


def posterior_of(scores: Scores, prior: Sequence[float]) -> Scores:
    """Return the posterior of each class, given log-likelihoods and the class prior."""
    logs = [score + _log(share) for score, share in zip(scores, prior, strict=True)]
    highest = max(logs)
    odds = [math.exp(value - highest) for value in logs]
    whole = sum(odds)
    return [each / whole for each in odds]


def dawid_skene(
    votes: Iterable[tuple[Item, Labeler, str]],
    *,
    classes: Sequence[str] = PAIR.classes,
    known: Mapping[Item, str] | None = None,
    assumed: Matrix | None = None,
    max_iterations: int = 100,
    tolerance: float = 1e-4,
) -> Estimate:
    """Estimate true classes and confusion matrices by EM from (item, labeler, outcome) votes.

    Items with identical votes are processed once, weighted by the number of such items. An iteration's cost
    therefore depends on the number of distinct vote patterns, which is small if there are few labelers.

    Args:
        votes: at most one per item and labeler; ``cant_tell`` is ignored.
        classes: the answers that items can have.
        known: ground-truth classes, keyed by item; may cover only some of the items.
        assumed: Dirichlet prior, added to each labeler's answer counts and indexed ``[true class][answer]``;
            all zeros give plain EM. None: :func:`pseudo_counts`.
        max_iterations: maximum number of EM iterations.
        tolerance: EM stops when no item's class probability changes by more than this.
    """
    size = len(classes)
    assumed = pseudo_counts(size) if assumed is None else assumed
    numbers: dict[Hashable, int] = {}
    ballots: dict[Item, list[int]] = {}
    for item, labeler, outcome in votes:
        if outcome != CANT_TELL:
            number = numbers.setdefault(labeler, len(numbers))
            ballots.setdefault(item, []).append(size * number + classes.index(outcome))
    truths = known or {}
    patterns = {item: (tuple(sorted(ballot)), truths.get(item)) for item, ballot in ballots.items()}
    weights = Counter(patterns.values())
    posteriors = {pattern: _first_guess(*pattern, classes) for pattern in weights}
    iterations, change = 0, 1.0
    prior, counts = _maximize(posteriors, weights, len(numbers), assumed)
    while iterations < max_iterations and change > tolerance:
        iterations += 1
        better = _expect(posteriors, prior, counts)
        change = max(
            (abs(a - b) for key, old in posteriors.items() for a, b in zip(old, better[key], strict=True)),
            default=0.0,
        )
        posteriors = better
        prior, counts = _maximize(posteriors, weights, len(numbers), assumed)
    return Estimate(
        {item: posteriors[pattern] for item, pattern in patterns.items()},
        {
            labeler: [list(row) for row in zip(*counts[size * number : size * (number + 1)], strict=True)]
            for labeler, number in numbers.items()
        },
        prior,
        iterations,
    )


_Pattern = tuple[tuple[int, ...], str | None]
"""An item's votes, each encoded as (number of classes) * labeler + answer, and its true class if known."""


def _first_guess(ballot: Sequence[int], truth: str | None, classes: Sequence[str]) -> Scores:
    if truth is not None:
        return vote(truth, classes)
    shares = [0.0] * len(classes)
    for code in ballot:
        shares[code % len(classes)] += 1 / len(ballot)
    return shares


def _expect(
    posteriors: Mapping[_Pattern, Scores], prior: Scores, counts: Sequence[Scores]
) -> dict[_Pattern, Scores]:
    """Return the posterior of each vote pattern (the E step).

    ``counts[size * labeler + answer][truth]`` is P(answer | truth) for the labeler with that index.
    """
    logs = [[_log(each) for each in row] for row in counts]
    size = len(prior)
    return {
        pattern: old if pattern[1] else posterior_of(total((logs[code] for code in pattern[0]), size), prior)
        for pattern, old in posteriors.items()
    }


def _maximize(
    posteriors: Mapping[_Pattern, Scores], weights: Mapping[_Pattern, int], labelers: int, assumed: Matrix
) -> tuple[Scores, list[list[float]]]:
    """Return class frequencies and P(answer | truth) for each labeler (the M step).

    The probabilities are indexed ``[size * labeler + answer][truth]``.
    """
    classes = range(len(assumed))
    counts = [[assumed[truth][answer] for truth in classes] for _ in range(labelers) for answer in classes]
    shares = [0.0 for _ in classes]
    for pattern, posterior in posteriors.items():
        weighted = [weights[pattern] * share for share in posterior]
        shares = [one + other for one, other in zip(shares, weighted, strict=True)]
        for code in pattern[0]:
            counts[code] = [one + other for one, other in zip(counts[code], weighted, strict=True)]
    for number in range(0, len(classes) * labelers, len(classes)):
        for truth in classes:
            column = [max(counts[number + answer][truth], _LEAST) for answer in classes]
            for answer, count in enumerate(column):
                counts[number + answer][truth] = count / sum(column)
    items = sum(shares) or 1.0
    return [each / items for each in shares], counts


def _no_opinion(n_labels: int) -> Verdict:
    return Verdict(CANT_TELL if n_labels else None, None, n_labels)


def _log(probability: float) -> float:
    return math.log(max(probability, _LEAST))
