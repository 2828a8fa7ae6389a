"""Whole runs: reproducible, resumable, and undisturbed by acting."""

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import SyncVectorEnv

from agents.errors import DivergedError, StateMismatchError
from agents.ppo import PPO, PPOConfig
from agents.trpo import TRPO, TRPOConfig


def pendulum_agent(seed: int, **config: Any) -> PPO:
    envs = SyncVectorEnv([lambda: gymnasium.make("Pendulum-v1", max_episode_steps=20)] * 2)
    return PPO(envs, PPOConfig(num_steps=32, update_epochs=2, minibatch_size=16, **config), seed)


def iterate(agent: PPO | TRPO, times: int) -> list[Any]:
    """Everything that an outsider sees of a run."""
    seen: list[Any] = []
    for _ in range(times):
        rollout = agent.collect()
        metrics = agent.update(rollout, rollout.rewards)
        seen += [rollout.observations, rollout.executed_actions, rollout.values, *metrics.values()]
    return seen


def same(first: list[Any], second: list[Any]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_the_same_seed_gives_the_same_run_whatever_else_draws_numbers() -> None:
    torch.manual_seed(1)
    np.random.seed(1)
    first = iterate(pendulum_agent(7), 3)
    torch.manual_seed(2)
    np.random.seed(2)
    agent = pendulum_agent(7)
    second = iterate(agent, 1)
    agent.act(np.zeros((5, 3), np.float32), deterministic=False)
    second += iterate(agent, 2)
    assert same(first, second)
    assert not same(first, iterate(pendulum_agent(8), 3))


def test_environments_of_one_agent_start_differently() -> None:
    observations = pendulum_agent(0).collect().observations[0]
    assert not np.array_equal(observations[0], observations[1])


@pytest.mark.parametrize("normalize_rewards", [False, True])
def test_a_restored_agent_continues_identically(normalize_rewards: bool) -> None:
    original = pendulum_agent(0, normalize_rewards=normalize_rewards)
    iterate(original, 2)
    restored = pendulum_agent(99, normalize_rewards=normalize_rewards)
    restored.load_state_dict(original.state_dict())
    assert restored.total_steps == original.total_steps > 0

    probe = np.ones((4, 3), np.float32)
    for deterministic in (True, False):
        ours, theirs = (agent.act(probe, deterministic=deterministic) for agent in (original, restored))
        np.testing.assert_array_equal(ours, theirs)
    rollout = original.collect()
    assert original.update(rollout, rollout.rewards) == restored.update(rollout, rollout.rewards)
    for name, value in original.policy.state_dict().items():
        assert torch.equal(value, restored.policy.state_dict()[name]), name


@pytest.mark.parametrize("allow_numpy", [False, True])
@pytest.mark.parametrize(("algorithm", "config"), [(PPO, PPOConfig), (TRPO, TRPOConfig)])
def test_an_update_that_diverges_is_refused_and_leaves_the_policy_as_it_was(
    algorithm: type[PPO | TRPO], config: type[PPOConfig | TRPOConfig], allow_numpy: bool
) -> None:
    envs = SyncVectorEnv([lambda: gymnasium.make("Pendulum-v1", max_episode_steps=20)] * 2)
    agent = algorithm(envs, config(num_steps=32, minibatch_size=16), 0, allow_numpy=allow_numpy)  # type: ignore[arg-type]
    iterate(agent, 1)
    rollout, before = agent.collect(), agent.state_dict()
    with (
        np.errstate(all="ignore"),
        pytest.raises(
            DivergedError,
            match=r"^Training diverged: an update made \S+ NaN or .*; use a smaller ent_coef or",
        ),
    ):
        agent.update(rollout, np.full_like(rollout.rewards, 1e300))
    after = agent.state_dict()
    for part in ("policy", "normalizer"):
        np.testing.assert_equal(after[part], before[part])
    algorithm(envs, agent.config, 1, allow_numpy=allow_numpy).load_state_dict(after)  # type: ignore[arg-type]
    iterate(agent, 1)


def test_a_restored_agent_starts_new_episodes_with_seeds_of_their_own() -> None:
    original = pendulum_agent(0, normalize_rewards=True)
    first = original.collect().observations[0]
    restored = pendulum_agent(0, normalize_rewards=True)
    restored.collect()
    restored.load_state_dict(original.state_dict())
    rollout = restored.collect()
    assert not np.array_equal(rollout.observations[0], first)
    assert rollout.valid[:20].all(), "a new episode has all of its 20 steps before it"
    assert not rollout.valid[20].any()


def test_a_restored_agent_may_have_another_number_of_environments() -> None:
    original = pendulum_agent(0, normalize_rewards=True)
    iterate(original, 1)
    config = replace(original.config, num_steps=20)
    restored = PPO(SyncVectorEnv([lambda: gymnasium.make("Pendulum-v1")] * 5), config, seed=0)
    restored.load_state_dict(original.state_dict())
    iterate(restored, 2)
    assert restored.total_steps == original.total_steps + 2 * 20 * 5


def test_a_state_is_a_copy_of_arrays_and_json(make_agent: Callable[..., PPO]) -> None:
    agent = make_agent(normalize_rewards=True)
    iterate(agent, 1)
    state = agent.state_dict()
    saved = copy.deepcopy(state)
    iterate(agent, 1)

    def compare(now: Any, then: Any) -> Any:
        """Fails where they differ; gives the state without its arrays."""
        if isinstance(then, dict):
            return {key: compare(now[key], value) for key, value in then.items()}
        np.testing.assert_array_equal(now, then)
        return None if isinstance(then, np.ndarray) else then

    assert json.loads(json.dumps(compare(state, saved))) == compare(state, saved)
    assert (state["policy"]["actor.0.weight"] != agent.state_dict()["policy"]["actor.0.weight"]).any()


def test_the_state_of_another_environments_agent_is_refused_whole(make_agent: Callable[..., PPO]) -> None:
    agent = make_agent()
    before = agent.state_dict()
    other = PPO(SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2), PPOConfig(), seed=0)
    with pytest.raises(StateMismatchError, match="The saved policy's parameter shapes are"):
        agent.load_state_dict(other.state_dict())
    for name, value in agent.state_dict()["policy"].items():
        np.testing.assert_array_equal(value, before["policy"][name])


