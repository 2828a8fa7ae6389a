"""Query selection: the choice of segments to ask about.

Candidates are random pairs. Active selection keeps the candidates with the largest disagreement between
ensemble members (Christiano et al. 2017, section 2.2.4). The uncertainty measures are those of the imitation
library. Diversity selection keeps the candidates that differ most from earlier queries (k-center, as in Lee
et al. 2021, "B-Pref"). No pair is queried twice. If there are enough segments, each one is in at most one of
the selected pairs. Other questions are groups of segments, selected in the same way.

Segments in which nothing moves are selected only if all others are used (:mod:`teacher.queries.motion`).
"""

import math
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from agents.numerics.moments import SMALLEST_STD
from teacher.data.segment_pool import SegmentPool
from teacher.data.segments import Segment, SegmentPair
from teacher.queries.motion import moving
from teacher.settings.options import QueryConfig, Uncertainty

AT_RANDOM = QueryConfig(selection="random", recency=math.inf)
"""Settings that select all pairs with equal probability."""

_DRAWS = 20  # attempts to draw new pairs at random, before the rest is taken from a list of all new pairs
_LEAST_WEIGHT = 2.0**-20  # of a segment relative to the newest; keeps old segments available
_CANDIDATES_PER_CHECK = 20

Array = NDArray[np.float64]
Group = TypeVar("Group", bound=tuple[Segment, ...])
_Selected = tuple[list[Group], list[Group]]
"""Selected groups that share no segment, and others, best first."""


class Ensemble(Protocol):
    """Protocol for the part of a predictor's interface that active selection uses."""

    def member_returns(self, segments: Sequence[Segment]) -> Array:
        """Return each member's predicted return for each segment: ``(members, len(segments))``."""


class Selector(Protocol):
    """Protocol for functions that select queries; :func:`select_pairs` is the default.

    To replace it, set ``run.teaching.select``.
    """

    def __call__(
        self, pool: SegmentPool, count: int, config: QueryConfig | None, predictor: Ensemble | None, /
    ) -> Sequence[tuple[Segment, ...]]:
        """Return the items of at most ``count`` questions, best first; the items are distinct.

        A pair has two items, and other kinds of questions have others.

        Args:
            pool: the segments to select from; ``pool.asked`` has the items that were queried before.
            count: number of questions.
            config: settings of query selection; None if there are none.
            predictor: ensemble to select with; None before the first fit.
        """


def select_pairs(
    pool: SegmentPool, count: int, config: QueryConfig | None = None, predictor: Ensemble | None = None
) -> list[SegmentPair]:
    """Select pairs of two distinct segments to query, and mark the pairs as queried in the pool.

    Args:
        count: number of pairs; fewer are returned if the pool runs out of new pairs.
        config: settings of query selection; None selects pairs uniformly at random.
        predictor: ensemble for active selection; None turns active selection off.
    """
    config = config or AT_RANDOM
    if count < 1 or len(pool) < 2:
        return []
    members = predictor if config.selection == "active" else None

    def select(wanted: int, weights: Array | None) -> _Selected[SegmentPair]:
        return _select_pairs(pool, wanted, config, members, weights)

    return _moving_first(pool, count, _weights(pool, count, config), select)


def _select_pairs(
    pool: SegmentPool, count: int, config: QueryConfig, members: Ensemble | None, weights: Array | None
) -> _Selected[SegmentPair]:
    picky = members is not None or config.diversity > 1 or weights is not None
    pairs = _draw(pool, config.candidates * count if picky else count, weights)
    if members is not None and pairs:
        uncertainty = disagreement(members, pairs, config.uncertainty)
        pairs = [pairs[index] for index in np.argsort(-uncertainty, kind="stable")]
    if config.diversity > 1:
        pairs = _most_diverse_first(pairs[: config.diversity * count], _asked_pairs(pool))
    fresh, others = _without_reuse(pairs)
    return fresh + _of_unused(pool, count - len(fresh), weights, fresh), others


