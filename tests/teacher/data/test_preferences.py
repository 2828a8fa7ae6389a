"""The set of answers that count now, and who trains on which."""

import dataclasses
import gc
import re
import weakref
from collections import Counter
from itertools import islice
from random import Random
from typing import Any
from uuid import UUID, uuid4

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st

from teacher.data.preferences import Preference, PreferenceDataset, bootstrap_weights
from teacher.data.segment_pool import SegmentPool
from teacher.data.segments import Segment
from teacher.datasets.preference_files import load_preferences, save_preferences
from teacher.envs.random_episodes import random_trajectories
from teacher.envs.recipe import EpisodeRecipe
from teacher.envs.tasks import describe_task
from teacher.errors import ConfigError, DataError
from tests.teacher.conftest import make_segment


def ids(*numbers: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
    return np.array([[number >> 64, number & (2**64 - 1)] for number in numbers], np.uint64)


def test_weights_follow_poisson_of_mean_one() -> None:
    from scipy import stats

    random = Random(1)
    weights = bootstrap_weights(ids(*(random.getrandbits(128) for _ in range(30_000))), 3)
    for member in weights:
        counts = Counter(member.astype(int).tolist())
        observed = [counts[k] for k in range(5)] + [sum(n for k, n in counts.items() if k >= 5)]
        expected = 30_000 * np.array([*stats.poisson.pmf(range(5), 1), stats.poisson.sf(4, 1)])
        assert stats.chisquare(observed, expected).pvalue > 1e-4
    assert np.abs(np.corrcoef(weights) - np.eye(3)).max() < 0.03


def test_even_uuids_that_count_upwards_get_independent_weights() -> None:
    weights = bootstrap_weights(ids(*range(20_000)), 2)
    assert weights.mean() == pytest.approx(1, abs=0.03)
    assert abs(np.corrcoef(weights[:, :-1].ravel(), weights[:, 1:].ravel())[0, 1]) < 0.03


def test_weights_never_change_between_versions() -> None:
    """Another hash would turn held-out answers of running experiments into training ones."""
    numbers = ids(0, 1, 2**64, 2**128 - 1, 0x1234_5678_9ABC_DEF0_0FED_CBA9_8765_4321)
    expected = [[0, 0, 1, 0, 2], [3, 1, 1, 2, 3], [0, 2, 2, 1, 0]]
    assert bootstrap_weights(numbers, 3).tolist() == expected


def test_a_weight_depends_on_nothing_but_uuid_and_member() -> None:
    numbers = [uuid4().int for _ in range(20)]
    weights = bootstrap_weights(ids(*numbers), 5)
    assert (bootstrap_weights(ids(*reversed(numbers)), 3) == weights[:3, ::-1]).all()


def test_a_sample_is_spread_evenly_from_the_oldest_to_the_newest() -> None:
    dataset = PreferenceDataset()
    dataset.upsert(Preference(UUID(int=n), tagged(n), tagged(-n), n % 2) for n in range(100))
    dataset.upsert([Preference(UUID(int=0), tagged(0), tagged(0), 1.0)])  # decided anew, so the newest
    some = dataset.sample(5)
    assert [int(low) for _, low in some.ids] == [1, 26, 51, 75, 0]
    assert some.values.tolist() == [1, 0, 1, 1, 1]
    assert some.observations[:, 0, 0, 0].tolist() == [1, 26, 51, 75, 0]
    assert (len(some), some.env_id) == (5, dataset.env_id)
    assert dataset.sample(100) is dataset


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from([None, 0.0, 0.5, 1.0])), max_size=40))
def test_it_holds_the_last_value_of_each_comparison(changes: list[tuple[int, float | None]]) -> None:
    dataset, model = PreferenceDataset(), dict[int, float]()
    for number, value in changes:
        dataset.upsert([Preference(UUID(int=number), tagged(number), tagged(-number), value)])
        model.pop(number, None) if value is None else model.__setitem__(number, value)
        assert len(dataset) == len(model)
    held = (
        {
            int(low): (float(value), observations[0, 0, 0], observations[1, 0, 0])
            for (_, low), value, observations in zip(
                dataset.ids, dataset.values, dataset.observations, strict=True
            )
        }
        if model
        else {}
    )
    assert held == {number: (value, number, -number) for number, value in model.items()}
    assert all((UUID(int=number) in dataset) == (number in model) for number in range(10))


def tagged(number: int) -> Segment:
    actions = np.zeros((2, 1), np.float32)
    return Segment(
        EpisodeRecipe("Any-v0", {}, 0, actions, {}), 0, np.full((2, 1), number), actions, np.zeros(2)
    )


