"""Segments lie in the same places of an episode, whoever holds its steps."""

from dataclasses import replace

import numpy as np
import pytest
from gymnasium.spaces import Box

from teacher.data.segment_pool import SegmentPool
from teacher.data.segments import SegmentCutter
from teacher.envs.trajectory import Trajectory
from teacher.wrapper.recording import SegmentRecorder, Source, Step

SPACE = Box(-np.inf, np.inf, (1,), np.float64)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_segments_follow_one_another_however_an_episode_grows(seed: int, at_once: int) -> None:
    cutter = SegmentCutter(7, np.random.default_rng(seed))
    steps = [*range(0, 60, at_once), 60]
    parts = [part for count in steps for part in cutter.cut(count, finished=count == 60)]
    first = parts[0].start
    assert 0 <= first < 7
    assert parts == [slice(start, start + 7) for start in range(first, 60 - 6, 7)]
    assert cutter.next_start == parts[-1].stop


def test_an_episode_that_is_too_short_gives_none_and_draws_nothing() -> None:
    random = np.random.default_rng(1)
    assert SegmentCutter(7, random).cut(6, finished=True) == []
    assert SegmentCutter(7, random).cut(12, finished=False) == []  # an offset of 6 would leave no room
    assert random.bit_generator.state == np.random.default_rng(1).bit_generator.state
    assert len(SegmentCutter(7, random, first=3).cut(10, finished=True)) == 1


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("moving", [3, 20, 50, 60])
def test_absorbed_episode_is_cut_one_segment_past_its_end(moving: int, seed: int) -> None:
    observations = np.minimum(np.arange(61.0), moving)[:, None]
    actions, rewards = -np.arange(60.0)[:, None], np.arange(60.0)
    pool = SegmentPool(7, seed=seed)
    growing = Trajectory("any", {"fixed_horizon": "absorb"}, 1)
    source = Source("any", SPACE, SPACE, True, 30, absorbs=True)
    recorder = SegmentRecorder(source, 7, np.random.default_rng(seed))
    recorder.begin(observations[0], seed=1)
    segments = []
    for step in range(60):
        growing.extend(observations[step : step + 2], actions[[step]], rewards[[step]], [])
        growing.truncated = step == 59
        pool.extend([growing])
        step_taken = Step(actions[step], observations[step + 1], rewards[step], False, step == 59)
        segments += recorder.add(step_taken)
    starts = [segment.start for segment in pool.segments]
    assert starts == [segment.start for segment in segments]
    if moving < 60:
        recorder = SegmentRecorder(replace(source, horizon=60), 7, np.random.default_rng(seed))
        recorder.begin(observations[0], seed=1)
        added = []
        for step in range(moving):
            one = Step(actions[step], observations[step + 1], 1.0, step == moving - 1, False)
            added += recorder.add(one)
        assert recorder.steps == min(moving + 7, 60)
        assert starts == [segment.start for segment in added]
        kept = [sum(s.true_rewards) == min(7, moving - s.start) and not s.terminated for s in added]
        assert all(kept), "0 after the end"
    assert starts == list(range(starts[0], min(moving + 7, 60) - 6, 7))
    assert all(start <= moving for start in starts), "none is cut where nothing happens any more"
    recorded = SegmentPool(7, seed=seed)
    recorded.extend([Trajectory.from_arrays(observations, actions, rewards)])
    assert len(recorded) in (len(pool), len(pool) + 1)


def test_other_episodes_are_cut_as_ever_where_they_stand_still() -> None:
    pool = SegmentPool(7, seed=1)
    standing = Trajectory("any", {"fixed_horizon": "restart"}, 1)
    standing.extend(np.zeros((61, 1)), np.zeros((60, 1)), np.zeros(60), [])
    standing.truncated = True
    pool.extend([standing])
    assert len(pool) >= 7


@pytest.mark.parametrize("terminated", [True, False])
def test_the_pool_and_the_wrapper_cut_the_same_segments(terminated: bool) -> None:
    observations = np.arange(61.0)[:, None]
    actions, rewards = -observations[1:], np.arange(60.0)
    pool = SegmentPool(7, seed=4)
    pool.extend([Trajectory.from_arrays(observations, actions, rewards, terminated)])
    recorder = SegmentRecorder(Source("any", SPACE, SPACE, True, 30), 7, np.random.default_rng(4))
    recorder.begin(observations[0], seed=1)
    segments = []
    for step in range(60):
        ends = (step == 59 and terminated, step == 59 and not terminated)
        segments += recorder.add(Step(actions[step], observations[step + 1], rewards[step], *ends))
    assert len(segments) == len(pool.segments) >= 7
    for found, expected in zip(segments, pool.segments, strict=True):
        assert (found.start, found.terminated) == (expected.start, expected.terminated)
        for name in ("observations", "actions", "true_rewards", "final_observation"):
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
        np.testing.assert_array_equal(found.recipe.actions, expected.recipe.actions)
