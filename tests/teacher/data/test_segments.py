"""Segments are honest slices of one episode; the pool cuts each step once and pairs different segments."""

import gc
import io
import weakref
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import islice, pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from teacher.data.segment_pool import SegmentPool
from teacher.data.segments import Segment
from teacher.envs.episodes import EpisodeRecorder, SeededResets, episode_seeds, replay
from teacher.envs.random_episodes import random_trajectories
from teacher.envs.recipe import EpisodeRecipe
from teacher.envs.tasks import describe_task, make_vector_env
from teacher.envs.trajectory import Trajectory
from teacher.errors import ConfigError, DataError
from tests.teacher.conftest import make_segment

LENGTH = 7
KWARGS = st.dictionaries(
    st.text(), st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.integers())
)


@pytest.fixture(scope="module")
def trajectories() -> list[Trajectory]:
    """Finished episodes of different lengths, of discrete actions."""
    return list(islice(random_trajectories(describe_task("CartPole-v1"), seed=0), 60))


@pytest.fixture
def pool(trajectories: list[Trajectory]) -> SegmentPool:
    pool = SegmentPool(LENGTH, seed=0)
    pool.extend(trajectories)
    return pool


def segment(steps: int = 3, start: int = 2, recipe_steps: int = 5, **changes: Any) -> Segment:
    actions = np.arange(2.0 * recipe_steps, dtype=np.float32).reshape(recipe_steps, 2)
    recipe = EpisodeRecipe("teacher/Hopper-v1", {}, 4, actions)
    fields = {
        "observations": np.ones((steps, 11)),
        "actions": actions[start:],
        "true_rewards": np.arange(float(steps)),
        "final_observation": np.full(11, 2.0),
        "terminated": True,
    }
    return Segment(recipe, start, **{**fields, **changes})


def spans(segments: Sequence[Segment]) -> dict[int, list[tuple[int, int]]]:
    """Start and stop of the segments of each episode; an episode is known by its seed."""
    found: dict[int, list[tuple[int, int]]] = {}
    for one in segments:
        found.setdefault(one.recipe.seed, []).append((one.start, one.start + len(one)))
    return found


def test_segments_are_slices_of_their_episodes(pool: SegmentPool, trajectories: list[Trajectory]) -> None:
    by_seed = {trajectory.seed: trajectory for trajectory in trajectories}
    assert len(pool) > 60
    for one in pool.segments:
        episode, steps = by_seed[one.recipe.seed], slice(one.start, one.start + LENGTH)
        np.testing.assert_array_equal(one.observations, episode.observations[steps])
        np.testing.assert_array_equal(one.actions, episode.actions[steps])
        np.testing.assert_array_equal(one.true_rewards, episode.true_rewards[steps])
        np.testing.assert_array_equal(one.recipe.actions, episode.actions[: steps.stop])
        np.testing.assert_array_equal(one.next_observations, episode.next_observations[steps])
        assert one.terminated == (steps.stop == len(episode))
        assert one.terminations.tolist() == episode.terminations[steps].tolist()
        assert one.observations.dtype == np.float32
        assert one.actions.shape == (LENGTH,)


def test_segments_never_overlap(pool: SegmentPool, trajectories: list[Trajectory]) -> None:
    found = spans(pool.segments)
    for trajectory in trajectories:
        cut = found.get(trajectory.seed, [])
        assert bool(cut) == (len(trajectory) >= LENGTH)
        if cut:
            assert cut[0][0] < LENGTH
            assert len(trajectory) - cut[-1][1] < LENGTH
        assert all(stop == start for (_, stop), (start, _) in pairwise(cut))


def test_the_first_segment_begins_anywhere(pool: SegmentPool) -> None:
    offsets = Counter(cut[0][0] for cut in spans(pool.segments).values())
    assert set(offsets) == set(range(LENGTH))


def test_an_episode_of_exactly_one_segment_is_used() -> None:
    trajectories = list(islice(random_trajectories(describe_task("ShortReacher-v1"), seed=0), 4))
    pool = SegmentPool(20)
    assert pool.extend(trajectories) == 4
    assert [one.start for one in pool.segments] == [0] * 4
    assert SegmentPool(21).extend(trajectories) == 0


