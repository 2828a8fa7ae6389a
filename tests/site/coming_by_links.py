"""People who come by links that are kept, and what they are told."""

import re
from datetime import timedelta
from typing import Any
from uuid import uuid4

from django.test import Client
from django.utils import timezone

from human_feedback_site.feedback.models import Experiment, Invite, InvitePart, Label, Participation
from human_feedback_site.feedback.services import accounts, invites
from tests.site.conftest import Api

PID, OTHER, STUDY, STUDY_2, SESSION = (
    "5a9d64f5f6dfdd0001eaa7" + end for end in ("01", "02", "03", "04", "05")
)
LINKS: dict[str, dict[str, Any]] = {
    "first": {"study": STUDY, "answers_wanted": 2, "completion_code": "DONE123"},
    "second": {"study": STUDY_2, "answers_wanted": 4, "completion_code": "OTHER77"},
}


def two_studies(experiment: Experiment) -> dict[str, Invite]:
    """Make the links of two studies on one experiment."""
    facts = {"kind": "anonymous", "platform": "prolific", "limit": 5, "screen_out_code": "OUT1"}
    day = timezone.now() + timedelta(days=1)
    return {
        name: Invite.objects.create(experiment=experiment, expires_at=day, **facts, **each)
        for name, each in LINKS.items()
    }


def two_links_by_name(experiment: Experiment) -> dict[str, Invite]:
    """Make two links for one labeler, mia."""
    mia = accounts.invite(experiment, "mia")
    facts = {"kind": "named", "labeler": mia, "expires_at": timezone.now() + timedelta(days=1)}
    return {
        name: Invite.objects.create(experiment=experiment, **facts, **{**each, "study": ""})
        for name, each in LINKS.items()
    }


def somebody() -> Api:
    """Return a new browser."""
    return Api(Client())


def arrive(client: Client, invite: Invite, participant: str = PID) -> None:
    """Follow a link, and press the button where there is one."""
    path, sent = invites.link_of(invite, ""), {}
    if invite.platform:
        sent = {"PROLIFIC_PID": participant, "STUDY_ID": invite.study, "SESSION_ID": SESSION}
    response = client.get(path, sent)
    if response.status_code == 200:
        response = client.post(path, sent)
    assert (response.status_code, response.headers["Location"]) == (302, "/experiments/hopper/label")


def ask(api: Api, count: int = 1, **body: object) -> Any:
    """Ask for work."""
    return api.post("/experiments/hopper/leases", {"count": count, **body})


def answer(api: Api, lease: Any) -> Any:
    """Answer a lease."""
    return api.post("/labels", {"uuid": str(uuid4()), "lease": lease["uuid"], "choice": "left"})


def undo(api: Api, label: Any) -> Any:
    """Undo an answer."""
    return api.post(f"/labels/{label['uuid']}/undo", {"uuid": str(uuid4())})


def work(api: Api, count: int) -> list[Any]:
    """Answer so many pairs, one after the other."""
    return [answer(api, ask(api)["leases"][0]) for _ in range(count)]


def shown(api: Api) -> tuple[int, str]:
    """Return how many answers the last page counts, and the code that it shows."""
    html = api.client.get("/experiments/hopper/done").content.decode()
    [count] = re.findall(r"(\d+) answers? saved", html)
    return int(count), "".join(re.findall(r"<code[^>]*>(\w+)</code>", html))


def on_the_page(api: Api) -> int:
    """Return how many answers the labeling page counts."""
    html = api.client.get("/experiments/hopper/label").content.decode()
    return int(re.findall(r'id="answered">(\d+)<', html)[0])


def part_counts() -> dict[int | None, int]:
    """Return the count of each invitation, and assert that it is the number of its labels."""
    participation = Participation.objects.get(labeler__in=Label.objects.values("labeler"))
    kept = InvitePart.objects.filter(participation=participation)
    counts: dict[int | None, int] = {part.invite_id: part.answered for part in kept}
    counts[participation.invite_id] = participation.part_answered
    for invite, count in counts.items():
        standing = Label.objects.filter(undo=None, lease__invite=invite, labeler=participation.labeler)
        assert standing.exclude(status="void").count() == count
    return counts
