"""Rollouts in every autoreset mode, their advantages, and the training of the critic alone."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from agents.errors import NonFiniteError, UnsupportedEnvironmentError, UnsupportedSpaceError
from agents.heads import GaussianHead
from agents.on_policy import OnPolicyAgent
from agents.ppo import PPO, PPOConfig
from agents.rollout import Batch, OnPolicyRollout, generalized_advantages, require_finite
from agents.trpo import TRPO, TRPOConfig
from tests.agents.conftest import counting_envs, make_agent, parameters
from tests.environments import Stub

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
def test_valid_transitions_match_the_episodes(mode: AutoresetMode) -> None:
    agent = make_agent(mode=mode)
    rollouts = [agent.collect() for _ in range(3)]
    for env in range(3):
        transitions = valid_transitions(rollouts, env)
        np.testing.assert_array_equal(transitions, expected_transitions(env, len(transitions)))
    assert agent.total_steps == sum(rollout.num_valid for rollout in rollouts)


def test_a_rollout_tells_its_steps_and_is_no_other_for_it() -> None:
    told: list[int] = []
    watched, alone = make_agent(num_steps=29).collect(told.append), make_agent(num_steps=29).collect()
    assert told == list(range(1, 30))
    np.testing.assert_array_equal(watched.actions, alone.actions)


@pytest.mark.parametrize("mode", MODES)
def test_only_next_step_autoreset_has_dummies(mode: AutoresetMode) -> None:
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
def test_truncation_uses_the_final_observation(mode: AutoresetMode) -> None:
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
def test_next_observations_stay_in_the_episode(mode: AutoresetMode) -> None:
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
def test_executed_actions_are_what_the_environment_takes(space: gymnasium.Space[Any]) -> None:
    rollout = PPO(counting_envs(action_space=space), PPOConfig(num_steps=50), seed=0).collect()
    assert rollout.executed_actions.dtype == space.dtype
    assert all(space.contains(action) for step in rollout.executed_actions for action in step)
    if isinstance(space, gymnasium.spaces.Discrete):
        np.testing.assert_array_equal(rollout.actions + space.start, rollout.executed_actions)
    else:
        np.testing.assert_allclose(rollout.actions.clip(-0.3, 0.3), rollout.executed_actions, rtol=1e-6)
        assert (rollout.actions != rollout.executed_actions).any()


def test_log_probabilities_and_values_are_those_of_the_policy() -> None:
    agent = make_agent()
    agent.update(rollout := agent.collect(), rollout.rewards)
    rollout = agent.collect()
    for t in (0, 17, 31):
        inputs = agent.policy.tensor(agent.normalizer(rollout.observations[t]))
        with torch.no_grad():
            log_probs, _, values = agent.policy.evaluate(inputs, agent.policy.tensor(rollout.actions[t]))
        np.testing.assert_allclose(rollout.log_probs[t], log_probs, rtol=1e-5)
        np.testing.assert_allclose(rollout.values[t], values, rtol=1e-5)


class BrokenEnv(Stub):
    """One component of the 20th observation, or the 20th reward, is not a number."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    length = 20

    def __init__(self, what: str) -> None:
        self.what = what

    def _broken(self, what: str) -> float:
        return np.nan if self.time == 20 and self.what == what else 0.0

    def reward(self, action: np.int64) -> float:
        return self._broken("rewards")

    def observe(self) -> NDArray[np.float32]:
        return np.array([0.0, self._broken("observations")], np.float32)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("what", ["observations", "rewards"])
def test_nan_stops_the_rollout(what: str, mode: AutoresetMode) -> None:
    envs = SyncVectorEnv([lambda: BrokenEnv("nothing"), lambda: BrokenEnv(what)], autoreset_mode=mode)
    with pytest.raises(NonFiniteError, match=rf"Expected finite {what} \(environment.*got nan at \(1,"):
        PPO(envs, PPOConfig(num_steps=30), seed=0).collect()


def test_hidden_autoreset_mode_is_refused() -> None:
    envs = counting_envs()
    del envs.metadata["autoreset_mode"]
    with pytest.raises(UnsupportedEnvironmentError, match="autoreset_mode"):
        PPO(envs, PPOConfig(), seed=0)


def test_observations_that_are_no_box_are_refused() -> None:
    with pytest.raises(UnsupportedSpaceError, match="space must be a non-empty Box, not Discrete"):
        PPO(SyncVectorEnv([lambda: gymnasium.make("FrozenLake-v1")]), PPOConfig(), seed=0)


GAMMA, LAMBDA = 0.9, 0.8


