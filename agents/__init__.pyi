"""Public names of the ``agents`` package and the modules that define them."""

from .cloning import clone
from .errors import AgentError
from .policy import ActorCritic
from .ppo import PPO, PPOConfig
from .trpo import TRPO, TRPOConfig

__all__ = ["PPO", "TRPO", "ActorCritic", "AgentError", "PPOConfig", "TRPOConfig", "clone"]
