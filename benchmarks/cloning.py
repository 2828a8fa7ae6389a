"""Benchmark of behavior cloning: a clone of 10 expert episodes against the expert, on CartPole and Hopper.

The expert is our PPO, trained on the true reward with the task's defaults. A new policy is cloned from 10
of its episodes. Then both play 100 other episodes; all episodes use the most likely actions. Prints mean
returns and their ratio for each seed. The claim is a median ratio of at least 0.9.

    python benchmarks/cloning.py                          all seeds, minutes on one core
    python benchmarks/cloning.py --environments CartPole-v1 --seeds 1
"""

import argparse
import contextlib
from dataclasses import dataclass

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from agents.base import Agent
from agents.cloning import clone
from agents.defaults import defaults_for
from agents.ppo import PPO
from teacher.data.demonstrations import Demonstrations, record_demonstrations
from teacher.envs.episodes import EpisodeRecorder
from teacher.envs.make import make_env
from teacher.envs.tasks import describe_task, make_vector_env

EXPERT_STEPS = {"CartPole-v1": 100_000, "Hopper-v5": 300_000}
EPOCHS = {"CartPole-v1": 20, "Hopper-v5": 300}
DEMONSTRATED_EPISODES = 10
EVALUATION_EPISODES = 100  # many, as one Hopper policy's returns range from 1000 to 3000
EVALUATION_SEED = 10_000  # separate from the seeds of the demonstrations


@dataclass(frozen=True)
class Outcome:
    """Result of one expert and its clone.

    Attributes:
        steps: total steps of the demonstrations.
        expert: the expert's mean return.
        clone: the clone's mean return.
        loss: the clone's final training loss.
    """

    env_id: str
    seed: int
    steps: int
    expert: float
    clone: float
    loss: float


def untrained(env_id: str, steps: int, seed: int) -> tuple[PPO, EpisodeRecorder]:
    """Return a new PPO agent and its environments."""
    defaults = defaults_for(env_id)
    envs = make_vector_env(describe_task(env_id), defaults.num_envs, seed)
    return PPO(envs, defaults.ppo_for(steps, normalize_rewards=True), seed), envs


def train_expert(env_id: str, steps: int, seed: int) -> PPO:
    """Train PPO on the true reward."""
    agent, envs = untrained(env_id, steps, seed)
    while agent.total_steps < steps:
        rollout = agent.collect()
        agent.update(rollout, rollout.rewards)
        envs.drain()  # otherwise the environments would keep all episodes in memory
    return agent


def play(agent: Agent, env_id: str, n_episodes: int, seed: int) -> Demonstrations:
    """Record episodes in which the agent takes its most likely actions."""
    with contextlib.closing(make_env(env_id, {})) as env:
        return record_demonstrations(agent, env, n_episodes, seed)


def measure(env_id: str, steps: int, seed: int) -> Outcome:
    """Train an expert, clone it, and evaluate both."""
    expert, (pupil, _) = train_expert(env_id, steps, seed), untrained(env_id, steps, seed + 1)
    shown = play(expert, env_id, DEMONSTRATED_EPISODES, seed)
    losses = clone(pupil, shown.split(train_fraction=1, seed=seed), EPOCHS[env_id])
    expert_return, clone_return = (
        float(play(agent, env_id, EVALUATION_EPISODES, EVALUATION_SEED + seed).episode_returns.mean())
        for agent in (expert, pupil)
    )
    return Outcome(env_id, seed, shown.rewards.size, expert_return, clone_return, losses[-1].train)


def print_table(outcomes: list[Outcome], console: Console) -> None:
    """Print a row per expert and clone, and the median ratio per environment."""
    table = Table("environment", "seed", "steps shown", "loss", "expert", "clone", "clone / expert")
    for outcome in outcomes:
        table.add_row(
            outcome.env_id,
            str(outcome.seed),
            f"{outcome.steps:,}",
            f"{outcome.loss:.4f}",
            f"{outcome.expert:.0f}",
            f"{outcome.clone:.0f}",
            f"{outcome.clone / outcome.expert:.2f}",
        )
    console.print(table)
    for env_id in dict.fromkeys(outcome.env_id for outcome in outcomes):
        ratios = [outcome.clone / outcome.expert for outcome in outcomes if outcome.env_id == env_id]
        console.print(f"{env_id}: clone / expert = {np.median(ratios):.2f}, median of {len(ratios)}")


def main() -> None:
    """Run every environment and seed, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--environments", nargs="+", default=list(EXPERT_STEPS), choices=list(EXPERT_STEPS))
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds, counted from 1")
    parser.add_argument(
        "--expert-steps", type=float, help="training steps per expert (default: by environment)"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    console, outcomes = Console(width=120), []
    for env_id in arguments.environments:
        for seed in range(1, arguments.seeds + 1):
            outcomes.append(measure(env_id, int(arguments.expert_steps or EXPERT_STEPS[env_id]), seed))
            console.print(outcomes[-1], highlight=False)
    print_table(outcomes, console)


if __name__ == "__main__":
    main()
