"""Environments with known episodes, and agents on them."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from agents.on_policy import OnPolicyAgent
from agents.ppo import PPO, PPOConfig
from agents.rollout import Rollout


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class CountingEnv(gymnasium.Env[NDArray[np.float64], NDArray[np.float32]]):
    """Counts episodes and steps, whatever the action; the length and the kind of end depend on the episode.

    Observation: environment, episode, step. Reward: the number of steps made in the episode. Episodes end, in
    turn, by termination, both, truncation, truncation.
    """

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float64)

    def __init__(self, index: int, action_space: gymnasium.Space[Any]) -> None:
        self.index = index
        self.action_space = action_space
        self.episode = -1

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float64], dict[str, Any]]:
        super().reset(seed=seed)
        self.episode += 1
        self.time = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[NDArray[np.float64], float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self.time += 1
        ended = self.time == 3 + (self.index + self.episode) % 3
        terminated = ended and self.episode % 4 < 2
        truncated = ended and self.episode % 4 > 0
        return self._observation(), float(self.time), terminated, truncated, {}

    def _observation(self) -> NDArray[np.float64]:
        return np.array([self.index, self.episode, self.time], dtype=np.float64)


BOX = gymnasium.spaces.Box(-0.5, 0.5, (2,), np.float32)


@pytest.fixture
def counting_envs() -> Callable[..., SyncVectorEnv]:
    """Makes a vector of counting environments."""

    def make(
        mode: AutoresetMode = AutoresetMode.NEXT_STEP,
        num_envs: int = 3,
        action_space: gymnasium.Space[Any] = BOX,
    ) -> SyncVectorEnv:
        env_fns = [lambda i=i: CountingEnv(i, action_space) for i in range(num_envs)]
        # Without copies the environments write every observation into the same array.
        return SyncVectorEnv(env_fns, copy=False, autoreset_mode=mode)

    return make


@pytest.fixture
def make_agent(counting_envs: Callable[..., SyncVectorEnv]) -> Callable[..., PPO]:
    """Makes an agent on counting environments with a short, quick configuration."""

    def make(seed: int = 0, mode: AutoresetMode = AutoresetMode.NEXT_STEP, **config: Any) -> PPO:
        settings = {"num_steps": 32, "minibatch_size": 16, "update_epochs": 3, **config}
        return PPO(counting_envs(mode), PPOConfig(**settings), seed)

    return make


@pytest.fixture
def made_up_rollout() -> Callable[[OnPolicyAgent], Rollout]:
    """Makes a rollout for an agent, with the log-probabilities and values of its present networks."""
    return _rollout


def _rollout(agent: OnPolicyAgent) -> Rollout:
    """Steps of a made-up environment with episodes that end both ways, all of them valid."""
    envs = agent.sampler.envs
    rng = np.random.default_rng(5)
    shape, space = (agent.config.num_steps, envs.num_envs), envs.single_observation_space
    assert space.shape is not None
    observations = rng.normal(size=(*shape, *space.shape)).astype(np.float32)
    head = agent.policy.head
    actions = head.choose(head.perturbation(rng, shape).reshape(math.prod(shape), -1))
    with torch.no_grad():
        log_probs, _, values = agent.policy.evaluate(
            agent.policy.tensor(agent.normalizer(observations)).flatten(0, 1), agent.policy.tensor(actions)
        )
    terminated, truncated = rng.random(shape) < 0.1, rng.random(shape) < 0.1
    return Rollout(
        observations=observations,
        actions=actions.reshape(*shape, *actions.shape[1:]),
        executed_actions=head.executed(actions).reshape(*shape, *actions.shape[1:]),
        log_probs=log_probs.numpy().reshape(shape),
        values=values.numpy().reshape(shape),
        rewards=rng.normal(size=shape),
        terminated=terminated,
        truncated=truncated,
        valid=np.ones(shape, bool),
        bootstrap_values=np.where(truncated & ~terminated, rng.normal(size=shape), 0.0),
        last_values=rng.normal(size=envs.num_envs),
    )
