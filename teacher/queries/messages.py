"""Words for what :class:`~teacher.queries.asking.Asking` returns."""

from teacher.queries.asking import Received, Submitted
from teacher.queries.collector import CollectorStatus

_LONGER = "ask something that segments show, or about longer ones"


def few_segments(submitted: Submitted, remedy: str) -> str:
    """Say that some segments are in several comparisons, and what helps."""
    return (
        f"{submitted.segments} segments are few for {len(submitted)} comparisons, so some are in several; "
        f"{remedy}"
    )


def only_cant_tell(received: Received, status: CollectorStatus) -> str:
    """Say that there is nothing to learn from, and what helps those who label."""
    return (
        f"all {received.only_cant_tell} answers so far are that nobody can tell, and nothing is learned from "
        f"them; {status.remedy or _LONGER}"
    )
