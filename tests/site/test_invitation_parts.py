"""A labeler's count and completion code belong to its invitation, for as long as its answers stand."""

import re
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.core.exceptions import ValidationError
from django.db.models.functions import Now
from django.test import Client
from django.utils import timezone

from human_feedback_site.feedback.models import (
    Arrival,
    Experiment,
    Invite,
    InvitePart,
    Label,
    Labeler,
    Lease,
    Participation,
)
from human_feedback_site.feedback.services import accounts, invites, moderation, parts
from human_feedback_site.feedback.services.answers import Revision, revise_answer
from tests.site.conftest import Labeling, Trainer, client_of, new_invite, own_connection, race

PID, OTHER, STUDY, STUDY_2, SESSION = (
    "5a9d64f5f6dfdd0001eaa7" + end for end in ("01", "02", "03", "04", "05")
)
LINKS: dict[str, dict[str, Any]] = {
    "first": {"study": STUDY, "answers_wanted": 2, "completion_code": "DONE123"},
    "second": {"study": STUDY_2, "answers_wanted": 4, "completion_code": "OTHER77"},
}


def two_studies(experiment: Experiment) -> dict[str, Invite]:
    facts = {"platform": "prolific", "limit": 5, "screen_out_code": "OUT1"}
    return {name: new_invite(experiment, **facts, **each) for name, each in LINKS.items()}


def two_links_by_name(experiment: Experiment) -> dict[str, Invite]:
    mia = accounts.invite(experiment, "mia")
    facts = {"kind": "named", "labeler": mia, "study": ""}
    return {name: new_invite(experiment, **{**each, **facts}) for name, each in LINKS.items()}


def somebody() -> Labeling:
    return Labeling(Client())


def arrive(client: Client, invite: Invite, participant: str = PID) -> None:
    """Follow a link, and press the button where there is one."""
    path, sent = invites.link_of(invite, ""), {}
    if invite.platform:
        sent = {"PROLIFIC_PID": participant, "STUDY_ID": invite.study, "SESSION_ID": SESSION}
    response = client.get(path, sent)
    if response.status_code == 200:
        response = client.post(path, sent)
    assert (response.status_code, response.headers["Location"]) == (302, "/experiments/hopper/label")


def come(invite: Invite) -> Labeling:
    """Follow a link with a new browser."""
    api = somebody()
    arrive(api.client, invite)
    return api


def work(api: Labeling, count: int) -> list[Any]:
    """Answer so many pairs, one after the other."""
    return [api.answer(api.ask()["leases"][0]) for _ in range(count)]


def shown(api: Labeling) -> tuple[int, str]:
    """Return how many answers the last page counts, and the code that it shows."""
    html = api.client.get("/experiments/hopper/done").content.decode()
    [count] = re.findall(r"(\d+) answers? saved", html)
    return int(count), "".join(re.findall(r"<code[^>]*>(\w+)</code>", html))


def on_the_page(api: Labeling) -> int:
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


pytestmark = pytest.mark.both_databases


@pytest.fixture
def links(trainer: Trainer) -> dict[str, Invite]:
    return two_studies(trainer.experiment)


@pytest.fixture
def named(trainer: Trainer) -> dict[str, Invite]:
    return two_links_by_name(trainer.experiment)


# Two links


@pytest.mark.parametrize("kind", ["links", "named"])
def test_each_link_has_its_own_count(trainer: Trainer, request: pytest.FixtureRequest, kind: str) -> None:
    first, second = request.getfixturevalue(kind).values()
    trainer.register(8)
    api = come(first)
    seen = [api.ask()["leases"][0]["comparison"]]
    work(api, 2)
    assert (api.ask()["notice"], shown(api)) == ("done", (2, "DONE123"))
    arrive(api.client, second)
    assert on_the_page(api) == 0
    reply = api.ask(count=5)
    assert (reply["notice"], reply["answered"], len(reply["leases"])) == (None, 0, 4)
    assert seen[0] not in {lease["comparison"] for lease in reply["leases"]}
    assert shown(api) == (0, "")
    assert [label["answered"] for label in work(api, 3)] == [1, 2, 3]
    assert shown(api) == (3, "")
    arrive(api.client, first)
    assert (api.ask()["notice"], shown(api), on_the_page(api)) == ("done", (2, "DONE123"), 2)
    arrive(api.client, second)
    assert [label["answered"] for label in work(api, 1)] == [4]
    assert (api.ask()["notice"], shown(api)) == ("done", (4, "OTHER77"))
    assert part_counts() == {first.pk: 2, second.pk: 4}
    participation = Participation.objects.get(labeler__in=Label.objects.values("labeler"))
    assert (participation.answered, Label.objects.values("comparison").distinct().count()) == (6, 6)
    assert [Invite.objects.get(pk=each.pk).uses for each in (first, second)] == [1, 1]


