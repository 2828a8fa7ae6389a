"""Which pairs are asked about."""

from collections.abc import Callable

import pytest

from teacher.queries import select_pairs
from teacher.segments import Segment, SegmentPool

MakeSegment = Callable[..., Segment]


@pytest.fixture
def pool(make_segment: MakeSegment) -> SegmentPool:
    pool = SegmentPool(length=6)
    pool._segments = [make_segment(seed) for seed in range(10)]
    return pool


def test_a_segment_is_never_paired_with_itself(pool: SegmentPool) -> None:
    pairs = select_pairs(pool, 400)
    assert len(pairs) == 400
    assert all(first is not second for first, second in pairs)


def test_each_segment_is_first_and_second_about_equally_often(pool: SegmentPool) -> None:
    pairs = select_pairs(pool, 1000)
    for segment in pool.segments:
        for side in (0, 1):
            assert 60 < sum(pair[side] is segment for pair in pairs) < 140


@pytest.mark.parametrize("count", [0, -3])
def test_nothing_is_asked_where_nothing_is_due(pool: SegmentPool, count: int) -> None:
    assert select_pairs(pool, count) == []


@pytest.mark.parametrize("segments", [0, 1])
def test_a_pool_that_cannot_make_a_pair_gives_none(pool: SegmentPool, segments: int) -> None:
    pool._segments = pool._segments[:segments]
    assert select_pairs(pool, 5) == []
