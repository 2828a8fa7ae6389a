"""Rollouts from vector environments in every autoreset mode."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from agents.errors import NonFiniteError, UnsupportedEnvironmentError, UnsupportedSpaceError
from agents.heads import GaussianHead
from agents.ppo import PPO, PPOConfig
from agents.rollout import OnPolicyRollout

MODES = list(AutoresetMode)


def valid_transitions(rollouts: list[OnPolicyRollout], env: int) -> list[NDArray[Any]]:
    """Observation, reward, terminated and truncated of each valid step of one environment."""
    return [
        np.hstack([r.observations[t, env], r.rewards[t, env], r.terminated[t, env], r.truncated[t, env]])
        for r in rollouts
        for t in range(len(r.rewards))
        if r.valid[t, env]
    ]


def expected_transitions(env: int, count: int) -> list[list[float]]:
    """Return what the counting environment of that index goes through."""
    steps: list[list[float]] = []
    episode = 0
    while len(steps) < count:
        length = 3 + (env + episode) % 3
        for time in range(length):
            last = time == length - 1
            terminated, truncated = last and episode % 4 in (0, 1), last and episode % 4 in (1, 2, 3)
            steps.append([env, episode, time, time + 1, terminated, truncated])
        episode += 1
    return steps[:count]


@pytest.mark.parametrize("mode", MODES)
def test_valid_transitions_match_the_episodes(mode: AutoresetMode, make_agent: Callable[..., PPO]) -> None:
    agent = make_agent(mode=mode)
    rollouts = [agent.collect() for _ in range(3)]
    for env in range(3):
        transitions = valid_transitions(rollouts, env)
        np.testing.assert_array_equal(transitions, expected_transitions(env, len(transitions)))
    assert agent.total_steps == sum(rollout.num_valid for rollout in rollouts)


def test_a_rollout_tells_its_steps_and_is_no_other_for_it(make_agent: Callable[..., PPO]) -> None:
    told: list[int] = []
    watched, alone = make_agent(num_steps=29).collect(told.append), make_agent(num_steps=29).collect()
    assert told == list(range(1, 30))
    np.testing.assert_array_equal(watched.actions, alone.actions)


@pytest.mark.parametrize("mode", MODES)
def test_only_next_step_autoreset_has_dummies(mode: AutoresetMode, make_agent: Callable[..., PPO]) -> None:
    agent = make_agent(mode=mode, num_steps=29)
    first, second = agent.collect(), agent.collect()
    ended = np.concatenate([first.ended, second.ended])
    valid = np.concatenate([first.valid, second.valid])
    dummies = np.zeros_like(valid)
    if mode is AutoresetMode.NEXT_STEP:
        dummies[1:] = ended[:-1]
        assert dummies[29].any(), "no episode ended at the edge of the two rollouts"
    np.testing.assert_array_equal(valid, ~dummies)


@pytest.mark.parametrize("mode", MODES)
def test_truncation_uses_the_final_observation(mode: AutoresetMode, make_agent: Callable[..., PPO]) -> None:
    agent = make_agent(mode=mode)
    rollout = agent.collect()
    expected = np.zeros_like(rollout.bootstrap_values)
    for t, env in np.argwhere(rollout.truncated & ~rollout.terminated):
        final = rollout.observations[t, env] + [0, 0, 1]
        with torch.no_grad():
            expected[t, env] = agent.policy.values(agent.policy.tensor(agent.normalizer(final[None])))
    assert np.count_nonzero(expected) > 3
    np.testing.assert_allclose(rollout.bootstrap_values, expected, rtol=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_next_observations_stay_in_the_episode(mode: AutoresetMode, make_agent: Callable[..., PPO]) -> None:
    agent = make_agent(mode=mode, num_steps=29)
    rollouts = [agent.collect(), agent.collect()]
    edge = rollouts[0].valid[-1] & rollouts[0].ended[-1]
    assert edge.any(), "no episode ended at the edge of the two rollouts"
    for rollout in rollouts:
        assert (rollout.terminated & rollout.valid).any()
        assert (rollout.truncated & rollout.valid).any()
        expected = rollout.observations + np.array([0, 0, 1])  # the environment counts its steps
        np.testing.assert_array_equal(rollout.next_observations[rollout.valid], expected[rollout.valid])


@pytest.mark.parametrize("mode", MODES)
def test_a_physics_environment_gives_the_same_episodes_in_every_mode(mode: AutoresetMode) -> None:
    def rollout(mode: AutoresetMode) -> OnPolicyRollout:
        def make() -> gymnasium.Env[Any, Any]:
            return gymnasium.make("Hopper-v5", max_episode_steps=15)

        agent = PPO(SyncVectorEnv([make] * 2, autoreset_mode=mode), PPOConfig(num_steps=120), seed=3)
        assert isinstance(agent.policy.head, GaussianHead)
        torch.nn.init.constant_(agent.policy.head.log_std, -40.0)  # the noise vanishes beside the mean
        return agent.collect()

    reference, other = rollout(AutoresetMode.SAME_STEP), rollout(mode)
    for env in range(2):
        expected, transitions = valid_transitions([reference], env), valid_transitions([other], env)
        assert len(transitions) > 100
        np.testing.assert_array_equal(transitions, expected[: len(transitions)])


@pytest.mark.parametrize(
    "space",
    [
        gymnasium.spaces.Box(-0.3, 0.3, (2, 2), np.float64),
        gymnasium.spaces.Discrete(3, start=5),
        gymnasium.spaces.Discrete(2),
    ],
)
def test_executed_actions_are_what_the_environment_takes(
    space: gymnasium.Space[Any], counting_envs: Callable[..., SyncVectorEnv]
) -> None:
    rollout = PPO(counting_envs(action_space=space), PPOConfig(num_steps=50), seed=0).collect()
    assert rollout.executed_actions.dtype == space.dtype
    assert all(space.contains(action) for step in rollout.executed_actions for action in step)
    if isinstance(space, gymnasium.spaces.Discrete):
        np.testing.assert_array_equal(rollout.actions + space.start, rollout.executed_actions)
    else:
        np.testing.assert_allclose(rollout.actions.clip(-0.3, 0.3), rollout.executed_actions, rtol=1e-6)
        assert (rollout.actions != rollout.executed_actions).any()


def test_log_probabilities_and_values_are_those_of_the_policy(make_agent: Callable[..., PPO]) -> None:
    agent = make_agent()
    agent.update(rollout := agent.collect(), rollout.rewards)
    rollout = agent.collect()
    for t in (0, 17, 31):
        inputs = agent.policy.tensor(agent.normalizer(rollout.observations[t]))
        with torch.no_grad():
            log_probs, _, values = agent.policy.evaluate(inputs, agent.policy.tensor(rollout.actions[t]))
        np.testing.assert_allclose(rollout.log_probs[t], log_probs, rtol=1e-5)
        np.testing.assert_allclose(rollout.values[t], values, rtol=1e-5)


class BrokenEnv(gymnasium.Env[NDArray[np.float32], np.int64]):
    """One component of the 20th observation, or the 20th reward, is not a number."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, what: str) -> None:
        self.what = what
        self.time = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        return np.zeros(2, np.float32), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        self.time += 1
        broken = np.nan if self.time == 20 else 0.0
        observation = np.array([0.0, broken if self.what == "observations" else 0.0], np.float32)
        return observation, broken if self.what == "rewards" else 0.0, False, self.time == 20, {}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("what", ["observations", "rewards"])
def test_nan_stops_the_rollout(what: str, mode: AutoresetMode) -> None:
    envs = SyncVectorEnv([lambda: BrokenEnv("nothing"), lambda: BrokenEnv(what)], autoreset_mode=mode)
    with pytest.raises(NonFiniteError, match=rf"Expected finite {what} \(environment.*got nan at \(1,"):
        PPO(envs, PPOConfig(num_steps=30), seed=0).collect()


def test_hidden_autoreset_mode_is_refused(counting_envs: Callable[..., SyncVectorEnv]) -> None:
    envs = counting_envs()
    del envs.metadata["autoreset_mode"]
    with pytest.raises(UnsupportedEnvironmentError, match="autoreset_mode"):
        PPO(envs, PPOConfig(), seed=0)


def test_observations_that_are_no_box_are_refused() -> None:
    with pytest.raises(UnsupportedSpaceError, match="space must be a non-empty Box, not Discrete"):
        PPO(SyncVectorEnv([lambda: gymnasium.make("FrozenLake-v1")]), PPOConfig(), seed=0)
