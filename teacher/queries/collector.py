"""What every source of answers looks like to the loop."""

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
    """How those who answer stand; what was asked and answered is counted by the ledger.

    Attributes:
        state: what the site says about the experiment; the trainer obeys.
        active_labelers: people who are at it now; None before the first news of them.
        failed: comparisons given up since the start because they could not be rendered.
        away: why the site does not answer at present, None where it does.
        remedy: what helps where all answers are that nobody can tell; None: what helps people.
    """

    state: SiteState = "running"
    active_labelers: int | None = None
    failed: int = 0
    away: str | None = None
    remedy: str | None = None


class Collector(Protocol):
    """Takes pairs to judge and hands back preferences, whenever they come."""

    def submit(self, pairs: Sequence[tuple[Segment, Segment]], phase: Role, step: int) -> None:
        """Ask about ``pairs``, at ``step`` environment steps of training.

        Of ``gold`` ones the answer is known: no decision comes back, they find out who does not look.
        They are in the ledger when it returns; it never waits for the network.
        """

    def receive(self) -> list[Preference]:
        """Decisions new or revised since the last call (value None: drop it); never blocks."""

    @property
    def status(self) -> CollectorStatus:
        """As of the last news from the site."""

    def report(self, point: Mapping[str, float], step: int, waiting_for: int | None) -> None:
        """Tell those who answer how training goes: values by TensorBoard tag, and answers waited for."""

    def show(self, film: Path, step: int) -> None:
        """Let those who answer watch a film of a whole episode, made at ``step``; from any thread."""

    def finish(self) -> None:
        """Tell those who answer that training is complete; tries for some seconds if they are away."""

    def close(self) -> None:
        """Stop collecting; what was asked stays in the ledger."""
