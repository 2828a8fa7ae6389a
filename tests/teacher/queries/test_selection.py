"""Which pairs are asked about, and how many labels are due when."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from teacher.data.segment_pool import SegmentPool
from teacher.data.segments import Segment
from teacher.errors import ConfigError
from teacher.queries import selection
from teacher.queries.kinds import KINDS
from teacher.queries.motion import moving
from teacher.queries.schedules import (
    ConstantRate,
    ExponentialSchedule,
    LabelSchedule,
    RateSchedule,
    named_rate,
)
from teacher.queries.selection import AT_RANDOM, disagreement, reasons_for, select_pairs
from teacher.settings.config import RateName, ScheduleName, TeachConfig
from teacher.settings.options import QueryConfig, Uncertainty
from teacher.training.parts import schedule_of
from tests.teacher.conftest import make_segment


class Members:
    """An ensemble that gives each segment, known by its episode's seed, the returns it is told."""

    def __init__(self, returns: dict[int, Sequence[float]]) -> None:
        self.returns = returns
        self.asked: list[Sequence[Segment]] = []

    def member_returns(self, segments: Sequence[Segment]) -> NDArray[np.float64]:
        self.asked.append(segments)
        return np.array([self.returns[segment.recipe.seed] for segment in segments]).T


@pytest.fixture
def pool() -> SegmentPool:
    return pool_of([make_segment(seed) for seed in range(10)])


def pool_of(*rounds: Sequence[Segment]) -> SegmentPool:
    pool = SegmentPool(length=6)
    for segments in rounds:
        pool.add(segments)
    return pool


def seeds(pairs: Iterable[tuple[Segment, ...]]) -> list[set[int]]:
    return [{segment.recipe.seed for segment in pair} for pair in pairs]


def test_pairs_are_of_two_segments_and_each_is_asked_about_once(pool: SegmentPool) -> None:
    pairs = [pair for _ in range(12) for pair in select_pairs(pool, 5)]
    assert all(first is not second for first, second in pairs)
    assert len(pairs) == len(set(map(frozenset, pairs))) == 45
    # These were all pairs of ten segments.
    assert select_pairs(pool, 5) == []
    assert select_pairs(pool, 5, QueryConfig(recency=10.0, diversity=3)) == []


@pytest.mark.parametrize("recency", [0.01, 1.0, 150.0, math.inf])
def test_all_pairs_there_are_can_be_asked_about_at_once(pool: SegmentPool, recency: float) -> None:
    pairs = select_pairs(pool, 45, QueryConfig(selection="random", recency=recency))
    assert len(set(map(frozenset, pairs))) == 45


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("config", "count"),
    [
        (QueryConfig(selection="random"), 5),
        (QueryConfig(selection="random", recency=math.inf, diversity=2), 5),
        (QueryConfig(selection="random", oversampling=1), 3),
    ],
)
def test_segments_unique(config: QueryConfig, count: int, seed: int) -> None:
    pool = SegmentPool(length=6, seed=seed)
    pool.add([make_segment(number) for number in range(10)])
    pairs = select_pairs(pool, count, config)
    assert len({segment for pair in pairs for segment in pair}) == 2 * count


@pytest.mark.parametrize(
    "config",
    [
        QueryConfig(),
        QueryConfig(selection="active"),
        QueryConfig(diversity=5),
        QueryConfig(recency=100.0),
        QueryConfig(oversampling=1.0),
    ],
    ids=["random", "active", "diverse", "recent", "newest"],
)
def test_each_segment_is_used_once_if_possible(config: QueryConfig) -> None:
    members = Members({seed: np.random.default_rng(seed).normal(size=3).tolist() for seed in range(60)})
    for attempt in range(10):
        pool = SegmentPool(length=6, seed=attempt)
        pool.add([make_segment(seed) for seed in range(60)])
        pairs = select_pairs(pool, 4, config, members)
        assert len({segment for pair in pairs for segment in pair}) == 8


