"""Recording, saving, loading and splitting an expert's episodes."""

import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import stable_baselines3 as sb3
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from gymnasium.vector import SyncVectorEnv
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from agents.cloning import clone
from agents.errors import DemonstrationMismatchError
from agents.ppo import PPO, PPOConfig
from teacher.data.demonstrations import (
    KEYS,
    Demonstrations,
    demonstrated_episodes,
    draw_returns,
    load_demonstrations,
    record_demonstrations,
    save_demonstrations,
)
from teacher.errors import ConfigError, DataError, EnvironmentUnsuitableError, StorageError

Arrays = dict[str, NDArray[Any]]


class Corridor(gym.Env[Any, Any]):
    """Its observation is the step, in an array that it writes into; its reward is the step times 10."""

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self.executed: list[Any] = []
        self._array = np.zeros(observation_space.shape or (), observation_space.dtype)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self._array[...] = 0
        self.length = int(self.np_random.integers(2, 6))
        return self._array, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self.executed.append(action)
        self._array += 1
        step = int(self._array.flat[0])
        return self._array, 10.0 * (step - 1), step == self.length, False, {}


VECTOR, TWO = Box(-100, 100, (2,), np.float32), Box(-1, 1, (2,), np.float32)


@pytest.fixture
def arrays() -> Arrays:
    """Three episodes of 2, 3 and 1 steps, laid out as ``generate_expert_traj`` of Stable Baselines 2 does.

    A model there plays a vector environment, so rewards are ``(n, 1)`` and Discrete actions ``(n, 1)``.
    """
    return {
        "actions": np.array([0, 1, 1, 0, 1, 0], np.int64).reshape(-1, 1),
        "obs": np.arange(24, dtype=np.float32).reshape(-1, 4),
        "rewards": np.ones((6, 1), np.float64),
        "episode_returns": np.array([2.0, 3.0, 1.0]),
        "episode_starts": np.array([True, False, True, False, False, True]),
    }


def test_it_records_observations_before_each_step_and_actions_as_executed() -> None:
    env = Corridor(VECTOR, TWO)
    recorded = record_demonstrations(lambda observation: 0.75 * observation, env, n_episodes=5, seed=3)
    lengths = np.diff([*np.flatnonzero(recorded.episode_starts), len(recorded)])
    steps = np.concatenate([np.arange(length) for length in lengths])
    assert len(lengths) == 5
    assert len(set(lengths.tolist())) > 1
    assert recorded.obs.tolist() == [[step, step] for step in steps]
    assert recorded.actions.tolist() == [[min(0.75 * step, 1)] * 2 for step in steps]
    assert recorded.final_obs is not None
    assert recorded.final_obs.tolist() == [[length, length] for length in lengths]
    np.testing.assert_array_equal(recorded.next_obs(), recorded.obs + 1)
    np.testing.assert_array_equal(recorded.limited(2).next_obs(), recorded.obs[: lengths[:2].sum()] + 1)
    np.testing.assert_array_equal(recorded.actions, env.executed)
    assert recorded.rewards.tolist() == (10.0 * steps).tolist()
    assert recorded.episode_returns.tolist() == [5.0 * n * (n - 1) for n in lengths]


class Diverging(Corridor):
    """Ends where its state is no number any more."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, *rest = super().step(action)
        if rest[1]:
            observation[...] = np.nan
        return observation, *rest


def test_an_episode_that_leads_to_no_number_is_recorded_without_that_step(tmp_path: Path) -> None:
    whole = record_demonstrations(lambda _: np.zeros(2), Corridor(VECTOR, TWO), n_episodes=4)
    recorded = record_demonstrations(lambda _: np.zeros(2), Diverging(VECTOR, TWO), n_episodes=4)
    ends = np.roll(whole.episode_starts, -1)
    for key in ("obs", "actions", "rewards", "episode_starts"):
        np.testing.assert_array_equal(getattr(recorded, key), getattr(whole, key)[~ends])
    np.testing.assert_array_equal(recorded.final_obs, whole.obs[ends])
    np.testing.assert_array_equal(recorded.episode_returns, whole.episode_returns - whole.rewards[ends])
    assert recorded.terminated is not None
    assert not recorded.terminated.any()
    save_demonstrations(tmp_path / "expert.npz", recorded)
    assert load_demonstrations(tmp_path / "expert.npz").obs.tolist() == recorded.obs.tolist()


class Lost(Corridor):
    """Is at once where its state is no number any more."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.full(2, 4e38), 0.0, True, False, {}