def test_upsert_says_how_many_answers_are_news() -> None:
    dataset = PreferenceDataset()
    answers = [Preference(UUID(int=n), make_segment(n), make_segment(n + 50), 1.0) for n in range(3)]
    assert dataset.upsert(answers) == 3
    assert dataset.upsert(answers) == 0
    revised = Preference(answers[0].uuid, answers[0].first, answers[0].second, 0.0)
    dropped = Preference(answers[1].uuid, answers[1].first, answers[1].second, None)
    assert dataset.upsert([revised, dropped, dropped]) == 2


def test_it_grows_without_copying_everything_each_time() -> None:
    dataset, buffers = PreferenceDataset(), set[int]()
    for number in range(300):
        dataset.upsert([Preference(UUID(int=number), make_segment(number), make_segment(number + 1), 1.0)])
        buffers.add(dataset.observations.__array_interface__["data"][0])
    assert len(buffers) <= 5
    for number in (0, 63, 64, 299):
        expected = [make_segment(number).observations, make_segment(number + 1).observations]
        np.testing.assert_array_equal(dataset.observations[number], expected)


def test_segments_are_copied() -> None:
    dataset, segment = PreferenceDataset(), make_segment(1)
    dataset.upsert([Preference(uuid4(), segment, make_segment(2), 1.0)])
    before = dataset.observations.copy()
    segment.observations[:] = 0
    assert (dataset.observations == before).all()
    assert dataset.actions.shape == (1, 2, 6, 2)


def test_true_returns_are_kept_beside_the_answers() -> None:
    dataset, pair = PreferenceDataset(), (make_segment(1), make_segment(2))
    dataset.upsert([Preference(uuid4(), *pair, 1.0)])
    expected = [[segment.true_return for segment in pair]]
    np.testing.assert_array_equal(dataset.true_returns, np.array(expected, np.float32))


def test_whole_numbers_keep_their_type() -> None:
    dataset = PreferenceDataset()
    actions = np.array([3, 4])
    pixels = np.arange(8, dtype=np.uint8).reshape(2, 2, 2)
    segment = Segment(EpisodeRecipe("Any-v0", {}, 0, actions, {}), 0, pixels, actions, np.zeros(2))
    dataset.upsert([Preference(uuid4(), segment, segment, 1.0)])
    assert dataset.observations.dtype == np.uint8
    assert dataset.actions.tolist() == [[[3, 4], [3, 4]]]


def test_it_keeps_no_segment_and_no_episode_alive() -> None:
    trajectories = list(islice(random_trajectories(describe_task("ShortReacher-v1"), seed=0), 4))
    pool, dataset = SegmentPool(10), PreferenceDataset()
    pool.extend(trajectories)
    kept = [weakref.ref(one) for one in (*trajectories, *pool.segments)]
    dataset.upsert([Preference(uuid4(), *pair, 1.0) for pair in pool.sample_pairs(3)])
    expected = dataset.observations.copy()
    del trajectories, pool
    gc.collect()
    assert [one() for one in kept] == [None] * len(kept)
    np.testing.assert_array_equal(dataset.observations, expected)


def test_segments_of_another_length_or_environment_are_refused() -> None:
    dataset = PreferenceDataset()
    dataset.upsert([Preference(uuid4(), make_segment(1), make_segment(2), 1.0)])
    longer = make_segment(3, length=7), make_segment(4, length=7)
    other = make_segment(3, observation_size=4), make_segment(4, observation_size=4)
    for pair in (longer, other):
        with pytest.raises(DataError, match="the same environment and have the same length"):
            dataset.upsert([Preference(uuid4(), *pair, 1.0)])
    abroad = [
        dataclasses.replace(one, recipe=dataclasses.replace(one.recipe, env_id="Other-v0"))
        for one in (make_segment(5), make_segment(6))
    ]
    for pair in ((abroad[0], abroad[1]), (abroad[0], make_segment(6)), (make_segment(5), abroad[1])):
        with pytest.raises(DataError, match=r"Other-v0.*same (length and )?environment"):
            dataset.upsert([Preference(uuid4(), *pair, 1.0)])
    with pytest.raises(DataError, match="both must be from the same environment and have the same length"):
        dataset.upsert([Preference(uuid4(), make_segment(3), longer[0], 1.0)])
    assert len(dataset) == 1


def test_an_empty_dataset_says_what_to_wait_for() -> None:
    with pytest.raises(DataError, match="wait for the first label"):
        _ = PreferenceDataset().observations