def test_each_segment_is_first_and_second_about_equally_often() -> None:
    segments = [make_segment(seed) for seed in range(10)]
    pairs = []
    for seed in range(200):
        pool = SegmentPool(6, seed=seed)
        pool.add(segments)
        pairs += select_pairs(pool, 5)
    for segment in segments:
        for side in (0, 1):
            assert 60 < sum(pair[side] is segment for pair in pairs) < 140


@pytest.mark.parametrize("count", [0, -3])
def test_nothing_is_asked_where_nothing_is_due(pool: SegmentPool, count: int) -> None:
    assert select_pairs(pool, count) == []


@pytest.mark.parametrize("segments", [0, 1])
def test_a_pool_that_cannot_make_a_pair_gives_none(segments: int) -> None:
    pool = pool_of([make_segment(seed) for seed in range(segments)])
    assert select_pairs(pool, 5) == []
    assert select_pairs(pool, 5, QueryConfig(oversampling=2.0)) == []


@pytest.mark.parametrize("uncertainty", ["probability", "logit", "label"])
def test_disagreement_is_the_variance_over_members(pool: SegmentPool, uncertainty: Uncertainty) -> None:
    random = np.random.default_rng(4)
    members = Members({seed: (3 * random.normal(size=5)).tolist() for seed in range(10)})
    pairs = list(combinations(pool.segments, 2))
    for pair, variance in zip(pairs, disagreement(members, pairs, uncertainty), strict=True):
        first, second = (np.array(members.returns[segment.recipe.seed]) for segment in pair)
        said = {
            "probability": np.exp(first) / (np.exp(first) + np.exp(second)),
            "logit": first - second,
            "label": first > second,
        }[uncertainty].astype(float)
        assert variance == pytest.approx(np.mean(said**2) - np.mean(said) ** 2, abs=1e-12)
    assert len(members.asked) == 1
    assert len(members.asked[0]) == 10  # each segment once, in one batch


def test_certain_members_disagree_by_the_label_however_large_their_returns(pool: SegmentPool) -> None:
    members = Members({seed: (1e4 * seed, -1e4 * seed) for seed in range(10)})
    pairs = list(combinations(pool.segments, 2))
    assert disagreement(members, pairs, "probability") == pytest.approx(0.25)


def test_active_selection_asks_what_the_members_disagree_about_most() -> None:
    # Members agree about all segments but 3 and 7, of which one likes one and the other the other.
    returns: dict[int, Sequence[float]] = {seed: (0.1 * seed, 0.1 * seed) for seed in range(12)}
    returns |= {3: (5.0, -5.0), 7: (-5.0, 5.0)}
    pool = pool_of([make_segment(seed) for seed in range(12)])
    chosen = select_pairs(pool, 1, QueryConfig(selection="active", candidates=500), Members(returns))
    assert seeds(chosen) == [{3, 7}]


def test_without_a_predictor_selection_is_random(pool: SegmentPool) -> None:
    other = pool_of([make_segment(seed) for seed in range(10)])
    active = select_pairs(pool, 5, QueryConfig(selection="active", recency=math.inf))
    assert seeds(active) == seeds(select_pairs(other, 5))


def test_pairs_without_doubt_differ_most_and_are_asked_about_once() -> None:
    pool = pool_of([make_segment(seed) for seed in range(40)])

    def value(segment: Segment) -> float:
        return float(segment.recipe.seed)

    asked = select_pairs(pool, 10)
    checks = [check for _ in range(5) for check in KINDS["pair"].checks(pool, 2, QueryConfig(), value)]
    pairs = [(first, second) for (first, second), _ in checks]
    assert len(pairs) == 10
    assert len({*map(frozenset, pairs), *map(frozenset, asked)}) == 20
    apart = [max(pair) - min(pair) for pair in seeds(pairs)]
    assert min(apart) > 20 > np.mean([max(pair) - min(pair) for pair in seeds(asked)])
    assert {first.recipe.seed > second.recipe.seed for first, second in pairs} == {True, False}


