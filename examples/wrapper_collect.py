"""Collect preferences about what an agent does, and save them for later; the agent keeps its own reward.

Nothing is trained here. Answer yourself with synthetic_prefs=False.
"""

import sys

import gymnasium as gym
from stable_baselines3 import PPO

from teacher import HumanPreferencesEnvWrapper

SHORT = "--short" in sys.argv
STEPS = 768 if SHORT else 20_000

env = HumanPreferencesEnvWrapper(
    gym.make("CartPole-v1"),
    allow_variable_horizon=True,  # its episodes end when the pole falls
    collect_prefs=True,
    train_reward=False,
    segment_length=10,
    n_initial_prefs=20,
    n_prefs=20 if SHORT else 200,
    total_timesteps=STEPS,
    background=not SHORT,
    log_dir="collected",
)
PPO("MlpPolicy", env, n_steps=256, device="cpu").learn(STEPS)
path = env.save_prefs()  # before it the last answers may be missing
print(f"{env.trainer.answers} preferences in {path}")
env.close()
