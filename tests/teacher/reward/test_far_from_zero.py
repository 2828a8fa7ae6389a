"""Rewards learned from observations and actions that lie far from 0, such as clocks and coordinates."""

import itertools
import logging
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from numpy.typing import NDArray
from torch import nn

from teacher import HumanPreferencesEnvWrapper, HumanPreferencesVectorWrapper
from teacher.cli import fit
from teacher.data.checkpoint import dump_state, load_state, parse_state
from teacher.data.preferences import Preference, PreferenceDataset
from teacher.data.segment_pool import SegmentPool
from teacher.data.segments import Segment
from teacher.datasets.predictor_files import load_predictor, save_predictor
from teacher.datasets.preference_files import load_preferences, save_preferences
from teacher.envs.recipe import EpisodeRecipe
from teacher.envs.trajectory import Trajectory
from teacher.queries.judges import oracle
from teacher.queries.offline import ask
from teacher.reward.predictor import RewardPredictor
from teacher.settings.options import RewardConfig
from tests.environments import Stub

STEPS = 10
SMALL = RewardConfig(members=2, hidden=16, features="plain")
ACTIONS = Box(-1, 1, (1,), np.float32)


def space(size: int, dtype: Any = np.float64) -> Box:
    low, high = (
        (np.iinfo(dtype).min, np.iinfo(dtype).max) if np.dtype(dtype).kind == "i" else (-np.inf, np.inf)
    )
    return Box(low, high, (size,), dtype)


def episodes(
    count: int = 30, offset: Any = 0.0, scale: float = 1.0, seed: int = 1, dtype: Any = np.float64
) -> list[Trajectory]:
    """Points that wander about the offset; the reward of a step is how far to the right it ends."""
    random, made = np.random.default_rng(seed), []
    for _ in range(count):
        points = random.normal(size=2) + 0.2 * random.normal(size=(3 * STEPS + 1, 2)).cumsum(axis=0)
        states = (np.asarray(offset, np.float64) + scale * points).astype(dtype)
        actions = random.uniform(-1, 1, (3 * STEPS, 1)).astype(np.float32)
        made.append(Trajectory.from_arrays(states, actions, points[1:, 0]))
    return made


def segments(made: Sequence[Trajectory]) -> Sequence[Segment]:
    pool = SegmentPool(STEPS, seed=0)
    pool.extend(made)
    return pool.segments


def answers(made: Sequence[Trajectory], count: int = 40) -> PreferenceDataset:
    pool = SegmentPool(STEPS, seed=0)
    pool.extend(made)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there are few segments
        return ask(pool, oracle, count)


def agreement(predictor: RewardPredictor, made: Sequence[Trajectory]) -> float:
    """Correlation of the rewards of steps with the true ones."""
    rewards = np.concatenate([predictor.step_rewards(episode) for episode in made])
    return float(np.corrcoef(rewards, np.concatenate([episode.true_rewards for episode in made]))[0, 1])