def test_ties_give_no_attention_checks(pool: SegmentPool) -> None:
    for kind in KINDS.values():
        assert kind.checks(pool, 3, QueryConfig(), lambda _: 1.0) == []
        assert kind.checks(pool_of(), 3, QueryConfig(), lambda _: 1.0) == []


def test_more_candidates_bring_more_disagreement() -> None:
    random = np.random.default_rng(0)
    members = Members({seed: random.normal(size=3).tolist() for seed in range(200)})

    def mean_disagreement(candidates: int) -> float:
        pool = pool_of([make_segment(seed) for seed in range(200)])
        config = QueryConfig(selection="active", candidates=candidates)
        return float(disagreement(members, select_pairs(pool, 10, config, members), "probability").mean())

    assert mean_disagreement(1) < 0.6 * mean_disagreement(10) < mean_disagreement(10)


def test_recent_segments_come_first_and_halve_with_those_that_are_newer() -> None:
    segments = [make_segment(number) for number in range(80)]
    drawn: Counter[int] = Counter()
    for seed in range(150):
        pool = SegmentPool(6, seed=seed)
        pool.add(segments)
        for pair in select_pairs(pool, 1, QueryConfig(recency=20.0, candidates=1)):
            drawn.update(segment.recipe.seed // 20 for segment in pair)
    # 300 segments, each score of them twice as often as that before it
    for score, expected in enumerate((20, 40, 80, 160)):
        assert abs(drawn[score] - expected) < 4 * np.sqrt(expected)


def test_oversampling_keeps_to_the_newest_segments() -> None:
    pool = pool_of([make_segment(seed) for seed in range(100)])
    drawn = select_pairs(pool, 5, QueryConfig(oversampling=1.6))
    assert len(drawn) == 5
    assert min(min(pair) for pair in seeds(drawn)) >= 100 - 16


def test_explored_segments_have_their_share() -> None:
    explored = 0
    for seed in range(100):
        pool = SegmentPool(6, seed=seed)
        pool.add([make_segment(i) for i in range(90)])
        pool.add([make_segment(100 + i) for i in range(10)], explored=True)
        pairs = select_pairs(pool, 2, QueryConfig(exploration_frac=0.3))
        explored += sum(segment.recipe.seed >= 100 for pair in pairs for segment in pair)
    assert 90 < explored < 150  # of 400


def test_diverse_pairs_cover_more_than_random_ones() -> None:
    """Most segments are alike, a few are elsewhere: k-center finds these first."""

    def place(seed: int) -> Segment:
        segment = make_segment(seed)
        segment.observations[:] = 0.01 * segment.observations + 10.0 * max(0, seed - 196)
        return segment

    def rare(diversity: int) -> int:
        pool = pool_of([place(seed) for seed in range(200)])
        config = QueryConfig(diversity=diversity, candidates=20)
        found = [pair for _ in range(4) for pair in select_pairs(pool, 2, config)]
        return len({segment.recipe.seed for pair in found for segment in pair} & {197, 198, 199})

    assert rare(1) < rare(20) == 3


def test_diverse_pairs_keep_away_from_what_was_asked_about() -> None:
    def at(place: float, seed: int) -> Segment:
        segment = make_segment(seed)
        segment.observations[:] = place
        return segment

    places = {0: 0.0, 1: 0.0, 2: 0.1, 3: 0.1, 4: 5.0, 5: 5.0}
    segments = [at(place, seed) for seed, place in places.items()]
    pool = pool_of(segments)
    pool.remember([(segments[0], segments[1]), (segments[1], segments[4])])
    (chosen,) = select_pairs(pool, 1, QueryConfig(diversity=100, candidates=100))
    # Far from both, in either order: not two near 0, and not one near 0 with one at 5.
    assert seeds([chosen]) == [{4, 5}]


def test_questions_about_segments_that_are_gone_are_forgotten() -> None:
    pool = SegmentPool(6, capacity=10)
    pool.add([make_segment(seed) for seed in range(10)])
    select_pairs(pool, 5)
    pool.add([make_segment(seed) for seed in range(10, 15)])
    kept = {segment.recipe.seed for segment in pool.segments}
    assert kept == set(range(5, 15))
    assert all(pair <= kept for pair in seeds(pool.asked))
    assert len(pool.asked) < 5


labels = st.integers(0, 2000)
rates = st.sampled_from(get_args(RateName))
MILLION = 1_000_000


def in_two_halves(progress: float) -> float:
    """A rate that jumps, and is 0 for a while."""
    return 0.0 if 0.2 < progress < 0.7 else 5.0


def test_the_formula_holds_while_training_goes_on() -> None:
    schedule = ExponentialSchedule(pretrain=75, total=300, num_timesteps=300_000)
    assert schedule.due(0, 0.0) == 75
    for step in (1, 1_000, 50_000, 150_000, 299_999):
        expected = 75 + (300 - 75) * (1 - 0.01 ** (step / 300_000))
        assert schedule.due(step, 0.0) == math.floor(expected)
    # Half way, nine tenths of the labels that the whole formula gives are asked.
    assert schedule.due(150_000, 0.0) == 75 + int(225 * 0.9)


@given(labels, labels, st.integers(1, 10**7), st.sampled_from(get_args(ScheduleName)))
@settings(max_examples=40, deadline=None)
def test_all_labels_are_due(pretrain: int, training: int, num_timesteps: int, name: ScheduleName) -> None:
    schedule: LabelSchedule = ExponentialSchedule(pretrain, pretrain + training, num_timesteps)
    if name != "exponential":
        rate = named_rate(name, num_timesteps)
        schedule = RateSchedule(pretrain, pretrain + training, num_timesteps, rate)
    assert schedule.due(0, 0.0) == pretrain
    assert schedule.due(num_timesteps, 0.0) == pretrain + training
    assert schedule.due(num_timesteps + 2047, 0.0) == pretrain + training


@given(labels, labels, st.lists(st.integers(0, 400_000), min_size=2), st.none() | rates)
@settings(max_examples=40, deadline=None)
def test_due_is_monotonic(pretrain: int, training: int, steps: list[int], name: RateName | None) -> None:
    rate = in_two_halves if name is None else named_rate(name, 300_000)
    for schedule in (
        ExponentialSchedule(pretrain, pretrain + training, 300_000),
        RateSchedule(pretrain, pretrain + training, 300_000, rate),
    ):
        due = [schedule.due(step, 0.0) for step in sorted(steps)]
        assert due == sorted(due)
        assert pretrain <= due[0]
        assert due[-1] <= pretrain + training


def test_no_label_is_taken_back_from_one_step_to_the_next() -> None:
    schedule = RateSchedule(0, 30_000, 50_000, named_rate("hyperbolic", 50_000))
    due = [schedule.due(step, 0.0) for step in range(50_001)]
    assert due == sorted(due)
    assert (due[0], due[-1]) == (0, 30_000)


@pytest.mark.parametrize("num_timesteps", [50_000, 5 * MILLION, 200 * MILLION])
@pytest.mark.parametrize(
    ("name", "rate_at_step"),
    [
        ("constant", lambda step, steps: 3.0),
        ("hyperbolic", lambda step, steps: 1 / (1 + step / steps)),
        ("inverse_quadratic", lambda step, steps: 1 / (1 + (step / steps) ** 2)),
        ("paper_mujoco", lambda step, steps: 2e6 / (step + 2e6)),
        ("paper_atari", lambda step, steps: 5e6 / (step + 5e6)),
    ],
)
def test_due_labels_are_the_integral_of_the_rate(
    name: RateName, rate_at_step: Callable[[float, int], float], num_timesteps: int
) -> None:
    from scipy.integrate import quad

    schedule = RateSchedule(100, 10_100, num_timesteps, named_rate(name, num_timesteps))
    whole, _ = quad(rate_at_step, 0, num_timesteps, args=(num_timesteps,), limit=200)
    for share in (0.001, 0.03, 0.25, 0.5, 0.8, 0.999):
        step = int(share * num_timesteps)
        so_far, _ = quad(rate_at_step, 0, step, args=(num_timesteps,), limit=200)
        assert abs(schedule.due(step, 0.0) - (100 + 10_000 * so_far / whole)) <= 1.01


def test_any_function_of_progress_may_be_the_rate() -> None:
    schedule = RateSchedule(10, 110, 1000, in_two_halves)
    due = [schedule.due(step, 0.0) for step in (0, 99, 201, 450, 699, 851, 1000)]
    assert due == [10, 29, 50, 50, 50, 80, 110]


def test_a_rate_may_be_whole_numbers() -> None:
    whole, real = (
        RateSchedule(0, 100, 1000, rate) for rate in (lambda p: 1 + 2 * (p > 0.5), lambda p: 0.5 + (p > 0.5))
    )
    due = [whole.due(step, 0.0) for step in (105, 450, 501, 910)]
    assert due == [real.due(step, 0.0) for step in (105, 450, 501, 910)]
    assert due == [5, 22, 25, 86]


@pytest.mark.parametrize("rate", [lambda p: 0.0, lambda p: p - 0.5, lambda p: math.nan, lambda p: math.inf])
def test_a_rate_that_says_nothing_is_refused_at_once(rate: Callable[[float], float]) -> None:
    with pytest.raises(ConfigError, match=r"finite and never negative.*got") as refusal:
        RateSchedule(0, 10, 1000, rate)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("rate", "says"), [(lambda p: 1 / p, "ZeroDivisionError"), (lambda p: None, "TypeError")]
)
def test_a_rate_that_fails_is_refused_at_once(rate: Callable[[float], float], says: str) -> None:
    with pytest.raises(ConfigError, match=f"the label rate function failed.*{says}") as refusal:
        RateSchedule(0, 10, 1000, rate)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("pretrain", [-1, 20])