def select_groups(
    pool: SegmentPool,
    size: int,
    count: int,
    config: QueryConfig | None = None,
    predictor: Ensemble | None = None,
) -> list[tuple[Segment, ...]]:
    """Select groups of ``size`` distinct segments to query; same as :func:`select_pairs` for other sizes.

    Active selection keeps the groups with the largest mean disagreement about their pairs or, if ``size`` is
    1, about the segment's return relative to the mean of all candidates.
    """
    config = config or AT_RANDOM
    if count < 1 or len(pool) < size:
        return []
    members = predictor if config.selection == "active" else None

    def select(wanted: int, weights: Array | None) -> _Selected[tuple[Segment, ...]]:
        if weights is not None and np.count_nonzero(weights) < size:
            return [], []
        groups = _draw_groups(pool, size, wanted if members is None else config.candidates * wanted, weights)
        if members is not None and groups:
            uncertainty = _group_disagreement(members, groups, config.uncertainty)
            groups = [groups[index] for index in np.argsort(-uncertainty, kind="stable")]
        return _without_reuse(groups)

    return _moving_first(pool, count, _weights(pool, math.ceil(size * count / 2), config), select)


def _draw_groups(
    pool: SegmentPool, size: int, count: int, weights: Array | None
) -> list[tuple[Segment, ...]]:
    """Draw up to ``count`` distinct groups that were not queried before."""
    known = {frozenset(group) for group in pool.asked}
    groups: list[tuple[Segment, ...]] = []
    draws = 0
    while len(groups) < count and draws < _DRAWS:
        draws += 1
        for group in pool.sample_groups(count - len(groups), size, weights):
            if frozenset(group) not in known:
                known.add(frozenset(group))
                groups.append(group)
    return groups


def _group_disagreement(
    predictor: Ensemble, groups: Sequence[tuple[Segment, ...]], uncertainty: Uncertainty
) -> Array:
    """Return the members' mean disagreement about each group, ``(len(groups),)``."""
    pairs = [pair for group in groups for pair in combinations(group, 2)]
    if pairs:
        of_pairs: Array = disagreement(predictor, pairs, uncertainty).reshape(len(groups), -1).mean(axis=1)
        return of_pairs
    returns = predictor.member_returns([segment for (segment,) in groups])
    of_one: Array = (returns - returns.mean(axis=1, keepdims=True)).var(axis=0)
    return of_one


def reasons_for(
    questions: Sequence[tuple[Segment, ...]], config: QueryConfig | None, predictor: Ensemble | None
) -> list[str]:
    """Return why each question was selected: ``random``, or ``disagreement`` between ensemble members.

    For several items, the numbers of members that prefer each of them follow, as in ``disagreement:5:5``.
    """
    if predictor is None or config is None or config.selection != "active":
        return ["random"] * len(questions)
    if not questions or len(questions[0]) == 1:
        return ["disagreement"] * len(questions)
    size = len(questions[0])
    returns = predictor.member_returns([item for items in questions for item in items])
    best = returns.reshape(len(returns), -1, size).argmax(axis=2)
    counts = [np.bincount(of_members, minlength=size).tolist() for of_members in best.T]
    return [":".join(["disagreement", *map(str, each)]) for each in counts]


