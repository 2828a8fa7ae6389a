"""When a labeler has done its part, and what it is given for the platform that sent it.

Nobody sees a code that is not earned: by the answers that the invitation asks for, by waiting in front of an
empty queue for as long as the labeling page asks to, or because the experiment ended.
"""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from urllib.parse import urlencode, urlsplit

from django.db.models.functions import Now

from human_feedback_site.feedback.models import Experiment, Invite, Participation
from human_feedback_site.feedback.services.claims import participant
from human_feedback_site.feedback.services.leases import has_work

EMPTY_FOR = timedelta(seconds=170)  # the page offers to finish after three minutes, by its own clock


class Part(StrEnum):
    """How far a labeler is with its part."""

    GOING_ON = "going_on"
    COMPLETE = "complete"
    SCREENED_OUT = "screened_out"


@dataclass(frozen=True)
class Ending:
    """What a labeler is told at the end; ``code`` and ``url`` are empty where the invitation has none."""

    part: Part
    answered: int
    wanted: int | None
    code: str = ""
    url: str = ""


def part_of(participation: Participation) -> Part:
    """Say how far a labeler is, as far as it was found out; what was complete once stays so."""
    if participation.completed_at is not None:
        return Part.COMPLETE
    if participation.stopped_at is not None:
        return Part.SCREENED_OUT
    wanted = participation.invite.answers_wanted if participation.invite else None
    return Part.COMPLETE if wanted is not None and participation.answered >= wanted else Part.GOING_ON


def settle(participation: Participation) -> Ending:
    """Find out whether a labeler has done its part, keep it if so, and return what it is told."""
    part = part_of(participation)
    if part == Part.GOING_ON and (_ended(participation) or _waited(participation)):
        part = Part.COMPLETE
    if part == Part.COMPLETE:
        Participation.objects.filter(pk=participation.pk, completed_at=None).update(completed_at=Now())
    invite = participation.invite
    if invite is None:
        return Ending(part, participation.answered, None)
    codes = {Part.COMPLETE: invite.completion_code, Part.SCREENED_OUT: invite.screen_out_code}
    code = codes.get(part, "")
    return Ending(part, participation.answered, invite.answers_wanted, code, _way_back(invite, code))


def _ended(participation: Participation) -> bool:
    finished = participation.experiment.state == Experiment.State.FINISHED
    return finished and participation.answered > 0


def _waited(participation: Participation) -> bool:
    """There was nothing to judge for long enough, and there still is nothing."""
    if not Participation.objects.filter(pk=participation.pk, empty_since__lt=Now() - EMPTY_FOR).exists():
        return False
    return not has_work(participant(participation.labeler.user, participation.experiment.name))


def _way_back(invite: Invite, code: str) -> str:
    if not code or not invite.return_url:
        return ""
    parts = urlsplit(invite.return_url)
    query = "&".join(filter(None, [parts.query, urlencode({"cc": code})]))
    return parts._replace(query=query).geturl()