def test_no_more_labels_before_training_than_in_all(pretrain: int) -> None:
    for make in (ExponentialSchedule, partial(RateSchedule, rate=lambda progress: 1.0)):
        with pytest.raises(ConfigError, match=rf"pretrain: expected 0 to total \(10\); got {pretrain}"):
            make(pretrain, 10, 100)


@pytest.mark.parametrize(("seconds", "asked"), [(0.0, 0), (2.9, 0), (3.0, 1), (60.0, 20), (3600.0, 1200)])
def test_the_constant_rate_is_one_label_every_three_seconds(seconds: float, asked: int) -> None:
    assert ConstantRate(pretrain=175).due(123_456, seconds) == 175 + asked


@pytest.mark.parametrize("period", [0.0, -3.0, math.nan])
def test_a_constant_rate_has_a_period(period: float) -> None:
    with pytest.raises(ConfigError, match="period: expected more than 0 seconds"):
        ConstantRate(0, period)


def test_a_run_is_given_the_schedule_that_its_settings_name() -> None:
    def of(**settings: object) -> object:
        common = {"env_id": "Hopper-v5", "predictor": "human", "name": "x", "num_timesteps": 2 * MILLION}
        return schedule_of(TeachConfig(**{**common, **settings}))  # type: ignore[arg-type]

    assert of() == ConstantRate(175)
    assert of(n_labels=400) == of(n_labels=400, schedule="exponential")
    assert of(n_labels=400) == ExponentialSchedule(100, 400, 2 * MILLION)
    paper = of(n_labels=700, schedule="paper_mujoco")
    assert isinstance(paper, RateSchedule)
    assert paper.due(0, 0.0) == 175
    assert paper.due(MILLION, 0.0) == 175 + int(525 * math.log(1.5) / math.log(2))


