"""The names of the package, and where each is defined."""

from .critic import NumpyCritic
from .ppo_step import NumpyPPOStep
from .support import supports
from .trpo_surrogate import NumpySurrogate

__all__ = ["NumpyCritic", "NumpyPPOStep", "NumpySurrogate", "supports"]
