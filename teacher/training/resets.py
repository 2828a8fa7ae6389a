"""Policy resets: the policy starts over once refits have changed the reward that it was trained on."""

from collections.abc import Callable
from typing import Any

from teacher.data.segment_pool import SegmentPool
from teacher.reward.correlation import rank_correlation
from teacher.reward.predictor import RewardPredictor

_COMPARED = 200  # newest segments
_FEWEST = 50  # segments; with fewer, a correlation says little


class PolicyResets:
    """Decides after each reward fit whether the policy starts over.

    A policy trained on a wrong reward may not recover when later labels correct the reward, because its
    actions hardly vary anymore. Resetting it then costs less than continuing: see Nikishin et al. (2022),
    "The Primacy Bias in Deep Reinforcement Learning", which resets networks periodically.

    The reward has changed if the predicted returns of the newest segments have a rank correlation below
    ``threshold`` with those of the reference: the predictor as it was when the policy started.

    Args:
        threshold: rank correlation below which the policy starts over; 0 for no resets.
        make_predictor: function that makes a predictor for the reference.

    Attributes:
        count: number of resets so far.
    """

    def __init__(self, threshold: float, make_predictor: Callable[[], RewardPredictor]) -> None:
        self._threshold, self._make_predictor = threshold, make_predictor
        self._reference: RewardPredictor | None = None
        self.count = 0

    @property
    def enabled(self) -> bool:
        """Return True if the policy may be reset."""
        return self._threshold > 0

    def due(self, predictor: RewardPredictor, pool: SegmentPool) -> bool:
        """Return True if the policy has to start over, after a fit of ``predictor``; count the reset.

        The first call only makes the reference. Later ones compare it to the predictor on the newest segments
        of ``pool``, and replace it if they return True.
        """
        if not self.enabled:
            return False
        segments = pool.newest(_COMPARED)
        if self._reference is not None:
            if len(segments) < _FEWEST:
                return False
            returns = self._reference.segment_returns(segments), predictor.segment_returns(segments)
            if not rank_correlation(*returns) < self._threshold:  # NaN if returns are constant
                return False
            self.count += 1
        replaced, self._reference = self._reference, self._copy(predictor.state_dict())
        return replaced is not None

    def _copy(self, state: dict[str, Any]) -> RewardPredictor:
        predictor = self._make_predictor()
        predictor.load_state_dict(state)
        return predictor

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the reference and the count; empty if there is no reference."""
        if self._reference is None:
            return {}
        return {"reference": self._reference.state_dict(), "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from :meth:`state_dict`.

        Raises:
            DataError: the reference was saved with different settings or spaces.
        """
        if state:
            self._reference = self._copy(state["reference"])
            self.count = int(state["count"])