@pytest.mark.parametrize("total", [7, 100, 1000, 9973])
def test_an_even_rate_makes_each_label_due_with_its_step(total: int) -> None:
    schedule = RateSchedule(0, total, total, lambda progress: 1.0)
    assert [schedule.due(step, 0.0) for step in range(total + 1)] == list(range(total + 1))


def test_reasons_count_members_that_prefer_each_item() -> None:
    segments = [make_segment(seed) for seed in range(4)]
    members = Members({0: (3, 1, 1), 1: (2, 2, 2), 2: (1, 0, 3), 3: (0, 0, 0)})
    active = QueryConfig()
    pairs = [(segments[0], segments[1]), (segments[3], segments[0])]
    assert reasons_for(pairs, active, members) == ["disagreement:1:2", "disagreement:0:3"]
    assert reasons_for([tuple(segments)], active, members) == ["disagreement:1:1:1:0"]
    assert reasons_for([(segments[0],)], active, members) == ["disagreement"]
    assert reasons_for(pairs, active, None) == reasons_for(pairs, None, members) == ["random"] * 2
    assert reasons_for(pairs, QueryConfig(selection="random"), members) == ["random"] * 2


def frozen(seed: int) -> Segment:
    """Return a segment in which one observation is repeated, but for a trembling that nobody sees."""
    moving = replace(make_segment(seed), final_observation=None)
    still = np.repeat(moving.observations[:1], len(moving), axis=0)
    return replace(moving, observations=still + 0.001 * moving.observations)


