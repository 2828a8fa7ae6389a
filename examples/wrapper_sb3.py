"""Teach Stable-Baselines3's PPO by preferences, with four environments that share one predictor.

Labels come from the true reward here; pass synthetic_prefs=False to label yourself in a browser.
"""

import sys
from typing import Any

import gymnasium as gym
from stable_baselines3 import PPO
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

from teacher import HumanPreferencesEnvWrapper

SHORT = "--short" in sys.argv
STEPS = 2_048 if SHORT else 100_000


def make() -> gym.Env[Any, Any]:
    """Make an environment that records true returns; the wrapper goes around it."""
    return Monitor(gym.make("Pendulum-v1", render_mode="rgb_array"))


first = HumanPreferencesEnvWrapper(
    make(),
    segment_length=20 if SHORT else 40,
    n_initial_prefs=10 if SHORT else 50,
    n_prefs=20 if SHORT else 200,
    total_timesteps=STEPS,
    env_fn=make,  # to render clips for people by replaying episodes
    log_dir="drlhp_logs",
)
envs = DummyVecEnv([lambda: first, *[lambda: first.beside(make())] * 3])
model = PPO("MlpPolicy", envs, n_steps=128 if SHORT else 1024, gamma=0.9, learning_rate=1e-3, device="cpu")
model.learn(STEPS)
true_returns = [episode["r"] for episode in model.ep_info_buffer or []]
print(f"{first.trainer.answers} labels; using predicted rewards: {first.using_reward_from_predictor}")
print(f"true return of the last episodes: {sum(true_returns) / len(true_returns):.0f}")
envs.close()