def test_an_episode_of_one_step_that_leads_to_no_number_is_refused() -> None:
    with pytest.raises(DataError, match=r"returned the observation .* at step 1 of the episode with seed"):
        record_demonstrations(lambda _: np.zeros(2), Lost(Box(-1, 1, (2,), np.float64), TWO), n_episodes=1)


@pytest.mark.parametrize(("limit", "ends"), [(None, True), (5, False)])
def test_ends_of_episodes_are_recorded(tmp_path: Path, limit: int | None, ends: bool) -> None:
    env = gym.make("CartPole-v1", max_episode_steps=limit)
    recorded = record_demonstrations(lambda _: 0, env, n_episodes=3, seed=1)
    save_demonstrations(tmp_path / "expert.npz", recorded)
    loaded = load_demonstrations(tmp_path / "expert.npz", traj_limitation=2)
    assert loaded.terminated is not None
    assert loaded.terminated.tolist() == [ends] * 2
    terminations = loaded.terminations()
    assert terminations is not None
    assert terminations.tolist() == (np.roll(loaded.episode_starts, -1) & ends).tolist()
    (first, _) = demonstrated_episodes(loaded, env.observation_space, env.action_space)
    assert first.terminations.tolist() == [False] * (len(first) - 1) + [ends]


def test_discrete_spaces_have_the_shape_1() -> None:
    env = Corridor(Discrete(9), Discrete(3, start=5))
    recorded = record_demonstrations(lambda observation: [5, 6][observation % 2], env, n_episodes=2)
    assert recorded.obs.shape == recorded.actions.shape == (len(recorded), 1)
    assert recorded.actions.tolist() == [[5 + step % 2] for step in recorded.obs[:, 0].tolist()]
    assert recorded.actions.dtype.kind == recorded.obs.dtype.kind == "i"


def test_choices_of_several_kinds_are_recorded() -> None:
    env = Corridor(MultiDiscrete([9, 9]), MultiDiscrete([3, 2], start=[5, 0]))
    recorded = record_demonstrations(lambda observation: [5 + observation[0] % 3, 1], env, n_episodes=2)
    assert recorded.obs.shape == recorded.actions.shape == (len(recorded), 2)
    assert recorded.actions.tolist() == [[5 + step % 3, 1] for step in recorded.obs[:, 0].tolist()]
    assert recorded.actions.dtype.kind == "i"


@pytest.mark.parametrize("action", [[5, 2], [5.5, 1], [5]])
def test_an_action_that_is_no_choice_of_each_kind_is_refused(action: list[float]) -> None:
    env = Corridor(VECTOR, MultiDiscrete([3, 2], start=[5, 0]))
    with pytest.raises(DataError, match=r"is not a valid action in MultiDiscrete\("):
        record_demonstrations(lambda _: action, env, n_episodes=1)


def test_it_tells_how_far_it_is() -> None:
    told: list[int] = []
    record_demonstrations(lambda _: np.zeros(2), Corridor(VECTOR, TWO), n_episodes=3, progress=told.append)
    assert told == [1, 2, 3]


