"""People whom Prolific sends: who they are, what they are refused, and that they are forgotten."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connections
from django.test import Client
from django.utils import timezone

from human_feedback_site.feedback.errors import UsedUpError
from human_feedback_site.feedback.models import Arrival, Invite, Labeler
from human_feedback_site.feedback.services import invites
from tests.site.conftest import Trainer

LABEL = "/experiments/hopper/label"
PID, OTHER, STUDY, SESSION = ("5a9d64f5f6dfdd0001eaa7" + end for end in ("01", "02", "03", "04"))
SENT = {"PROLIFIC_PID": PID, "STUDY_ID": STUDY, "SESSION_ID": SESSION}


@pytest.fixture
def invite(trainer: Trainer) -> Invite:
    return Invite.objects.create(
        experiment=trainer.experiment,
        kind="anonymous",
        platform="prolific",
        limit=5,
        study=STUDY,
        completion_code="C1",
        expires_at=timezone.now() + timedelta(days=1),
    )


def path_of(invite: Invite) -> str:
    return invites.link_of(invite, "")


def arrive(
    invite: Invite, sent: Mapping[str, str] = SENT, client: Client | None = None
) -> tuple[Client, Any]:
    """Follow the platform's link and press the button, which says again what the link said."""
    client = client or Client()
    page = client.get(path_of(invite), sent)
    if page.status_code != 200:
        return client, page
    for name, value in sent.items():
        assert f'<input type="hidden" name="{name}" value="{value}">' in page.content.decode()
    return client, client.post(path_of(invite), sent)


def who(client: Client) -> Labeler:
    return Labeler.objects.get(user=client.session["_auth_user_id"])


def test_a_participant_comes_back_as_the_same_labeler_from_any_browser(invite: Invite) -> None:
    one, response = arrive(invite)
    assert response.headers["Location"] == LABEL
    other, response = arrive(invite, {**SENT, "SESSION_ID": OTHER})
    assert response.headers["Location"] == LABEL
    assert who(one) == who(other)
    stranger, _ = arrive(invite, {**SENT, "PROLIFIC_PID": OTHER})
    assert who(stranger) != who(one)
    invite.refresh_from_db()
    assert (invite.uses, Arrival.objects.count()) == (2, 2)
    assert PID not in who(one).name + who(one).user.username


@pytest.mark.parametrize(
    "value",
    ["", "x" * 24, PID[:-1], PID + "0", PID.upper(), "{{%PROLIFIC_PID%}}", "a" * 5000, PID + "\n", "é" * 24],
)
@pytest.mark.parametrize("name", list(SENT))
def test_invalid_participant_id_gets_a_page(invite: Invite, name: str, value: str) -> None:
    for send in (Client().get, Client().post):
        response = send(path_of(invite), {**SENT, name: value})
        assert response.status_code == 400
        assert f"Missing or malformed: {name}. Open the study again" in response.content.decode()
    assert not Arrival.objects.exists()


def test_missing_participant_id_is_reported(invite: Invite) -> None:
    assert Client().get(path_of(invite)).status_code == 400


def test_another_study_is_refused_unless_any_may_come(invite: Invite) -> None:
    sent = {**SENT, "STUDY_ID": OTHER}
    for send in (Client().get, Client().post):
        response = send(path_of(invite), sent)
        assert response.status_code == 403
        assert "This link belongs to a different study" in response.content.decode()
    Invite.objects.update(study="")
    assert arrive(invite, sent)[1].headers["Location"] == LABEL


def test_numbers_mean_nothing_where_the_link_is_not_for_the_platform(invite: Invite) -> None:
    Invite.objects.update(platform="")
    client = Client()
    client.post(path_of(invite), SENT)
    assert client.get(LABEL).status_code == 200
    assert not Arrival.objects.exists()


def test_somebody_who_is_signed_in_is_asked_before_another_participant_is(invite: Invite) -> None:
    one, _ = arrive(invite)
    other, _ = arrive(invite, {**SENT, "PROLIFIC_PID": OTHER})
    labeler = who(other)
    page = other.get(path_of(invite), SENT)
    assert f"Continue as {who(one).name}" in page.content.decode()
    assert who(other) == labeler
    other.post(path_of(invite), SENT)
    assert who(other) == who(one)


