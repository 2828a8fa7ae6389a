"""Which features the first fit settles on, and that this is kept."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray

from teacher.errors import DataError
from teacher.options import RewardConfig
from teacher.predictor_files import load_predictor, save_predictor
from teacher.preferences import Preference, PreferenceDataset, bootstrap_weights
from teacher.reward.predictor import RewardPredictor
from teacher.segments import Segment

Goal = Callable[[NDArray[Any]], NDArray[Any]]
SPACES = spaces.Box(-np.inf, np.inf, (8,)), spaces.Box(-1, 1, (2,), np.float32)
UPDATES = 600


def distance(states: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(-np.linalg.norm(states[..., :2], axis=-1))


def sum_of(states: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(states.sum(axis=-1))


def predictor(features: Any = "auto", **settings: Any) -> RewardPredictor:
    return RewardPredictor(*SPACES, RewardConfig(inputs="state", features=features, **settings), seed=1)


@pytest.fixture
def ask(make_segment: Callable[..., Segment]) -> Callable[[Goal, range], PreferenceDataset]:
    """Answers about pairs by what a function of their states says."""

    def answers(goal: Goal, numbers: range) -> PreferenceDataset:
        result = PreferenceDataset()
        for number in numbers:
            first, second = (make_segment(2 * number + one, observation_size=8) for one in (0, 1))
            value = float(goal(first.observations).sum() > goal(second.observations).sum())
            result.upsert([Preference(UUID(int=(number << 64) + number), first, second, value)])
        return result

    return answers


Ask = Callable[[Goal, range], PreferenceDataset]


@pytest.mark.parametrize(("goal", "expected"), [(distance, "even"), (sum_of, "plain")])
def test_the_first_fit_settles_on_what_orders_held_out_pairs_better(
    ask: Ask, goal: Goal, expected: str
) -> None:
    answers, more = ask(goal, range(80)), ask(goal, range(160))
    states, actions = np.random.default_rng(0).normal(size=(500, 8)), np.zeros((500, 2))
    chosen, given = predictor(), predictor(expected)
    assert chosen.features == "auto"
    reports = chosen.fit(answers, max_updates=UPDATES), given.fit(answers, max_updates=UPDATES)
    assert chosen.features == expected
    assert (chosen.settled_on is not None) == (expected == "even")
    assert given.settled_on is None
    assert reports[0] == reports[1]
    for _ in range(2):  # from then on it is as if that had been asked for
        np.testing.assert_array_equal(chosen.rewards(states, actions), given.rewards(states, actions))
        chosen.fit(more)
        given.fit(more)
    assert np.corrcoef(chosen.rewards(states, actions), goal(states))[0, 1] > 0.8


def test_it_is_settled_once(ask: Ask) -> None:
    model = predictor()
    model.fit(ask(sum_of, range(80)), max_updates=UPDATES)
    model.fit(ask(distance, range(80, 200)), max_updates=UPDATES)
    assert model.features == "plain"


def test_what_was_settled_is_saved(ask: Ask, tmp_path: Path) -> None:
    model, answers = predictor(), ask(distance, range(80))
    model.fit(answers, max_updates=UPDATES)
    save_predictor(tmp_path / "a.npz", model, *SPACES)
    again = load_predictor(tmp_path / "a.npz")
    assert again.features == model.features == "even"
    states, actions = np.random.default_rng(0).normal(size=(500, 8)), np.zeros((500, 2))
    for _ in range(2):
        np.testing.assert_array_equal(again.rewards(states, actions), model.rewards(states, actions))
        again.fit(answers)
        model.fit(answers)


def test_one_that_has_settled_on_something_else_is_not_overwritten(ask: Ask) -> None:
    model, other = predictor(), predictor()
    model.fit(ask(distance, range(80)), max_updates=UPDATES)
    other.fit(ask(sum_of, range(80)), max_updates=UPDATES)
    with pytest.raises(DataError, match="with these --reward settings"):
        other.load_state_dict(model.state_dict())


def test_where_nothing_is_held_out_a_later_fit_settles_it(
    make_segment: Callable[..., Segment], ask: Ask
) -> None:
    number = next(
        number
        for number in range(10_000)
        if (bootstrap_weights(np.array([[0, number]], np.uint64), 3) > 0).all()
    )
    answers, model = PreferenceDataset(), predictor()
    first, second = (make_segment(one, observation_size=8) for one in (1, 2))
    answers.upsert([Preference(UUID(int=number), first, second, 1.0)])
    settled = []
    for known in (answers, ask(distance, range(80))):
        model.fit(known, max_updates=UPDATES)
        settled.append(model.features)
    assert settled == ["auto", "even"]


@pytest.mark.parametrize(("features", "strength"), [("plain", 3.0), ("even", 10.0)])
def test_squares_and_logarithms_are_held_back_more(ask: Ask, features: str, strength: float) -> None:
    answers = ask(distance, range(20))
    models = predictor(features), predictor(features, strength=strength), predictor(features, strength=7.0)
    for model in models:
        model.fit(answers)
    states, actions = np.random.default_rng(0).normal(size=(500, 8)), np.zeros((500, 2))
    unsaid, said, other = (model.rewards(states, actions) for model in models)
    np.testing.assert_array_equal(unsaid, said)
    assert np.abs(said - other).max() > 1e-4
