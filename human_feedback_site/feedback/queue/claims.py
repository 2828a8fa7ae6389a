"""What one statement tells of somebody who asks for work, or answers a lease.

Who is signed in, to what they are invited and what they hold is read together: separately it would be seven
statements, and these are the requests that the site is mostly busy with.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import User
from django.contrib.sessions.backends.db import SessionStore
from django.db import IntegrityError, transaction
from django.utils.crypto import constant_time_compare
from django.utils.translation import gettext as _

from human_feedback_site.feedback.errors import NotFoundError
from human_feedback_site.feedback.models import Experiment, Labeler, Participation
from human_feedback_site.feedback.quality.aggregation import Matrix, Triple
from human_feedback_site.feedback.queue.sql import first_rows, key, rows
from human_feedback_site.feedback.services.accounts import participation_in


@dataclass(frozen=True)
class Claim:
    """A lease that somebody answers, and what its answer depends on.

    Attributes:
        age_ms: since the lease was given, on the database's clock; no clip of it was watched for longer.
        again: its labeler has answered the pair before and taken that back, so it is no new check.
        invite: to whose part the answer belongs.
        confusion: the labeler's matrix, None where there is none yet.
        weighs_labelers: whether decisions are those of Dawid and Skene, with ``class_prior``.
    """

    lease: int
    purpose: str
    swapped: bool
    age_ms: int
    again: bool
    invite: int | None
    comparison: int
    gold: str | None
    experiment: int
    min_watch_ms: int
    stop_failures: int
    weighs_labelers: bool
    class_prior: Triple | None
    labeler: int
    participation: int
    stopped: bool
    confusion: Matrix | None


@dataclass(frozen=True)
class Participant:
    """Somebody who asks an experiment for work.

    Attributes:
        judged: answers that stand.
        answered: those of them that belong to the invitation by which it came last, if any: ``invite``.
        notice: what the labeler is told about its checks, or that it has done its part.
        wanted: answers asked of the labeler by that invitation.
        empty: there was nothing to judge when it asked last.
        consented: it agreed to the consent text, or there is none.
        is_new: this is its first request, and a statement went into noting that.
    """

    participation: int
    labeler: int
    experiment: int
    state: str
    prompt: str
    prompt_version: int
    fps: int
    waiting_for: int | None
    gold_rate: float
    repeat_rate: float
    judged: int
    answered: int
    wanted: int | None
    invite: int | None
    empty: bool
    consented: bool
    notice: str | None
    is_new: bool


_PARTICIPANT = """
    SELECT p.id, b.id, e.id, e.state, e.prompt, e.prompt_version, e.fps, e.waiting_for,
           e.gold_rate, e.repeat_rate,
           COALESCE(p.answers - p.undone, 0),
           COALESCE(p.answers - p.undone - COALESCE(p.elsewhere, 0), 0), v.answers_wanted, v.id,
           p.empty_since IS NOT NULL, (e.consent_id IS NULL OR e.consent_id = p.consented_to_id),
           COALESCE(p.gold_checks, ''), COALESCE(p.watch_checks, ''), p.stopped_at IS NOT NULL,
           e.warn_failures,
           y.id, y.username, y.password, y.is_active, y.is_staff
    FROM feedback_experiment e
    JOIN feedback_labeler b ON b.user_id = %s
    JOIN feedback_labeler_experiments i ON i.labeler_id = b.id AND i.experiment_id = e.id
    LEFT JOIN feedback_participation p ON p.labeler_id = b.id AND p.experiment_id = e.id
    JOIN auth_user y ON y.id = b.user_id
    LEFT JOIN feedback_invite v ON v.id = p.invite_id
    WHERE e.name = %s AND e.deletion_asked_at IS NULL"""


def participant(user: User, name: str) -> Participant:
    """Return ``user`` as one who asks the experiment of that name for work; raises :class:`NotFoundError`."""
    participation_in(user, name)  # there is one from the first time on
    return _participant(rows(_PARTICIPANT, [user.pk, name])[0])


def participant_in_session(session_key: str, name: str) -> tuple[User, Participant] | None:
    """Return who is signed in by a session, and how far they are in the experiment of that name.

    None says that it is not so simple: they were not invited, or the session is not one of a user who may
    sign in, or it began under an older secret key.
    """
    kept = first_rows(
        "SELECT session_data FROM django_session WHERE session_key = %s AND expire_date > {now}",
        [session_key],
    )
    session = SessionStore(session_key).decode(kept[0][0]) if kept else {}
    user_id = session.get(SESSION_KEY)
    found = rows(_PARTICIPANT, [int(user_id), name]) if user_id else []
    if not found or not is_session_of(user := _user(found[0][-5:]), session):
        return None
    number, labeler, experiment, *rest = found[0]
    if number is not None:
        return user, _participant(found[0])
    number = _begin(labeler, experiment)
    return None if number is None else (user, _participant([number, labeler, experiment, *rest], is_new=True))


def _begin(labeler: int, experiment: int) -> int | None:
    """Note that an invited labeler is here for the first time; None where another request just did."""
    try:
        with transaction.atomic():
            return Participation.objects.create(labeler_id=labeler, experiment_id=experiment).pk
    except IntegrityError:
        return None


def _participant(row: Sequence[Any], *, is_new: bool = False) -> Participant:
    answered, wanted, _invite, empty, consented = row[11:16]
    gold_checks, watch_checks, stopped, warn_failures = row[16:20]
    failures = max(gold_checks.count("0"), watch_checks.count("0"))
    notice = notice_of(failures, warn_failures, stopped=bool(stopped))
    if notice != "stopped" and wanted is not None and answered >= wanted:
        notice = "done"
    names = [field.name for field in fields(Participant)]
    values = [*row[:14], bool(empty), bool(consented), notice, is_new]
    return Participant(**dict(zip(names, values, strict=True)))


def notice_of(failures: int, warn_failures: int, *, stopped: bool) -> str | None:
    """Return what a labeler is told about its checks: ``stopped``, ``warned``, or nothing."""
    if stopped:
        return "stopped"
    return "warned" if failures >= warn_failures else None


def _user(row: Sequence[Any]) -> User:
    pk, username, password, is_active, is_staff = row
    return User(
        pk=pk, username=username, password=password, is_active=bool(is_active), is_staff=bool(is_staff)
    )


_CLAIM = """
    SELECT l.id, l.purpose, l.swapped, {age_ms},
           0 < (
               SELECT COUNT(*) FROM feedback_label a JOIN feedback_lease k ON k.id = a.lease_id
               WHERE a.comparison_id = l.comparison_id AND a.labeler_id = l.labeler_id
                 AND a.status <> 'void' AND k.purpose = l.purpose),
           l.invite_id,
           c.id, c.gold, e.id, e.min_watch_ms, e.stop_failures,
           e.aggregation, e.overlap, e.overlap_share, e.overlap_more, e.class_prior,
           l.labeler_id, p.id, p.stopped_at IS NOT NULL, p.confusion
    FROM feedback_lease l
    JOIN feedback_comparison c ON c.id = l.comparison_id
    JOIN feedback_experiment e ON e.id = c.experiment_id AND e.deletion_asked_at IS NULL
    JOIN feedback_participation p ON p.labeler_id = l.labeler_id AND p.experiment_id = c.experiment_id
    WHERE l.uuid = %s"""
_CLAIM_IN_SESSION = _CLAIM.replace(
    "p.confusion\n",
    """p.confusion, y.id, y.username, y.password, y.is_active, y.is_staff,
           (SELECT s.session_data FROM django_session s WHERE s.session_key = %s AND s.expire_date > {now})