class Mlp(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(size, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layers(rows)
        return found


@pytest.mark.parametrize("own_network", [False, True])
@pytest.mark.parametrize(
    ("offset", "scale", "dtype"),
    [
        (1e9, 1.0, np.float64),
        ([1e9, 0.0], 1.0, np.float64),
        ([-3e4, 1e5], 1e-2, np.float64),
        (1_700_000_000_000, 1000.0, np.int64),  # milliseconds since 1970
        (2_000_000_000, 20.0, np.int32),
    ],
)
def test_variation_far_from_0_is_learned(offset: Any, scale: float, dtype: Any, own_network: bool) -> None:
    predictor = RewardPredictor(
        space(2, dtype), ACTIONS, SMALL, seed=1, network=(lambda shape: Mlp(*shape)) if own_network else None
    )
    report = predictor.fit(answers(episodes(offset=offset, scale=scale, dtype=dtype)), max_updates=150)
    assert report.doubt == ""
    assert agreement(predictor, episodes(seed=2, offset=offset, scale=scale, dtype=dtype)) > 0.85


@pytest.mark.parametrize(
    "config",
    [
        SMALL,
        RewardConfig(members=2, hidden=16, features="auto"),
        RewardConfig(members=2, hidden=16, features="plain", inputs="state,action,next_state"),
    ],
    ids=["plain", "auto", "several inputs"],
)
def test_a_fit_far_from_0_is_that_of_the_same_points_around_0(config: RewardConfig) -> None:
    """Up to rounding, and to the logarithms of what lies far from 0, which are of the centered numbers."""
    near, far = (RewardPredictor(space(2), ACTIONS, config, seed=1) for _ in range(2))
    around = np.concatenate([one.all_observations for one in episodes()]).mean(axis=0)
    near.fit(answers(episodes(offset=-around)), max_updates=50)
    far.fit(answers(episodes(offset=1e7 - around)), max_updates=50)
    expected = [near.step_rewards(one) for one in episodes(3, seed=2, offset=-around)]
    found = [far.step_rewards(one) for one in episodes(3, seed=2, offset=1e7 - around)]
    np.testing.assert_allclose(found, expected, rtol=0, atol=0.02)


@pytest.mark.parametrize("own_network", [False, True])
def test_a_clock_that_goes_on_does_not_drown_the_rest(own_network: bool) -> None:
    """The first number of an observation is a clock; the reward is about the second alone."""
    network = (lambda shape: Mlp(*shape)) if own_network else None
    predictor = RewardPredictor(space(2), ACTIONS, SMALL, seed=1, network=network)
    for time in (0.0, 1e5, 1e9, 1.7e9):
        made = [
            Trajectory.from_arrays(one.all_observations[:, ::-1] + [time, 0.0], one.actions, one.true_rewards)
            for one in episodes()
        ]
        predictor.fit(answers(made), max_updates=150)
        assert agreement(predictor, made) > 0.9


def test_refitting_to_what_went_on_keeps_what_was_learned() -> None:
    """A center moves without a change of the function."""
    predictor = RewardPredictor(space(2), ACTIONS, SMALL, seed=1)
    predictor.fit(answers(episodes(offset=1e9)), max_updates=150)
    later = episodes(offset=1e9 + 3, seed=3)
    before = [predictor.step_rewards(one) for one in later]
    predictor._learner.network.recenter(torch.tensor([2.0, -1.0], dtype=torch.float64))
    predictor._learner.read.load_state_dict(
        {"observations": predictor._learner.read.state_dict()["observations"] + [2.0, -1.0]}
    )
    np.testing.assert_allclose([predictor.step_rewards(one) for one in later], before, atol=1e-4)


def test_actions_far_from_0_are_centered_too() -> None:
    actions = Box(1e9 - 10, 1e9 + 10, (2,), np.float64)
    made = [
        Trajectory.from_arrays(np.zeros((len(one) + 1, 1)), one.all_observations[1:], one.true_rewards)
        for one in episodes(offset=1e9)
    ]
    config = RewardConfig(members=2, hidden=16, features="plain", inputs="state,action")
    predictor = RewardPredictor(space(1), actions, config, seed=1)
    predictor.fit(answers(made), max_updates=150)
    assert agreement(predictor, made) > 0.95


def pair(number: int, states: NDArray[Any]) -> Preference:
    recipe = EpisodeRecipe("Any-v0", {}, 0, np.zeros((len(states) - 1, 1), np.float32))
    one = Segment(recipe, 0, states[:-1], recipe.actions, np.zeros(len(recipe.actions)), states[-1])
    return Preference(UUID(int=number), one, one, 1.0)


def test_numbers_are_stored_as_they_came() -> None:
    dataset = PreferenceDataset()
    for number, dtype in enumerate((np.float32, np.float64, np.float32)):
        dataset.upsert([pair(number, np.full((STEPS + 1, 2), 1.2, dtype))])
    assert dataset.observations.dtype == np.float64  # where both came


def test_a_dataset_from_a_file_goes_on_in_double_precision_where_that_is_needed(tmp_path: Path) -> None:
    made = list(segments(episodes(offset=[1e9, 0.0])))
    first = PreferenceDataset()
    first.upsert([Preference(UUID(int=1), made[0], made[1], 1.0)])
    save_preferences(tmp_path / "labels.npz", first, space(2), ACTIONS)
    dataset = load_preferences(tmp_path / "labels.npz")
    dataset.upsert([Preference(UUID(int=2), made[2], made[3], 0.0)])
    for row, index in ((0, 0), (1, 2)):
        np.testing.assert_array_equal(dataset.observations[row, 0], made[index].observations)


@pytest.mark.parametrize("ending", [".npz", ".parquet"])
def test_answers_in_a_file_keep_their_precision(tmp_path: Path, ending: str) -> None:
    path, dataset = tmp_path / f"labels{ending}", answers(episodes(offset=1e9))
    save_preferences(path, dataset, space(2), ACTIONS)
    loaded = load_preferences(path)
    np.testing.assert_array_equal(loaded.observations, dataset.observations)
    predictor = RewardPredictor(space(2), ACTIONS, SMALL, seed=1)
    predictor.fit(loaded, max_updates=150)
    assert agreement(predictor, episodes(seed=2, offset=1e9)) > 0.95


def test_a_saved_and_a_sent_predictor_know_their_center(tmp_path: Path) -> None:
    predictor = RewardPredictor(space(2), ACTIONS, SMALL, seed=1)
    predictor.fit(answers(episodes(offset=1e9)), max_epochs=3)
    save_predictor(tmp_path / "far.npz", predictor, space(2), ACTIONS)
    sent = RewardPredictor(space(2), ACTIONS, SMALL, seed=2)
    sent.load_state_dict(parse_state(dump_state(predictor.state_dict())))
    steps = episodes(1, offset=1e9, seed=2)[0]
    for copy in (load_predictor(tmp_path / "far.npz"), sent):
        np.testing.assert_array_equal(copy.step_rewards(steps), predictor.step_rewards(steps))
    assert load_state(tmp_path / "far.npz")["about"]["version"] == 2  # which versions before refuse


def test_a_predictor_of_numbers_near_0_is_saved_as_before(tmp_path: Path) -> None:
    predictor = RewardPredictor(space(2), ACTIONS, SMALL, seed=1)
    predictor.fit(answers(episodes()), max_epochs=3)
    save_predictor(tmp_path / "near.npz", predictor, space(2), ACTIONS)
    saved = load_state(tmp_path / "near.npz")
    assert saved["about"]["version"] == 1
    assert "input_center" not in saved["predictor"]


def test_a_state_without_a_center_takes_it_away() -> None:
    far, near = (RewardPredictor(space(2), ACTIONS, SMALL, seed=1) for _ in range(2))
    far.fit(answers(episodes(offset=1e9)), max_epochs=1)
    near.fit(answers(episodes()), max_epochs=1)
    far.load_state_dict(near.state_dict())
    steps = episodes(1, seed=2)[0]
    np.testing.assert_array_equal(far.step_rewards(steps), near.step_rewards(steps))


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (
            episodes(offset=1e9, scale=100.0, dtype=np.float32),
            "component 0 of the observations has mean .*1e[+]09",
        ),
        (
            episodes(offset=1e9, dtype=np.float32),
            "float32 values of this size are .* apart, .* pass float64, or subtract",
        ),
        (
            episodes(offset=1e17),
            "float64 values of this size are .* apart, .* subtract a constant near the mean",
        ),
        (episodes(scale=1e-9), "no predictor input varies by more than 1e-06"),
    ],
    ids=["hardly apart", "all the same", "beyond double precision", "too small"],
)
def test_lost_precision_is_reported(made: Sequence[Trajectory], words: str) -> None:
    predictor = RewardPredictor(space(2), ACTIONS, SMALL, seed=1)
    report = predictor.fit(answers(made), max_epochs=1)
    assert re.search(words, report.doubt)