def test_researcher_sees_participants_by_link(trainer: Trainer, links: dict[str, Invite]) -> None:
    trainer.register(8)
    api = somebody()
    for link, count in zip(links.values(), (2, 1), strict=True):
        arrive(api.client, link)
        work(api, count)
    other = somebody()
    arrive(other.client, links["second"], OTHER)
    work(other, 4)
    arrivals = list(Arrival.objects.order_by("pk"))
    complete, going_on = parts.Part.COMPLETE, parts.Part.GOING_ON
    assert parts.parts_of(arrivals) == [(2, complete), (1, going_on), (4, complete)]
    client = client_of(trainer.user)
    html = client.get("/experiments/hopper/participants").content.decode()
    rows = re.findall(r"(?s)<code[^>]*>(\w+)</code>.*?<span[^>]*>([\w ]+)</span>.*?>(\d+)</td>", html)
    assert rows == [(OTHER, "complete", "4"), (PID, "in progress", "1"), (PID, "complete", "2")]
    assert invites.forget_participants(Arrival.objects.all()) == 2


def test_another_link_is_used_by_who_came_by_one_before(trainer: Trainer, links: dict[str, Invite]) -> None:
    trainer.register(3)
    client = Client()
    arrive(client, links["first"])
    Invite.objects.filter(pk=links["second"].pk).update(limit=1, uses=1)
    sent = {"PROLIFIC_PID": PID, "STUDY_ID": STUDY_2, "SESSION_ID": SESSION}
    assert client.get(invites.link_of(links["second"], ""), sent).status_code == 410
    arrive(client, links["first"])  # full or not, it is known there
    Invite.objects.update(uses=5)
    arrive(client, links["first"])


def test_removed_labeler_stays_out_by_any_link(trainer: Trainer, links: dict[str, Invite]) -> None:
    client = Client()
    arrive(client, links["first"])
    Labeler.objects.get(arrivals__participant=PID).experiments.clear()
    sent = {"PROLIFIC_PID": PID, "STUDY_ID": STUDY_2, "SESSION_ID": SESSION}
    assert client.get(invites.link_of(links["second"], ""), sent).status_code == 410


def test_late_answer_belongs_to_the_leases_link(trainer: Trainer, links: dict[str, Invite]) -> None:
    trainer.register(4)
    first, second = links.values()
    api = come(first)
    held = api.ask(2)["leases"]
    Lease.objects.update(expires_at=Now())
    trainer.register(1, priority=9)
    arrive(api.client, second)
    assert api.answer(held[0])["answered"] == 0
    work(api, 1)
    assert part_counts() == {first.pk: 1, second.pk: 1}
    arrive(api.client, first)
    assert shown(api) == (1, "")
    assert api.answer(held[1])["answered"] == 2
    assert shown(api) == (2, "DONE123")
    assert part_counts() == {first.pk: 2, second.pk: 1}


def test_a_pair_on_the_screen_goes_along_to_the_next_link(trainer: Trainer, links: dict[str, Invite]) -> None:
    trainer.register(2)
    first, second = links.values()
    api = come(first)
    [held] = api.ask()["leases"]
    arrive(api.client, second)
    [again] = api.ask()["leases"]
    assert again["uuid"] == held["uuid"]
    assert api.answer(held)["answered"] == 1
    assert part_counts() == {first.pk: 0, second.pk: 1}


def test_an_answer_taken_back_is_taken_from_its_own_part(trainer: Trainer, links: dict[str, Invite]) -> None:
    trainer.register(8)
    first, second = links.values()
    api = come(first)
    old = work(api, 2)
    assert shown(api) == (2, "DONE123")
    arrive(api.client, second)
    work(api, 1)
    undone = api.undo(old[0])
    assert undone["answered"] == 1
    assert part_counts() == {first.pk: 1, second.pk: 1}
    assert api.answer(undone["lease"])["answered"] == 2  # what comes back is answered for where one is now
    assert part_counts() == {first.pk: 1, second.pk: 2}
    arrive(api.client, first)
    assert shown(api) == (1, "")


def test_withdrawn_labels_leave_their_own_part(trainer: Trainer, links: dict[str, Invite]) -> None:
    trainer.register(8)
    first, second = links.values()
    api = somebody()
    for link, count in ((first, 2), (second, 3)):
        arrive(api.client, link)
        work(api, count)
    assert moderation.block(Participation.objects.exclude(invite=None), trainer.user) == 5
    assert part_counts() == {first.pk: 0, second.pk: 0}
    assert shown(api) == (0, "OUT1")


