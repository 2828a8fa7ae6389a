"""Default hyperparameters for each task.

Each entry's ``source`` says where its values come from:

- ``rl-zoo``: RL Baselines3 Zoo (Raffin 2020; ``hyperparams/ppo.yml`` and ``trpo.yml``, mostly tuned values).
- ``SB3``: default arguments of Stable-Baselines3's PPO.
- ``sb3-contrib``: default arguments of sb3-contrib's TRPO.

PPO and TRPO use the entry's ``num_envs``. If the source uses a different number of environments,
``num_steps`` is adjusted so that each rollout has the same number of transitions.

These rl-zoo settings are not used:

- PPO on MuJoCo: tuned for a million steps of one environment, mostly with different networks. Only Reacher's
  ``gamma`` is used, because otherwise neither agent learns to stop at the target.
- MountainCarContinuous: these settings depend on state-dependent exploration (gSDE) and a custom initial
  standard deviation.
- gSDE on Pendulum and CarRacing.
- Annealing of the clipping range on CartPole, BipedalWalkerHardcore and Atari.
- ``gamma`` of 0.9999 on Swimmer.

Unlike in rl-zoo, CartPole's observations are normalized.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
from gymnasium.spaces import Box

from agents.base import AgentConfig
from agents.pixels import is_image_space
from agents.ppo import PPOConfig
from agents.sac_step import SACConfig
from agents.trpo import TRPOConfig

CONFIGS: Mapping[str, type[AgentConfig]] = {"ppo": PPOConfig, "trpo": TRPOConfig, "sac": SACConfig}
"""Configuration class of each algorithm."""

_SAC = SACConfig(train_freq=32, gradient_steps=-1, learning_starts=1000)


@dataclass(frozen=True)
class TaskDefaults:
    """Default hyperparameters of one task, for PPO, TRPO and SAC.

    Use :meth:`ppo_for` or :meth:`trpo_for` to get the configuration of a run; SAC's is ``sac`` itself.

    Attributes:
        num_envs: number of environments that PPO and TRPO step in parallel.
        ppo: PPO's hyperparameters, except for annealing.
        trpo: TRPO's hyperparameters. ``target_kl`` and ``cg_damping`` follow sb3-contrib's convention,
            in which the KL divergence is averaged over action dimensions.
        source: source of PPO's and TRPO's values; the source names are explained in the module docstring.
        anneal: True to anneal PPO's learning rate linearly to 0 over the run.
    """

    num_envs: int
    ppo: PPOConfig
    trpo: TRPOConfig
    source: str
    sac: SACConfig = _SAC
    sac_num_envs: int = 1
    anneal: bool = False

    def num_envs_for(self, algorithm: str) -> int:
        """Return the number of environments that ``algorithm`` (ppo, trpo or sac) steps in parallel."""
        return self.sac_num_envs if algorithm == "sac" else self.num_envs

    def ppo_for(self, total_steps: int, *, normalize_rewards: bool) -> PPOConfig:
        """Return PPO's configuration for a run of ``total_steps`` environment steps."""
        anneal_timesteps = total_steps if self.anneal else None
        return replace(self.ppo, anneal_timesteps=anneal_timesteps, normalize_rewards=normalize_rewards)

    def trpo_for(self, action_space: gym.Space[Any], *, normalize_rewards: bool) -> TRPOConfig:
        """Return TRPO's configuration for environments with ``action_space``.

        sb3-contrib averages the KL divergence over the dimensions of Box actions. This package uses the
        KL divergence of the joint action distribution, so ``target_kl`` and ``cg_damping`` are multiplied by
        the number of action dimensions.
        """
        dimensions = math.prod(action_space.shape) if isinstance(action_space, Box) else 1
        return replace(
            self.trpo,
            target_kl=dimensions * self.trpo.target_kl,
            cg_damping=dimensions * self.trpo.cg_damping,
            normalize_rewards=normalize_rewards,
        )


_TRPO_MUJOCO = TRPOConfig(num_steps=256, cg_max_steps=25, n_critic_updates=20)

GENERAL = TaskDefaults(
    num_envs=8,
    ppo=PPOConfig(num_steps=256),
    trpo=_TRPO_MUJOCO,
    source="PPO: SB3, its 2048 transitions from 8 environments; TRPO: rl-zoo",
)

ATARI = TaskDefaults(
    num_envs=8,
    ppo=PPOConfig(
        num_steps=128,
        minibatch_size=256,
        update_epochs=4,
        learning_rate=2.5e-4,
        clip_coef=0.1,
        ent_coef=0.01,
    ),
    trpo=TRPOConfig(num_steps=256),
    source="PPO: rl-zoo; TRPO: sb3-contrib, its 2048 transitions from 8 environments",
    anneal=True,
)

