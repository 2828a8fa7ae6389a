"""Lookup of the lease that a new label answers."""

import json
from dataclasses import dataclass, fields
from uuid import UUID

from django.contrib.auth.models import User
from django.contrib.sessions.backends.db import SessionStore
from django.utils.translation import gettext as _

from human_feedback_site.feedback.errors import NotFoundError
from human_feedback_site.feedback.models import Experiment, Labeler
from human_feedback_site.feedback.quality.aggregation import Triple
from human_feedback_site.feedback.queue.sessions import is_session_of
from human_feedback_site.feedback.queue.sql import Row, answered_lease_row, user_of, uuid_of

_RULE = ("aggregation", "overlap", "overlap_share", "overlap_more")


@dataclass(frozen=True)
class AnsweredLease:
    """The lease that a label answers, with the experiment settings needed to record the label.

    Attributes:
        labeler: ID of the labeler.
        invite: ID of the invitation that the label is credited to, or None.
        age_ms: time since the lease was granted, by the database's clock; an upper bound on watch time.
        comparison: ID of the leased comparison.
        gold: the known answer if the comparison is an attention check, else None.
        experiment: ID of the comparison's experiment.
        weighs_labelers: True if decisions use the Dawid-Skene model with ``class_prior``, False if they use
            majority vote.
    """

    pk: int
    uuid: UUID
    labeler: int
    purpose: str
    swapped: bool
    prompt_version: int
    invite: int | None
    age_ms: int
    comparison: int
    gold: str | None
    experiment: int
    min_watch_ms: int
    stop_failures: int
    weighs_labelers: bool
    class_prior: Triple | None


def answered_lease(labeler: Labeler, uuid: UUID) -> AnsweredLease:
    """Return the labeler's lease with this UUID.

    Raises :class:`NotFoundError` if the lease doesn't exist or belongs to another labeler.
    """
    row = answered_lease_row(uuid, session_key="")
    lease = _lease(row) if row else None
    if lease is None or lease.labeler != labeler.pk:
        raise NotFoundError(_("Lease %(uuid)s doesn't exist or isn't yours.") % {"uuid": uuid})
    return lease


def answered_lease_in_session(session_key: str, uuid: UUID) -> tuple[User, AnsweredLease] | None:
    """Return a session's user and that user's lease with this UUID, using a single query.

    Return None if the lease isn't the user's, the user is inactive, or the session is invalid or was signed
    with an older ``SECRET_KEY``. The caller then falls back to Django's own authentication.
    """
    row = answered_lease_row(uuid, session_key)
    data = row["session_data"] if row else None
    if row is None or data is None:
        return None
    user = user_of(row)
    return (user, _lease(row)) if is_session_of(user, SessionStore(session_key).decode(data)) else None


def _lease(row: Row) -> AnsweredLease:
    rule = Experiment(**{name: row[name] for name in _RULE})
    prior = row["class_prior"]
    values = row | {
        "uuid": uuid_of(row["uuid"]),
        "swapped": bool(row["swapped"]),
        "age_ms": max(0, row["age_ms"]),
        "weighs_labelers": rule.weighs_labelers,
        "class_prior": None if prior is None else json.loads(prior),
    }
    return AnsweredLease(**{field.name: values[field.name] for field in fields(AnsweredLease)})