def test_the_state_of_another_algorithm_is_refused_whole() -> None:
    def make(algorithm: Any, config: Any) -> Any:
        return algorithm(SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2), config, seed=0)

    ppo, trpo = make(PPO, PPOConfig(num_steps=16)), make(TRPO, TRPOConfig(num_steps=16))
    for agent, other in ((ppo, trpo), (trpo, ppo)):
        iterate(other, 1)
        before = agent.state_dict()
        with pytest.raises(StateMismatchError, match="use the algorithm that saved the state"):
            agent.load_state_dict(other.state_dict())
        np.testing.assert_equal(agent.state_dict(), before)


def test_acting_deterministically_takes_the_mean_within_the_box(make_agent: Callable[..., PPO]) -> None:
    agent = make_agent()
    observations = np.random.default_rng(0).normal(size=(6, 3))
    with torch.no_grad():
        list(agent.policy.actor.parameters())[-2].mul_(300)
        inputs = agent.policy.tensor(agent.normalizer(observations))
        means = agent.policy.actor(inputs).numpy()
    actions = agent.act(observations, deterministic=True)
    assert (np.abs(means) > 0.5).any()
    assert (np.abs(means) < 0.5).any()
    np.testing.assert_allclose(actions, means.clip(-0.5, 0.5), rtol=1e-5, atol=1e-6)
    assert not np.array_equal(agent.act(observations, deterministic=False), actions)


def test_observations_that_are_not_to_be_normalized_reach_the_policy_as_they_are() -> None:
    agent = pendulum_agent(0, normalize_observations=False)
    iterate(agent, 2)
    observations = agent.collect().observations
    np.testing.assert_array_equal(agent.normalizer(observations), observations)
