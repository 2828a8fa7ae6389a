"""Warnings about the results of :class:`~teacher.queries.asking.Asking`."""

from teacher.queries.asking import Received, Submitted
from teacher.queries.collector import CollectorStatus

_LONGER = "change the prompt to something visible in the segments, or make segments longer"


def few_segments(submitted: Submitted, remedy: str) -> str:
    """Return a warning that some segments are in several comparisons; ``remedy`` is appended as advice."""
    return (
        f"{submitted.segments} segments are too few for {len(submitted)} comparisons, so some segments "
        f"are in several comparisons; {remedy}"
    )


def only_cant_tell(received: Received, status: CollectorStatus) -> str:
    """Return a warning that all labels so far are "can't tell", with advice."""
    return (
        f'all {received.only_cant_tell} labels so far are "can\'t tell", so nothing is learned from them; '
        f"{status.remedy or _LONGER}"
    )