def sure_groups(
    pool: SegmentPool,
    size: int,
    count: int,
    margin: Callable[[Sequence[Segment]], float],
    config: QueryConfig,
) -> list[tuple[Segment, ...]]:
    """Select groups of ``size`` segments about which the answer is clear, and mark them as queried.

    They are used for attention checks. Candidates are sampled in the same way as other queries, so that
    labelers can't recognize the checks. Single segments may have been queried before.

    Args:
        count: number of groups; fewer are returned if too few candidates are clear.
        margin: function that returns how clear the answer is; 0 if it isn't.
    """
    if count < 1 or len(pool) < size:
        return []
    weights = _weights(pool, math.ceil(size * count / 2), config)
    moves = moving(pool.segments)
    if not moves.all():
        masked = np.where(moves, 1.0 if weights is None else weights, 0.0)
        weights = masked if np.count_nonzero(masked) >= size else weights
    if weights is not None and np.count_nonzero(weights) < size:
        return []
    wanted = _CANDIDATES_PER_CHECK * count
    drawn = _draw(pool, wanted, weights) if size == 2 else _draw_groups(pool, size, wanted, weights)
    again = pool.sample_groups(wanted, size, weights) if size == 1 and len(drawn) < wanted else []
    margins = {group: margin(group) for group in (*drawn, *again)}
    sure = sorted((group for group in margins if margins[group] > 0), key=margins.__getitem__, reverse=True)
    fresh, others = _without_reuse(sure)
    chosen = (fresh + others)[:count]
    pool.remember(chosen)
    return chosen


def disagreement(predictor: Ensemble, pairs: Sequence[SegmentPair], uncertainty: Uncertainty) -> Array:
    """Return the variance of the ensemble members' predictions for each pair: ``(len(pairs),)``.

    Args:
        uncertainty: quantity whose variance across members is returned. ``probability``: probability of one
            of the two answers. ``logit``: difference between predicted returns. ``label``: predicted
            label.
    """
    rows = {segment: row for row, segment in enumerate(dict.fromkeys(s for pair in pairs for s in pair))}
    returns = predictor.member_returns(list(rows))
    one, other = ([rows[pair[side]] for pair in pairs] for side in (0, 1))
    logits = returns[:, one] - returns[:, other]
    match uncertainty:
        case "probability":
            compared = 0.5 * (1 + np.tanh(0.5 * logits))  # the logistic function, without overflow
        case "logit":
            compared = logits
        case "label":
            compared = (logits > 0).astype(np.float64)
    variances: Array = compared.var(axis=0)
    return variances


def _weights(pool: SegmentPool, count: int, config: QueryConfig) -> Array | None:
    """Return the sampling weight of each segment in the pool, ``(len(pool),)``; None if uniform."""
    explored = pool.explored
    mix = config.exploration_frac > 0 and explored.any()
    if config.recency == math.inf and config.oversampling is None and not mix:
        return None
    newer = np.arange(len(pool))[::-1]  # number of newer segments; the pool is sorted from oldest to newest
    weights = np.maximum(0.5 ** (newer / config.recency), _LEAST_WEIGHT)
    if config.oversampling is not None:
        weights[: -math.ceil(2 * count * config.oversampling)] = 0.0
    if mix:
        for part, share in ((explored, config.exploration_frac), (~explored, 1 - config.exploration_frac)):
            weights[part] *= share / max(weights[part].sum(), _LEAST_WEIGHT)
    return weights


def _moving_first(
    pool: SegmentPool,
    count: int,
    weights: Array | None,
    select: Callable[[int, Array | None], _Selected[Group]],
) -> list[Group]:
    """Select up to ``count`` groups and mark them as queried; motionless segments come last.

    Moving segments are used once before others are, and all are used once before any is used again.
    """
    moves = moving(pool.segments)
    if moves.all():
        fresh, others = select(count, weights)
        found = (fresh + others)[:count]
    else:
        every = np.ones(len(pool)) if weights is None else weights
        fresh, others = select(count, np.where(moves, every, 0.0))
        if len(fresh) < count:
            used = {segment for group in fresh for segment in group}
            unused = [segment not in used for segment in pool.segments]
            fresh += select(count - len(fresh), np.where(unused, every, 0.0))[0]
        found = (fresh + others)[:count]
        if len(found) < count:
            pool.remember(found)
            fresh, others = select(count - len(found), weights)
            found = (found + fresh + others)[:count]
    pool.remember(found)
    return found