_LUNAR_LANDER = TaskDefaults(
    num_envs=16,
    ppo=PPOConfig(
        num_steps=1024,
        gamma=0.999,
        gae_lambda=0.98,
        update_epochs=4,
        ent_coef=0.01,
        normalize_observations=False,
    ),
    trpo=TRPOConfig(
        num_steps=64,
        cg_damping=0.01,
        gae_lambda=0.98,
        n_critic_updates=15,
        normalize_observations=False,
    ),
    source="rl-zoo",
)

BY_NAME: Mapping[str, TaskDefaults] = {
    "HalfCheetah": replace(GENERAL, trpo=replace(_TRPO_MUJOCO, target_kl=0.04)),
    "Reacher": replace(
        GENERAL,
        ppo=replace(GENERAL.ppo, gamma=0.9),
        trpo=replace(_TRPO_MUJOCO, gamma=0.9),
        source="the general row, gamma: rl-zoo's for PPO",
    ),
    "CartPole": TaskDefaults(
        num_envs=8,
        ppo=PPOConfig(
            num_steps=32,
            minibatch_size=256,
            gae_lambda=0.8,
            gamma=0.98,
            update_epochs=20,
            learning_rate=1e-3,
        ),
        trpo=TRPOConfig(
            num_steps=128, minibatch_size=512, cg_damping=1e-3, gae_lambda=0.98, n_critic_updates=20
        ),
        source="rl-zoo",
        anneal=True,
    ),
    "Pendulum": TaskDefaults(
        num_envs=4,
        ppo=PPOConfig(num_steps=1024, gamma=0.9, learning_rate=1e-3, normalize_observations=False),
        trpo=TRPOConfig(num_steps=512, gamma=0.9, n_critic_updates=15, normalize_observations=False),
        source="rl-zoo",
    ),
    "Acrobot": TaskDefaults(
        num_envs=16,
        ppo=PPOConfig(num_steps=256, gae_lambda=0.94, update_epochs=4),
        trpo=TRPOConfig(num_steps=128),
        source="rl-zoo",
    ),
    "MountainCar": TaskDefaults(
        num_envs=16,
        ppo=PPOConfig(num_steps=16, gae_lambda=0.98, update_epochs=4),
        trpo=TRPOConfig(num_steps=128, n_critic_updates=20),
        source="rl-zoo",
    ),
    "LunarLander": _LUNAR_LANDER,
    "LunarLanderContinuous": replace(_LUNAR_LANDER, trpo=TRPOConfig(num_steps=128, n_critic_updates=20)),
    "BipedalWalker": TaskDefaults(
        num_envs=32,
        ppo=PPOConfig(num_steps=2048, gamma=0.999, clip_coef=0.18),
        trpo=replace(_TRPO_MUJOCO, num_steps=64),
        source="rl-zoo",
    ),
    "BipedalWalkerHardcore": TaskDefaults(
        num_envs=16,
        ppo=PPOConfig(num_steps=2048, ent_coef=0.001, learning_rate=2.5e-4),
        trpo=replace(_TRPO_MUJOCO, num_steps=128),
        source="rl-zoo",
        anneal=True,
    ),
    "CarRacing": TaskDefaults(
        num_envs=8,
        ppo=PPOConfig(num_steps=512, minibatch_size=128, learning_rate=1e-4),
        trpo=TRPOConfig(num_steps=256),
        source="PPO: rl-zoo; TRPO: sb3-contrib, its 2048 transitions from 8 environments",
        anneal=True,
    ),
    "teacher/MovingDot": TaskDefaults(
        num_envs=8,
        ppo=PPOConfig(
            num_steps=64,
            minibatch_size=128,
            update_epochs=4,
            learning_rate=1e-3,
            gamma=0.9,
            ent_coef=0.01,
        ),
        trpo=TRPOConfig(num_steps=64, gamma=0.9),
        source="tried: Atari's row learns nothing in as many steps",
    ),
}
"""Default hyperparameters by environment ID without the version suffix."""


def defaults_for(env_id: str, observation_space: gym.Space[Any] | None = None) -> TaskDefaults:
    """Return the default hyperparameters for an environment.

    Environments listed in :data:`BY_NAME` have their own defaults. Of the others, Atari games and
    environments with image observations get :data:`ATARI`, and the rest get :data:`GENERAL`.

    Args:
        env_id: ID registered with Gymnasium, optionally with a module prefix (``module:Env-v0``).
        observation_space: a single environment's observation space; None if unknown.
    """
    registered = env_id.rpartition(":")[2]
    row = BY_NAME.get(re.sub(r"-v\d+$", "", registered))
    if row is not None:
        return row
    sees = observation_space is not None and is_image_space(observation_space)
    return ATARI if sees or _module_of(registered).partition(".")[0] == "ale_py" else GENERAL


def _module_of(env_id: str) -> str:
    """Return the module name of a registered environment, or an empty string if the ID is unknown."""
    spec = gym.registry.get(env_id)
    entry_point = spec.entry_point if spec is not None else None
    if isinstance(entry_point, str):
        return entry_point.partition(":")[0]
    return getattr(entry_point, "__module__", "")