def test_the_seed_decides_the_episodes() -> None:
    env = gym.make("CartPole-v1")
    first, again, other = (record_demonstrations(lambda _: 1, env, 2, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.obs, again.obs)
    assert not np.array_equal(first.obs[0], other.obs[0])


def test_an_agent_plays_its_most_likely_actions() -> None:
    agent = PPO(SyncVectorEnv([lambda: gym.make("CartPole-v1")]), PPOConfig(), seed=0)
    recorded = record_demonstrations(agent, gym.make("CartPole-v1"), n_episodes=2)
    np.testing.assert_array_equal(recorded.actions[:, 0], agent.act(recorded.obs, deterministic=True))


def test_a_stable_baselines_model_plays_through_its_normalization() -> None:
    envs = VecNormalize(DummyVecEnv([lambda: gym.make("Pendulum-v1")]))
    envs.reset()
    for _ in range(50):
        envs.step(np.ones((1, 1), np.float32))
    model = sb3.PPO("MlpPolicy", envs, seed=0, device="cpu")
    recorded = record_demonstrations(model, gym.make("Pendulum-v1", max_episode_steps=20), n_episodes=1)
    expected, _ = model.predict(envs.normalize_obs(recorded.obs), deterministic=True)
    np.testing.assert_allclose(recorded.actions, expected, atol=1e-6)
    raw, _ = model.predict(recorded.obs, deterministic=True)
    assert not np.allclose(recorded.actions, raw, atol=1e-4)


def test_a_model_with_a_memory_gets_its_state_back() -> None:
    class Counting:
        def predict(self, observation: Any, *, state: Any, episode_start: Any, deterministic: bool) -> Any:
            assert deterministic
            assert episode_start.tolist() == [state is None]
            state = 0 if state is None else state + 1
            return np.full(2, 0.1 * state), state

    recorded = record_demonstrations(Counting(), Corridor(VECTOR, TWO), n_episodes=3)
    np.testing.assert_allclose(recorded.actions, 0.1 * recorded.obs, atol=1e-6)


@pytest.mark.parametrize("action", [np.zeros(3), np.array([0, np.nan]), "left", None])
def test_an_action_that_does_not_fit_is_refused(action: Any) -> None:
    with pytest.raises(DataError, match=r"^the expert returned .*, which is not a valid action in Box.*$"):
        record_demonstrations(lambda _: action, Corridor(VECTOR, TWO), n_episodes=1)


@pytest.mark.parametrize("action", [2, -1, 0.5])
def test_an_action_that_is_no_choice_is_refused(action: float) -> None:
    with pytest.raises(DataError, match="is not a valid action in Discrete"):
        record_demonstrations(lambda _: action, Corridor(VECTOR, Discrete(2)), n_episodes=1)


@pytest.mark.parametrize("what", ["observation", "reward"])
def test_a_nan_of_the_environment_is_refused(what: str) -> None:
    class Broken(Corridor):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            nan = np.full(2, np.nan, np.float32)
            return (nan, 0.0, False, False, {}) if what == "observation" else (nan, np.nan, False, False, {})

    with pytest.raises(
        DataError,
        match=rf"the {what} .*nan.* at step 1 of the episode with seed \d+; numbers must be finite.*$",
    ):
        record_demonstrations(lambda _: np.zeros(2), Broken(VECTOR, TWO), n_episodes=1)


def test_unsuitable_environments_are_refused() -> None:
    with pytest.raises(
        EnvironmentUnsuitableError, match=r"observation space must be a Box, Discrete or Multi.*, not Dict"
    ):
        record_demonstrations(lambda _: 0, Corridor(Dict({"x": VECTOR}), TWO), n_episodes=1)
    with pytest.raises(ConfigError, match="n_episodes: expected a whole number, 1 or more; got 0"):
        record_demonstrations(lambda _: np.zeros(2), Corridor(VECTOR, TWO), n_episodes=0)
    with pytest.raises(ConfigError, match=r"callable or have an act.. or predict.. method; got float"):
        record_demonstrations(0.5, Corridor(VECTOR, TWO), n_episodes=1)  # type: ignore[arg-type]


def test_a_saved_file_comes_back_without_pickle(tmp_path: Path) -> None:
    recorded = record_demonstrations(lambda _: np.zeros(2), Corridor(VECTOR, TWO), n_episodes=3)
    save_demonstrations(tmp_path / "expert.npz", recorded)
    with np.load(tmp_path / "expert.npz", allow_pickle=False) as archive:
        assert set(archive) == {*KEYS, "final_obs", "terminated"}
    loaded = load_demonstrations(tmp_path / "expert.npz")
    for key in (*KEYS, "final_obs", "terminated"):
        np.testing.assert_array_equal(getattr(loaded, key), getattr(recorded, key))
        assert getattr(loaded, key).dtype == getattr(recorded, key).dtype


def test_saving_fails_without_a_trace(tmp_path: Path, arrays: Arrays) -> None:
    path = tmp_path / "expert.npz"
    path.mkdir()
    with pytest.raises(StorageError, match=r"^cannot write the demonstrations .*expert\.npz: "):
        save_demonstrations(path, load_demonstrations(arrays))
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_of_stable_baselines_2_loads(tmp_path: Path, arrays: Arrays) -> None:
    np.savez(tmp_path / "expert.npz", **arrays)  # type: ignore[arg-type]
    loaded = load_demonstrations(tmp_path / "expert.npz")
    assert len(loaded) == 6
    assert loaded.rewards.tolist() == [1.0] * 6
    assert loaded.actions.dtype == np.int64
    assert loaded.summary() == "3 episodes, 6 steps, return 2.0 +- 0.8 (1.0 to 3.0)"
    assert loaded.next_obs() is None
    assert loaded.terminations() is None


def test_it_takes_exactly_as_many_episodes_as_wanted(arrays: Arrays) -> None:
    limited = load_demonstrations(arrays, traj_limitation=2)
    assert limited.episode_returns.tolist() == [2.0, 3.0]
    assert limited.obs.tolist() == arrays["obs"][:5].tolist()
    assert limited.episode_starts.sum() == 2
    assert len(load_demonstrations(arrays, traj_limitation=3)) == 6
    for wanted in (0, 4):
        with pytest.raises(DataError, match=f"traj_limitation must be between 1 and 3, .*, not {wanted};"):
            load_demonstrations(arrays, traj_limitation=wanted)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("obs", np.full((6, 4), np.nan), "obs contains NaN, infinity or .* in row 0"),
        ("rewards", np.array([0, 0, np.inf, 0, 0, 0]), "rewards contains NaN, infinity or .* in row 2"),
        ("episode_returns", np.array(np.nan), "episode_returns contains NaN"),
        ("obs", np.full((6, 4), -1e39), "a number beyond 3.4e38 in row 0"),
        ("obs", np.zeros((5, 4)), "the same number of rows; got {'obs': 5, 'actions': 6"),
        ("obs", np.array([["images/0.png"]] * 6), "obs contains image paths, not images"),
        ("actions", np.array([[None]] * 6), "actions must be an array of numbers, not of type object"),
        ("episode_returns", np.zeros(2), "mark 2 episodes.* begins with True and marks 3"),
        ("episode_starts", np.array([0, 1, 1, 0, 0, 1]), "begin with True.* begins with False and marks 3"),
        (
            "final_obs",
            np.zeros((2, 4), np.float32),
            r"type float32 and shape \(3, 4\), not float32 and \(2, 4\)",
        ),
        ("final_obs", np.zeros((3, 4)), r"type float32 and shape \(3, 4\), not float64 and \(3, 4\)"),
        ("final_obs", np.full((3, 4), np.inf, np.float32), "final_obs contains NaN, infinity or"),
        (
            "terminated",
            np.zeros(2, bool),
            r"terminated must have type bool and shape \(3,\), not bool and \(2,\)",
        ),
        (
            "terminated",
            np.zeros(3),
            r"terminated must have type bool and shape \(3,\), not float64 and \(3,\)",
        ),
    ],
)
def test_bad_arrays_are_refused(arrays: Arrays, key: str, value: NDArray[Any], message: str) -> None:
    with pytest.raises(
        DataError, match=f"^the dictionary does not contain valid demonstrations: .*{message}"
    ) as caught:
        load_demonstrations({**arrays, key: value})
    assert "\n" not in str(caught.value)


