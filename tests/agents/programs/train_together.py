"""Trains several agents, alone or as one of several ranks, and writes down what came out of it.

Usage: train_together.py FOLDER
"""

import os
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import SyncVectorEnv

from agents.distributed import Ranks, joined_ranks
from agents.errors import RankLostError
from agents.on_policy import OnPolicyAgent
from agents.ppo import PPO, PPOConfig
from agents.trpo import TRPO, TRPOConfig

NUM_ENVS = 6
PPO_CONFIG = PPOConfig(
    num_steps=40,
    minibatch_size=12,
    update_epochs=3,
    learning_rate=2e-3,
    ent_coef=0.01,
    normalize_rewards=True,
)
TRPO_CONFIG = TRPOConfig(num_steps=40, minibatch_size=16, n_critic_updates=3)


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    with joined_ranks() as ranks:
        results = {f"{name}/{key}": value for name in AGENTS for key, value in train(name, ranks).items()}
        np.savez(folder / f"{ranks.rank}-of-{ranks.size}.npz", **results)
        if ranks.size > 1:
            lose_the_last(ranks, folder / "lost")


def numpy_ppo(envs: SyncVectorEnv) -> OnPolicyAgent:
    return PPO(envs, PPO_CONFIG, seed=3, dtype=torch.float64)


def torch_ppo(envs: SyncVectorEnv) -> OnPolicyAgent:
    config = PPOConfig(num_steps=40, minibatch_size=5, update_epochs=2, target_kl=0.02, learning_rate=1e-3)
    return PPO(envs, config, seed=3, dtype=torch.float64, allow_numpy=False)


def numpy_trpo(envs: SyncVectorEnv) -> OnPolicyAgent:
    return TRPO(envs, TRPO_CONFIG, seed=3, dtype=torch.float64)


def torch_trpo(envs: SyncVectorEnv) -> OnPolicyAgent:
    return TRPO(envs, TRPO_CONFIG, seed=3, dtype=torch.float64, allow_numpy=False)


AGENTS = {
    "numpy-box": ("InvertedPendulum-v5", numpy_ppo),
    "numpy-discrete": ("CartPole-v1", numpy_ppo),
    "torch-box": ("InvertedPendulum-v5", torch_ppo),
    "trpo-box": ("InvertedPendulum-v5", numpy_trpo),
    "torch-trpo-discrete": ("CartPole-v1", torch_trpo),
}


def train(name: str, ranks: Ranks) -> dict[str, Any]:
    env_id, make = AGENTS[name]
    agent = make(SyncVectorEnv([lambda: gymnasium.make(env_id)] * (NUM_ENVS // ranks.size)))
    agent.ranks = ranks
    metrics, valid = [], []
    for epochs in (0, 2, 0):  # of the critic alone
        rollout = agent.collect()
        valid.append(rollout.num_valid)
        metrics.append(list(agent.update(rollout, rollout.rewards, critic_epochs=epochs).values()))
    statistics = agent.normalizer.statistics
    return {
        **{f"policy.{key}": value.numpy() for key, value in agent.policy.state_dict().items()},
        "mean": statistics.mean,
        "variance": statistics.variance,
        "count": statistics.count,
        "reward_variance": agent.reward_scaler.statistics.variance,
        "metrics": metrics,
        "total_steps": agent.total_steps,
        "own_valid": valid,
    }


def lose_the_last(ranks: Ranks, told: Path) -> None:
    """The last rank dies; another notices at its next collective and writes down what it was told."""
    if ranks.rank == ranks.size - 1:
        os._exit(0)
    try:
        ranks.sum(np.ones(3))
    except RankLostError as error:
        told.write_text(str(error))
        os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