def test_teach_fit_says_what_cannot_be_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels = tmp_path / "labels.npz"
    save_preferences(labels, answers(episodes(scale=1e-9)), space(2), ACTIONS)
    assert fit.main([str(labels), str(tmp_path / "reward.npz"), "--max_updates", "5"]) == 0
    assert "no predictor input varies" in " ".join(capsys.readouterr().out.split())


class FarLine(Stub):
    """A point that is pushed about far from 0; the reward is how far to the right of there it is."""

    action_space = Box(-1, 1, (1,), np.float32)
    length = 20

    def __init__(self, offset: float = 1e9, dtype: Any = np.float64) -> None:
        self.observation_space = space(1, dtype)
        self._offset, self._dtype = offset, dtype

    def reward(self, action: Any) -> float:
        self._x += 0.3 * float(action[0])
        return self._x

    def observe(self) -> NDArray[Any]:
        if self.time == 0:
            self._x = float(self.np_random.uniform(-1, 1))
        return np.array([self._offset + self._x], self._dtype)


INSIDE: dict[str, Any] = {
    "background": False,
    "n_prefs": 40,
    "n_initial_prefs": 20,
    "total_timesteps": 1000,
    "segment_length": 5,
    "reward": SMALL,
    "max_pref_interface_segs": 100,
}


def test_the_wrapper_learns_far_from_0(tmp_path: Path) -> None:
    env = HumanPreferencesEnvWrapper(FarLine(), log_dir=tmp_path / "logs", **INSIDE)
    env.action_space.seed(1)
    env.reset(seed=1)
    predicted, true = [], []
    for step in itertools.count():
        _, reward, _, truncated, info = env.step(env.action_space.sample())
        if step >= 1000:
            predicted.append(float(reward))
            true.append(info["true_reward"])
        if truncated:
            env.reset()
        if step == 1300:
            break
    path = env.save_prefs()
    env.close()
    assert np.corrcoef(predicted, true)[0, 1] > 0.95
    assert load_preferences(path).observations.dtype == np.float64


def test_the_vector_wrapper_learns_far_from_0(tmp_path: Path) -> None:
    envs = gym.vector.SyncVectorEnv([FarLine, FarLine])
    wrapped = HumanPreferencesVectorWrapper(envs, log_dir=tmp_path / "logs", **INSIDE)
    wrapped.action_space.seed(1)
    wrapped.reset(seed=1)
    predicted, true = [], []
    for step in range(700):
        _, rewards, _, _, infos = wrapped.step(wrapped.action_space.sample())
        if step >= 550 and rewards.all():
            predicted.append(rewards)
            true.append(infos["true_reward"])
    wrapped.close()
    assert np.corrcoef(np.ravel(predicted), np.ravel(true))[0, 1] > 0.95


def test_wrapper_warns_of_lost_precision(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    env = HumanPreferencesEnvWrapper(FarLine(dtype=np.float32), log_dir=tmp_path / "logs", **INSIDE)
    env.action_space.seed(1)
    env.reset(seed=1)
    with caplog.at_level(logging.WARNING, "teacher.wrapper.predictor"):
        for _ in range(800):
            if env.step(env.action_space.sample())[3]:
                env.reset()
    env.close()
    told = [record.message for record in caplog.records if "can hardly tell" in record.message]
    assert len(told) == 1
    assert "pass float64" in told[0]