def test_a_growing_episode_is_cut_as_it_grows() -> None:
    envs = make_vector_env(describe_task("ShortHopper-v1"), 2, seed=0)
    envs.action_space.seed(0)
    envs.reset()
    pool = SegmentPool(20, seed=1)
    added = 0
    for step in range(1, 700):
        envs.step(envs.action_space.sample())
        if step % 33 == 0:
            added += pool.extend(envs.drain())
    envs.close()
    assert added == len(pool)
    for cut in spans(pool.segments).values():
        assert 0 <= cut[0][0] < 20
        assert all(stop == start for (_, stop), (start, _) in pairwise(cut))
    assert sum(stop - start for cut in spans(pool.segments).values() for start, stop in cut) > 1100
    for one in pool.segments[::10]:
        steps = list(replay(one.recipe))[one.start :]
        np.testing.assert_array_equal([step.observation for step in steps], one.observations)


class Scripted(gym.Env[NDArray[Any], np.int64]):
    """Episodes of given lengths and ends; each observation says which environment, episode and step it is."""

    observation_space = spaces.Box(0, np.inf, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, index: int, ends: Sequence[tuple[int, bool]]) -> None:
        self.index, self.ends = index, ends
        self.episode, self.made = -1, 0

    def end_of(self, episode: int) -> tuple[int, bool]:
        """Return how many steps it has, and whether it is terminated rather than truncated."""
        return self.ends[episode % len(self.ends)]

    def reset(self, **_: Any) -> tuple[NDArray[Any], dict[str, Any]]:
        self.episode, self.made = self.episode + 1, 0
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        self.made += 1
        length, terminates = self.end_of(self.episode)
        ended = self.made == length
        return self._observe(), float(self.made), ended and terminates, ended and not terminates, {}

    def _observe(self) -> NDArray[Any]:
        return np.array([self.index, self.episode, self.made], np.float32)


ENDS = st.lists(st.tuples(st.integers(1, 15), st.booleans()), min_size=1, max_size=5)


@given(
    ends=st.lists(ENDS, min_size=1, max_size=3),
    rounds=st.lists(st.integers(1, 25), min_size=1, max_size=6),
    length=st.integers(1, 6),
    capacity=st.integers(1, 12),
)
@settings(max_examples=80, deadline=None)
def test_whatever_episodes_are_like_they_are_cut_into_slices_that_do_not_overlap(
    ends: list[list[tuple[int, bool]]], rounds: list[int], length: int, capacity: int
) -> None:
    made = [Scripted(index, own) for index, own in enumerate(ends)]
    seeded = [partial(SeededResets, env, episode_seeds([1], env.index, len(made))) for env in made]
    envs = EpisodeRecorder(SyncVectorEnv(seeded), "Any-v0", {})
    envs.reset()
    everything, pool, added = SegmentPool(length, 10**6), SegmentPool(length, capacity), 0
    for steps in rounds:
        for _ in range(steps):
            envs.step(np.zeros(len(made), np.int64))
        grown = envs.drain()
        added += everything.extend(grown)
        pool.extend(grown)
        assert len(everything) == added
        assert len(pool) == min(capacity, added)
        assert places(pool.segments) == places(everything.segments)[added - len(pool) :]
    covered: dict[tuple[int, int], list[int]] = {}
    for one, (index, episode, start) in zip(everything.segments, places(everything.segments), strict=True):
        rows = np.vstack([one.observations, one.next_observations[-1:]])
        expected = [(index, episode, start + step) for step in range(length + 1)]
        assert rows.tolist() == np.array(expected).tolist()
        assert one.true_rewards.tolist() == [start + step + 1 for step in range(length)]
        steps, terminates = made[index].end_of(episode)
        assert one.terminated == (terminates and start + length == steps)
        covered.setdefault((index, episode), []).extend(range(start, start + length))
    for (index, episode), steps_of in covered.items():
        assert steps_of == list(range(steps_of[0], steps_of[-1] + 1)), "one after another"
        assert 0 <= steps_of[0] < length
        assert steps_of[-1] < made[index].end_of(episode)[0]
    for env in made:
        for episode in range(env.episode):
            steps = env.end_of(episode)[0]
            assert steps - covered.get((env.index, episode), [-1])[-1] - 1 < length or steps < length


