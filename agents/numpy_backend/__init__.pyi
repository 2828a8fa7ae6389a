"""Public names of the ``numpy_backend`` package and the modules that define them."""

from .critic import NumpyCritic
from .ppo_step import NumpyPPOStep
from .support import supports
from .trpo_surrogate import NumpySurrogate

__all__ = ["NumpyCritic", "NumpyPPOStep", "NumpySurrogate", "supports"]