def test_a_runs_own_link_is_a_part_of_its_own(trainer: Trainer, named: dict[str, Invite]) -> None:
    trainer.register(8)
    api = somebody()
    own_link = trainer.put(invite="mia")["invite_url"]
    assert api.client.get(own_link).status_code == 302
    work(api, 3)
    assert shown(api) == (3, "")
    arrive(api.client, named["first"])
    assert (on_the_page(api), shown(api)) == (0, (0, ""))
    work(api, 2)
    assert shown(api) == (2, "DONE123")
    assert api.client.get(own_link).status_code == 302
    assert (api.ask()["notice"], on_the_page(api)) == (None, 3)
    work(api, 1)
    assert part_counts() == {None: 4, named["first"].pk: 2}
    arrive(api.client, named["first"])
    assert (api.ask()["notice"], shown(api)) == ("done", (2, "DONE123"))


def test_lease_before_the_first_link_has_no_link(trainer: Trainer, named: dict[str, Invite]) -> None:
    trainer.register(4)
    api = somebody()
    own_link = trainer.put(invite="mia")["invite_url"]
    api.client.get(own_link)
    [lease, *_] = api.ask()["leases"]
    arrive(api.client, named["first"])
    api.answer(lease)
    assert shown(api) == (0, "")
    work(api, 1)
    assert part_counts() == {named["first"].pk: 1}
    assert Participation.objects.get().elsewhere == 1


def test_quality_belongs_to_the_labeler_whatever_the_link(trainer: Trainer, links: dict[str, Invite]) -> None:
    trainer.register(8)
    api = come(links["first"])
    work(api, 2)
    assert shown(api) == (2, "DONE123")
    moderation.stop(Participation.objects.exclude(invite=None))
    arrive(api.client, links["second"])
    assert (api.ask()["notice"], shown(api)) == ("stopped", (0, "OUT1"))
    arrive(api.client, links["first"])
    assert shown(api) == (2, "DONE123")  # earned before


def test_each_link_waits_before_an_empty_queue_for_itself(trainer: Trainer, links: dict[str, Invite]) -> None:
    api = somebody()
    waited = Now() - parts.EMPTY_FOR - timedelta(seconds=1)
    arrive(api.client, links["first"])
    api.ask()
    Participation.objects.exclude(empty_since=None).update(empty_since=waited)
    assert shown(api) == (0, "DONE123")
    arrive(api.client, links["second"])
    api.ask()
    assert shown(api) == (0, "")
    arrive(api.client, links["first"])
    assert shown(api) == (0, "DONE123")


def test_answers_before_parts_belong_to_their_link(trainer: Trainer, links: dict[str, Invite]) -> None:
    trainer.register(8)
    first, second = links.values()
    api = come(first)
    Participation.objects.update(elsewhere=None)  # as the version before left it
    labels = work(api, 2)
    Lease.objects.update(invite=None)  # as the version before gave them
    api.undo(labels[0])
    assert shown(api) == (1, "")
    work(api, 1)
    Lease.objects.update(invite=None)
    assert shown(api) == (2, "DONE123")
    arrive(api.client, second)
    assert shown(api) == (0, "")
    work(api, 1)
    assert part_counts() == {first.pk: 2, second.pk: 1}
    api.undo(labels[1])
    assert part_counts() == {first.pk: 1, second.pk: 1}


@pytest.mark.django_db(transaction=True)
def test_one_participant_by_two_links_at_once_is_one_labeler(links: dict[str, Invite]) -> None:
    @own_connection
    def come(number: int) -> int:
        link = list(links.values())[number % 2]
        invite = Invite.objects.select_related("experiment").get(pk=link.pk)
        return invites.admit(invite, invites.PlatformParticipant(PID, invite.study, SESSION)).pk

    with ThreadPoolExecutor(6) as pool:
        assert len(set(pool.map(come, range(12)))) == 1
    assert list(Invite.objects.order_by("pk").values_list("uses", flat=True)) == [1, 1]
    assert Arrival.objects.count() == 2


@pytest.mark.django_db(transaction=True)
def test_answers_during_a_link_change_count_once(trainer: Trainer, links: dict[str, Invite]) -> None:
    trainer.register(12)
    first, second = links.values()
    Invite.objects.update(answers_wanted=None)
    api = come(first)
    held = api.ask(5)["leases"]
    mia = Labeler.objects.get(arrivals__participant=PID)

    def switch() -> None:
        for link in [second, first] * 5:
            parts.come_by(mia, trainer.experiment, link)

    race(lambda: [api.answer(lease) for lease in held], switch)
    assert part_counts() == {first.pk: len(held), second.pk: 0}


