"""Public names of the ``agents`` package and the modules that define them."""

from .cloning import clone
from .errors import AgentError
from .policy import ActorCritic
from .ppo import PPO, PPOConfig
from .sac import SAC
from .sac_step import SACConfig
from .trpo import TRPO, TRPOConfig

__all__ = ["PPO", "SAC", "TRPO", "ActorCritic", "AgentError", "PPOConfig", "SACConfig", "TRPOConfig", "clone"]