def test_next_states_are_kept() -> None:
    dataset = PreferenceDataset()
    segments = [make_segment(number) for number in range(8)]
    for number in range(4):
        dataset.upsert([Preference(UUID(int=number), segments[2 * number], segments[2 * number + 1], 1.0)])
    assert {segment.terminated for segment in segments} == {True, False}
    for steps, rows in ((dataset.steps(), range(4)), (dataset.steps(np.array([[3, 1]])), (3, 1))):
        pairs = [[segments[2 * row], segments[2 * row + 1]] for row in rows]
        for name in ("observations", "actions", "next_observations", "terminations"):
            expected = np.array([[getattr(segment, name) for segment in pair] for pair in pairs])
            found = getattr(steps, name)
            np.testing.assert_array_equal(found.reshape(expected.shape), expected.astype(found.dtype))


def test_a_pair_without_what_follows_is_kept_from_those_who_need_it() -> None:
    old = dataclasses.replace(make_segment(1), final_observation=None)
    dataset = PreferenceDataset()
    dataset.upsert([Preference(UUID(int=n), make_segment(n), make_segment(n + 9), 1.0) for n in range(3)])
    dataset.upsert([Preference(UUID(int=3), make_segment(3), old, 1.0)])
    assert dataset.observations.shape == (4, 2, 6, 3)
    assert dataset.steps(np.arange(3)).next_observations.shape == (3, 2, 6, 3)
    for name in ("next_observations", "terminations"):
        with pytest.raises(DataError, match=r"pass --reward\.inputs state,action"):
            getattr(dataset.steps(), name)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(0, 7), st.sampled_from([None, 0.0, 0.5, 1.0])), max_size=40),
)
def test_the_last_decided_are_kept(size: int, changes: list[tuple[int, float | None]]) -> None:
    dataset, model = PreferenceDataset(max_size=size), dict[int, float]()
    for number, value in changes:
        dataset.upsert([Preference(UUID(int=number), tagged(number), tagged(-number), value)])
        if value is None or value != model.get(number):
            model.pop(number, None)
        if value is not None:
            model[number] = value
        model = dict(list(model.items())[-size:])
        assert {number for number in range(8) if UUID(int=number) in dataset} == set(model)
    if model:
        held = dict(zip(dataset.observations[:, 0, 0, 0].tolist(), dataset.values.tolist(), strict=True))
        assert held == model
        assert dataset.ids[:, 1].tolist() == list(held)


def test_a_dataset_that_is_given_a_size_keeps_the_last_decided_at_once() -> None:
    dataset = PreferenceDataset()
    answers = [Preference(UUID(int=n), make_segment(n), make_segment(n + 50), 1.0) for n in range(9)]
    dataset.upsert([*answers, dataclasses.replace(answers[2], value=0.0)])
    dataset.max_size = 3
    assert {answer.uuid for answer in answers if answer.uuid in dataset} == {UUID(int=n) for n in (2, 7, 8)}
    dataset.upsert(answers[:1])
    assert len(dataset) == 3
    dataset.max_size = None
    dataset.upsert(answers)
    assert len(dataset) == 9


@pytest.mark.parametrize("size", [0, -1, 2.5, "10", True, float("nan"), float("inf"), [3]])
def test_invalid_max_size_is_refused(size: Any) -> None:
    message = re.escape(f"max_size: expected a whole number, 1 or more, or None to keep all; got {size!r}")
    with pytest.raises(ConfigError, match=message):
        PreferenceDataset(max_size=size)
    dataset = PreferenceDataset(max_size=3)
    with pytest.raises(ConfigError, match=message):
        dataset.max_size = size
    assert dataset.max_size == 3


def test_a_large_object_is_refused_in_one_short_line() -> None:
    preferences = [Preference(UUID(int=n), make_segment(n), make_segment(n + 9), 1.0) for n in range(3)]
    with pytest.raises(ConfigError, match=r"got \[Preference\(uuid=.*\.\.\.$") as caught:
        PreferenceDataset(preferences)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("size", [3, 3.0, np.int64(3)])
def test_a_size_may_be_a_number_of_numpys_and_a_whole_one_with_a_point(size: Any) -> None:
    assert type(PreferenceDataset(size).max_size) is int


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1.01, -0.01])
def test_invalid_probabilities_are_refused(value: float) -> None:
    dataset = PreferenceDataset()
    answer = Preference(UUID(int=1), make_segment(1), make_segment(2), 1.0)
    for known in (0, 1):
        with pytest.raises(DataError, match=rf"value must be .*, from 0 to 1, .* not {value}$"):
            dataset.upsert([dataclasses.replace(answer, value=value)])
        assert len(dataset) == known
        dataset.upsert([answer])
    assert dataset.values.tolist() == [1.0]


