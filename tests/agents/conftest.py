"""Environments with known episodes, and agents on them."""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import stable_baselines3 as sb3
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray
from torch import nn

from agents.cloning import Pairs
from agents.on_policy import OnPolicyAgent
from agents.ppo import PPO, PPOConfig
from agents.rollout import OnPolicyRollout
from agents.sac_step import Minibatch, SACConfig
from agents.squashed_gaussian import SquashedActorCritic


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


def counting_envs(
    mode: AutoresetMode = AutoresetMode.NEXT_STEP, num_envs: int = 3, action_space: gymnasium.Space[Any] = BOX
) -> SyncVectorEnv:
    env_fns = [lambda i=i: CountingEnv(i, action_space) for i in range(num_envs)]
    # Without copies the environments write every observation into the same array.
    return SyncVectorEnv(env_fns, copy=False, autoreset_mode=mode)


def make_agent(seed: int = 0, mode: AutoresetMode = AutoresetMode.NEXT_STEP, **config: Any) -> PPO:
    """An agent on counting environments with a short, quick configuration."""
    settings = {"num_steps": 32, "minibatch_size": 16, "update_epochs": 3, **config}
    return PPO(counting_envs(mode), PPOConfig(**settings), seed)


def made_up_rollout(agent: OnPolicyAgent) -> OnPolicyRollout:
    """Steps of a made-up environment with episodes that end both ways, all valid, for an agent's networks."""
    envs = agent.sampler.envs
    rng = np.random.default_rng(5)
    shape, space = (agent.config.num_steps, envs.num_envs), envs.single_observation_space
    assert space.shape is not None
    if space.dtype == np.uint8:
        observations: NDArray[Any] = rng.integers(256, size=(*shape, *space.shape), dtype=np.uint8)
    else:
        observations = rng.normal(size=(*shape, *space.shape)).astype(np.float32)
    head = agent.policy.head
    actions = head.choose(head.perturbation(rng, shape).reshape(math.prod(shape), -1))
    with torch.no_grad():
        log_probs, _, values = agent.policy.evaluate(
            agent.policy.tensor(agent.normalizer(observations)).flatten(0, 1), agent.policy.tensor(actions)
        )
    terminated, truncated = rng.random(shape) < 0.1, rng.random(shape) < 0.1
    return OnPolicyRollout(
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
        last_observations=observations[-1],
        final_observations=observations[terminated | truncated],
    )


def parameters(agent: OnPolicyAgent) -> dict[str, NDArray[Any]]:
    return {name: value.numpy().copy() for name, value in agent.policy.state_dict().items()}


class Sb3Twin:
    """An on-policy model of the Stable-Baselines3 family in double precision, with an agent's parameters."""

    NAMES: ClassVar = {
        "actor.0.layers.7": "features_extractor.linear.0",
        "actor.0.layers": "features_extractor.cnn",
        "actor.0": "mlp_extractor.policy_net.0",
        "actor.1": "action_net",
        "actor.2": "mlp_extractor.policy_net.2",
        "actor.4": "action_net",
        "critic.0.layers.7": "vf_features_extractor.linear.0",
        "critic.0.layers": "vf_features_extractor.cnn",
        "critic.0": "mlp_extractor.value_net.0",
        "critic.1": "value_net",
        "critic.2": "mlp_extractor.value_net.2",
        "critic.4": "value_net",
        "head.log_std": "log_std",
    }
    """Beginnings of our names of parameters, the longer first."""

    def __init__(self, model: Any, agent: OnPolicyAgent) -> None:
        self.model = model
        self._agent = agent
        model.policy.double()
        state = agent.policy.state_dict()
        theirs = dict(model.policy.named_parameters())
        assert theirs.keys() == {self._name(name) for name in state}
        for name, value in state.items():
            theirs[self._name(name)].data.copy_(value)
        model.set_logger(sb3.common.logger.Logger(None, []))

    def _name(self, ours: str) -> str:
        if len(self._agent.policy.critic) == 1:  # where the trunk is shared
            ours = ours.replace("critic.0", "critic.1")
        prefix = next(prefix for prefix in self.NAMES if ours.startswith(prefix))
        return ours.replace(prefix, self.NAMES[prefix])

    def assert_updates_alike(
        self, monkeypatch: pytest.MonkeyPatch, *, least: float, atol: float, whole_batches: int = 0
    ) -> dict[str, float]:
        """Update agent and model on one rollout, by more than ``least``; return the agent's metrics."""
        rollout, before = made_up_rollout(self._agent), parameters(self._agent)
        self.train(rollout, monkeypatch, whole_batches=whole_batches)
        metrics = self._agent.update(rollout, rollout.rewards)
        after, theirs = parameters(self._agent), self.model.policy.state_dict()
        moved = max(np.abs(value - before[name]).max() for name, value in after.items())
        assert moved > least, "the update should be large beside the tolerance"
        for name, value in after.items():
            np.testing.assert_allclose(value, theirs[self._name(name)], rtol=0, atol=atol, err_msg=name)
        return metrics

    def train(
        self, rollout: OnPolicyRollout, monkeypatch: pytest.MonkeyPatch, *, whole_batches: int = 0
    ) -> None:
        """Update on that rollout, which has no dummies, in the minibatch order that the agent will use.

        The first ``whole_batches`` times the model asks for minibatches it takes the whole batch, in whatever
        order; the agent draws none for that.
        """
        num_steps, num_envs = rollout.rewards.shape
        buffer = self.model.rollout_buffer
        # As float64, bytes from 0 to 1: the twin takes its observations as they are.
        prepared = self._agent.normalizer(rollout.observations)
        buffer.observations = prepared.astype(np.float64) / (255.0 if prepared.dtype == np.uint8 else 1.0)
        buffer.actions = rollout.actions.reshape(num_steps, num_envs, -1).astype(np.float32)
        # The bootstrap enters SB3's rewards, as its collect_rollouts does it.
        buffer.rewards = rollout.rewards + self._agent.config.gamma * rollout.bootstrap_values
        buffer.episode_starts = np.zeros((num_steps, num_envs))
        buffer.episode_starts[1:] = rollout.ended[:-1]
        buffer.values, buffer.log_probs = rollout.values, rollout.log_probs
        buffer.advantages = np.zeros((num_steps, num_envs))
        buffer.compute_returns_and_advantage(torch.from_numpy(rollout.last_values), rollout.ended[-1])
        buffer.full = True

        order = np.random.default_rng()
        order.bit_generator.state = self._agent.minibatch_rng.bit_generator.state
        calls = itertools.count()

        def permutation(size: int) -> NDArray[np.int64]:
            if next(calls) < whole_batches:
                return np.arange(size)
            # Ours counts transitions by time, then environment; SB3 by environment, then time.
            time, env = np.divmod(order.permutation(size), num_envs)
            theirs: NDArray[np.int64] = env * num_steps + time
            return theirs

        monkeypatch.setattr(np.random, "permutation", permutation)
        self.model.train()

    def logged(self, name: str) -> float:
        return float(self.model.logger.name_to_value[f"train/{name}"])


