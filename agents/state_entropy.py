"""State entropy as an intrinsic reward, estimated from distances between states (Lee et al. 2021, PEBBLE)."""

import torch
from torch import Tensor

from agents.normalize import EPSILON
from agents.numerics.moments import RunningMoments

MOST_PARTICLES = 4096
"""Maximum number of states to measure distances to; PEBBLE uses all states so far, up to about 10,000."""


class StateEntropy:
    """Rewards states by their distance to the k-th nearest of the states visited so far.

    The distance is divided by its running standard deviation, as in B-Pref's code; the paper's equation 5 has
    the logarithm of the distance instead.

    Args:
        k: which neighbor to measure the distance to (PEBBLE: 5).
    """

    def __init__(self, k: int = 5) -> None:
        self._k = k
        self._statistics = RunningMoments()

    def __call__(self, states: Tensor, visited: Tensor) -> Tensor:
        """Return the reward of each state, ``(n,)``.

        Args:
            states: states to reward, ``(n, size)``.
            visited: states visited so far, ``(m, size)``; may include ``states``.
        """
        k = min(self._k + 1, len(visited))  # the nearest of the visited states is usually the state itself
        distances = torch.cdist(states, visited).kthvalue(k, dim=1).values
        self._statistics.update(distances.cpu().numpy())
        return distances / float((self._statistics.variance + EPSILON) ** 0.5)
