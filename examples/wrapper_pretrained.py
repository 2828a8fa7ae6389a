"""Train an agent on a pretrained reward predictor, without asking for labels or training the predictor.

If there is no predictor yet, wrapper_train.py is run first to train one.
"""

import runpy
import sys
from pathlib import Path

import gymnasium as gym
from stable_baselines3 import PPO

from teacher import HumanPreferencesEnvWrapper

SHORT = "--short" in sys.argv
if not Path("trained/reward_predictor_checkpoints").exists():
    runpy.run_path(str(Path(__file__).with_name("wrapper_train.py")))

env = HumanPreferencesEnvWrapper(
    gym.make("CartPole-v1"),
    allow_variable_horizon=True,  # its episodes end when the pole falls
    collect_prefs=False,
    train_reward=False,
    pretrained_reward_predictor_dir="trained/reward_predictor_checkpoints",
    log_dir="used",
)
print(f"using predicted rewards from the first step: {env.using_reward_from_predictor}")
model = PPO("MlpPolicy", env, n_steps=256, device="cpu")
model.learn(512 if SHORT else 20_000)

env.switch_to_true_reward()  # to evaluate the policy
observation, _ = env.reset(seed=1)
total, over = 0.0, False
while not over:
    observation, reward, terminated, truncated, _ = env.step(model.predict(observation)[0])
    total, over = total + float(reward), terminated or truncated
print(f"true return of an episode: {total:.0f}")
env.close()
