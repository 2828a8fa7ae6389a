"""Test what a predictor reads of steps, and how its members' raw rewards become one, against numpy."""

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from typing import Any
from uuid import UUID

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.spaces import Box, Discrete, MultiDiscrete, Space
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from agents.ppo import PPO, PPOConfig
from teacher.data.preferences import Preference, PreferenceDataset
from teacher.data.steps import StepsBatch
from teacher.envs.tasks import describe_task, make_vector_env
from teacher.envs.trajectory import Trajectory
from teacher.errors import ConfigError, DataError, EnvironmentUnsuitableError
from teacher.reward.features import Features
from teacher.reward.normalization import RewardNormalizer
from teacher.reward.predictor import RewardPredictor
from teacher.settings.options import INPUTS, RewardConfig
from teacher.training.parts import predicted_rewards
from tests.teacher.conftest import make_segment

GRID = spaces.Box(-np.inf, np.inf, (2, 2))
CHOICE = spaces.Discrete(3, start=5)
STEPS = StepsBatch(
    np.arange(12.0).reshape(3, 2, 2),
    np.array([5, 7, 6]),
    np.arange(12.0).reshape(3, 2, 2) + np.array([100, 100, 0]).reshape(3, 1, 1),
    np.array([False, False, True]),
)
PARTS = {
    "state": [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]],
    "action": [[1, 0, 0], [0, 0, 1], [0, 1, 0]],
    "next_state": [[100, 101, 102, 103], [104, 105, 106, 107], [8, 9, 10, 11]],
    "absorbing": [[0], [0], [1]],
    "terminated": [[0], [0], [1]],
}
ALL_SETS = [chosen for size in range(1, 6) for chosen in combinations(INPUTS, size)]


@pytest.mark.parametrize("inputs", ALL_SETS, ids="+".join)
def test_any_inputs_stand_side_by_side_in_their_order(inputs: tuple[str, ...]) -> None:
    features = Features(GRID, CHOICE, ",".join(inputs[::-1]))
    expected = np.hstack([PARTS[name] for name in inputs])
    found = features(STEPS).numpy()
    assert found.dtype == np.float32
    assert features.size == expected.shape[1]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("name", "message"), [("next_state", "next observ"), ("terminated", "terminations")])
def test_exactly_the_read_inputs_are_required(name: str, message: str) -> None:
    bare = StepsBatch(STEPS.observations, STEPS.actions)
    assert Features(GRID, CHOICE, "state,action")(bare).shape == (3, 7)
    with pytest.raises(ConfigError, match=rf"with input {name} needs {message}.*; pass them as well$"):
        Features(GRID, CHOICE, f"state,{name}")(bare)


@given(st.lists(st.integers(1, 3), max_size=3))
def test_any_leading_dimensions_are_kept(batch: list[int]) -> None:
    count = int(np.prod(batch))
    steps = StepsBatch(
        np.arange(4.0 * count).reshape(*batch, 2, 2),
        np.arange(count).reshape(batch) % 3 + 5,
        None,
        np.arange(count).reshape(batch) % 2 == 0,
    )
    found = Features(GRID, CHOICE, "state,action,terminated")(steps)
    assert found.shape == (*batch, 8)
    np.testing.assert_array_equal(found[..., :4].ravel(), np.arange(4.0 * count))


@pytest.mark.parametrize(
    ("observations", "actions"),
    [
        (np.zeros((3, 2, 3)), np.array([5, 6, 7])),
        (np.zeros(3), np.array([5, 6, 7])),
        (np.zeros((3, 2, 2)), np.array([4, 5, 6])),
        (np.zeros((3, 2, 2)), np.array([6, 7, 8])),
    ],
)
def test_steps_of_another_environment_are_refused_in_one_line(
    observations: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    actions: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
) -> None:
    with pytest.raises(
        DataError,
        match=r"^the (observations|actions) must belong to the space .*, but have .*; use data from .*$",
    ):
        Features(GRID, CHOICE, "state,action")(StepsBatch(observations, actions))


