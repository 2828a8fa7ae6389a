"""Train a reward predictor on saved preferences while an agent uses it, and save checkpoints.

If there are no saved preferences yet, wrapper_collect.py is run first to collect some.
"""

import runpy
import sys
from pathlib import Path

import gymnasium as gym
from stable_baselines3 import PPO

from teacher import HumanPreferencesEnvWrapper

SHORT = "--short" in sys.argv
if not Path("collected/preferences.npz").exists():
    runpy.run_path(str(Path(__file__).with_name("wrapper_collect.py")))

env = HumanPreferencesEnvWrapper(
    gym.make("CartPole-v1"),
    allow_variable_horizon=True,  # its episodes end when the pole falls
    collect_prefs=False,
    train_reward=True,
    prefs_dir="collected",
    segment_length=10,
    n_initial_prefs=10,
    n_initial_training_steps=20 if SHORT else 100,
    reward_predictor_ckpt_interval=10,
    background=not SHORT,
    log_dir="trained",
)
PPO("MlpPolicy", env, n_steps=256, device="cpu").learn(512 if SHORT else 20_000)
env.close()
for checkpoint in sorted(Path("trained/reward_predictor_checkpoints").iterdir()):
    print(checkpoint)
