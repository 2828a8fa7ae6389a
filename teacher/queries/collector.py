"""Interface between the training loop and a source of labels, and the part that all sources share."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid4

from teacher.data.decisions import SiteState
from teacher.data.ledger import Comparison, Ledger, Role
from teacher.data.preferences import Preference
from teacher.data.segments import SegmentPair
from teacher.queries.judges import decision_of


@dataclass(frozen=True)
class CollectorStatus:
    """Status of the labelers and of the labeling site.

    Attributes:
        state: state of the experiment on the site; training pauses while the experiment is paused and ends
            once it is finished.
        active_labelers: number of labelers currently active; None until the site has reported it.
        failed: number of comparisons dropped by this process because their clips could not be rendered.
        away: error message while the site is not responding, else None.
        remedy: advice to show if all decisions are "can't tell"; None shows the advice for human labelers.
    """

    state: SiteState = "running"
    active_labelers: int | None = None
    failed: int = 0
    away: str | None = None
    remedy: str | None = None


class Collector:
    """Base class of label sources, which take pairs of segments and later return preferences."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lock = threading.Lock()
        self._arrived: list[Preference] = []

    def submit(self, pairs: Sequence[SegmentPair], phase: Role, step: int) -> None:
        """Write ``pairs`` to the ledger and submit them for labeling, without waiting for the network.

        Args:
            phase: ``pretraining`` or ``training``, or ``gold`` for attention checks, which detect careless
                labelers and never return a preference.
        """
        raise NotImplementedError

    def _write(
        self, pairs: Sequence[SegmentPair], phase: Role, step: int, uuid: Callable[[], UUID] = uuid4
    ) -> list[Comparison]:
        comparisons = [Comparison(uuid(), first, second, phase, step) for first, second in pairs]
        self._ledger.write(comparisons)
        return comparisons

    def _decide(self, comparisons: Sequence[Comparison], probabilities: Sequence[float | None]) -> None:
        """Store decisions made in this process: the probability that ``first`` is better, or None."""
        decided = list(zip(comparisons, probabilities, strict=True))
        with self._lock:  # so that the next receive() returns every label that the ledger counts
            self._ledger.decide([(each.uuid, decision_of(value), value) for each, value in decided])
            self._arrived += [Preference(one.uuid, one.first, one.second, value) for one, value in decided]

    def receive(self) -> list[Preference]:
        """Return the preferences decided or revised since the last call, without blocking.

        A value of None means that the comparison's earlier preference is withdrawn: the caller must remove
        that preference from the dataset.
        """
        with self._lock:
            arrived, self._arrived = self._arrived, []
        return arrived

    @property
    def status(self) -> CollectorStatus:
        """Return the latest status reported by the site."""
        return CollectorStatus()

    def report(self, point: Mapping[str, float], step: int, waiting_for: int | None) -> None:
        """Show training progress to labelers, if there are any.

        Args:
            point: metrics, keyed by TensorBoard tag.
            waiting_for: number of labels that training is waiting for; None if training is not waiting.
        """

    def show(self, film: Path, step: int) -> None:
        """Show labelers a video of a whole episode, recorded at environment step ``step``; thread-safe."""

    def finish(self) -> None:
        """Tell labelers that training is complete; retry for a few seconds if the site is offline."""
        self.close()

    def close(self) -> None:
        """Stop collecting labels; submitted comparisons stay in the ledger."""
