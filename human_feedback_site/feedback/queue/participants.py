"""Labelers who ask for work, as the queue sees them."""

from dataclasses import dataclass, fields

from django.contrib.auth import SESSION_KEY
from django.contrib.auth.models import User
from django.contrib.sessions.backends.db import SessionStore

from human_feedback_site.feedback.errors import NotFoundError
from human_feedback_site.feedback.models import Participation
from human_feedback_site.feedback.queue.sessions import is_session_of
from human_feedback_site.feedback.queue.sql import USER_COLUMNS, Row, participant_row, session_data, user_of


@dataclass(frozen=True)
class Participant:
    """Somebody who asks an experiment for work.

    Attributes:
        judged: answers that were not withdrawn.
        answered: those of them that belong to the invitation by which it came last, if any: ``invite``.
        notice: what the labeler is told about its checks, or that it has done its part.
        wanted: answers asked of the labeler by that invitation.
        empty: there was nothing to judge when it asked last.
        consented: it agreed to the consent text, or there is none.
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


def participant_in_session(session_key: str, name: str) -> tuple[User, Participant] | None:
    """Return who is signed in by a session, and how far they are in the experiment of that name.

    None says that it is not so simple: they were not invited or never were here, or the session is not one of
    a user who may sign in, or it began under an older secret key.
    """
    data = session_data(session_key)
    session = SessionStore(session_key).decode(data) if data else {}
    user_id = session.get(SESSION_KEY)
    row = participant_row(int(user_id), name) if user_id else None
    if row is None or not is_session_of(user := user_of(row), session):
        return None
    return user, _participant(row[USER_COLUMNS:])


def participant_of(participation: Participation) -> Participant:
    """Return the labeler of a participation as one who asks for work."""
    row = participant_row(participation.labeler.user_id, participation.experiment.name)
    if row is None:
        raise NotFoundError(f"There is no experiment {participation.experiment.name!r} for you.")
    return _participant(row[USER_COLUMNS:])


def _participant(row: Row) -> Participant:
    *values, empty, consented, gold_checks, watch_checks, is_stopped, warn_failures = row
    answered, wanted = values[11:13]
    failures = max(gold_checks.count("0"), watch_checks.count("0"))
    notice = Participation.notice_after(failures, warn_failures, is_stopped=bool(is_stopped))
    if notice != Participation.Notice.STOPPED and wanted is not None and answered >= wanted:
        notice = Participation.Notice.DONE.value
    names = [field.name for field in fields(Participant)]
    return Participant(**dict(zip(names, [*values, bool(empty), bool(consented), notice], strict=True)))
