"""Interface between the training loop and a source of labels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from teacher.data.decisions import SiteState
from teacher.data.ledger import Role
from teacher.data.preferences import Preference
from teacher.data.segments import Segment


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


class Collector(Protocol):
    """Protocol for label sources, which take pairs of segments and later return preferences."""

    def submit(self, pairs: Sequence[tuple[Segment, Segment]], phase: Role, step: int) -> None:
        """Write ``pairs`` to the ledger and submit them for labeling, without waiting for the network.

        Args:
            pairs: the segments to compare.
            phase: ``pretraining`` or ``training``, or ``gold`` for attention checks, which detect careless
                labelers and never return a preference.
            step: number of environment steps taken.
        """

    def receive(self) -> list[Preference]:
        """Return the preferences decided or revised since the last call, without blocking.

        A value of None means that the comparison's earlier preference is withdrawn: the caller must remove
        that preference from the dataset.
        """

    @property
    def status(self) -> CollectorStatus:
        """Return the latest status reported by the site."""

    def report(self, point: Mapping[str, float], step: int, waiting_for: int | None) -> None:
        """Show training progress to labelers.

        Args:
            point: metrics, keyed by TensorBoard tag.
            step: number of environment steps taken.
            waiting_for: number of labels that training is waiting for; None if training is not waiting.
        """

    def show(self, film: Path, step: int) -> None:
        """Show labelers a video of a whole episode, recorded at environment step ``step``; thread-safe."""

    def finish(self) -> None:
        """Tell labelers that training is complete; retry for a few seconds if the site is offline."""

    def close(self) -> None:
        """Stop collecting labels; submitted comparisons stay in the ledger."""