def test_undo_requires_earning_the_code_again(trainer: Trainer, named: dict[str, Invite]) -> None:
    trainer.register(4)
    api = come(named["first"])
    *_, last = work(api, 2)
    assert shown(api) == (2, "DONE123")
    lease = api.undo(last)["lease"]
    assert shown(api) == (1, "")
    reply = api.ask(held=[lease["uuid"]])
    assert (reply["notice"], reply["renewed"]) == (None, [lease["uuid"]])
    api.answer(lease)
    assert shown(api) == (2, "DONE123")


def test_an_answer_beyond_the_part_may_be_taken_back(trainer: Trainer, named: dict[str, Invite]) -> None:
    trainer.register(4)
    api = come(named["second"])
    held = api.ask(3)["leases"]
    Invite.objects.update(answers_wanted=2)
    labels = [api.answer(lease) for lease in held]
    assert shown(api) == (3, "OTHER77")
    api.undo(labels[0])
    assert shown(api) == (2, "OTHER77")
    api.undo(labels[1])
    assert shown(api) == (1, "")


def find_nothing_for_long(api: Labeling) -> None:
    api.ask()
    long_ago = Now() - parts.EMPTY_FOR - timedelta(seconds=1)
    Participation.objects.exclude(empty_since=None).update(empty_since=long_ago)


@pytest.mark.parametrize("end", ["waited", "finished"])
def test_undo_reconsiders_completion(trainer: Trainer, named: dict[str, Invite], end: str) -> None:
    trainer.register(2)
    api = come(named["second"])
    labels = work(api, 2)
    if end == "finished":
        trainer.put(state="finished")
    else:
        find_nothing_for_long(api)
    assert shown(api) == (2, "OTHER77")
    api.undo(labels[0])
    if end == "finished":
        assert shown(api) == (1, "OTHER77")  # it still is
        api.undo(labels[1])
    assert shown(api)[1] == ""


def test_changed_answers_keep_the_count(trainer: Trainer, named: dict[str, Invite]) -> None:
    trainer.register(2)
    api = come(named["second"])
    labels = work(api, 2)
    find_nothing_for_long(api)
    assert shown(api) == (2, "OTHER77")
    trainer.register(1)  # it would not be earned by waiting now
    revise_answer(Labeler.objects.get(name="mia"), Revision(uuid4(), UUID(labels[0]["uuid"]), "right"))
    assert shown(api) == (2, "OTHER77")
    assert part_counts() == {named["second"].pk: 2}


@pytest.mark.parametrize(
    ("checks", "said"),
    [
        ("", "A researcher has ended your work on this experiment."),
        ("0" * 10, "Too many of your answers"),
    ],
)
def test_no_more_pairs_says_why(trainer: Trainer, named: dict[str, Invite], checks: str, said: str) -> None:
    api = come(named["first"])
    Participation.objects.update(gold_checks=checks)
    moderation.stop(Participation.objects.all())
    assert said in api.client.get("/experiments/hopper/done").content.decode()
    assert "Too many" not in api.client.get("/experiments/hopper/label").content.decode()


# Codes


CODES = {"platform": "prolific", "answers_wanted": "2", "days": "9", "limit": "5", "kind": "anonymous"}


@pytest.mark.parametrize(
    ("code", "other", "refused"), [("A1", "A1", True), ("A1", "a1", True), ("A1", "A2", False)]
)
def test_one_code_for_both_ends_is_refused(trainer: Trainer, code: str, other: str, refused: bool) -> None:
    client = client_of(trainer.user)
    sent = {**CODES, "completion_code": code, "screen_out_code": other}
    response = client.post("/experiments/hopper/invites", sent)
    assert response.status_code == (400 if refused else 302)
    assert ("Use a different code for stopped labelers" in response.content.decode()) is refused
    assert Invite.objects.count() == (0 if refused else 1)


def test_an_invitation_knows_that_its_codes_differ(trainer: Trainer) -> None:
    day = timezone.now() + timedelta(days=1)
    invite = Invite(experiment=trainer.experiment, kind="anonymous", expires_at=day)
    invite.full_clean()
    invite.completion_code = invite.screen_out_code = "X1"
    with pytest.raises(ValidationError, match="Use a different code for stopped labelers"):
        invite.full_clean()
