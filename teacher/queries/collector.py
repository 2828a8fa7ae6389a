"""Protocol between the training loop and every source of labels."""

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
    """State of the labelers; counts of comparisons and labels are in the ledger.

    Attributes:
        state: the experiment's state on the site, which the trainer follows.
        active_labelers: number of labelers now; None until first reported.
        failed: comparisons given up since the start because they could not be rendered.
        away: why the site does not respond at the moment; None if it does.
        remedy: advice if all decisions are "can't tell"; None: the advice for human labelers.
    """

    state: SiteState = "running"
    active_labelers: int | None = None
    failed: int = 0
    away: str | None = None
    remedy: str | None = None


class Collector(Protocol):
    """Takes pairs to judge, and returns preferences as they arrive."""

    def submit(self, pairs: Sequence[tuple[Segment, Segment]], phase: Role, step: int) -> None:
        """Submit ``pairs`` for labeling, at ``step`` environment steps of training.

        ``gold`` pairs are attention checks with a known answer: they return no decision, but detect careless
        labelers. On return, the pairs are in the ledger; never waits for the network.
        """

    def receive(self) -> list[Preference]:
        """Return decisions made or revised since the last call (value None: drop it); never blocks."""

    @property
    def status(self) -> CollectorStatus:
        """Return the status as last reported by the site."""

    def report(self, point: Mapping[str, float], step: int, waiting_for: int | None) -> None:
        """Show labelers the training progress: values by TensorBoard tag, and labels training waits for."""

    def show(self, film: Path, step: int) -> None:
        """Show labelers a video of a whole episode, recorded at ``step``; callable from any thread."""

    def finish(self) -> None:
        """Tell labelers that training is complete; retries for some seconds if the site is unreachable."""

    def close(self) -> None:
        """Stop collecting; submitted comparisons stay in the ledger."""
