"""Untrained agents and predictors for all spaces and networks that can be exported."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from agents import PPO, SAC, TRPO, PPOConfig, SACConfig, TRPOConfig
from agents.base import Agent, AgentConfig
from teacher.reward.predictor import RewardPredictor
from teacher.settings.options import RewardConfig

Space = gym.Space[Any]
VECTOR = Box(-np.inf, np.inf, (4,), np.float64)
GRID = Box(-1, 1, (3, 2), np.float32)
IMAGE = Box(0, 255, (40, 44, 3), np.uint8)
MATRIX = Box(-2, 1, (2, 3), np.float32)
ARM = Box(np.array([-1, 0], np.float32), np.array([3, 0.5], np.float32))
_AGENTS = {PPOConfig: PPO, TRPOConfig: TRPO, SACConfig: SAC}


class Spaces(gym.Env[Any, Any]):
    """An environment that is never stepped."""

    def __init__(self, observation_space: Space, action_space: Space) -> None:
        self.observation_space, self.action_space = observation_space, action_space


@dataclass(frozen=True)
class AgentCase:
    """An agent's configuration and spaces."""

    config: AgentConfig
    observation_space: Space
    action_space: Space

    def agent(self, seed: int = 1) -> Agent:
        """An agent with parameters that no initialization gives, and with observation statistics."""
        envs = SyncVectorEnv(
            [lambda: Spaces(self.observation_space, self.action_space)],
            autoreset_mode=AutoresetMode.NEXT_STEP,
        )
        agent: Agent = _AGENTS[type(self.config)](envs, self.config, seed)
        agent.normalizer.update(3 * self.observations().astype(np.float64) + 1)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in agent.policy.parameters():
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.add_(noise / (4 * math.sqrt(parameter[0].numel())))
            # No action is the most likely one for all observations.
            *_, last = (layer for layer in agent.policy.actor.modules() if isinstance(layer, torch.nn.Linear))
            outputs = agent.policy.acting_in_torch(agent.normalizer(self.observations()))
            last.bias.sub_(torch.from_numpy(outputs.mean(0)))
        return agent

    def observations(self, count: int = 60) -> NDArray[Any]:
        return drawn(self.observation_space, count)


AGENTS: Mapping[str, AgentCase] = {
    "ppo": AgentCase(PPOConfig(), VECTOR, MATRIX),
    "ppo-multidiscrete": AgentCase(PPOConfig(), GRID, MultiDiscrete([2, 5, 3])),
    "ppo-images": AgentCase(PPOConfig(), IMAGE, Discrete(3)),
    "trpo-raw": AgentCase(
        TRPOConfig(normalize_observations=False, activation="relu", hidden_sizes=(8,)), VECTOR, Discrete(4)
    ),
    "trpo-images": AgentCase(TRPOConfig(), Box(0, 255, (2, 40, 44), np.uint8), MATRIX),
    "sac": AgentCase(SACConfig(hidden_sizes=(16, 8, 4)), VECTOR, ARM),
    "sac-normalized": AgentCase(SACConfig(normalize_observations=True), GRID, ARM),
}
"""Return the environments that Stable-Baselines3 supports."""

OTHER_AGENTS: Mapping[str, AgentCase] = {
    "start": AgentCase(PPOConfig(), VECTOR, Discrete(4, start=-2)),
    "matrix": AgentCase(
        PPOConfig(), VECTOR, MultiDiscrete(np.array([[2, 2], [3, 3]]), start=np.array([[1, 0], [2, 1]]))
    ),
    "unbounded": AgentCase(PPOConfig(), VECTOR, Box(-np.inf, np.inf, (2,), np.float64)),
    "small": AgentCase(PPOConfig(), Box(0, 255, (20, 24), np.uint8), Discrete(3)),
    "stacked": AgentCase(PPOConfig(), Box(0, 255, (2, 40, 44, 3), np.uint8), Discrete(3)),
    "custom": AgentCase(
        PPOConfig(network=lambda shape, outputs: torch.nn.Linear(shape[0], outputs)), VECTOR, Discrete(3)
    ),
}


@dataclass(frozen=True)
class PredictorCase:
    """A predictor's configuration and spaces, and whether its inputs are centered."""

    config: RewardConfig
    observation_space: Space
    action_space: Space
    is_centered: bool = False

    def predictor(self) -> RewardPredictor:
        """A predictor with a normalization that no initialization gives."""
        predictor = RewardPredictor(self.observation_space, self.action_space, self.config, seed=1)
        state = predictor.state_dict()
        state["output_std"] = state["output_std"] + 0.5
        state["center"] = 0.3
        if self.config.model == "linear":  # it starts with weights of 0
            weights = state["network"]["weights.0"]
            state["network"]["weights.0"] = torch.linspace(-1, 1, weights.numel()).view_as(weights)
        if self.is_centered:
            state["input_center"] = {"observations": np.array([1e6, 0, 0, 3.0])}
        predictor.load_state_dict(state)
        return predictor

    def steps(self, count: int = 60) -> dict[str, NDArray[Any]]:
        """Random steps, keyed by the names of a predictor's inputs."""
        observations = drawn(self.observation_space, 2 * count)
        if self.is_centered:
            observations = observations + np.array([1e6, 0, 0, 0])
        observations[count : 2 * count : 4] = observations[:count:4]  # as in an absorbing state
        return {
            "state": observations[:count],
            "action": drawn(self.action_space, count),
            "next_state": observations[count:],
            "terminated": np.arange(count) % 3 == 0,
        }


PREDICTORS: Mapping[str, PredictorCase] = {
    "all inputs": PredictorCase(
        RewardConfig(inputs="state,action,next_state,terminated", model="network"), VECTOR, MATRIX
    ),
    "even": PredictorCase(
        RewardConfig(inputs="action,state", features="even", uncertainty_bonus=0.3),
        VECTOR,
        Discrete(4, start=-2),
        is_centered=True,
    ),
    "linear": PredictorCase(RewardConfig(inputs="action,state", model="linear"), VECTOR, MATRIX),
    "absorbing": PredictorCase(RewardConfig(inputs="next_state,absorbing", model="linear"), GRID, MATRIX),
    "absorbing-discrete": PredictorCase(
        RewardConfig(inputs="action,absorbing,terminated", model="network"), MultiDiscrete([3, 4]), MATRIX
    ),
    "discrete": PredictorCase(
        RewardConfig(inputs="action,next_state", members=1, model="network"),
        MultiDiscrete([3, 4], start=[1, 2]),
        MultiDiscrete(np.array([[2, 3], [3, 2]])),
    ),
    "large-images": PredictorCase(
        RewardConfig(inputs="state,next_state", members=2), Box(0, 255, (170, 180, 3), np.uint8), MATRIX
    ),
    "gray": PredictorCase(RewardConfig(members=1), Box(0, 255, (30, 44), np.uint8), MATRIX),
    "stacked": PredictorCase(
        RewardConfig(members=1, no_image_batch_norm=True), Box(0, 255, (2, 3, 44, 45), np.uint8), MATRIX
    ),
}


def drawn(space: Space, count: int) -> NDArray[Any]:
    """Random elements of a space; the same ones each time."""
    space.seed(1)
    return np.stack([space.sample() for _ in range(count)])