def test_a_reward_that_ends_with_the_episode_is_learned() -> None:
    """The final observation says nothing about it, because the step that led there was paid."""
    dataset = PreferenceDataset()
    for number in range(60):
        pair = []
        for one in (0, 1):
            segment = make_segment(2 * number + one)
            moving = int(np.random.default_rng([number, one]).integers(1, 7))
            final = segment.observations[min(moving, 5)]
            observations = np.where(np.arange(6)[:, None] < moving, segment.observations, final)
            pair.append(replace(segment, observations=observations, final_observation=final))
        paid = [segment.next_observations[:, 0] != segment.observations[:, 0] for segment in pair]
        value = 0.5 + 0.5 * np.sign(int(paid[0].sum()) - int(paid[1].sum()))
        dataset.upsert([Preference(UUID(int=number + 1), pair[0], pair[1], float(value))])
    space, actions = spaces.Box(-np.inf, np.inf, (3,)), spaces.Box(-1, 1, (2,), np.float32)
    accuracy, rewards = {}, {}
    still = dataset.steps().observations[..., 0] == dataset.steps().next_observations[..., 0]
    for inputs in ("next_state", "next_state,absorbing"):
        predictor = RewardPredictor(space, actions, RewardConfig(inputs=inputs, model="linear"), seed=1)
        accuracy[inputs] = predictor.fit(dataset).accuracy
        rewards[inputs] = predictor.step_rewards(dataset.steps())
    assert accuracy["next_state"] < 0.75
    assert accuracy["next_state,absorbing"] > 0.9
    assert rewards["next_state"].mean() == pytest.approx(0, abs=1e-5)
    assert rewards["next_state,absorbing"][still].mean() == pytest.approx(0, abs=1e-5), "as if it terminated"
    assert rewards["next_state,absorbing"][~still].min() > 0


def test_another_kind_of_space_is_refused_in_one_line() -> None:
    with pytest.raises(EnvironmentUnsuitableError, match=r"needs a Box, Discrete or .* MultiBinary"):
        Features(GRID, spaces.MultiBinary(3), "state")


def test_several_choices_are_one_hot_side_by_side() -> None:
    space = spaces.MultiDiscrete(np.array([[2, 3], [1, 2]]), start=np.array([[5, 0], [0, -1]]))
    actions = np.array([[[5, 2], [0, 0]], [[6, 0], [0, -1]]])
    features = Features(GRID, space, "action")
    assert features.size == 8
    expected = [[1, 0, 0, 0, 1, 1, 0, 1], [0, 1, 1, 0, 0, 1, 1, 0]]
    np.testing.assert_array_equal(features(StepsBatch(np.zeros((2, 2, 2)), actions)), expected)
    with pytest.raises(
        DataError, match=r"^the actions must belong to the space MultiDiscrete.*, but have .*; use data"
    ):
        features(StepsBatch(np.zeros((1, 2, 2)), np.array([[[5, 2], [1, 0]]])))


@pytest.mark.parametrize("inputs", ["", "state,", "states", "state,state", "state action"])
def test_other_inputs_are_refused(inputs: str) -> None:
    with pytest.raises(ConfigError, match=r"^--reward\.inputs: expected one or more of state,action,"):
        RewardConfig(inputs=inputs)


def test_a_segment_an_episode_and_arrays_give_the_same_rewards() -> None:
    segments = [make_segment(seed) for seed in range(6)]
    assert any(segment.terminated for segment in segments)
    config = RewardConfig(inputs=",".join(INPUTS))
    box = spaces.Box(-np.inf, np.inf, (3,))
    predictor = RewardPredictor(box, spaces.Box(-1, 1, (2,)), config, seed=1)
    for segment, total in zip(segments, predictor.segment_returns(segments), strict=True):
        after, ended = np.roll(segment.observations, -1, 0), np.zeros(6, bool)
        after[-1], ended[-1] = segment.final_observation, segment.terminated
        rewards = predictor.rewards(segment.observations, segment.actions, after, ended)
        np.testing.assert_allclose(predictor.step_rewards(segment), rewards, rtol=1e-6)
        assert total == pytest.approx(rewards.sum(), rel=1e-5)


def test_a_rollout_is_relabeled_as_its_episodes_are() -> None:
    """Also where an episode ends, inside a rollout or at its edge."""
    task = describe_task("CartPole-v1", max_episode_steps=20)
    envs = make_vector_env(task, 3, seed=0)
    config = RewardConfig(inputs=",".join(INPUTS))
    predictor = RewardPredictor(task.observation_space, task.action_space, config, seed=1)
    agent = PPO(envs, PPOConfig(num_steps=20), seed=0)
    rollouts = [agent.collect() for _ in range(6)]
    episodes = envs.drain()
    envs.close()
    assert any(rollout.ended[-1].any() for rollout in rollouts)
    assert {episode.terminated for episode in episodes if episode.finished} == {True, False}
    for index in range(3):
        relabeled = [
            predicted_rewards(predictor, rollout)[rollout.valid[:, index], index] for rollout in rollouts
        ]
        expected = [predictor.step_rewards(episode) for episode in episodes if episode.env_index == index]
        np.testing.assert_allclose(np.concatenate(relabeled), np.concatenate(expected), rtol=1e-5)