def test_missing_arrays_are_named(arrays: Arrays) -> None:
    del arrays["rewards"], arrays["obs"]
    with pytest.raises(DataError, match="missing arrays: obs, rewards; required:"):
        load_demonstrations(arrays)


def test_no_step_is_no_demonstration(arrays: Arrays) -> None:
    with pytest.raises(DataError, match="are empty; expected at least one episode"):
        load_demonstrations({key: array[:0] for key, array in arrays.items()})


def test_a_pickled_file_is_refused(tmp_path: Path, arrays: Arrays) -> None:
    arrays["obs"] = np.array([{"a": 1}] * 6)
    np.savez(tmp_path / "pickled.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"allow_pickle=False.*expected an \.npz file of plain arrays"):
        load_demonstrations(tmp_path / "pickled.npz")


@pytest.mark.parametrize(
    "content", [b"", b"hello", b"\x80\x04N.", b"\x93NUMPY" + struct.pack("B", 9), zlib.compress(b"x")]
)
def test_another_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "other").write_bytes(content)
    with pytest.raises(DataError, match="is not a readable demonstrations file"):
        load_demonstrations(tmp_path / "other")


def test_a_single_array_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "array.npy", np.zeros(3))
    with pytest.raises(DataError, match="is not a readable demonstrations file"):
        load_demonstrations(tmp_path / "array.npy")
    with pytest.raises(DataError, match=r"missing\.npz cannot be read: No such file"):
        load_demonstrations(tmp_path / "missing.npz")


