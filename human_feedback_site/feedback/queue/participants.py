"""The first query of labelers' most frequent requests: who asks for leases, or which lease is answered."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import User
from django.contrib.sessions.backends.db import SessionStore
from django.utils.crypto import constant_time_compare
from django.utils.translation import gettext as _

from human_feedback_site.feedback.errors import NotFoundError
from human_feedback_site.feedback.models import Experiment, Labeler, Participation
from human_feedback_site.feedback.queue.sql import (
    Row,
    Shares,
    answered_lease_row,
    participant_row,
    session_data,
    user_of,
    uuid_of,
)


@dataclass(frozen=True)
class Participant:
    """A labeler's state in an experiment."""

    participation: int  # ID of the participation
    labeler: int  # ID of the labeler
    experiment: int  # ID of the experiment
    state: str
    prompt: str
    prompt_version: int
    fps: int
    compares_kinds: bool  # True in a study of kinds of questions
    waiting_for: int | None  # number of answers that training is waiting for; None if it isn't waiting
    share: float | None  # share of questions that the model may decide without people; None for people
    models_share: float | None  # the same of a model at work; None if there is none
    gold_rate: float
    repeat_rate: float
    judged: int  # number of answers that were not withdrawn
    answered: int  # number of answers under the latest invitation that were not withdrawn
    wanted: int | None  # number of answers that the latest invitation asks for; None for no limit
    invite: int | None  # ID of the invitation that the labeler used most recently, or None
    empty: bool  # True if the labeler's last request found nothing to judge
    consented: bool  # True if the labeler agreed to the consent text, or the experiment has none
    # ``warned`` if the labeler failed too many attention checks, ``stopped`` if they may no longer label,
    # ``done`` after ``wanted`` answers, else None
    notice: str | None

    @property
    def shares(self) -> Shares:
        """Shares of the comparisons that models may decide, as the queue's SQL needs them."""
        return Shares(self.share, self.models_share)


def participant_in_session(session_key: str, name: str) -> tuple[User, Participant] | None:
    """Return a session's user and that user's state in the named experiment.

    Return None if the user is inactive, isn't invited or hasn't opened the experiment yet, or if the session
    is invalid or was signed with an older ``SECRET_KEY``. The caller then falls back to Django's own
    authentication.
    """
    data = session_data(session_key)
    session = SessionStore(session_key).decode(data) if data else {}
    user_id = session.get(SESSION_KEY)
    row = participant_row(int(user_id), name) if user_id else None
    if row is None or not _is_session_of(user := user_of(row), session):
        return None
    return user, _participant(row)


def participant_of(participation: Participation) -> Participant:
    """Return the labeler's current state in the experiment, or raise :class:`NotFoundError`."""
    row = participant_row(participation.labeler.user_id, participation.experiment.name)
    if row is None:
        raise NotFoundError(
            f"There is no experiment {participation.experiment.name!r}, or you aren't invited to it."
        )
    return _participant(row)


def _participant(row: Row) -> Participant:
    failures = max(row["gold_checks"].count("0"), row["watch_checks"].count("0"))
    notice = Participation.notice_after(failures, row["warn_failures"], is_stopped=bool(row["is_stopped"]))
    wanted = row["wanted"]
    if notice != Participation.Notice.STOPPED and wanted is not None and row["answered"] >= wanted:
        notice = Participation.Notice.DONE.value
    values = row | {name: bool(row[name]) for name in ("empty", "consented", "compares_kinds")}
    values |= {"notice": notice}
    return Participant(**{field.name: values[field.name] for field in fields(Participant)})


_RULE = ("aggregation", "overlap", "overlap_share", "overlap_more")


@dataclass(frozen=True)
class AnsweredLease:
    """The lease that a label answers, with the experiment settings needed to record the label."""

    pk: int
    uuid: UUID
    labeler: int  # ID of the labeler
    purpose: str
    swapped: bool
    prompt_version: int
    invite: int | None  # ID of the invitation that the label is credited to, or None
    age_ms: int  # time since the lease was granted, by the database's clock; an upper bound on watch time
    comparison: int  # ID of the leased comparison
    kind: str  # the comparison's kind
    gold: str | None  # the known answer if the comparison is an attention check, else None
    experiment: int  # ID of the comparison's experiment
    is_model: bool  # True if the labeler is a model
    min_watch_ms: int
    stop_failures: int
    # True if decisions use the Dawid-Skene model with ``class_prior``, False if they use majority vote
    weighs_labelers: bool
    class_prior: Any  # frequency of each answer, as the experiment stores it


def answered_lease(labeler: Labeler, uuid: UUID) -> AnsweredLease:
    """Return the labeler's lease with this UUID, or raise :class:`NotFoundError`."""
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
    return (user, _lease(row)) if _is_session_of(user, SessionStore(session_key).decode(data)) else None


def _lease(row: Row) -> AnsweredLease:
    rule = Experiment(**{name: row[name] for name in _RULE})
    prior = row["class_prior"]
    values = row | {
        "uuid": uuid_of(row["uuid"]),
        "swapped": bool(row["swapped"]),
        "is_model": bool(row["is_model"]),
        "age_ms": max(0, row["age_ms"]),
        "weighs_labelers": rule.weighs_labelers,
        "class_prior": None if prior is None else json.loads(prior),
    }
    return AnsweredLease(**{field.name: values[field.name] for field in fields(AnsweredLease)})


def _is_session_of(user: User, session: Mapping[str, Any]) -> bool:
    """Return True if ``session`` is the decoded session data of ``user`` and the user is active."""
    return (
        user.is_active
        and session.get(SESSION_KEY) == str(user.pk)
        and session.get(BACKEND_SESSION_KEY) in settings.AUTHENTICATION_BACKENDS
        and constant_time_compare(session.get(HASH_SESSION_KEY, ""), user.get_session_auth_hash())
    )