def _draw(pool: SegmentPool, count: int, weights: Array | None) -> list[SegmentPair]:
    """Draw up to ``count`` distinct pairs that were not queried before."""
    if weights is not None and np.count_nonzero(weights) < 2:
        return []
    known = {frozenset(pair) for pair in pool.asked}
    pairs: list[SegmentPair] = []
    draws = 0
    while len(pairs) < count and draws < _DRAWS:
        draws += 1
        for pair in pool.sample_pairs(count - len(pairs), weights):
            if frozenset(pair) not in known:
                known.add(frozenset(pair))
                pairs.append(pair)
    if len(pairs) < count:
        pairs += pool.sample_unknown(count - len(pairs), [*_asked_pairs(pool), *pairs], weights)
    return pairs


def _asked_pairs(pool: SegmentPool) -> list[SegmentPair]:
    return [(items[0], items[1]) for items in pool.asked if len(items) == 2]


def _of_unused(
    pool: SegmentPool, count: int, weights: Array | None, pairs: Sequence[SegmentPair]
) -> list[SegmentPair]:
    """Draw up to ``count`` new pairs that share no segment with ``pairs`` or with each other."""
    found: list[SegmentPair] = []
    weights = np.ones(len(pool)) if weights is None else weights.copy()
    new: Sequence[SegmentPair] = pairs
    while len(found) < count and new:
        used = {segment for pair in new for segment in pair}
        weights[[segment in used for segment in pool.segments]] = 0.0
        new, _ = _without_reuse(_draw(pool, count - len(found), weights))
        found += new
    return found


def _most_diverse_first(pairs: Sequence[SegmentPair], asked: Sequence[SegmentPair]) -> list[SegmentPair]:
    """Order pairs so that each is as far as possible from earlier queries and from the pairs before it.

    This is greedy k-center selection; without earlier queries, it starts with the first pair. Pairs are
    compared by the mean and standard deviation of each observation feature in each segment, with each
    statistic scaled to unit variance over ``pairs``. Because the order of a pair's segments is irrelevant,
    the distance between two pairs is the minimum over both orders.
    """
    if not pairs:
        return []
    points = np.array([_summaries(pair) for pair in pairs])
    scale = np.maximum(points.std(axis=(0, 1)), SMALLEST_STD)
    points /= scale
    nearest = np.full(len(pairs), np.inf)
    for pair in asked:
        nearest = np.minimum(nearest, _squared_distances(points, _summaries(pair) / scale))
    ordered = []
    for _ in pairs:
        farthest = int(nearest.argmax())
        ordered.append(pairs[farthest])
        nearest = np.minimum(nearest, _squared_distances(points, points[farthest]))
        nearest[farthest] = -1.0
    return ordered


def _summaries(pair: SegmentPair) -> Array:
    """Return each segment's observation means followed by its standard deviations, ``(2, 2 * size)``."""
    steps = [segment.observations.reshape(len(segment), -1).astype(np.float64) for segment in pair]
    return np.array([np.concatenate([step.mean(axis=0), step.std(axis=0)]) for step in steps])


def _squared_distances(points: Array, point: Array) -> Array:
    """Return each pair's squared distance to ``point``, for the segment order that minimizes it.

    Args:
        points: ``(n, 2, statistics)``, the :func:`_summaries` of each pair.
        point: ``(2, statistics)``, the :func:`_summaries` of one pair.

    Returns:
        Squared distances, ``(n,)``.
    """
    unswapped, swapped = (np.square(points - target).sum(axis=(1, 2)) for target in (point, point[::-1]))
    nearest: Array = np.minimum(unswapped, swapped)
    return nearest


def _without_reuse(pairs: Sequence[Group]) -> tuple[list[Group], list[Group]]:
    """Split pairs into a greedy selection in which no segment occurs twice, and the rest.

    Pairs are considered in order; each is selected if it shares no segment with a pair selected before it.
    """
    used: set[Segment] = set()
    fresh: list[Group] = []
    others: list[Group] = []
    for pair in pairs:
        if used.isdisjoint(pair):
            fresh.append(pair)
            used.update(pair)
        else:
            others.append(pair)
    return fresh, others