def places(segments: Sequence[Segment]) -> list[tuple[int, int, int]]:
    """Environment, episode and step where each begins."""
    return [
        (int(index), int(episode), one.start)
        for one in segments
        for index, episode, _ in one.observations[:1]
    ]


def test_the_pool_keeps_the_most_recent(trajectories: list[Trajectory]) -> None:
    everything, recent = SegmentPool(LENGTH, seed=0), SegmentPool(LENGTH, capacity=25, seed=0)
    everything.extend(trajectories)
    added = recent.extend(trajectories[:30]) + recent.extend(trajectories[30:])
    assert added == len(everything)
    assert len(recent) == 25
    assert spans(recent.segments) == spans(everything.segments[-25:])


def test_a_pool_takes_segments_of_its_own_length_only() -> None:
    pool = SegmentPool(3)
    with pytest.raises(DataError, match="must have 3 steps, but one has 4") as refusal:
        pool.add([segment(), segment(steps=4, start=1)])
    assert "\n" not in str(refusal.value)
    assert len(pool) == 0


def test_a_segment_keeps_nothing_of_its_episode_but_the_actions() -> None:
    pool = SegmentPool(20)
    trajectories = list(islice(random_trajectories(describe_task("ShortReacher-v1"), seed=0), 8))
    pool.extend(trajectories)
    episodes = [weakref.ref(trajectory) for trajectory in trajectories]
    del trajectories
    gc.collect()
    assert [episode() for episode in episodes] == [None] * 8
    assert len(pool) == 8
    for one in pool.segments:
        for kept in (one.observations, one.true_rewards, one.final_observation):
            assert kept is not None
            assert kept.base is None


def test_the_pool_keeps_what_there_is_memory_for(trajectories: list[Trajectory]) -> None:
    everything = SegmentPool(LENGTH, seed=0)
    everything.extend(trajectories)
    size = everything.segments[0].nbytes
    pool = SegmentPool(LENGTH, seed=0, max_bytes=7 * size + 1)
    pool.extend(trajectories[:20])
    pool.remember([(pool.segments[0], pool.segments[1])])
    pool.extend(trajectories[20:])
    kept = [(segment.recipe.seed, segment.start) for segment in pool.segments]
    assert kept == [(segment.recipe.seed, segment.start) for segment in everything.segments[-7:]]
    assert pool.asked == []
    tiny = SegmentPool(LENGTH, seed=0, max_bytes=1)
    tiny.extend(trajectories)
    assert len(tiny) == 2, "a pair"


