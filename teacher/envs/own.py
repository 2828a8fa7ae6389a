"""The environments of this project that are made of no other, by their ids."""

import gymnasium as gym

from teacher.envs.families import NAMESPACE

_OWN = {
    "MovingDot-v1": ("teacher.envs.dot:MovingDot", 40),
    "Collect-v1": ("teacher.envs.collect:CollectGame", 50),
}
"""By name: the class, and the steps of an episode."""


def register_own() -> None:
    """Register them with Gymnasium. Calling it again changes nothing."""
    for name, (entry_point, horizon) in _OWN.items():
        env_id = f"{NAMESPACE}/{name}"
        if env_id not in gym.registry:
            gym.register(env_id, entry_point, max_episode_steps=horizon, disable_env_checker=True)
