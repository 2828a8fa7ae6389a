"""Ranking of policies by answers: Bradley-Terry strengths, their uncertainty, and what to ask next."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

PRIOR_STD = 3.0
"""Standard deviation of the strengths' normal prior, which keeps them finite if a policy always wins."""
DRAWS = 400
"""Number of bootstrap samples."""
_NORMAL_95 = 1.96
_ERROR = 0.05
_EFFECT = 1.0  # difference of strengths that takes the fewest answers to detect
_STEPS, _LONGEST_STEP, _CONVERGED = 50, 2.0, 1e-9


@dataclass(frozen=True)
class Answer:
    """One labeler's answer to a question.

    Attributes:
        policies: indices of the policies that the items show.
        implied: probability that the first of two items is better, by their indices.
        start: the start state of the films.
    """

    labeler: str
    policies: tuple[int, ...]
    implied: Mapping[tuple[int, int], float]
    start: int = 0

    def wins(self, count: int) -> Floats:
        """Return how often each of ``count`` policies beat each other one, ``(count, count)``.

        They add up to 1 for two items. Several items count as one comparison less than there are items,
        because the pairs that follow from one answer are not independent.
        """
        wins = np.zeros((count, count))
        for (first, second), probability in self.implied.items():
            one, other = self.policies[first], self.policies[second]
            wins[one, other] += probability
            wins[other, one] += 1 - probability
        return wins * (len(self.policies) - 1) / max(1, len(self.implied))


def fit_strengths(wins: Floats, start: Floats | None = None) -> tuple[Floats, Floats]:
    """Fit the Bradley-Terry model with a normal prior, by Newton's method.

    Args:
        wins: ``(..., k, k)``; ``wins[i, j]`` is the number of times that i beat j.

    Returns:
        Strengths ``(..., k)``, which add up to 0, and the covariance of their posterior distribution (Laplace's
        approximation), ``(..., k, k)``. Policy i beats j with probability ``sigmoid(s[i] - s[j])``.
    """
    played = wins + wins.swapaxes(-1, -2)
    strengths = np.zeros(wins.shape[:-1]) if start is None else np.broadcast_to(start, wins.shape[:-1])
    prior = np.eye(wins.shape[-1]) / PRIOR_STD**2
    for _ in range(_STEPS):
        chance = _sigmoid(strengths[..., :, None] - strengths[..., None, :])
        gradient = (wins - played * chance).sum(-1) - strengths / PRIOR_STD**2
        information = played * chance * (1 - chance)
        precision = prior + information.sum(-1)[..., None] * np.eye(wins.shape[-1]) - information
        step = np.linalg.solve(precision, gradient[..., None])[..., 0]
        longest = np.abs(step).max(-1, keepdims=True)
        strengths = strengths + step * np.minimum(1.0, _LONGEST_STEP / np.maximum(longest, _CONVERGED))
        if longest.max() < _CONVERGED:
            break
    return strengths, np.linalg.inv(precision)


