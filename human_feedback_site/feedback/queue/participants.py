"""A labeler's state in an experiment, as needed to grant leases."""

from dataclasses import dataclass, fields

from django.contrib.auth import SESSION_KEY
from django.contrib.auth.models import User
from django.contrib.sessions.backends.db import SessionStore

from human_feedback_site.feedback.errors import NotFoundError
from human_feedback_site.feedback.models import Participation
from human_feedback_site.feedback.queue.sessions import is_session_of
from human_feedback_site.feedback.queue.sql import Row, participant_row, session_data, user_of


@dataclass(frozen=True)
class Participant:
    """A labeler's state in an experiment.

    Attributes:
        participation: ID of the participation.
        labeler: ID of the labeler.
        experiment: ID of the experiment.
        waiting_for: number of answers that training is waiting for; None if it isn't waiting.
        judged: number of answers that were not withdrawn.
        answered: number of answers under the latest invitation that were not withdrawn.
        wanted: number of answers that the latest invitation asks for; None for no limit.
        invite: ID of the invitation that the labeler used most recently, or None.
        empty: True if the labeler's last request found nothing to judge.
        consented: True if the labeler agreed to the consent text, or the experiment has none.
        notice: ``warned`` if the labeler failed too many attention checks, ``stopped`` if they may no longer
            label, ``done`` after ``wanted`` answers, else None.
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
    """Return a session's user and that user's state in the named experiment.

    Return None if the user is inactive, isn't invited or hasn't opened the experiment yet, or if the session
    is invalid or was signed with an older ``SECRET_KEY``. The caller then falls back to Django's own
    authentication.
    """
    data = session_data(session_key)
    session = SessionStore(session_key).decode(data) if data else {}
    user_id = session.get(SESSION_KEY)
    row = participant_row(int(user_id), name) if user_id else None
    if row is None or not is_session_of(user := user_of(row), session):
        return None
    return user, _participant(row)


def participant_of(participation: Participation) -> Participant:
    """Return the labeler's current state in the experiment, given their participation.

    Raises :class:`NotFoundError` if the labeler is no longer invited or the experiment is being deleted.
    """
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
    values = row | {"empty": bool(row["empty"]), "consented": bool(row["consented"]), "notice": notice}
    return Participant(**{field.name: values[field.name] for field in fields(Participant)})