def test_pairs_are_of_different_segments_and_without_repetition(pool: SegmentPool) -> None:
    pairs = pool.sample_pairs(len(pool) // 2)
    used = Counter(id(one) for pair in pairs for one in pair)
    assert len(pairs) == len(pool) // 2
    assert set(used.values()) == {1}


def test_a_small_pool_repeats_evenly_but_never_pairs_a_segment_with_itself() -> None:
    pool = SegmentPool(20)
    pool.extend(islice(random_trajectories(describe_task("ShortReacher-v1"), seed=0), 5))
    pairs = pool.sample_pairs(100)
    assert len(pairs) == 100
    assert all(first is not second for first, second in pairs)
    used = Counter(id(one) for pair in pairs for one in pair)
    assert len(used) == 5
    assert min(used.values()) > 30


def test_pairs_are_drawn_uniformly() -> None:
    pool = SegmentPool(20)
    pool.extend(islice(random_trajectories(describe_task("ShortReacher-v1"), seed=0), 4))
    drawn = [pool.sample_pairs(1)[0] for _ in range(1200)]
    counts = Counter((id(first), id(second)) for first, second in drawn)
    assert len(counts) == 12  # ordered pairs of four
    assert all(60 <= count <= 145 for count in counts.values())  # 100 expected, 4.5 deviations


def test_a_pool_of_one_has_no_pair() -> None:
    pool = SegmentPool(20)
    assert pool.sample_pairs(0) == []
    pool.extend(islice(random_trajectories(describe_task("ShortReacher-v1"), seed=0), 1))
    with pytest.raises(ValueError, match="at least 2 segments"):
        pool.sample_pairs(1)


def test_the_random_state_is_restored(trajectories: list[Trajectory]) -> None:
    first, second = SegmentPool(LENGTH, seed=1), SegmentPool(LENGTH, seed=2)
    first.extend(trajectories[:20])
    second.load_state_dict(first.state_dict())
    assert first.extend(trajectories[20:]) == second.extend(trajectories[20:])
    assert spans(second.segments).items() <= spans(first.segments).items()


def test_bytes_keep_everything() -> None:
    one = segment()
    again = Segment.from_bytes(one.to_bytes())
    assert (again.start, len(again), again.true_return) == (2, 3, 3.0)
    assert again.recipe.to_json() == one.recipe.to_json()
    for name in ("observations", "actions", "true_rewards", "next_observations", "terminations"):
        np.testing.assert_array_equal(getattr(again, name), getattr(one, name))
        assert getattr(again, name).dtype == getattr(one, name).dtype


@st.composite
def numbers(draw: st.DrawFn, steps: int, *, least: int = 0) -> NDArray[Any]:
    """So many rows, of any dtype and shape that spaces have."""
    kinds = [np.bool_, np.uint8, np.int8, np.int32, np.int64, np.float16, np.float32, np.float64]
    dtype = np.dtype(draw(st.sampled_from(kinds)))
    shape = draw(arrays.array_shapes(min_dims=0, max_dims=3, min_side=least, max_side=3))
    elements = st.floats(-6e4, 6e4, width=16) if dtype.kind == "f" else arrays.from_dtype(dtype)
    found: NDArray[Any] = draw(arrays.arrays(dtype, (steps, *shape), elements=elements))
    return found


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_bytes_keep_whatever_a_segment_holds(data: st.DataObject) -> None:
    start, steps = data.draw(st.integers(0, 3)), data.draw(st.integers(1, 4))
    actions, states = data.draw(numbers(start + steps, least=1)), data.draw(numbers(steps + 1))
    ends_known = data.draw(st.booleans())
    one = Segment(
        EpisodeRecipe(data.draw(st.text()), data.draw(KWARGS), data.draw(st.integers(0, 2**63)), actions),
        start,
        states[:-1],
        actions[start:],
        data.draw(arrays.arrays(np.float64, steps, elements=st.floats(-1e30, 1e30))),
        states[-1] if ends_known else None,
        ends_known and data.draw(st.booleans()),
        data.draw(st.none() | st.tuples(*[st.binary(min_size=1, max_size=9)] * steps)),
    )
    again = Segment.from_bytes(one.to_bytes())
    for name in ("observations", "actions", "true_rewards", "final_observation"):
        found, expected = getattr(again, name), getattr(one, name)
        np.testing.assert_array_equal(found, expected, strict=True)
    np.testing.assert_array_equal(again.recipe.actions, actions, strict=True)
    assert again.recipe.to_json() == one.recipe.to_json()
    assert (again.start, again.terminated, again.frames) == (one.start, one.terminated, one.frames)


def test_bytes_of_a_version_that_kept_nothing_after_the_last_step_are_read() -> None:
    """Check what version 0.1 wrote."""
    one, buffer = segment(), io.BytesIO()
    np.savez_compressed(
        buffer,
        recipe=np.array(one.recipe.to_json()),
        start=np.array(one.start),
        observations=one.observations,
        true_rewards=one.true_rewards,
    )
    for again in (old := Segment.from_bytes(buffer.getvalue()), Segment.from_bytes(old.to_bytes())):
        np.testing.assert_array_equal(again.observations, one.observations)
        assert (again.final_observation, again.terminated) == (None, False)
        for name in ("next_observations", "terminations"):
            with pytest.raises(DataError, match=r"pass --reward\.inputs state,action"):
                getattr(again, name)


@pytest.mark.parametrize("number", [np.nan, -np.inf, 4e38])
@pytest.mark.parametrize("name", ["observations", "actions", "true_rewards", "final_observation"])
def test_numbers_nobody_can_learn_from_are_refused_in_one_line(name: str, number: float) -> None:
    broken = getattr(segment(), name).astype(np.float64)
    broken.flat[-1] = number
    with pytest.raises(DataError, match=rf"^found .* in {name} .*teacher/Hopper-v1 with seed 4 \(.*$"):
        segment(**{name: broken})


@pytest.mark.parametrize(
    "arguments",
    [
        {"start": 1},
        {"start": 3},
        {"steps": 4},
        {"steps": 0, "start": 5},
        {"start": -3, "steps": 3},
        {"final_observation": np.ones(10)},
        {"final_observation": np.ones(11, np.float32)},
    ],
)
def test_a_segment_that_does_not_fit_its_episode_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must have|but the others have"):
        segment(**arguments)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_damaged_bytes_are_refused_or_harmless(data: st.DataObject) -> None:
    intact = segment().to_bytes()
    position = data.draw(st.integers(0, len(intact) - 1))
    damaged = data.draw(
        st.sampled_from(
            [
                intact[:position],
                intact[:position] + bytes([intact[position] ^ 0xFF]) + intact[position + 1 :],
            ]
        )
    )
    try:
        again = Segment.from_bytes(damaged)
    except DataError:
        return
    np.testing.assert_array_equal(again.observations, segment().observations)
    np.testing.assert_array_equal(again.actions, segment().actions)


def test_bytes_of_something_else_are_refused() -> None:
    def archive(**arrays: Any) -> bytes:
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)
        return buffer.getvalue()

    good = {
        "recipe": np.array(segment().recipe.to_json()),
        "start": np.array(2),
        "observations": np.ones((3, 11)),
        "true_rewards": np.zeros(3),
    }
    Segment.from_bytes(archive(**good))
    for wrong in (
        {"start": np.array(4)},
        {"start": np.array(-1)},
        {"observations": np.ones((2, 11))},
        {"true_rewards": np.zeros((3, 1))},
        {"true_rewards": np.array(["a", "b", "c"])},
        {"recipe": np.array("{}")},
        {"observations": np.array([{}, {}, {}])},
        {"observations": np.array(["a", "b", "c"])},
    ):
        with pytest.raises(DataError, match="cannot be read"):
            Segment.from_bytes(archive(**{**good, **wrong}))
    for data in (b"", b"PK", archive(start=np.array(0))):
        with pytest.raises(DataError, match="cannot be read"):
            Segment.from_bytes(data)