@dataclass
class Shown:
    """Demonstrations, in minibatches of 32 in the given order."""

    train: Pairs
    validation: Pairs

    def epoch(self) -> Iterator[NDArray[np.intp]]:
        yield from np.array_split(np.arange(len(self.train[0])), max(1, len(self.train[0]) // 32))


def squashed_policy(device: str = "cpu", **changes: Any) -> tuple[SquashedActorCritic, SACConfig]:
    """A policy of SAC in double precision, and the settings that it is trained with."""
    config = SACConfig(**{"hidden_sizes": (32, 16), "learning_rate": 1e-3, **changes})
    generator = torch.Generator().manual_seed(1)
    actions = gymnasium.spaces.Box(-2.0, 2.0, (2,), np.float64)
    policy = SquashedActorCritic(5, actions, generator, config.hidden_sizes, config.activation)
    return policy.to(device, torch.float64), config


def made_up_batch(seed: int = 0, n: int = 64, device: str = "cpu") -> tuple[Minibatch, torch.Tensor]:
    """A minibatch for :func:`squashed_policy`, and the noise of its actions."""
    rng = np.random.default_rng(seed)
    arrays = rng.standard_normal((n, 5)), rng.uniform(-1, 1, (n, 2)), rng.standard_normal((n, 5))
    rest = rng.standard_normal(n), (rng.random(n) < 0.2).astype(np.float64)
    noise = torch.from_numpy(rng.standard_normal((2, n, 2))).to(device)
    return Minibatch(*(torch.from_numpy(array).to(device) for array in (*arrays, *rest))), noise


def sb3_model(kind: Any, agent: OnPolicyAgent, make: Callable[[], Any], policy: str, **settings: Any) -> Any:
    """A model of the Stable-Baselines3 family with the common hyperparameters of one of our agents."""
    config: Any = agent.config
    return kind(
        policy,
        sb3.common.vec_env.DummyVecEnv([make] * agent.sampler.envs.num_envs),
        learning_rate=config.learning_rate,
        n_steps=config.num_steps,
        batch_size=config.minibatch_size,
        gamma=config.gamma,
        gae_lambda=config.gae_lambda,
        device="cpu",
        **settings,
    )


def assert_orthogonal(network: nn.Module, gains: list[float]) -> None:
    """Assert that the weights of a network's layers are orthogonal with these gains, and its biases 0."""
    layers = [module for module in network.modules() if isinstance(module, nn.Linear | nn.Conv2d)]
    for layer, gain in zip(layers, gains, strict=True):
        weight = layer.weight.detach().flatten(1)
        short = weight @ weight.T if weight.shape[0] <= weight.shape[1] else weight.T @ weight
        torch.testing.assert_close(short, gain**2 * torch.eye(len(short)), atol=1e-5, rtol=0)
        assert layer.bias is not None
        assert not layer.bias.any()


@pytest.fixture
def sb3_twin(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, OnPolicyAgent], Sb3Twin]:
    """``sb3_twin(model, agent)`` gives a model of the Stable-Baselines3 family an agent's parameters."""
    # SB3 casts observations to single precision.
    monkeypatch.setattr("stable_baselines3.common.policies.preprocess_obs", lambda obs, *_, **__: obs)
    return Sb3Twin
