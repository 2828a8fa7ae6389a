"""A replay buffer of Stable-Baselines3 gets the rewards that the predictor of now gives its steps."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit
from numpy.typing import NDArray
from stable_baselines3 import DQN, SAC, TD3
from stable_baselines3.common.buffers import (
    DictReplayBuffer,
    NStepReplayBuffer,
    ReplayBuffer,
    RolloutBuffer,
)
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize, VecTransposeImage
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from teacher import HumanPreferencesEnvWrapper
from teacher.errors import ConfigError, DataError
from teacher.reward.predictor import relabeled
from teacher.settings.options import RewardConfig
from tests.teacher.wrapper.conftest import SMALL, Line, Wrap, WrapVector, play

ALL = RewardConfig(
    members=2, hidden=16, refit_after=0.5, epochs=4, inputs="state,action,next_state,terminated"
)


@dataclass
class Steps:
    """Everything that an environment was told and returned, by environment."""

    before: list[Any] = field(default_factory=list)
    actions: list[Any] = field(default_factory=list)
    after: list[Any] = field(default_factory=list)
    terminated: list[bool] = field(default_factory=list)


class Noted(gym.Wrapper[Any, Any, Any, Any]):
    """Notes all steps, inside of the wrapper that learns."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.steps = Steps()

    def reset(self, **how: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(**how)
        self._observation = _copy(observation)
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        steps = self.steps
        steps.before.append(self._observation)
        self._observation = _copy(observation)
        steps.actions.append(np.array(action))
        steps.after.append(self._observation)
        steps.terminated.append(terminated)
        return observation, reward, terminated, truncated, info


def _copy(observation: Any) -> Any:
    if isinstance(observation, dict):
        return {name: np.array(part) for name, part in observation.items()}
    return np.array(observation)


class WideLine(Line):
    """With actions beyond [-1, 1], which agents scale; it ends by itself in some of its episodes."""

    def __init__(self, steps: int = 23) -> None:
        super().__init__(steps=steps)
        self.action_space = gym.spaces.Box(-3, 5, (1,), np.float32)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, _, truncated, info = super().step(action / 5)
        return observation, reward, bool(abs(self._state[0]) > 1.5), truncated, info


class ChoiceLine(Line):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = gym.spaces.Discrete(3)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return super().step(np.array([float(action) - 1], np.float32))


Taught = tuple[HumanPreferencesEnvWrapper, list[Noted], DummyVecEnv]


@pytest.fixture
def taught(wrap: Wrap) -> Iterator[Callable[..., Taught]]:
    """Wraps environments that note their steps, two of them side by side."""
    made: list[DummyVecEnv] = []

    def make(make_env: Callable[[], gym.Env[Any, Any]] = WideLine, **settings: Any) -> Taught:
        inner = [Noted(make_env()) for _ in range(2)]
        settings = {"reward": ALL, "allow_variable_horizon": True, **settings}
        first = wrap(inner[0], **settings)
        envs = [first, first.beside(inner[1])]
        made.append(DummyVecEnv([lambda env=env: Monitor(env) for env in envs]))  # type: ignore[misc]
        return first, inner, made[-1]

    yield make
    for envs in made:
        envs.close()


def expected(
    env: HumanPreferencesEnvWrapper, inner: list[Noted], read: Callable[[Any], Any] = lambda one: one
) -> NDArray[np.float64]:
    """``(steps, environments)`` by the predictor of now, from what the environments noted."""
    assert env.predictor is not None
    rewards = []
    for one in inner:
        steps = one.steps
        columns = (
            np.stack([read(one) for one in steps.before]),
            np.stack(steps.actions),
            np.stack([read(one) for one in steps.after]),
            np.array(steps.terminated),
        )
        rewards.append(env.predictor.rewards(*columns))
    return np.stack(rewards, axis=1)


@pytest.mark.parametrize(
    ("agent", "make_env", "settings"),
    [
        (SAC, WideLine, {}),
        (TD3, WideLine, {}),
        (DQN, ChoiceLine, {"exploration_fraction": 0.5}),
        (SAC, lambda: TimeLimit(WideLine(steps=100), 17), {"replay_buffer_class": NStepReplayBuffer}),
    ],
    ids=["SAC", "TD3", "DQN", "n steps"],
)
def test_rewards_become_those_of_the_steps_that_were_made(
    taught: Callable[..., Taught], agent: Any, make_env: Callable[[], gym.Env[Any, Any]], settings: Any
) -> None:
    env, inner, envs = taught(make_env)
    model = agent("MlpPolicy", envs, policy_kwargs={"net_arch": [8]}, learning_starts=600, **settings)
    model.learn(700)
    buffer = model.replay_buffer
    ends = np.array([one.steps.terminated for one in inner])
    assert make_env is ChoiceLine or 0 < ends.sum() < buffer.dones.sum()  # both kinds of ends
    stale = buffer.rewards[: buffer.size()].copy()
    assert (stale == 0).sum() > 100  # of before the first predictor
    assert env.relabel(buffer) == 2 * buffer.size() >= 700
    found = buffer.rewards[: buffer.size()]
    np.testing.assert_allclose(found, expected(env, inner), rtol=0, atol=2e-4)
    assert not (found == 0).any()
    np.testing.assert_array_equal(buffer.rewards[buffer.size() :], 0)


def learned(
    envs: Any, steps: int = 700, policy: str = "MlpPolicy", learning_starts: int = 2000, **more: Any
) -> Any:
    """Return a SAC that has acted for so many steps in two environments, here at random."""
    small = {"net_arch": [8]}
    return SAC(policy, envs, policy_kwargs=small, learning_starts=learning_starts, **more).learn(steps)


def test_steps_of_the_present_predictor_keep_their_rewards(taught: Callable[..., Taught]) -> None:
    env, _, envs = taught()
    model = learned(envs, 800)
    buffer, known = model.replay_buffer, env.predictor
    model.learn(100, reset_num_timesteps=False)
    assert env.predictor is known, "all answers were given before"
    before = buffer.rewards[400:450].copy()
    env.relabel(buffer)
    np.testing.assert_allclose(buffer.rewards[400:450], before, rtol=0, atol=2e-4)


def test_a_full_buffer_is_relabeled_as_a_whole(taught: Callable[..., Taught]) -> None:
    env, inner, envs = taught()
    buffer = learned(envs, buffer_size=200).replay_buffer
    assert buffer.full
    assert env.relabel(buffer) == 200
    in_order = np.roll(buffer.rewards, -buffer.pos, axis=0)
    np.testing.assert_allclose(in_order, expected(env, inner)[-100:], rtol=0, atol=2e-4)


def test_normalization_beside_the_buffer_is_ignored(taught: Callable[..., Taught]) -> None:
    """VecNormalize's are stored as they were."""
    env, inner, envs = taught()
    buffer = learned(VecNormalize(envs)).replay_buffer
    env.relabel(buffer)
    np.testing.assert_allclose(buffer.rewards[:350], expected(env, inner), rtol=0, atol=2e-3)


def test_actions_may_be_stored_as_they_were_executed(taught: Callable[..., Taught]) -> None:
    """Fill the buffer without Stable-Baselines3's agents, as single-file agents do."""
    env, inner, envs = taught()
    buffer = ReplayBuffer(1000, envs.observation_space, envs.action_space, "cpu", n_envs=2)
    observations = envs.reset()
    random = np.random.default_rng(1)
    for _ in range(350):
        actions = random.uniform(-3, 5, (2, 1)).astype(np.float32)
        after, rewards, dones, infos = envs.step(actions)
        final = [
            info["terminal_observation"] if done else one
            for one, done, info in zip(after, dones, infos, strict=True)
        ]
        buffer.add(observations, np.stack(final), actions, rewards, dones, infos)  # type: ignore[arg-type]
        observations = after
    env.relabel(buffer, scaled_actions=False)
    np.testing.assert_allclose(buffer.rewards[:350], expected(env, inner), rtol=0, atol=2e-4)


class Parts(Line):
    """Its observations are in parts, as those of robots with goals are."""

    def __init__(self) -> None:
        super().__init__()
        self._whole = self.observation_space
        part = gym.spaces.Box(-10, 10, (1,), np.float32)
        self.observation_space = gym.spaces.Dict(
            {"where": part, "when": part, "kind": gym.spaces.Discrete(2)}
        )

    def reset(self, **how: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = super().reset(**how)
        return self._parts(observation), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, *others = super().step(action)
        return (self._parts(observation), *others)  # type: ignore[return-value]

    def _parts(self, observation: NDArray[Any]) -> dict[str, Any]:
        where, when = observation.reshape(2, 1).copy()
        return {"where": where, "when": when, "kind": np.int64(where[0] > 0)}


def whole(observation: Any) -> NDArray[np.float32]:
    return np.array([*observation["where"], *observation["when"], observation["kind"]], np.float32)


def test_observations_of_parts_are_relabeled_through_the_transform(taught: Callable[..., Taught]) -> None:
    env, inner, envs = taught(Parts, obs_transform_func=whole)
    buffer = learned(envs, policy="MultiInputPolicy").replay_buffer
    assert isinstance(buffer, DictReplayBuffer)
    assert env.relabel(buffer) == 700
    np.testing.assert_allclose(buffer.rewards[:350], expected(env, inner, whole), rtol=0, atol=2e-4)


class Pictures(ChoiceLine):
    """Seen in a picture, its channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = gym.spaces.Box(0, 255, (12, 16, 3), np.uint8)

    def reset(self, **how: Any) -> tuple[Any, dict[str, Any]]:
        return self.render()[::4, ::4], super().reset(**how)[1]

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        _, *others = super().step(action)
        return (self.render()[::4, ::4], *others)


def test_transposed_images_are_relabeled_as_rendered(taught: Callable[..., Taught]) -> None:
    reward = RewardConfig(members=1, inputs="state,next_state")
    env, inner, envs = taught(
        Pictures, reward=reward, n_initial_training_steps=1, reward_predictor_refresh_interval=100
    )
    moved = VecTransposeImage(envs)
    assert moved.observation_space.shape == (3, 12, 16)
    buffer = ReplayBuffer(400, moved.observation_space, moved.action_space, "cpu", n_envs=2)
    observations: Any = moved.reset()
    random = np.random.default_rng(1)
    for _ in range(160):
        actions = random.integers(0, 3, 2)
        after, rewards, dones, infos = moved.step(actions)
        final: Any = np.array(after)
        for index in dones.nonzero()[0]:
            final[index] = infos[index]["terminal_observation"]
        buffer.add(observations, final, actions, rewards, dones, infos)
        observations = after
    env.relabel(buffer)
    np.testing.assert_allclose(buffer.rewards[:160], expected(env, inner), rtol=0, atol=1e-3)


def test_unknown_transitions_are_refused(taught: Callable[..., Taught], wrap: Wrap) -> None:
    env, _, envs = taught()
    observations, actions = envs.observation_space, envs.action_space

    def make(kind: Any = ReplayBuffer, space: Any = observations, **how: Any) -> Any:
        return kind(10, space, how.pop("action_space", actions), device="cpu", **how)

    buffer = make(n_envs=2)
    with pytest.raises(
        DataError, match="no reward predictor yet: its training starts after 12 labels, but only 0"
    ):
        env.relabel(buffer)
    play(env, 600)
    refusals: list[tuple[Any, str]] = [
        (make(RolloutBuffer), "but RolloutBuffer has no attribute dones"),
        ([], "but list has no attribute observations"),
        (
            make(optimize_memory_usage=True, handle_timeout_termination=False),
            "optimize_memory_usage=True doesn't store the final observations of episodes",
        ),
        (make(handle_timeout_termination=False), "doesn't store truncations"),
        (
            make(action_space=gym.spaces.Box(-1, 1, (1,))),
            r"this wrapper's is Box\(-3.0, 5.0.* \(inside\) this one",
        ),
    ]
    for refused, words in refusals:
        with pytest.raises(ConfigError, match=words):
            env.relabel(refused)
    other = make(space=gym.spaces.Box(-1, 1, (5,)))
    other.pos = 3
    with pytest.raises(ConfigError, match=r"observations have shape \(5,\), .* have shape \(2,\); apply"):
        env.relabel(other)
    goals = gym.spaces.Dict(dict.fromkeys(("observation", "achieved_goal", "desired_goal"), observations))
    with pytest.raises(ConfigError, match="HerReplayBuffer recomputes rewards"):
        env.relabel(make(HerReplayBuffer, goals, env=None))
    parts = make(DictReplayBuffer, goals)
    parts.pos = 3
    with pytest.raises(ConfigError, match="have the keys achieved_goal, desired_goal, observation"):
        env.relabel(parts)


def test_a_buffer_that_saves_memory_will_do_for_a_predictor_of_states(taught: Callable[..., Taught]) -> None:
    config = RewardConfig(members=2, hidden=16, refit_after=0.5, epochs=4, inputs="state,action")
    env, inner, envs = taught(reward=config)
    without_ends: dict[str, Any] = {"replay_buffer_kwargs": {"handle_timeout_termination": False}}
    buffer = learned(envs, optimize_memory_usage=True, **without_ends).replay_buffer
    env.relabel(buffer)
    np.testing.assert_allclose(buffer.rewards[:350], expected(env, inner), rtol=0, atol=2e-4)


def test_the_vector_wrapper_relabels_a_buffer_of_its_environments(wrap_vector: WrapVector) -> None:
    inner = [Noted(WideLine()) for _ in range(2)]
    makers = [lambda one=one: one for one in inner]
    envs = wrap_vector(
        gym.vector.SyncVectorEnv(
            makers,
            autoreset_mode=gym.vector.AutoresetMode.SAME_STEP,
        ),
        allow_variable_horizon=True,
        reward=ALL,
    )
    buffer = ReplayBuffer(1000, envs.single_observation_space, envs.single_action_space, "cpu", n_envs=2)
    envs.action_space.seed(1)
    observations, _ = envs.reset(seed=1)
    for _ in range(350):
        actions = envs.action_space.sample()
        after, rewards, terminated, truncated, infos = envs.step(actions)
        final = after.copy()
        for index in (terminated | truncated).nonzero()[0]:
            final[index] = infos["final_obs"][index]
        limits = [{"TimeLimit.truncated": bool(one)} for one in truncated & ~terminated]
        buffer.add(observations, final, actions, rewards, terminated | truncated, limits)
        observations = after
    envs.relabel(buffer, scaled_actions=False)
    single: Any = envs
    np.testing.assert_allclose(buffer.rewards[:350], expected(single, inner), rtol=0, atol=2e-4)


def test_many_steps_are_relabeled_in_parts(monkeypatch: pytest.MonkeyPatch, wrap: Wrap) -> None:
    env = wrap(reward=SMALL)
    play(env, 600)
    assert env.predictor is not None
    random = np.random.default_rng(1)
    states, actions = random.normal(size=(50, 2)).astype(np.float32), random.uniform(-1, 1, (49, 1))
    whole = relabeled(env.predictor, states[:-1], actions, states[1:])
    monkeypatch.setattr("teacher.reward.predictor.STEPS_AT_ONCE", 7)
    parts = relabeled(env.predictor, states[:-1], actions, states[1:])
    np.testing.assert_allclose(parts, whole, rtol=0, atol=1e-6)
    assert relabeled(env.predictor, states[:0], actions[:0], states[:0]).shape == (0,)
    with pytest.raises(ConfigError, match="needs next observations"):
        relabeled(env.predictor, states, states)
