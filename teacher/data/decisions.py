"""The words of the labeling site that the rest of the trainer shares: phases, states and decisions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

Phase = Literal["pretraining", "training"]
SiteState = Literal["running", "paused", "finished"]
Decision = Literal["first", "second", "equal", "cant_tell"]
CERTAIN: Mapping[str, float | None] = {"first": 1.0, "second": 0.0, "equal": 0.5, "cant_tell": None}
"""How probable a decision makes it that the first segment is better, taken at its word."""


@dataclass(frozen=True)
class FeedItem:
    """One item of the feed: the outcome that a comparison has since ``seq``.

    Attributes:
        decision: None where it has none any more.
        probability: of the first segment being preferred; None for ``cant_tell`` and for no decision.
        prompt_version: the newest of those that the labels which count were given under.
    """

    seq: int
    comparison: UUID
    decision: Decision | None
    probability: float | None
    n_labels: int
    prompt_version: int | None = None
