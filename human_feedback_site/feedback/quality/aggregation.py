"""From several labels to one decision, and to what each labeler is worth. Knows nothing of Django.

Dawid and Skene (1979): each labeler has a confusion matrix, the truth of each item is hidden, and both are
estimated in turn (EM). An item here is a comparison, whose truth is that the first is better, that they are
equal, or that the second is better; ``cant_tell`` says nothing about it and is a missing label.
"""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

CLASSES = ("first", "equal", "second")
CANT_TELL = "cant_tell"
_PREFERRED = (1.0, 0.5, 0.0)  # how far the first is, where a class is true
_LEAST = 1e-10  # of a probability, so that it has a logarithm
_SAME = 1e-9  # probabilities as close as that differ by rounding

Triple = tuple[float, float, float]
"""One number for each of ``CLASSES``."""
Matrix = tuple[Triple, Triple, Triple]
"""``matrix[truth][answer]`` is a probability: each row sums to 1."""
Item = TypeVar("Item", bound=Hashable)
Labeler = TypeVar("Labeler", bound=Hashable)

NOTHING: Triple = (0.0, 0.0, 0.0)
EVEN: Triple = (1 / 3, 1 / 3, 1 / 3)
# Answers that each labeler is taken to have given before the first: right in two of three. It keeps those who
# gave few from being judged by them, and the classes from changing their names.
PSEUDO_COUNTS: Matrix = ((4.0, 1.0, 1.0), (1.0, 4.0, 1.0), (1.0, 1.0, 4.0))
UNKNOWN_LABELER: Matrix = ((4 / 6, 1 / 6, 1 / 6), (1 / 6, 4 / 6, 1 / 6), (1 / 6, 1 / 6, 4 / 6))


@dataclass(frozen=True)
class Verdict:
    """The outcome of some labels; both None where there are none.

    Attributes:
        decision: one of ``CLASSES``, or ``cant_tell`` where no label has an opinion.
        probability: that the first is preferred, an equal pair being half of that; None without an opinion.
        n_labels: how many labels there are, ``cant_tell`` among them.
    """

    decision: str | None
    probability: float | None
    n_labels: int


@dataclass(frozen=True)
class Estimate:
    """What EM found.

    Attributes:
        posteriors: for each item, how probable each truth is.
        confusion: for each labeler, :data:`Matrix`.
        prior: how often each class is true.
        iterations: steps that were made.
    """

    posteriors: Mapping[Hashable, Triple]
    confusion: Mapping[Hashable, Matrix]
    prior: Triple
    iterations: int


def vote(outcome: str) -> Triple:
    """Return one vote for an outcome, none for ``cant_tell``."""
    if outcome == CANT_TELL:
        return NOTHING
    index = CLASSES.index(outcome)
    return (float(index == 0), float(index == 1), float(index == 2))


def evidence(outcome: str, confusion: Sequence[Sequence[float]] | None) -> Triple:
    """Return the log-likelihood of each truth, given what a labeler of that matrix (None: unknown) says."""
    if outcome == CANT_TELL:
        return NOTHING
    answer = CLASSES.index(outcome)
    first, equal, second = (_log(row[answer]) for row in confusion or UNKNOWN_LABELER)
    return first, equal, second


def total(scores: Iterable[Triple]) -> Triple:
    """Return the sums of votes, or of log-likelihoods."""
    first, equal, second = NOTHING
    for score in scores:
        first, equal, second = first + score[0], equal + score[1], second + score[2]
    return first, equal, second


def majority(votes: Triple, n_labels: int) -> Verdict:
    """Return the mean of the opinions, else ``cant_tell``; one that is as good as the other is ``equal``."""
    opinions = sum(votes)
    if not opinions:
        return _no_opinion(n_labels)
    probability = (votes[0] + votes[1] / 2) / opinions
    if probability == 0.5:
        return Verdict("equal", probability, n_labels)
    return Verdict("first" if probability > 0.5 else "second", probability, n_labels)


def weighed(scores: Triple, n_labels: int, prior: Sequence[float] | None) -> Verdict:
    """Return the most probable truth, given summed log-likelihoods and how often each class is true."""
    if not any(scores):  # whoever has an opinion is never certain of all three
        return _no_opinion(n_labels)
    posterior = posterior_of(scores, prior or EVEN)
    return Verdict(most_probable(posterior), preference(posterior), n_labels)


def posterior_of(scores: Triple, prior: Sequence[float]) -> Triple:
    """Return the probability of each truth."""
    logs = [score + _log(share) for score, share in zip(scores, prior, strict=True)]
    highest = max(logs)
    first, equal, second = (math.exp(value - highest) for value in logs)
    whole = first + equal + second
    return first / whole, equal / whole, second / whole


def most_probable(posterior: Triple) -> str:
    """Return the most probable class; where it is first as well as second, that is ``equal``."""
    first, equal, second = posterior
    if equal >= max(first, second) or abs(first - second) < _SAME:
        return "equal"
    return "first" if first > second else "second"


def preference(posterior: Triple) -> float:
    """Return the probability that the first is preferred, half of it where they are equal."""
    return min(1.0, sum(share * each for share, each in zip(posterior, _PREFERRED, strict=True)))


def dawid_skene(
    votes: Iterable[tuple[Item, Labeler, str]],
    *,
    known: Mapping[Item, str] | None = None,
    pseudo_counts: Matrix = PSEUDO_COUNTS,
    max_iterations: int = 100,
    tolerance: float = 1e-4,
) -> Estimate:
    """Estimate truths and confusion matrices from votes (item, labeler, outcome).

    Items with the same votes are one item that comes several times, so that the time an iteration takes is
    bounded by the number of ways to vote where labelers are few.

    Args:
        votes: at most one of each labeler for an item; ``cant_tell`` is left out.
        known: the truths of some items.
        pseudo_counts: answers that each labeler is taken to have given already; all 0 is plain EM.
        max_iterations: steps at most.
        tolerance: it ends when no probability changes by more.
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
    prior, counts = _maximise(posteriors, weights, len(numbers), pseudo_counts)
    while iterations < max_iterations and change > tolerance:
        iterations += 1
        better = _expect(posteriors, prior, counts)
        change = max(
            (abs(a - b) for key, old in posteriors.items() for a, b in zip(old, better[key], strict=True)),
            default=0.0,
        )
        posteriors = better
        prior, counts = _maximise(posteriors, weights, len(numbers), pseudo_counts)
    return Estimate(
        {item: posteriors[pattern] for item, pattern in patterns.items()},
        {labeler: _matrix(counts, number) for labeler, number in numbers.items()},
        prior,
        iterations,
    )


_Pattern = tuple[tuple[int, ...], str | None]
"""Votes, each as 3 x labeler + answer, and the truth where it is known."""


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
    """Return the posterior of each pattern; ``counts[3 x labeler + answer][truth]`` is normalised."""
    logs = [(_log(first), _log(equal), _log(second)) for first, equal, second in counts]
    return {
        pattern: posterior_of(total(logs[code] for code in pattern[0]), prior) if pattern[1] is None else old
        for pattern, old in posteriors.items()
    }


def _maximise(
    posteriors: Mapping[_Pattern, Triple], weights: Mapping[_Pattern, int], labelers: int, pseudo: Matrix
) -> tuple[Triple, list[list[float]]]:
    """Return the shares of the classes, and P(answer | truth) at ``[3 x labeler + answer][truth]``."""
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
