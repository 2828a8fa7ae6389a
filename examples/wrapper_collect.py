"""Collect preferences about an agent's behavior and save them; the agent trains on the true reward.

No predictor is trained. Pass synthetic_prefs=False to label yourself in a browser.
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
path = env.save_prefs()  # also includes the latest labels
print(f"{env.trainer.answers} preferences in {path}")
env.close()