def test_saved_demonstrations_can_be_cloned(tmp_path: Path) -> None:
    env = gym.make("CartPole-v1")
    recorded = record_demonstrations(lambda observation: int(observation[2:].sum() > 0), env, n_episodes=4)
    save_demonstrations(tmp_path / "expert.npz", recorded)
    split = load_demonstrations(tmp_path / "expert.npz", traj_limitation=3).split(train_fraction=0.67, seed=1)
    agent = PPO(SyncVectorEnv([lambda: gym.make("CartPole-v1")]), PPOConfig(), seed=0)
    losses = clone(agent, split, n_epochs=15, learning_rate=3e-3)
    assert losses[-1].validation < 0.5 * np.log(2), "what guessing costs"
    played = agent.act(split.validation[0], deterministic=True)
    assert (played == split.validation[1][:, 0]).mean() > 0.9


@pytest.mark.parametrize("actions", [Box(-1, 1, (), np.float32), Discrete(2)])
def test_single_numbers_come_back_and_are_cloned(tmp_path: Path, actions: gym.Space[Any]) -> None:
    env = Corridor(Box(-np.inf, np.inf, (), np.float32), actions)
    recorded = record_demonstrations(lambda observation: 0, env, n_episodes=3)
    assert recorded.obs.shape == recorded.rewards.shape
    save_demonstrations(tmp_path / "expert.npz", recorded)
    loaded = load_demonstrations(tmp_path / "expert.npz")
    np.testing.assert_array_equal(loaded.obs, recorded.obs)
    np.testing.assert_array_equal(loaded.actions, recorded.actions)
    agent = PPO(SyncVectorEnv([lambda: env]), PPOConfig(), seed=0)
    losses = clone(agent, loaded.split(train_fraction=0.67), n_epochs=30, learning_rate=1e-2)
    assert losses[-1].validation < losses[0].validation


def test_demonstrations_of_another_environment_are_refused(arrays: Arrays) -> None:
    agent = PPO(SyncVectorEnv([lambda: gym.make("Pendulum-v1")]), PPOConfig(), seed=0)
    with pytest.raises(DemonstrationMismatchError, match=r"observations of shape \(3,\), got \(4,\);"):
        clone(agent, load_demonstrations(arrays).split(), n_epochs=1)


