"""Ranking of policies by answers: Bradley-Terry strengths, their uncertainty, and what to ask next."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Verdict = Literal["not worse", "worse", "undecided"]

PRIOR_STD = 3.0
"""Standard deviation of the strengths' normal prior, which keeps them finite if a policy always wins."""
DRAWS = 200
"""Number of bootstrap samples."""
_NORMAL_95 = 1.96
_ERROR = 0.05
_EFFECT = 1.0  # difference of strengths that takes the fewest answers to detect
_STEPS, _LONGEST_STEP, _CONVERGED, _STIFF = 50, 2.0, 1e-9, 1e6


@dataclass(frozen=True)
class Answer:
    """One labeler's answer to a question.

    Attributes:
        policies: indices of the policies that the items show.
        implied: probability that the first of two items is better, by their indices.
        start: the start state of the films.
        question: the question's UUID.
        reason: the labeler's own words; may be empty.
    """

    labeler: str
    policies: tuple[int, ...]
    implied: Mapping[tuple[int, int], float]
    start: int = 0
    question: str = ""
    reason: str = ""

    def wins(self, count: int) -> Floats:
        """Return how often each of ``count`` policies beat each other one, ``(count, count)``.

        A tie is half a win for both. A probability close to one half, as of "slightly better", counts as less
        than a whole comparison. Several items count as one comparison less than there are items, because the
        pairs that follow from one answer are not independent.
        """
        wins = np.zeros((count, count))
        for (first, second), probability in self.implied.items():
            one, other = self.policies[first], self.policies[second]
            weight, share = abs(2 * probability - 1) or 1.0, (1 + np.sign(probability - 0.5)) / 2
            wins[one, other] += weight * share
            wins[other, one] += weight * (1 - share)
        return wins * (len(self.policies) - 1) / max(1, len(self.implied))


def fit_strengths(
    wins: Floats, start: Floats | None = None, contrasts: Floats | None = None, gap: float = 0.0
) -> tuple[Floats, Floats]:
    """Fit the Bradley-Terry model with a normal prior, by Newton's method.

    Args:
        wins: ``(..., k, k)``; ``wins[i, j]`` is the number of times that i beat j.
        contrasts: differences of strengths that must equal ``gap``, ``(..., k)``; None for a free fit.

    Returns:
        Strengths ``(..., k)``, which add up to 0 in a free fit, and the information about them
        (the precision of Laplace's approximation). Policy i beats j with probability
        ``sigmoid(s[i] - s[j])``.
    """
    size = wins.shape[-1]
    fixed = np.zeros((1, size)) if contrasts is None else contrasts
    strengths = np.broadcast_to(
        0.0 if start is None else start, np.broadcast_shapes(wins.shape[:-1], fixed.shape)
    )
    played = wins + wins.swapaxes(-1, -2)
    for _ in range(_STEPS):
        chance = _sigmoid(strengths[..., :, None] - strengths[..., None, :])
        off = gap - (fixed * strengths).sum(-1, keepdims=True)
        gradient = (wins - played * chance).sum(-1) - strengths / PRIOR_STD**2 + _STIFF * off * fixed
        pairs = played * chance * (1 - chance)
        information = (pairs.sum(-1)[..., None] + PRIOR_STD**-2) * np.eye(size) - pairs
        stiff = information + _STIFF * fixed[..., :, None] * fixed[..., None, :]
        step = np.linalg.solve(stiff, gradient[..., None])[..., 0]
        longest = np.abs(step).max(-1, keepdims=True)
        strengths = strengths + step * np.minimum(1.0, _LONGEST_STEP / np.maximum(longest, _CONVERGED))
        if longest.max() < _CONVERGED:
            break
    shape = wins.shape[:-1] if contrasts is None else strengths.shape
    return strengths.reshape(shape), information.reshape(*shape, size)


