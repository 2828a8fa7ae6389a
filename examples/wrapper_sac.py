"""Teach Stable-Baselines3's SAC, an off-policy algorithm, by relabeling its replay buffer.

Whenever the predictor changes, all rewards in the buffer are replaced with new predictions.
"""

import sys
from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3 import SAC
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor

from teacher import HumanPreferencesEnvWrapper, RewardConfig

SHORT = "--short" in sys.argv
STEPS = 400 if SHORT else 10_000


class Relabel(BaseCallback):
    """Callback that relabels the replay buffer with each new predictor.

    Attributes:
        stale: number of rewards that relabeling changed.
    """

    def __init__(self, env: HumanPreferencesEnvWrapper, buffer: ReplayBuffer) -> None:
        super().__init__()
        self._env, self._buffer = env, buffer
        self._known = env.predictor
        self.stale = 0

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:  # all steps are in the buffer; training on them comes next
        if self._env.predictor is not self._known:
            self._known = self._env.predictor
            before = self._buffer.rewards.copy()
            self._env.relabel(self._buffer)
            self.stale += int(np.count_nonzero(before != self._buffer.rewards))


env = HumanPreferencesEnvWrapper(
    Monitor(gym.make("Pendulum-v1")),  # inside the wrapper: records true returns
    segment_length=5 if SHORT else 25,
    n_initial_prefs=10 if SHORT else 40,
    n_prefs=16 if SHORT else 80,
    total_timesteps=STEPS // 2,
    reward=RewardConfig(reward_std=1.0),  # with smaller rewards, SAC's entropy bonus dominates
    log_dir="sac_logs",
    background=False,
)
model = SAC(
    "MlpPolicy",
    env,
    learning_rate=1e-3,
    learning_starts=100 if SHORT else 1000,
    train_freq=20 if SHORT else 1,
    device="cpu",
    policy_kwargs={"net_arch": [64, 64]},
    seed=1,
)
buffer: Any = model.replay_buffer
relabel = Relabel(env, buffer)
model.learn(STEPS, callback=relabel)
before = buffer.rewards[: buffer.size()].copy()
env.relabel(buffer)
unchanged = np.isclose(before, buffer.rewards[: buffer.size()], atol=1e-3).mean()
print(f"{env.trainer.answers} labels; {relabel.stale} rewards in the buffer were replaced")
print(f"{unchanged:.0%} of the rewards in the buffer came from the current predictor")
true_returns = [episode["r"] for episode in model.ep_info_buffer or []]
if true_returns:
    print(f"true return of the last episodes: {np.mean(true_returns):.0f}")
env.close()