VECTORS = Box(-np.inf, np.inf, (3,)), Box(-1, 1, (2,), np.float32)
IMAGES, STACKS = (Box(0, 255, (*stack, 16, 16), np.uint8) for stack in ((3,), (2, 3)))
ALL = "state,action,next_state,terminated"


class NeedsRows(torch.nn.Module):
    """A module that makes nothing of nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows @ self.weight / rows.abs().max()


@pytest.mark.parametrize(
    ("spaces", "settings", "network"),
    [
        (VECTORS, {}, None),
        (VECTORS, {"inputs": ALL}, None),
        (VECTORS, {"features": "even", "uncertainty_bonus": 1.0}, None),
        (VECTORS, {"normalization": "running"}, None),
        ((Discrete(4), MultiDiscrete([2, 3])), {"inputs": ALL}, None),
        ((Box(-1, 1, ()), Box(-1, 1, (2, 2))), {"inputs": ALL}, None),
        ((IMAGES, Discrete(3)), {"inputs": "state,next_state"}, None),
        ((STACKS, Discrete(3)), {"inputs": None}, None),
        (VECTORS, {"inputs": "state"}, lambda _: NeedsRows()),
    ],
)
@pytest.mark.parametrize("batch", [(0,), (4, 0), (0, 4)])
def test_the_array_is_empty_and_has_the_shape_of_the_batch(
    spaces: tuple[Space[Any], Space[Any]],
    settings: dict[str, Any],
    network: Callable[[tuple[int, ...]], torch.nn.Module] | None,
    batch: tuple[int, ...],
) -> None:
    config = RewardConfig(**{"members": 2, "hidden": 4, **settings})
    model = RewardPredictor(*spaces, config, seed=1, network=network)
    states, actions = (np.empty((*batch, *(space.shape or ())), space.dtype) for space in spaces)
    rewards = model.rewards(states, actions, states, np.zeros(batch, np.bool_))
    assert rewards.shape == batch
    assert rewards.dtype == np.float64
    steps = StepsBatch(states, actions, states, np.zeros(batch, np.bool_))
    assert model.member_rewards(steps).shape == (2, *batch)


def test_an_episode_without_a_step_has_none() -> None:
    model = RewardPredictor(*VECTORS, RewardConfig(inputs=ALL), seed=1)
    episode = Trajectory.from_arrays(np.ones((1, 3)), np.ones((0, 2)), np.zeros(0))
    assert model.step_rewards(episode).shape == (0,)


def test_none_of_them_count_where_rewards_are_normalized_by_those_in_use() -> None:
    model = RewardPredictor(*VECTORS, RewardConfig(normalization="running", model="network"), seed=1)
    states = np.random.default_rng(1).normal(size=(9, 3))
    some, none = (StepsBatch(rows, np.ones((len(rows), 2)), rows) for rows in (states, states[:0]))
    model.follow(none)
    model.follow(some)
    before = model.step_rewards(some)
    model.follow(none)
    np.testing.assert_array_equal(model.step_rewards(some), before)
    assert before.std() == pytest.approx(0.05)


def normalization(**settings: Any) -> RewardNormalizer:
    return RewardNormalizer(RewardConfig(**{"reward_std": 0.5, **settings}), torch.device("cpu"))


def outputs(seed: int, steps: int = 50) -> Tensor:
    """Members of very different scale."""
    random = torch.Generator().manual_seed(seed)
    return torch.randn(3, steps, generator=random) * torch.tensor([[1.0], [10.0], [0.1]]) + seed


def by_numpy(raw: Tensor, of: Tensor) -> Any:
    """Each member's deviations from its mean over ``of``, ``(3, steps)``."""
    values, reference = raw.numpy(), of.numpy()
    return (values - reference.mean(1, keepdims=True)) / reference.std(1, keepdims=True)


def test_by_preferences_members_are_normalized_averaged_and_scaled() -> None:
    ours = normalization()
    ours.fit(outputs(1))
    means = by_numpy(outputs(2), of=outputs(1)).mean(0)
    expected = means * 0.5 / by_numpy(outputs(1), of=outputs(1)).mean(0).std()
    np.testing.assert_allclose(ours(outputs(2)), expected, rtol=1e-4, atol=1e-5)


