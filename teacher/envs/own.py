"""Gymnasium registration of the environments ``teacher/MovingDot-v1`` and ``teacher/Collect-v1``."""

import gymnasium as gym

from teacher.envs.families import NAMESPACE

_OWN = {
    "MovingDot-v1": ("teacher.envs.dot:MovingDot", 40),
    "Collect-v1": ("teacher.envs.collect:CollectGame", 50),
}
"""Entry point and episode length of each environment, keyed by name."""


def register_own() -> None:
    """Register ``teacher/MovingDot-v1`` and ``teacher/Collect-v1``, unless they are already registered."""
    for name, (entry_point, horizon) in _OWN.items():
        env_id = f"{NAMESPACE}/{name}"
        if env_id not in gym.registry:
            gym.register(env_id, entry_point, max_episode_steps=horizon, disable_env_checker=True)