def make_rollout(seed: int, num_steps: int = 40, num_envs: int = 3) -> OnPolicyRollout:
    """Random rewards, values and ends, with a dummy transition after each end, as next-step autoreset has."""
    rng = np.random.default_rng(seed)
    shape = (num_steps, num_envs)
    valid, terminated, truncated = np.ones(shape, bool), np.zeros(shape, bool), np.zeros(shape, bool)
    for t in range(num_steps):
        if t > 0:
            valid[t] = ~(terminated | truncated)[t - 1]
        terminated[t] = valid[t] & (rng.random(num_envs) < 0.1)
        truncated[t] = valid[t] & (rng.random(num_envs) < 0.1)
    return OnPolicyRollout(
        observations=rng.normal(size=(*shape, 2)),
        actions=rng.normal(size=(*shape, 1)),
        executed_actions=rng.normal(size=(*shape, 1)),
        log_probs=rng.normal(size=shape),
        values=rng.normal(size=shape),
        rewards=np.where(valid, rng.normal(size=shape), 0.0),
        terminated=terminated,
        truncated=truncated,
        valid=valid,
        bootstrap_values=np.where(truncated & ~terminated, rng.normal(size=shape), 0.0),
        last_values=rng.normal(size=num_envs),
        last_observations=rng.normal(size=(num_envs, 2)),
        final_observations=rng.normal(size=((terminated | truncated).sum(), 2)),
    )


def episode_slices(rollout: OnPolicyRollout, env: int) -> list[list[int]]:
    """The valid steps of one environment, split into episodes."""
    episodes: list[list[int]] = [[]]
    for t in range(len(rollout.rewards)):
        if rollout.valid[t, env]:
            episodes[-1].append(t)
            if rollout.terminated[t, env] or rollout.truncated[t, env]:
                episodes.append([])
    return [episode for episode in episodes if episode]


def advantages_by_definition(rollout: OnPolicyRollout, rewards: NDArray[Any]) -> NDArray[np.float64]:
    """Equation 16 of the paper: for each step a sum over the rest of its episode."""
    expected = np.zeros(rewards.shape)
    for env in range(rewards.shape[1]):
        for steps in episode_slices(rollout, env):
            after_last = rollout.last_values[env]
            if rollout.terminated[steps[-1], env]:
                after_last = 0.0
            elif rollout.truncated[steps[-1], env]:
                after_last = rollout.bootstrap_values[steps[-1], env]
            values = [*rollout.values[steps, env], after_last]
            deltas = [rewards[t, env] + GAMMA * values[i + 1] - values[i] for i, t in enumerate(steps)]
            for i, t in enumerate(steps):
                expected[t, env] = sum((GAMMA * LAMBDA) ** k * delta for k, delta in enumerate(deltas[i:]))
    return expected


@pytest.mark.parametrize("seed", range(5))
def test_advantages_equal_their_definition(seed: int) -> None:
    rollout = make_rollout(seed)
    advantages = generalized_advantages(rollout, rollout.rewards, GAMMA, LAMBDA)
    np.testing.assert_allclose(advantages, advantages_by_definition(rollout, rollout.rewards), atol=1e-12)


def test_with_lambda_one_advantage_and_value_are_the_discounted_return() -> None:
    rollout = make_rollout(0, num_steps=50)
    returns = generalized_advantages(rollout, rollout.rewards, GAMMA, 1.0) + rollout.values
    checked = 0
    for env in range(3):
        for steps in episode_slices(rollout, env):
            if rollout.terminated[steps[-1], env]:
                discounts = GAMMA ** np.arange(len(steps))
                assert returns[steps[0], env] == pytest.approx(discounts @ rollout.rewards[steps, env])
                checked += 1
    assert checked > 3


def test_truncation_is_bootstrapped_and_termination_is_not() -> None:
    def advantage(*, terminated: bool, truncated: bool) -> float:
        rollout = make_rollout(0, num_steps=1, num_envs=1)
        fields = {**vars(rollout), "values": np.array([[1.0]]), "last_values": np.array([100.0])}
        fields |= {"terminated": np.array([[terminated]]), "truncated": np.array([[truncated]])}
        fields |= {"bootstrap_values": np.array([[10.0 if truncated and not terminated else 0.0]])}
        return float(
            generalized_advantages(OnPolicyRollout(**fields), np.array([[2.0]]), GAMMA, LAMBDA)[0, 0]
        )

    assert advantage(terminated=False, truncated=False) == pytest.approx(2 + GAMMA * 100 - 1)
    assert advantage(terminated=False, truncated=True) == pytest.approx(2 + GAMMA * 10 - 1)
    assert advantage(terminated=True, truncated=False) == pytest.approx(2 - 1)
    assert advantage(terminated=True, truncated=True) == pytest.approx(2 - 1)


def test_dummy_transitions_have_no_advantage_and_are_not_counted() -> None:
    rollout = make_rollout(1)
    assert not rollout.valid.all()
    assert not generalized_advantages(rollout, rollout.rewards, GAMMA, LAMBDA)[~rollout.valid].any()
    assert rollout.num_valid == sum(len(s) for env in range(3) for s in episode_slices(rollout, env))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_named_with_its_place(value: float) -> None:
    array = np.zeros((4, 3))
    require_finite("rewards", array)
    array[2, 1] = value
    with pytest.raises(NonFiniteError, match=r"Expected finite rewards, got -?(nan|inf) at \(2, 1\)"):
        require_finite("rewards", array)


