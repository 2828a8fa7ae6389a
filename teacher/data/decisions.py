"""Terms of the labeling site that the trainer shares: phases, experiment states and decisions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

Phase = Literal["pretraining", "training"]
SiteState = Literal["running", "paused", "finished"]
Decision = Literal["first", "second", "equal", "cant_tell"]
CERTAIN: Mapping[str, float | None] = {"first": 1.0, "second": 0.0, "equal": 0.5, "cant_tell": None}
"""Probability that the first segment is better, for each decision without label noise."""


@dataclass(frozen=True)
class FeedItem:
    """One item of the feed: the decision of a comparison as of ``seq``.

    Attributes:
        decision: None if it was withdrawn.
        probability: that the first segment is preferred; None for ``cant_tell`` and without a decision.
        prompt_version: newest prompt version among the labels that count.
    """

    seq: int
    comparison: UUID
    decision: Decision | None
    probability: float | None
    n_labels: int
    prompt_version: int | None = None