""",
).replace(
    "WHERE l.uuid",
    """JOIN feedback_labeler b ON b.id = l.labeler_id
    JOIN auth_user y ON y.id = b.user_id
    WHERE l.uuid""",
)


def claim_of(labeler: Labeler, lease: UUID) -> Claim:
    """Return a lease of the labeler's; raises :class:`NotFoundError`."""
    found = rows(_CLAIM, [key(lease)])
    claim = _claim(found[0]) if found else None
    if claim is None or claim.labeler != labeler.pk:
        raise NotFoundError(_("There is no lease %(uuid)s of yours.") % {"uuid": lease})
    return claim


def claim_in_session(session_key: str, lease: UUID) -> tuple[User, Claim] | None:
    """Return who is signed in by a session, and a lease of theirs.

    None says that it is not so simple: the lease is somebody else's, or the session is not one of a user who
    may sign in, or it began under an older secret key.
    """
    found = first_rows(_CLAIM_IN_SESSION, [session_key, key(lease)])
    if not found or found[0][-1] is None:
        return None
    *claim, data = found[0]
    user = _user(claim[-5:])
    if not is_session_of(user, SessionStore(session_key).decode(data)):
        return None
    return user, _claim(claim[:-5])


def is_session_of(user: User, session: Mapping[str, Any]) -> bool:
    """Say whether these are the contents of a session of ``user``, who may be signed in."""
    return (
        user.is_active
        and session.get(SESSION_KEY) == str(user.pk)
        and session.get(BACKEND_SESSION_KEY) in settings.AUTHENTICATION_BACKENDS
        and constant_time_compare(session.get(HASH_SESSION_KEY, ""), user.get_session_auth_hash())
    )


def _claim(row: Sequence[Any]) -> Claim:
    lease, purpose, swapped, age_ms, again, invite = row[:6]
    comparison, gold, experiment, min_watch_ms, stop_failures = row[6:11]
    aggregation, overlap, overlap_share, overlap_more, class_prior = row[11:16]
    labeler, participation, stopped, confusion = row[16:]
    rule = Experiment(
        aggregation=aggregation, overlap=overlap, overlap_share=overlap_share, overlap_more=overlap_more
    )
    return Claim(
        lease=lease,
        purpose=purpose,
        swapped=bool(swapped),
        age_ms=max(0, age_ms),
        again=bool(again),
        invite=invite,
        comparison=comparison,
        gold=gold,
        experiment=experiment,
        min_watch_ms=min_watch_ms,
        stop_failures=stop_failures,
        weighs_labelers=rule.weighs_labelers,
        class_prior=None if class_prior is None else json.loads(class_prior),
        labeler=labeler,
        participation=participation,
        stopped=bool(stopped),
        confusion=None if confusion is None else json.loads(confusion),
    )