def test_unnamed_preferences_take_the_next_environment_id() -> None:
    answers = [Preference(UUID(int=n), make_segment(n), make_segment(n + 50), 1.0) for n in range(3)]
    dataset = PreferenceDataset()
    dataset.upsert(answers[:2])
    dataset.env_id = None
    dataset.upsert(answers[2:])
    assert len(dataset) == 3
    assert dataset.env_id == "Any-v0"


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
@given(st.data())
@settings(max_examples=25, deadline=None)
def test_a_file_holds_whatever_a_dataset_does(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, data: st.DataObject
) -> None:
    dtype = data.draw(st.sampled_from([np.float32, np.float64, np.uint8, np.int64]))
    length, shape = data.draw(st.integers(1, 4)), tuple(data.draw(st.lists(st.integers(1, 3), max_size=3)))
    random, dataset = np.random.default_rng(data.draw(st.integers(0, 99))), PreferenceDataset()
    for number in data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=12)):
        pair = []
        for _ in "ab":
            states = (100 * random.random((length + 1, *shape))).astype(dtype)
            actions = random.integers(3, size=length)
            last = states[-1] if random.random() < 0.7 else None
            recipe = EpisodeRecipe("Any-v0", {}, 0, actions, {})
            pair.append(
                Segment(recipe, 0, states[:-1], actions, random.random(length), last, number % 2 == 0)
            )
        value = float(random.choice([0, 0.3, 0.5, 1]))
        dataset.upsert([Preference(UUID(int=number), pair[0], pair[1], value)])
    stored = dataset.observations.dtype.type
    spaces = Box(0, 100, shape, stored), Discrete(3)
    path = tmp_path_factory.mktemp("labels") / f"labels{suffix}"
    save_preferences(path, dataset, *spaces)
    again = load_preferences(path, env_id="Any-v0", observation_space=spaces[0], action_space=spaces[1])
    assert (again.env_id, len(again)) == ("Any-v0", len(dataset))
    assert again.columns.keys() == dataset.columns.keys()
    for name, column in dataset.columns.items():
        expected = column.rows[dataset.by_decision]
        np.testing.assert_array_equal(again.columns[name].rows, expected, strict=True)


def test_a_refused_first_preference_leaves_nothing_behind() -> None:
    dataset = PreferenceDataset()
    dataset.env_id = "Another-v0"
    first = Preference(UUID(int=1), make_segment(1), make_segment(2), 1.0)
    with pytest.raises(DataError, match="from Another-v0"):
        dataset.upsert([first])
    dataset.env_id = None
    dataset.upsert([first])
    assert len(dataset) == 1


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"uuid": "x"}, r"a preference's uuid must be a UUID, .*, not 'x'"),
        ({"first": None}, r"comparison 0.*1: first must be a Segment, not NoneType; .*"),
        ({"second": np.ones(3)}, r"comparison 0.*1: second must be a Segment, not ndarray; .*"),
        ({"value": "first"}, r"comparison 0.*1: value must be .*, from 0 to 1, or None, not 'first'"),
        ({"value": [0.5]}, r"comparison 0.*1: value must be .*, from 0 to 1, or None, not \[0.5\]"),
    ],
    ids=str,
)
def test_bad_preference_is_refused(parts: dict[str, Any], said: str) -> None:
    whole = {"uuid": UUID(int=1), "first": make_segment(1), "second": make_segment(2), "value": 1.0}
    with pytest.raises(DataError, match=f"^{said}$"):
        Preference(**{**whole, **parts})


@pytest.mark.parametrize("value", [1, True, np.float32(0.5), np.bool_(True), None])
def test_a_probability_may_be_any_number(value: Any) -> None:
    dataset = PreferenceDataset()
    dataset.upsert([Preference(UUID(int=1), make_segment(1), make_segment(2), value)])
    assert len(dataset) == (value is not None)


@pytest.mark.parametrize("size", [-1, 2.5, "3", True, None], ids=repr)
def test_invalid_counts_are_refused(size: Any) -> None:
    dataset = PreferenceDataset()
    dataset.upsert([Preference(UUID(int=1), make_segment(1), make_segment(2), 1.0)])
    with pytest.raises(ConfigError, match=r"^size: expected a whole number, 0 or more; got "):
        dataset.sample(size)
    with pytest.raises(ConfigError, match=r"^members: expected a whole number, 1 or more; got "):
        bootstrap_weights(dataset.ids, size)
