"""Which pairs of segments are worth asking about."""

from teacher.segments import Segment, SegmentPool


def select_pairs(pool: SegmentPool, count: int) -> list[tuple[Segment, Segment]]:
    """``count`` pairs of different segments, drawn uniformly; none while the pool cannot make a pair."""
    if count < 1 or len(pool) < 2:
        return []
    return pool.sample_pairs(count)
