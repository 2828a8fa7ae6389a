"""SAC's agent: transitions in every autoreset mode, learning, saving, and refusals."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from agents.distributed import Ranks
from agents.errors import (
    InvalidConfigError,
    NonFiniteError,
    ShapeError,
    StateMismatchError,
    UnsupportedSpaceError,
)
from agents.sac import SAC
from agents.sac_step import SACConfig
from tests.agents.conftest import BOX, CountingEnv
from tests.agents.test_learning import Target

MakeEnvs = Callable[..., SyncVectorEnv]
SMALL: dict[str, Any] = {"hidden_sizes": (16, 16), "batch_size": 8, "train_freq": 8, "gradient_steps": 2}


def make_agent(envs: SyncVectorEnv, seed: int = 0, folder: Path | None = None, **changes: Any) -> SAC:
    return SAC(envs, SACConfig(**{**SMALL, "learning_starts": 30, **changes}), seed, buffer_folder=folder)


def train(agent: SAC, rounds: int) -> list[dict[str, float]]:
    found = []
    for _ in range(rounds):
        rollout = agent.collect()
        found.append(agent.update(rollout, rollout.rewards))
    return found


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_transitions_are_those_of_the_episodes(mode: AutoresetMode, counting_envs: MakeEnvs) -> None:
    agent = make_agent(counting_envs(mode))
    train(agent, 6)
    assert len(agent.buffer) == agent.total_steps
    before, actions, after, rewards, terminated = agent.buffer.transitions
    assert (after[:, :2] == before[:, :2]).all(), "a transition stays within its episode"
    assert (after[:, 2] == before[:, 2] + 1).all()
    assert (rewards == after[:, 2]).all()
    env, episode, time = after.T
    ends = (time == 3 + (env + episode) % 3) & (episode % 4 < 2)
    assert (terminated == ends).all(), "an episode cut off by a limit is not terminated"
    assert (np.abs(actions) <= 0.5).all()


def test_actions_are_uniform_before_learning_starts(counting_envs: MakeEnvs) -> None:
    agent = make_agent(counting_envs(AutoresetMode.SAME_STEP), learning_starts=300, train_freq=1)
    metrics = train(agent, 99)
    assert metrics == [{}] * 99
    actions = agent.buffer.transitions.actions
    assert np.abs(actions).max() > 0.48
    assert actions.std() == pytest.approx(0.5 / np.sqrt(3), rel=0.1)
    assert train(agent, 1)[0].keys() == {"critic_loss", "actor_loss", "ent_coef", "entropy"}


@pytest.mark.parametrize(("gradient_steps", "taken"), [(0, 0), (3, 3), (-1, 24)])
def test_number_of_gradient_steps(counting_envs: MakeEnvs, gradient_steps: int, taken: int) -> None:
    agent = make_agent(
        counting_envs(AutoresetMode.SAME_STEP), learning_starts=0, gradient_steps=gradient_steps
    )
    train(agent, 1)
    assert agent._step.state_dict()["steps"] == taken


def test_it_learns_a_continuous_target_and_explores_less() -> None:
    envs = SyncVectorEnv([Target] * 8, autoreset_mode=AutoresetMode.SAME_STEP)
    config = SACConfig(hidden_sizes=(32, 32), learning_rate=3e-3, batch_size=64, gradient_steps=4)
    agent = SAC(envs, config, seed=0)
    metrics = train(agent, 200)
    observations = np.linspace(-1, 1, 9, dtype=np.float32)[:, None]
    error = agent.act(observations, deterministic=True) - observations / 2
    assert np.abs(error).mean() < 0.1
    assert metrics[-1]["ent_coef"] < metrics[20]["ent_coef"]


@pytest.mark.parametrize("in_files", [False, True])
def test_restored_agent_continues_alike(counting_envs: MakeEnvs, tmp_path: Path, *, in_files: bool) -> None:
    def make(seed: int) -> SAC:
        return make_agent(counting_envs(), seed, tmp_path if in_files else None)

    agent = make(0)
    train(agent, 4)
    state = agent.state_dict()
    restored = make(1)
    restored.load_state_dict(state)
    assert restored.total_steps == agent.total_steps
    observations = np.ones((4, 3))
    assert (
        restored.act(observations, deterministic=True) == agent.act(observations, deterministic=True)
    ).all()
    agent.sampler.started = False  # a restored agent starts new episodes
    if not in_files:
        agent.sampler.envs.close()
        agent.sampler.envs = counting_envs()
        assert train(restored, 2) == train(agent, 2)


def test_the_same_seed_gives_the_same_run(counting_envs: MakeEnvs) -> None:
    first, second, other = (train(make_agent(counting_envs(), seed), 4)[-1] for seed in (3, 3, 4))
    assert first == second
    assert first != other


def test_rewards_are_relabeled_and_critics_reset(counting_envs: MakeEnvs) -> None:
    agent = make_agent(counting_envs())
    train(agent, 4)
    agent.relabel(lambda observations, *_: observations[:, 0])
    assert (agent.buffer.transitions.rewards == agent.buffer.transitions.observations[:, 0]).all()
    before = {name: value.clone() for name, value in agent.policy.state_dict().items()}
    agent.reset_critics()
    after = agent.policy.state_dict()
    same = {name: bool((after[name] == before[name]).all()) for name in before}
    assert all(same[name] for name in same if name.startswith("actor"))
    assert not any(same[name] for name in same if not name.startswith("actor"))
    assert (after["critic.weights.0"] == after["target.weights.0"]).all()
    assert train(agent, 1)[0]["critic_loss"] > 0


def test_bad_rewards_change_nothing(counting_envs: MakeEnvs) -> None:
    agent = make_agent(counting_envs())
    rollout = agent.collect()
    with pytest.raises(ShapeError, match=r"rewards of shape \(8, 3\), got \(8,\)"):
        agent.update(rollout, rollout.rewards[:, 0])
    with pytest.raises(NonFiniteError, match="finite rewards"):
        agent.update(rollout, np.full(rollout.rewards.shape, np.nan))
    assert len(agent.buffer) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"buffer_size": 0}, "buffer_size must be at least 1"),
        ({"gradient_steps": -2}, "gradient_steps must be at least -1"),
        ({"tau": 0.0}, "tau must be positive"),
        ({"tau": 1.5}, "tau must be between 0 and 1"),
        ({"ent_coef": "high"}, "ent_coef must be a positive number, auto, or auto_"),
        ({"ent_coef": "auto_0"}, "ent_coef must be"),
        ({"ent_coef": -0.1}, "ent_coef must be"),
        ({"network": dict}, "SAC supports no custom network"),
    ],
)
def test_bad_hyperparameters_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        SACConfig(**changes)


@pytest.mark.parametrize(
    ("observations", "actions", "message"),
    [
        (
            Box(-1, 1, (3,)),
            Discrete(2),
            r"SAC needs a bounded Box of floats as the action space, not Discrete\(2\)",
        ),
        (Box(-1, 1, (3,)), Box(-np.inf, np.inf, (2,)), "SAC needs a bounded Box"),
        (Box(0, 255, (64, 64, 3), np.uint8), Box(-1, 1, (2,)), "SAC needs vector observations, not images"),
    ],
)
def test_spaces_that_it_cannot_learn_are_refused(observations: Box, actions: Any, message: str) -> None:
    class Env(CountingEnv):
        observation_space = observations  # type: ignore[assignment]

    with pytest.raises(UnsupportedSpaceError, match=message):
        make_agent(SyncVectorEnv([lambda: Env(0, actions)]))


def test_a_second_process_is_refused(counting_envs: MakeEnvs) -> None:
    agent = make_agent(counting_envs())
    agent.ranks = Ranks(0, 2)
    with pytest.raises(InvalidConfigError, match="SAC trains in a single process"):
        agent.collect()


def test_another_policy_is_refused(counting_envs: MakeEnvs) -> None:
    agent = make_agent(counting_envs())
    state = make_agent(counting_envs(), hidden_sizes=(8,)).state_dict()
    with pytest.raises(StateMismatchError, match="parameter shapes"):
        agent.load_policy(state)


def test_actions_fill_the_bounds(counting_envs: MakeEnvs) -> None:
    space = Box(np.array([-1.0, 0.0], np.float32), np.array([3.0, 10.0], np.float32))
    agent = make_agent(counting_envs(action_space=space), learning_starts=10_000)
    train(agent, 40)
    actions = agent.buffer.transitions.actions
    assert np.allclose(actions.min(0), space.low, atol=0.2)
    assert np.allclose(actions.max(0), space.high, atol=0.2)
    squashed = agent.policy.head.squashed(actions)
    assert np.allclose(agent.policy.head.executed(squashed), actions, atol=1e-6)
    assert gymnasium.spaces.Box(-1, 1, (2,)).contains(squashed[0].astype(np.float32))
    assert BOX.shape == (2,)