def episodes_of(obs: NDArray[Any]) -> set[int]:
    return set(obs[:, 0].astype(int).tolist())


@pytest.fixture
def ten_episodes() -> Demonstrations:
    """Episode i has i + 1 steps; its observations and actions are i."""
    numbers = np.repeat(np.arange(10), np.arange(1, 11))[:, None]
    starts = np.diff(numbers[:, 0], prepend=-1) > 0
    return Demonstrations(numbers * 1.0, numbers, np.ones(len(numbers)), np.arange(1.0, 11.0), starts)


def test_whole_episodes_are_held_out(ten_episodes: Demonstrations) -> None:
    split = ten_episodes.split(train_fraction=0.7, seed=1)
    train, held_out = episodes_of(split.train[0]), episodes_of(split.validation[0])
    assert (len(train), len(held_out)) == (7, 3)
    assert not train & held_out
    assert len(split.train[0]) + len(split.validation[0]) == 55
    for obs, actions in (split.train, split.validation):
        np.testing.assert_array_equal(obs, actions)
    assert train == episodes_of(ten_episodes.split(train_fraction=0.7, seed=1).train[0])
    assert any(train != episodes_of(ten_episodes.split(0.7, seed=seed).train[0]) for seed in range(2, 5))


@pytest.mark.parametrize(("fraction", "count"), [(0.01, 1), (0.99, 9), (1, 10), (1.0, 10)])
def test_both_splits_get_an_episode(ten_episodes: Demonstrations, fraction: float, count: int) -> None:
    split = ten_episodes.split(train_fraction=fraction)
    assert len(episodes_of(split.train[0])) == count
    assert len(episodes_of(split.validation[0])) == 10 - count


def test_an_epoch_is_every_row_once(ten_episodes: Demonstrations) -> None:
    split = ten_episodes.split(train_fraction=1, batch_size=16, seed=5)
    first, second = list(split.epoch()), list(split.epoch())
    assert [len(rows) for rows in first] == [19, 18, 18]
    assert sorted(np.concatenate(first)) == sorted(np.concatenate(second)) == list(range(55))
    assert not np.array_equal(first[0], second[0])
    np.testing.assert_array_equal(
        first[0], next(ten_episodes.split(train_fraction=1, batch_size=16, seed=5).epoch())
    )
    in_order = ten_episodes.split(train_fraction=1, batch_size=16, shuffle=False)
    assert np.concatenate(list(in_order.epoch())).tolist() == list(range(55))
    assert len(list(ten_episodes.split(batch_size=1000).epoch())) == 1


def test_a_division_that_makes_no_sense_is_refused(ten_episodes: Demonstrations) -> None:
    for fraction in (0, 1.1, float("nan")):
        with pytest.raises(ConfigError, match="train_fraction must be above 0 and at most 1"):
            ten_episodes.split(train_fraction=fraction)
    with pytest.raises(ConfigError, match="batch_size: expected a whole number, 1 or more; got 0"):
        ten_episodes.split(batch_size=0)
    with pytest.raises(DataError, match="a single episode cannot be split"):
        ten_episodes.limited(1).split()
    assert len(ten_episodes.limited(1).split(train_fraction=1).train[0]) == 1


def test_returns_are_drawn(tmp_path: Path, ten_episodes: Demonstrations) -> None:
    draw_returns(ten_episodes, tmp_path / "returns.png")
    draw_returns(ten_episodes.limited(1), tmp_path / "one.png")
    assert (tmp_path / "returns.png").read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in tmp_path.iterdir()} == {"returns.png", "one.png"}
    with pytest.raises(StorageError, match="cannot write the plot"):
        draw_returns(ten_episodes, tmp_path / "nowhere" / "returns.png")


def test_a_missing_matplotlib_is_named(
    tmp_path: Path, ten_episodes: Demonstrations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r"pip install 'rl-teacher\[plots\]'"):
        draw_returns(ten_episodes, tmp_path / "returns.png")
