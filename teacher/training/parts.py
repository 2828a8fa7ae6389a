"""A run's plan, and functions that create its environments, agent and reward predictor in each process."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import EllipsisType
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from agents.base import Agent
from agents.defaults import CONFIGS, TaskDefaults, defaults_for
from agents.distributed import Ranks
from agents.errors import InvalidConfigError
from agents.on_policy import OnPolicyAgent
from agents.ppo import PPO
from agents.rollout import Rollout
from agents.sac import SAC
from agents.trpo import TRPO
from teacher.data.steps import Steps, StepsBatch
from teacher.envs.episodes import EpisodeRecorder
from teacher.envs.families import base_env_id
from teacher.envs.tasks import TaskInfo, examine, make_vector_env
from teacher.envs.trial import usual_length
from teacher.errors import ConfigError
from teacher.queries.schedules import LabelSchedule, make_schedule
from teacher.reward.images import earns_0_after_end
from teacher.reward.predictor import RewardPredictor
from teacher.settings.config import RunSettings, TeachConfig
from teacher.settings.functions import named_function
from teacher.settings.options import REWARD_STD_SAC


@dataclass(frozen=True)
class RunPlan:
    """A run's validated settings and its environment's properties.

    Attributes:
        task: the environment's spaces, maximum episode length, and clip frame rate. Absorbed episodes
            continue for a segment after their end, because no segment ends later.
    """

    settings: RunSettings
    task: TaskInfo

    def __post_init__(self) -> None:
        if self.config.fixed_horizon == "absorb":
            terminates = self.config.predictor == "rl" or earns_0_after_end(self.config.reward)
            task = replace(self.task, frozen_steps=self.segment_length, terminates=terminates)
            object.__setattr__(self, "task", task)

    @property
    def config(self) -> TeachConfig:
        """The run's configuration."""
        return self.settings.config

    @property
    def segment_length(self) -> int:
        """Steps per segment: ``segment_steps`` if set, else ``segment_seconds`` at the task's frame rate."""
        return self.config.segment_steps or usual_length(self.config.segment_seconds, self.task.fps)


def task_of(config: TeachConfig) -> TaskInfo:
    """Return the properties of a run's environment, read from a temporary instance."""
    return examine(config.env_id, config.make_kwargs, captures=config.capture_frames).task


def make_envs(plan: RunPlan, seed: int | Sequence[int], ranks: Ranks) -> EpisodeRecorder:
    """Create this rank's share of the environments."""
    task, part = plan.task, (ranks.rank, ranks.size)
    row = _defaults(task.env_id, task.observation_space)
    num_envs = plan.config.num_envs or row.num_envs_for(str(plan.config.agent))
    return make_vector_env(task, num_envs, seed, plan.config.workers, part=part)


def make_predictor(plan: RunPlan) -> RewardPredictor:
    """Create a run's untrained reward predictor.

    Raises:
        ConfigError: the function named by ``--network`` cannot be used.
    """
    config, task = plan.config, plan.task
    network = None if config.network is None else named_function(config.network, "--network")
    spaces = task.observation_space, task.action_space
    reward = config.reward
    if config.agent == "sac" and reward.reward_std is None:
        reward = replace(reward, reward_std=REWARD_STD_SAC)
    return RewardPredictor(*spaces, reward, config.seed, config.device, network)


def schedule_of(config: TeachConfig) -> LabelSchedule:
    """Return a run's label schedule, including any extensions of the run."""
    ends = [(stage.num_timesteps, stage.n_labels) for stage in config.stages]
    return make_schedule(
        config.schedule,
        config.num_pretrain_labels,
        [*ends, (config.num_timesteps, config.n_labels)],
        [stage.step for stage in config.stages],
    )


def make_agent(config: TeachConfig, envs: EpisodeRecorder, buffer_folder: Path | None = None) -> Agent:
    """Create the agent, using the task's defaults for hyperparameters not in the settings.

    PPO and TRPO normalize rewards only if they train on true rewards; the predictor already normalizes its
    own output. SAC never normalizes rewards.

    Args:
        buffer_folder: folder for files of a replay buffer; None to keep a replay buffer in memory.
    """
    row, is_true = _defaults(envs.env_id, envs.single_observation_space), config.predictor == "rl"
    own = _own_hyperparameters(config)
    try:
        if config.agent == "sac":
            return SAC(envs, replace(row.sac, **own), config.seed, config.device, buffer_folder=buffer_folder)
        if config.agent == "trpo":
            trpo = row.trpo_for(envs.single_action_space, normalize_rewards=is_true)
            return TRPO(envs, replace(trpo, **own), config.seed, config.device)
        ppo = row.ppo_for(config.num_timesteps, normalize_rewards=is_true)
        return PPO(envs, replace(ppo, **own), config.seed, config.device)
    except InvalidConfigError as error:
        raise ConfigError(f"--agent: {error}") from error


def _own_hyperparameters(config: TeachConfig) -> dict[str, Any]:
    own = dict(config.agent_settings)
    known = [field.name for field in fields(CONFIGS[str(config.agent)])]
    if unknown := [name for name in own if name not in known]:
        close = difflib.get_close_matches(unknown[0], known, n=1)
        hint = f"did you mean --agent.{close[0]}?" if close else f"choose from {', '.join(known)}"
        raise ConfigError(f"--agent.{unknown[0]}: {config.agent} has no such hyperparameter; {hint}")
    if config.ent_coef is not None:
        own["ent_coef"] = config.ent_coef
    if own.get("network") is not None:
        own["network"] = named_function(own["network"], "--agent.network")
    return own


def uses_numpy(agent: Agent) -> bool:
    """Return True if the agent trains with the NumPy backend instead of PyTorch."""
    return isinstance(agent, OnPolicyAgent) and agent.uses_numpy


def predicted_rewards(predictor: RewardPredictor, rollout: Rollout) -> NDArray[np.float64]:
    """Return the predicted reward of each step in a rollout, ``(num_steps, num_envs)``."""
    return predictor.step_rewards(steps_of(rollout, predictor))


def steps_of(
    rollout: Rollout, predictor: RewardPredictor, which: NDArray[np.bool_] | EllipsisType = ...
) -> Steps:
    """Return the steps of a rollout as input for the predictor.

    Args:
        predictor: the reward predictor; next observations are included only if it takes them as input.
        which: boolean mask of the steps to return, shape ``(num_steps, num_envs)``; default: all steps.
    """
    after = rollout.next_observations[which] if "next_state" in predictor.inputs else None
    observations, actions = rollout.observations[which], rollout.executed_actions[which]
    return StepsBatch(observations, actions, after, rollout.terminated[which])


def _defaults(env_id: str, observation_space: gym.Space[Any]) -> TaskDefaults:
    return defaults_for(base_env_id(env_id), observation_space)