@dataclass(frozen=True, eq=False)
class Ranking:
    """Ranking of ``k`` policies by the answers that compare some of them.

    Attributes:
        wins: number of times that each policy beat each other one, ``(k, k)``; a tie is half a win.
        strengths: Bradley-Terry strengths, in nats; they add up to 0.
        information: information about the strengths according to the model, ``(k, k)``.
        each: the wins that follow from each answer, ``(answers, k, k)``.
    """

    answers: Sequence[Answer]
    wins: Floats
    strengths: Floats
    information: Floats
    each: Floats

    @classmethod
    def of(cls, answers: Sequence[Answer], count: int) -> "Ranking":
        """Rank ``count`` policies."""
        each = np.array([answer.wins(count) for answer in answers]).reshape(-1, count, count)
        return cls(answers, each.sum(0), *fit_strengths(each.sum(0)), each)

    @cached_property
    def variances(self) -> Floats:
        """Variance of the difference of each two strengths, and on the diagonal of each strength, ``(k, k)``.

        The largest of three: the model's, which is right if there are few answers, and those of bootstrap
        samples of the labelers and of the start states, which are right if these differ.
        """
        found = [self._variances]
        each = self.each.reshape(-1, self.wins.size)
        for groups in (
            [answer.labeler for answer in self.answers],
            [answer.start for answer in self.answers],
        ):
            draws = _bootstrap(groups, np.random.default_rng(0)) @ each
            again, _ = fit_strengths(draws.reshape(-1, *self.wins.shape), self.strengths)
            found.append(_between(np.cov(again, rowvar=False)))
        largest: Floats = np.maximum.reduce(found)
        return largest

    @property
    def _variances(self) -> Floats:
        return _between(np.linalg.inv(self.information).astype(np.float64))

    @property
    def half_widths(self) -> Floats:
        """Distance from each strength to the ends of its 95% interval, ``(k,)``."""
        widths: Floats = _NORMAL_95 * np.sqrt(np.diag(self.variances))
        return widths

    def evidence(self, gap: float = 0.0) -> Floats:
        """Return whether the strength of policy i exceeds that of j by more than ``gap``, ``(k, k)``.

        Above 1, it does, and below -1, it doesn't, with 95% confidence in all such claims together, however
        often one looks: this is the likelihood ratio in proportion to what a normal mixture (Robbins 1970)
        with a Bonferroni correction demands. Unlike a standard error, it also works if a policy always wins.
        It is reduced by as much as the bootstrap's variance exceeds the model's.
        """
        size = len(self.strengths)
        contrasts = np.eye(size)[:, None] - np.eye(size)
        strengths, information = fit_strengths(self.wins, self.strengths, contrasts, gap)
        ratio = 2 * (self._log_likelihood(self.strengths) - self._log_likelihood(strengths))
        inverse = np.linalg.inv(information) @ contrasts[..., None]
        variance = (contrasts * inverse[..., 0]).sum(-1) + np.eye(size)
        growth = 2 * math.log(max(1, size * (size - 1) / 2) / _ERROR) + np.log1p(_EFFECT**2 / variance)
        robust = ratio * self._variances / self.variances
        found: Floats = np.sign(self.differences - gap) * robust / (growth * (1 + variance / _EFFECT**2))
        return found

    def _log_likelihood(self, strengths: Floats) -> Floats:
        """Return the logarithm of the posterior density of strengths ``(..., k)``, up to a constant."""
        losing = np.logaddexp(0.0, strengths[..., None, :] - strengths[..., :, None])
        likelihood: Floats = -(self.wins * losing).sum((-1, -2)) - (strengths**2).sum(-1) / 2 / PRIOR_STD**2
        return likelihood

    @property
    def differences(self) -> Floats:
        """By how much the strength of policy i exceeds that of j, ``(k, k)``."""
        found: Floats = self.strengths[:, None] - self.strengths
        return found

    @cached_property
    def better(self) -> NDArray[np.bool_]:
        """Return True where policy i is better than j, with 95% confidence in all claims together."""
        claims: NDArray[np.bool_] = self.evidence() > 1
        return claims

    def verdicts(self, base: int, margin: float) -> dict[int, Verdict]:
        """Return for each other policy whether it is worse than ``base``.

        Args:
            margin: by how much the probability of beating ``base`` may be below one half.
        """
        evidence = self.evidence(-math.log((0.5 + margin) / (0.5 - margin)))[:, base]
        said: dict[bool, Verdict] = {True: "not worse", False: "worse"}
        others = set(range(len(self.strengths))) - {base}
        return {at: said[bool(evidence[at] > 0)] if abs(evidence[at]) > 1 else "undecided" for at in others}

    @property
    def agreement(self) -> tuple[int, int]:
        """Return the number of pairs of answers to a question that agree on two items, and of all pairs."""
        by_question: dict[str, list[Answer]] = {}
        for answer in self.answers:
            by_question.setdefault(answer.question, []).append(answer)
        pairs = [
            (one.implied[items], other.implied[items])
            for answers in by_question.values()
            for one, other in combinations(answers, 2)
            for items in one.implied.keys() & other.implied.keys()
        ]
        return sum(np.sign(one - 0.5) == np.sign(other - 0.5) for one, other in pairs), len(pairs)

    @property
    def ranks(self) -> list[tuple[int, int]]:
        """The best and the worst rank, from 1, that each policy may have."""
        better, count = self.better, len(self.strengths)
        return [(1 + int(better[:, i].sum()), count - int(better[i].sum())) for i in range(count)]

    @property
    def width(self) -> int:
        """Width of the widest interval of ranks; 0 if the order is known."""
        return max(worst - best for best, worst in self.ranks)

    def next_question(
        self,
        size: int,
        waiting: Iterable[Sequence[int]],
        random: np.random.Generator,
        base: int | None = None,
    ) -> tuple[int, ...]:
        """Choose the policies to ask about next: those whose answer says most about the ranking.

        The value of a pair is by how much its answer is expected to shrink the variances of all differences,
        each weighted by the probability that its order is wrong.

        Args:
            size: number of items.
            waiting: policies of the questions that wait for an answer.
            base: index of the only policy whose differences matter; None if all do.
        """
        pairs = list(combinations(range(len(self.strengths)), 2))
        contrasts = np.zeros((len(pairs), len(self.strengths)))
        for row, pair in enumerate(pairs):
            contrasts[row, pair] = 1, -1
        differences = contrasts @ self.strengths
        chance = _sigmoid(differences)
        information = chance * (1 - chance)
        asked = [pairs.index(pair) for items in waiting for pair in combinations(sorted(items), 2)]
        expected = np.bincount(asked, minlength=len(pairs)) * information * 2 / size
        precision = self.information + (contrasts.T * expected) @ contrasts
        together = contrasts @ np.linalg.inv(precision) @ contrasts.T
        variance = np.diag(together)
        doubt = np.array([math.erfc(z) for z in np.abs(differences) / np.sqrt(2 * variance)])
        if base is not None:
            doubt = np.array([float(base in pair) for pair in pairs])
        shrinking = together**2 / variance[:, None] * information / (1 + information * variance)
        values = doubt @ shrinking * (1 + 1e-9 * random.random(len(pairs)))
        worth = dict(zip(pairs, values.tolist(), strict=True))

        def value(items: tuple[int, ...]) -> float:
            middle = {
                *sorted(items, key=lambda policy: self.strengths[policy])[1:-1]
            }  # not compared in fours
            return math.fsum(worth[pair] for pair in combinations(items, 2) if not middle.issuperset(pair))

        return max(combinations(range(len(self.strengths)), size), key=value)


def _bootstrap(groups: Sequence[str | int], random: np.random.Generator) -> Floats:
    """Return how often each answer is in each sample of groups."""
    names, own = np.unique(groups, return_inverse=True)
    if not len(names):
        return np.zeros((DRAWS, 0))
    drawn = random.multinomial(len(names), np.full(len(names), 1 / len(names)), DRAWS)
    weights: Floats = drawn[:, own].astype(np.float64)
    return weights


def _between(covariance: Floats) -> Floats:
    """Return the variance of the difference of each two strengths, and on the diagonal of each strength."""
    rows = covariance - covariance.mean(0)
    centered = rows - rows.mean(1, keepdims=True)  # of strengths that add up to 0
    own = np.diag(centered)
    variance: Floats = own[:, None] + own - 2 * centered + np.diag(own)
    return variance


def _sigmoid(values: Floats) -> Floats:
    chance: Floats = 0.5 * (1 + np.tanh(0.5 * values))
    return chance