def test_bonus_is_a_multiple_of_the_members_standard_deviation() -> None:
    plain, bonus = normalization(), normalization(uncertainty_bonus=2.0)
    for ours in (plain, bonus):
        ours.fit(outputs(1))
    members = by_numpy(outputs(2), of=outputs(1))
    scale = 0.5 / by_numpy(outputs(1), of=outputs(1)).mean(0).std()
    expected = plain(outputs(2)).numpy() + 2 * scale * members.std(0, ddof=1)
    np.testing.assert_allclose(bonus(outputs(2)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bonus", [0.0, 1.0])
def test_running_is_by_all_steps_that_rewards_were_used_for(bonus: float) -> None:
    ours, rollouts = (
        normalization(normalization="running", uncertainty_bonus=bonus),
        [outputs(2), outputs(3, 90)],
    )
    ours.fit(outputs(1))
    for rollout in rollouts:
        ours.follow(rollout)
    rewards = np.concatenate([ours(rollout) for rollout in rollouts])
    assert rewards.mean() == pytest.approx(0, abs=1e-5)
    assert rewards.std() == pytest.approx(0.5, rel=1e-4)


def test_running_is_by_preferences_before_anything_else_and_is_not_forgotten_in_a_refit() -> None:
    ours, by_preferences = normalization(normalization="running"), normalization()
    for each in (ours, by_preferences):
        each.fit(outputs(1))
    assert (ours(outputs(2)) == by_preferences(outputs(2))).all()
    ours.follow(outputs(2))
    before = ours(outputs(3))
    ours.fit(outputs(1))
    torch.testing.assert_close(ours(outputs(3)), before)


def test_none_leaves_the_average_of_the_members() -> None:
    ours = normalization(normalization="none")
    ours.fit(outputs(1))
    torch.testing.assert_close(ours(outputs(2)), outputs(2).mean(0))


@pytest.mark.parametrize("by", ["preferences", "running", "none"])
@pytest.mark.parametrize("bonus", [0.0, 1.0])
def test_absorbing_states_earn_0(by: str, bonus: float) -> None:
    inputs = "next_state,absorbing"
    ours = normalization(normalization=by, uncertainty_bonus=bonus, inputs=inputs)
    plain = normalization(normalization=by, uncertainty_bonus=bonus)
    absorbing = torch.arange(50) % 7 == 0
    for each in (ours, plain):
        each.fit(outputs(1), absorbing if each is ours else None)
        if by == "running":
            each.follow(outputs(2))
    assert float(ours(outputs(1))[absorbing].mean()) == pytest.approx(0, abs=1e-4)
    shift = (ours(outputs(3)) - plain(outputs(3))).numpy()
    np.testing.assert_allclose(shift, shift[0], rtol=1e-3)
    assert abs(shift[0]) > 1e-3
    restored = normalization(normalization=by, uncertainty_bonus=bonus, inputs=inputs)
    restored.load_state_dict(ours.state_dict())
    for each in (ours, restored):
        each.fit(outputs(4))  # no episode ended
        if by == "running":
            each.follow(outputs(3))
    assert (ours(outputs(4)) == restored(outputs(4))).all()


@pytest.mark.parametrize("by", ["preferences", "running"])
def test_a_saved_one_goes_on_exactly(by: str) -> None:
    ours, restored = normalization(normalization=by), normalization(normalization=by)
    ours.fit(outputs(1))
    if by == "running":
        ours.follow(outputs(2))
    restored.load_state_dict(ours.state_dict())
    for each in (ours, restored):
        if by == "running":
            each.follow(outputs(3))
    assert (ours(outputs(4)) == restored(outputs(4))).all()


def test_states_before_normalization_options_load() -> None:
    ours, restored = normalization(), normalization()
    ours.fit(outputs(1))
    state = ours.state_dict()
    restored.load_state_dict({name: state[name] for name in ("output_mean", "output_std", "scale")})
    assert (ours(outputs(4)) == restored(outputs(4))).all()


def test_constant_rewards_set_no_scale() -> None:
    """A linear model predicts 0 for every step until it is fitted."""
    ours, fresh = (normalization(normalization="running") for _ in range(2))
    ours.follow(torch.zeros(3, 50))
    for each in (ours, fresh):
        each.fit(outputs(1))
        each.follow(outputs(2))
    np.testing.assert_array_equal(ours(outputs(3)).numpy(), fresh(outputs(3)).numpy())