@dataclass(frozen=True, eq=False)
class Ranking:
    """Ranking of ``k`` policies.

    Attributes:
        wins: number of times that each policy beat each other one, ``(k, k)``; a tie is half a win.
        strengths: Bradley-Terry strengths, in nats; they add up to 0.
        covariance: covariance of the strengths according to the model, ``(k, k)``.
        resampled: covariance of the strengths in bootstrap samples of labelers and their answers.
    """

    wins: Floats
    strengths: Floats
    covariance: Floats
    resampled: Floats
    answers: int
    labelers: int

    @classmethod
    def of(cls, answers: Sequence[Answer], count: int, seed: int = 0) -> "Ranking":
        """Rank ``count`` policies; answers that compare nothing are ignored."""
        answers = [answer for answer in answers if answer.implied]
        each = np.array([answer.wins(count) for answer in answers]).reshape(-1, count, count)
        strengths, covariance = fit_strengths(each.sum(0))
        labelers = [answer.labeler for answer in answers]
        draws = _bootstrap(labelers, np.random.default_rng(seed)) @ each.reshape(len(each), -1)
        again, _ = fit_strengths(draws.reshape(-1, count, count), strengths)
        resampled = np.cov(again, rowvar=False)
        return cls(each.sum(0), strengths, covariance, resampled, len(answers), len(set(labelers)))

    @property
    def half_widths(self) -> Floats:
        """Distance from each strength to the ends of its 95% interval, ``(k,)``."""
        variance = np.maximum(np.diag(self.covariance), np.diag(self.resampled))
        return _NORMAL_95 * np.sqrt(variance)

    @cached_property
    def differences(self) -> tuple[Floats, Floats]:
        """Difference of the strengths of each two policies, and how large it must be to claim an order.

        The bounds hold for all pairs at once, and however often one looks: they are those of a normal mixture
        (Robbins 1970) with a Bonferroni correction. The variance is the larger of the model's, which is right
        if there are few answers, and the bootstrap's, which is right if labelers differ.
        """
        variance = np.maximum(_between(self.covariance), _between(self.resampled))
        count = len(self.strengths)
        variance += np.eye(count)  # a policy isn't compared with itself
        growth = 2 * math.log(count * (count - 1) / 2 / _ERROR) + np.log1p(_EFFECT**2 / variance)
        bounds = np.sqrt(variance * (1 + variance / _EFFECT**2) * growth)
        return self.strengths[:, None] - self.strengths[None, :], bounds

    @property
    def better(self) -> NDArray[np.bool_]:
        """Whether policy i is better than j with 95% confidence in all such claims together, ``(k, k)``."""
        differences, bounds = self.differences
        return differences > bounds

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
        self, size: int, asked: Sequence[Sequence[int]], random: np.random.Generator, base: int | None = None
    ) -> tuple[int, ...]:
        """Choose the policies to ask about next: those whose answer says most about the ranking.

        The value of a pair is by how much its answer is expected to shrink the variances of all differences,
        each weighted by the probability that its order is wrong.

        Args:
            size: number of items.
            asked: policies of the questions that are waiting for an answer.
            base: index of the only policy whose differences matter; None if all do.
        """
        pairs = list(combinations(range(len(self.strengths)), 2))
        contrasts = np.zeros((len(pairs), len(self.strengths)))
        for row, pair in enumerate(pairs):
            contrasts[row, pair] = 1, -1
        differences = contrasts @ self.strengths
        chance = _sigmoid(differences)
        information = chance * (1 - chance)
        waiting = [pairs.index(pair) for items in asked for pair in combinations(sorted(items), 2)]
        expected = np.bincount(waiting, minlength=len(pairs)) * information * 2 / size
        precision = np.linalg.inv(self.covariance) + (contrasts.T * expected) @ contrasts
        together = contrasts @ np.linalg.inv(precision) @ contrasts.T
        variance = np.diag(together)
        doubt = np.array([math.erfc(z) for z in np.abs(differences) / np.sqrt(2 * variance)])
        if base is not None:
            doubt = np.array([float(base in pair) for pair in pairs])
        shrinking = together**2 / variance[:, None] * information / (1 + information * variance)
        values = doubt @ shrinking * (1 + 1e-9 * random.random(len(pairs)))
        return _most_valuable(dict(zip(pairs, values, strict=True)), size)


def _most_valuable(values: Mapping[tuple[int, int], float], size: int) -> tuple[int, ...]:
    """Return the pair of the highest value, and add policies one by one to have the highest sum."""
    chosen = list(max(values, key=lambda pair: values[pair]))
    others = {policy for pair in values for policy in pair}.difference(chosen)
    while len(chosen) < size:
        best = max(
            sorted(others), key=lambda new: sum(values[min(new, old), max(new, old)] for old in chosen)
        )
        others.remove(best)
        chosen.append(best)
    return tuple(chosen)


def _bootstrap(labelers: Sequence[str], random: np.random.Generator) -> Floats:
    """Return how often each answer is in each sample of labelers, and of each labeler's answers.

    Answers are resampled too, because a few labelers' answers say little about how much labelers differ.
    """
    names = sorted(set(labelers))
    if not names:
        return np.zeros((DRAWS, 0))
    drawn = random.multinomial(len(names), np.full(len(names), 1 / len(names)), DRAWS)
    weights = np.zeros((DRAWS, len(labelers)))
    for name, times in zip(names, drawn.T, strict=True):
        own = np.flatnonzero([each == name for each in labelers])
        weights[:, own] = random.multinomial(times * len(own), np.full(len(own), 1 / len(own)))
    return weights


def _between(covariance: Floats) -> Floats:
    """Return the variance of the difference of each two strengths."""
    own = np.diag(covariance)
    variance: Floats = own[:, None] + own[None, :] - 2 * covariance
    return variance


def _sigmoid(values: Floats) -> Floats:
    chance: Floats = 0.5 * (1 + np.tanh(0.5 * values))
    return chance
