"""Registration of this project's own environments."""

import gymnasium as gym

from teacher.envs.families import NAMESPACE

_OWN = {
    "MovingDot-v1": ("teacher.envs.dot:MovingDot", 40),
    "Collect-v1": ("teacher.envs.collect:CollectGame", 50),
}
"""Class and episode length by name."""


def register_own() -> None:
    """Register the environments with Gymnasium. Repeated calls have no effect."""
    for name, (entry_point, horizon) in _OWN.items():
        env_id = f"{NAMESPACE}/{name}"
        if env_id not in gym.registry:
            gym.register(env_id, entry_point, max_episode_steps=horizon, disable_env_checker=True)
