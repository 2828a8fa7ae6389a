"""Teach a single-file PPO in the style of CleanRL, which only needs a vector environment.

The only change is the wrapper around its environments. Labels come from the true reward here.
"""

import sys

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics
from torch import Tensor, nn

from teacher import HumanPreferencesVectorWrapper

SHORT = "--short" in sys.argv
STEPS = 2_048 if SHORT else 100_000
NUM_ENVS, NUM_STEPS, EPOCHS, MINIBATCH = 4, 128 if SHORT else 1024, 2 if SHORT else 10, 64
GAMMA, LAMBDA, CLIP, LEARNING_RATE = 0.9, 0.95, 0.2, 1e-3


class Agent(nn.Module):
    """Gaussian policy and value function."""

    def __init__(self, observations: int, actions: int) -> None:
        super().__init__()
        self.mean, self.value = _network(observations, actions, 0.01), _network(observations, 1, 1.0)
        self.log_std = nn.Parameter(torch.zeros(actions))

    def act(self, observations: Tensor) -> Tensor:
        """Sample actions of shape ``(n, actions)``."""
        mean: Tensor = self.mean(observations)
        return mean + self.log_std.exp() * torch.randn_like(mean)

    def log_prob(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return log probabilities of shape ``(n,)``, up to a constant."""
        scaled: Tensor = (actions - self.mean(observations)) / self.log_std.exp()
        return -(scaled.square() / 2 + self.log_std).sum(dim=-1)


def _network(inputs: int, outputs: int, gain: float) -> nn.Sequential:
    layers = [nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)]
    nn.init.orthogonal_(layers[-1].weight, gain)  # type: ignore[arg-type]
    return nn.Sequential(*layers)


torch.manual_seed(1)
# Inside the wrapper, RecordEpisodeStatistics records true returns.
makers = [lambda: RecordEpisodeStatistics(gym.make("Pendulum-v1"))] * NUM_ENVS
envs = HumanPreferencesVectorWrapper(
    SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP),
    segment_length=20 if SHORT else 40,
    n_initial_prefs=10 if SHORT else 50,
    n_prefs=20 if SHORT else 200,
    total_timesteps=STEPS,
    log_dir="cleanrl_logs",
)
agent = Agent(3, 1)
optimizer = torch.optim.Adam(agent.parameters(), lr=LEARNING_RATE, eps=1e-5)
true_returns: list[float] = []
observations = torch.as_tensor(envs.reset(seed=1)[0])
for _ in range(STEPS // (NUM_ENVS * NUM_STEPS)):
    rows: dict[str, list[Tensor]] = {
        name: [] for name in ("seen", "actions", "logs", "rewards", "ends", "values")
    }
    for _ in range(NUM_STEPS):
        with torch.no_grad():
            actions, values = agent.act(observations), agent.value(observations).squeeze(-1)
            log_probs = agent.log_prob(observations, actions)
        arrived, rewards, terminated, truncated, infos = envs.step(actions.clamp(-2, 2).numpy())
        ended = terminated | truncated
        rewards = torch.as_tensor(rewards, dtype=torch.float32)
        for index in truncated.nonzero()[0]:  # bootstrap from the final observation
            final = torch.as_tensor(infos["final_obs"][index])
            rewards[index] += GAMMA * agent.value(final).item()
        if ended.any():
            true_returns += infos["final_info"]["episode"]["r"][ended].tolist()
        step = (
            observations,
            actions,
            log_probs,
            rewards,
            torch.as_tensor(ended),
            values,
        )
        for row, value in zip(rows.values(), step, strict=True):
            row.append(value)
        observations = torch.as_tensor(arrived)

    seen, actions, logs, rewards, ends, values = map(torch.stack, rows.values())
    with torch.no_grad():
        following, advantage = agent.value(observations).squeeze(-1), torch.zeros(NUM_ENVS)
    advantages = torch.zeros_like(rewards)
    for step_index in reversed(range(NUM_STEPS)):
        continues = ~ends[step_index]
        delta = rewards[step_index] + GAMMA * following * continues - values[step_index]
        advantage = delta + GAMMA * LAMBDA * continues * advantage
        advantages[step_index], following = advantage, values[step_index]
    flat = [part.flatten(0, 1) for part in (seen, actions, logs, advantages, advantages + values)]
    for _ in range(EPOCHS):
        for chosen in torch.split(torch.randperm(NUM_ENVS * NUM_STEPS), MINIBATCH):
            seen, actions, logs, advantages, returns = (part[chosen] for part in flat)
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
            ratio = (agent.log_prob(seen, actions) - logs).exp()
            gains = torch.min(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
            loss = (agent.value(seen).squeeze(-1) - returns).square().mean() / 2 - gains.mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()

print(f"{envs.trainer.answers} labels; using predicted rewards: {envs.using_reward_from_predictor}")
print(f"true return of the last {len(true_returns[-100:])} episodes: {np.mean(true_returns[-100:]):.0f}")
envs.close()