def test_a_participant_who_was_shut_out_stays_out(invite: Invite) -> None:
    client, _ = arrive(invite)
    who(client).experiments.clear()
    assert arrive(invite)[1].status_code == 410


@pytest.mark.both_databases
@pytest.mark.django_db(transaction=True)
def test_one_participant_in_many_browsers_at_once_is_one_labeler(invite: Invite) -> None:
    def come(_: int) -> int:
        try:
            found = Invite.objects.select_related("experiment").get(pk=invite.pk)
            return invites.admit(found, invites.PlatformParticipant(PID, STUDY, SESSION)).pk
        finally:
            connections.close_all()

    with ThreadPoolExecutor(6) as pool:
        assert len(set(pool.map(come, range(12)))) == 1
    invite.refresh_from_db()
    assert (invite.uses, Arrival.objects.count(), invite.participations.count()) == (1, 1, 1)


@pytest.mark.parametrize("step", ["refuse_if_closed", "_admit"])
def test_last_slot_in_two_browsers(invite: Invite, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    Invite.objects.update(limit=1)
    take = getattr(invites, step)
    came: list[Labeler] = []

    def take_after_the_other(*arguments: Any) -> Any:
        monkeypatch.undo()
        came.append(invites.admit(invite, invites.PlatformParticipant(PID, STUDY, SESSION)))
        return take(*arguments)

    monkeypatch.setattr(invites, step, take_after_the_other)
    assert [invites.admit(invite, invites.PlatformParticipant(PID, STUDY, SESSION))] == came
    with pytest.raises(UsedUpError):
        invites.admit(invite, invites.PlatformParticipant(OTHER, STUDY, SESSION))
    invite.refresh_from_db()
    assert (invite.uses, Arrival.objects.count()) == (1, 1)


def test_the_address_with_the_number_is_told_to_no_other_page(invite: Invite) -> None:
    assert Client().get(path_of(invite), SENT).headers["Referrer-Policy"] == "strict-origin"


# Forgetting


@pytest.mark.both_databases
def test_forgotten_participant_returns_as_new(trainer: Trainer, invite: Invite) -> None:
    one, _ = arrive(invite)
    arrive(invite, {**SENT, "PROLIFIC_PID": OTHER})
    before = who(one)
    assert call_command("forget_participants", PID) == "1 forgotten"
    assert [each.participant for each in Arrival.objects.all()] == [OTHER]
    assert one.get(LABEL).status_code == 200
    again, _ = arrive(invite)
    assert who(again) != before
    assert call_command("forget_participants", "--experiment", "hopper") == "2 forgotten"
    assert Labeler.objects.filter(pk=before.pk).exists()


def test_only_the_named_experiments_participants_are_forgotten(invite: Invite, stranger: Trainer) -> None:
    arrive(invite)
    assert call_command("forget_participants", PID, "--experiment", "walker") == "0 forgotten"
    with pytest.raises(CommandError, match="There is no experiment 'nothing'"):
        call_command("forget_participants", "--experiment", "nothing")
    with pytest.raises(CommandError, match="Pass the platform IDs of the participants to forget"):
        call_command("forget_participants")
    assert Arrival.objects.count() == 1


def test_participant_id_is_private(trainer: Trainer, invite: Invite, researcher_browser: Client) -> None:
    trainer.register(2)
    client, _ = arrive(invite)
    client.post("/api/v1/experiments/hopper/leases", {"count": 1}, content_type="application/json")
    pages = [
        *("comparisons.csv", "labels.csv", "", "invites"),
        *("label", "history", "done"),
    ]
    for page in pages:
        response = researcher_browser.get(f"/experiments/hopper/{page}")
        assert response.status_code == 200, page
        assert PID.encode() not in b"".join(response), page
    for path in ("comparisons", "decisions"):
        assert PID.encode() not in trainer.send("GET", f"{trainer.path}/{path}").content
    listed = researcher_browser.get("/experiments/hopper/participants")
    assert PID in listed.content.decode()
    assert who(client).name not in listed.content.decode()