def picture(seed: int, *, moves: bool) -> Segment:
    """Return a segment of images, in which a dot moves or a few values flicker."""
    frames = np.full((6, 32, 32, 3), 40, np.uint8)
    frames[:, :8] = 240
    for step, frame in enumerate(frames):
        frame[10, 3 * step if moves else 0] = 200 if moves else 200 + step
    return replace(make_segment(seed), observations=frames, final_observation=None)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("active", [True, False])
def test_segments_without_motion_are_asked_last(name: str, active: bool) -> None:
    kind, members = KINDS[name], Members({seed: (seed, -seed) for seed in range(40)})
    pool = pool_of([make_segment(seed) for seed in range(16)], [frozen(seed) for seed in range(16, 40)])
    config = QueryConfig() if active else AT_RANDOM
    moving = 16 // kind.size
    asked = [item.recipe.seed for _ in range(moving) for item in kind.select(pool, 1, config, members)[0]]
    assert max(asked) < 16
    if kind.size == 1:
        [(last,)] = kind.select(pool, 1, config, members)  # all that move were asked about
        assert last.recipe.seed >= 16
    few = pool_of([make_segment(0)], [frozen(seed) for seed in range(1, 9)])
    assert len(kind.select(few, 2, config, members)) == 2
    assert kind.checks(few, 1, config, lambda segment: float(segment.recipe.seed))


def test_motion_of_images_and_of_one_feature() -> None:
    assert moving([picture(0, moves=True), picture(1, moves=False)]).tolist() == [True, False]
    segments = [make_segment(seed, observation_size=200) for seed in range(4)]
    one = segments[0].observations[:1] + np.zeros((6, 200))
    one[:, 7] = segments[0].observations[:, 7]
    segments[0] = replace(segments[0], observations=one)
    assert moving(segments).all()
    assert moving([]).tolist() == []


def test_selection_is_unchanged_if_everything_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen() -> list[list[set[int]]]:
        pool = pool_of([make_segment(seed) for seed in range(20)])
        return [seeds(select_pairs(pool, 4, config)) for config in (AT_RANDOM, QueryConfig())]

    ours = chosen()
    monkeypatch.setattr(selection, "moving", lambda segments: np.ones(len(segments), np.bool_))
    assert chosen() == ours