def test_heavy_segment_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = SegmentPool(length=6)
    pool.add([make_segment(1), make_segment(2)])
    drawn: list[int] = []
    unwatched = pool._random

    class Watched:
        def choice(self, *arguments: object, **options: object) -> object:
            drawn.append(1)
            assert len(drawn) < 1000
            return unwatched.choice(*arguments, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(pool, "_random", Watched())
    ((first, second),) = pool.sample_pairs(1, np.array([2.0**-20, 1.0]))
    assert first is not second


def test_partners_of_a_heavy_segment_are_drawn_by_weight() -> None:
    pool = SegmentPool(length=6)
    pool.add([make_segment(number) for number in range(3)])
    pairs = pool.sample_pairs(4000, np.array([1.0, 1e-5, 3e-5]))
    seeds = [tuple(segment.recipe.seed for segment in pair) for pair in pairs]
    assert seeds.count((0, 1)) + seeds.count((1, 0)) == pytest.approx(1000, abs=130)
    assert seeds.count((0, 2)) + seeds.count((2, 0)) == pytest.approx(3000, abs=130)
    assert sum(first == 0 for first, _ in seeds) == pytest.approx(2000, abs=160)


@pytest.mark.parametrize("number", [-1, 2.5, "3", True, None], ids=repr)
def test_invalid_pair_counts_are_refused(number: Any) -> None:
    first, second = make_segment(1), make_segment(2)
    pool = SegmentPool(len(first))
    pool.add([first, second])
    with pytest.raises(ConfigError, match=r"^n: expected a whole number, 0 or more; got "):
        pool.sample_pairs(number)
    assert pool.sample_pairs(0) == []