def test_minibatches_hold_every_transition_once_and_have_nearly_one_size() -> None:
    advantages = np.arange(89.0)
    batch = Batch._make([*[advantages] * 6, np.ones(89, bool)])
    minibatches = list(batch.minibatches(7, np.random.default_rng(0)))
    sizes = {minibatch.size for minibatch in minibatches}
    assert min(sizes) >= 7
    assert max(sizes) - min(sizes) <= 1
    seen = np.concatenate([minibatch.advantages for minibatch in minibatches])
    assert sorted(seen) == advantages.tolist()
    assert seen.tolist() != advantages.tolist()
    for minibatch in minibatches:
        np.testing.assert_array_equal(minibatch.advantages, minibatch.returns)


MakeAgent = Callable[..., OnPolicyAgent]
NUM_STEPS, NUM_ENVS = 48, 2


def make_ppo(env_id: str = "Pendulum-v1", **settings: Any) -> PPO:
    envs = SyncVectorEnv([lambda: gymnasium.make(env_id)] * NUM_ENVS)
    config = PPOConfig(num_steps=NUM_STEPS, minibatch_size=16, learning_rate=1e-3)
    return PPO(envs, config, seed=0, dtype=torch.float64, **settings)


def make_trpo(env_id: str = "Pendulum-v1", **settings: Any) -> TRPO:
    envs = SyncVectorEnv([lambda: gymnasium.make(env_id)] * NUM_ENVS)
    config = TRPOConfig(num_steps=NUM_STEPS, minibatch_size=16)
    return TRPO(envs, config, seed=0, dtype=torch.float64, **settings)


def train_critic(agent: OnPolicyAgent, rollout: OnPolicyRollout, epochs: int) -> OnPolicyRollout:
    return agent._with_new_values(rollout, rollout.rewards, epochs)


@pytest.mark.parametrize("make", [make_ppo, make_trpo])
def test_both_ways_train_the_critic_alike_and_nothing_else(make: MakeAgent) -> None:
    agents = [make(allow_numpy=True), make(allow_numpy=False)]
    for agent in agents:
        rollout = agent.collect()
        agent.update(rollout, rollout.rewards)  # so that there is momentum, which must not move the actor
    rollout = agents[0].collect()
    agents[1].collect()
    before = parameters(agents[0])
    revalued = [train_critic(agent, rollout, 3) for agent in agents]
    by_numpy, by_torch = map(parameters, agents)
    for name, value in by_numpy.items():
        np.testing.assert_allclose(value, by_torch[name], rtol=0, atol=1e-7, err_msg=name)
        moved = np.abs(value - before[name]).max()
        assert (moved > 1e-3) == name.startswith("critic"), name
    np.testing.assert_allclose(revalued[0].values, revalued[1].values, atol=1e-7)


@pytest.mark.parametrize("make", [make_ppo, make_trpo])
def test_values_move_to_the_returns_of_the_new_rewards(make: MakeAgent) -> None:
    agent = make()
    rollout = agent.collect()
    rewards = np.cos(rollout.observations[..., 0]) + 1.0

    def unexplained(valued: OnPolicyRollout) -> float:
        """Use returns that hardly depend on the critic."""
        returns = generalized_advantages(valued, rewards, 0.9, 1.0) + valued.values
        return float(np.square(returns - valued.values).mean())

    agent.config = replace(agent.config, gamma=0.9)
    assert unexplained(agent._with_new_values(rollout, rewards, 60)) < 0.2 * unexplained(rollout)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_all_values_are_computed_again(mode: AutoresetMode) -> None:
    agent = make_agent(mode=mode)
    rollout = agent.collect()
    same = agent.sampler.revalued(rollout)
    for name in ("values", "bootstrap_values", "last_values"):
        np.testing.assert_array_equal(getattr(same, name), getattr(rollout, name))
    with torch.no_grad():
        list(agent.policy.critic.parameters())[-1].add_(10.0)
    shifted = agent.sampler.revalued(rollout)
    cut_off = rollout.truncated & ~rollout.terminated
    assert cut_off.any()
    np.testing.assert_allclose(shifted.values, rollout.values + 10, rtol=1e-5)
    np.testing.assert_allclose(shifted.last_values, rollout.last_values + 10, rtol=1e-5)
    np.testing.assert_allclose(shifted.bootstrap_values, rollout.bootstrap_values + 10 * cut_off, rtol=1e-5)


def test_an_update_estimates_advantages_by_the_critic_that_was_trained() -> None:
    agent, other = make_ppo(), make_ppo()
    rollout = agent.collect()
    other.collect()
    agent.update(rollout, rollout.rewards, critic_epochs=4)
    other.update(train_critic(other, rollout, 4), rollout.rewards)
    np.testing.assert_equal(parameters(agent), parameters(other))


def test_rewards_are_scaled_once_for_several_critic_updates() -> None:
    states = []
    for epochs in (0, 5):
        agent = make_agent(normalize_rewards=True)
        rollout = agent.collect()
        agent.update(rollout, rollout.rewards, critic_epochs=epochs)
        states.append(agent.reward_scaler.state_dict())
    assert str(states[0]) == str(states[1])
