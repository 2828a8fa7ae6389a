"""Types shared by the trainer and the labeling site: phases, experiment states and decisions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

Phase = Literal["pretraining", "training"]
SiteState = Literal["running", "paused", "finished"]
Decision = Literal["first", "second", "equal", "cant_tell"]
CANT_TELL = "cant_tell"
"""Answer of every kind of question, from which nothing is learned."""
CERTAIN: Mapping[str, float | None] = {"first": 1.0, "second": 0.0, "equal": 0.5, "cant_tell": None}
"""Probability that ``first`` is better for each decision, assuming no label noise; None for ``cant_tell``."""


@dataclass(frozen=True)
class LabelerAnswer:
    """One labeler's answer to a question; ``labeler`` is the labeler's ID on the site."""

    labeler: int
    answer: str


@dataclass(frozen=True)
class FeedItem:
    """An item in the decision feed: a new or changed decision on a question.

    Attributes:
        decision: the decision, an answer of the question's kind; None if it was withdrawn.
        probability: probability that a pair's ``first`` is better; None for other kinds of questions, for
            ``cant_tell``, or if there is no decision.
        n_labels: number of labels that the decision is based on.
        prompt_version: newest prompt version among the labels that the decision is based on; None if unknown.
        answers: each labeler's current answer if they must not be compared with other labelers', else None.
    """

    seq: int
    comparison: UUID
    decision: str | None
    probability: float | None
    n_labels: int
    prompt_version: int | None = None
    answers: tuple[LabelerAnswer, ...] | None = None
