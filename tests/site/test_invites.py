"""Links that let people in, by name, without, or from Prolific, until they are used up or revoked."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db.models.functions import Now
from django.test import Client
from django.utils import timezone

from human_feedback_site.feedback.errors import UsedUpError
from human_feedback_site.feedback.models import Arrival, Invite, Label, Labeler, Lease, Participation
from human_feedback_site.feedback.services import accounts, invites, parts
from human_feedback_site.feedback.services.invites import pseudonym
from tests.site.conftest import Labeling, Trainer, client_of, new_invite, own_connection

LABEL = "/experiments/hopper/label"
DONE = "/experiments/hopper/done"
Make = Callable[..., Invite]
Comer = Callable[..., Labeling]


@pytest.fixture
def make(trainer: Trainer) -> Make:
    def make(**changes: Any) -> Invite:
        return new_invite(trainer.experiment, **{"limit": 5, **changes})

    return make


def path_of(invite: Invite) -> str:
    return invites.link_of(invite, "")


def enter(invite: Invite, client: Client | None = None) -> tuple[Client, Any]:
    client = client or Client()
    return client, client.post(path_of(invite))


def who(client: Client) -> Labeler:
    return Labeler.objects.get(user=client.session["_auth_user_id"])


def test_everybody_who_starts_is_a_new_labeler_with_a_readable_name(make: Make) -> None:
    invite = make()
    names = set()
    for _ in range(3):
        client, response = enter(invite)
        assert (response.status_code, response.headers["Location"]) == (302, LABEL)
        assert client.get(LABEL).status_code == 200
        names.add(who(client).name)
    assert len(names) == 3
    assert all(name.count("-") == 2 and name.split("-")[2].isdigit() for name in names)
    invite.refresh_from_db()
    assert invite.uses == 3


def test_looking_at_a_link_uses_nothing(make: Make) -> None:
    invite = make(answers_wanted=40)
    html = Client().get(path_of(invite)).content.decode()
    assert "Which hops higher?" in html
    assert "You are asked for 40 answers." in html
    invite.refresh_from_db()
    assert (invite.uses, Labeler.objects.filter(name__contains="-").count()) == (0, 0)


def test_the_same_browser_comes_back_as_the_same_labeler(make: Make) -> None:
    invite = make(limit=1)
    client, _ = enter(invite)
    before = who(client)
    assert client.get(path_of(invite)).headers["Location"] == LABEL
    assert who(client) == before
    invite.refresh_from_db()
    assert invite.uses == 1


def test_signed_in_user_is_warned_of_signing_out(make: Make, researcher_client: Client) -> None:
    invite = make()
    assert (
        "You are signed in as ada. Starting will sign you out."
        in researcher_client.get(path_of(invite)).content.decode()
    )
    enter(invite, researcher_client)
    assert who(researcher_client).name != "ada"


@pytest.fixture
def researcher_client(researcher: User) -> Client:
    return client_of(researcher)


def closed(invite: Invite) -> list[tuple[int, str]]:
    found = []
    for response in (Client().get(path_of(invite)), Client().post(path_of(invite))):
        found.append(
            (response.status_code, response.content.decode().split('<h1 dir="auto">')[1].split("</h1>")[0])
        )
    return found


def test_ended_links_admit_nobody(make: Make, trainer: Trainer) -> None:
    past = timezone.now() - timedelta(seconds=1)
    assert closed(make(expires_at=past)) == [(410, "This invitation has expired")] * 2
    assert closed(make(limit=2, uses=2)) == [(410, "No spots left")] * 2
    revoked = make()
    assert invites.revoke(Invite.objects.filter(pk=revoked.pk)) == 1
    assert closed(revoked) == [(410, "This invitation was withdrawn")] * 2
    gone = make()
    Invite.objects.filter(pk=gone.pk).delete()
    assert closed(gone) == [(404, "This invitation is not valid")] * 2
    trainer.put(state="finished")
    over = make()
    assert closed(over) == [(410, "This experiment is over")] * 2
    over.refresh_from_db()
    assert over.uses == 0


def test_full_link_keeps_its_labelers_but_a_revoked_one_does_not(make: Make) -> None:
    invite = make(limit=1)
    client, _ = enter(invite)
    assert client.get(path_of(invite)).status_code == 302
    invites.revoke(Invite.objects.all())
    assert client.get(path_of(invite)).status_code == 410
    assert client.get(LABEL).status_code == 200


def test_taken_name_is_refused(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    names = iter(["red-fox-100", "red-fox-100", "red-fox-101"])
    monkeypatch.setattr(invites, "pseudonym", lambda: next(names))
    invite = make()
    assert [who(enter(invite)[0]).name for _ in range(2)] == ["red-fox-100", "red-fox-101"]


def test_pseudonyms_are_names_that_labelers_may_have() -> None:
    for _ in range(200):
        accounts_name = pseudonym()
        assert len(accounts_name) <= 50
        Labeler._meta.get_field("name").clean(accounts_name, None)


def test_a_link_by_name_that_works_once_asks_before_it_does(make: Make, trainer: Trainer) -> None:
    invite = make(kind="named", limit=1, labeler=accounts.invite(trainer.experiment, "mia"))
    assert "This link is for “mia” and works only once." in Client().get(path_of(invite)).content.decode()
    client, response = enter(invite)
    assert response.headers["Location"] == LABEL
    assert who(client).name == "mia"
    assert client.get(path_of(invite)).headers["Location"] == LABEL
    assert closed(invite) == [(410, "No spots left")] * 2


def test_inviting_a_name_again_gives_the_same_link_a_new_month(trainer: Trainer) -> None:
    first, again = (invites.invite_by_name(trainer.experiment, "mia") for _ in range(2))
    assert first == again
    assert first.expires_at < again.expires_at
    invites.revoke(Invite.objects.all())
    assert invites.invite_by_name(trainer.experiment, "mia") != first


def test_a_link_by_name_ends_with_the_labelers_part_in_the_experiment(trainer: Trainer) -> None:
    invite = invites.invite_by_name(trainer.experiment, "mia")
    Labeler.objects.get(name="mia").experiments.clear()
    assert closed(invite) == [(410, "This invitation was withdrawn")] * 2


def test_a_link_by_name_is_no_key_to_the_admin(trainer: Trainer) -> None:
    invite = invites.invite_by_name(trainer.experiment, "mia")
    User.objects.filter(labeler__name="mia").update(is_staff=True)
    for send in (Client().get, Client().post):
        assert send(path_of(invite)).headers["Location"].startswith("/accounts/login/")


def test_the_command_and_the_api_make_links_that_are_listed(trainer: Trainer) -> None:
    url = trainer.post(f"{trainer.path}/invites", {"labeler": "mia"})["invite_url"]
    assert Client().get(url).headers["Location"] == LABEL
    [invite] = Invite.objects.all()
    assert (invite.kind, invite.uses, invite.labeler and invite.labeler.name) == ("named", 1, "mia")


@pytest.mark.both_databases
@pytest.mark.django_db(transaction=True)
def test_uses_never_exceed_the_limit_however_many_come_at_once(make: Make) -> None:
    invite = make(limit=4)

    @own_connection
    def come(_: int) -> bool:
        try:
            invites.admit(Invite.objects.select_related("experiment").get(pk=invite.pk))
        except UsedUpError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(come, range(16))) == 4
    invite.refresh_from_db()
    assert (invite.uses, invite.participations.count()) == (4, 4)


# A labeler's part


@pytest.fixture
def comer(make: Make) -> Comer:
    """Let somebody in by a link with codes."""

    def comer(**changes: Any) -> Labeling:
        codes = {
            "completion_code": "DONE1",
            "screen_out_code": "OUT1",
            "return_url": "https://p.example/c?a=1",
        }
        client, _ = enter(make(**{**codes, **changes}))
        return Labeling(client)

    return comer


def ending(api: Labeling) -> str:
    html: str = api.client.get(DONE).content.decode()
    return html


def test_wanted_answers_give_the_code(trainer: Trainer, comer: Comer) -> None:
    trainer.register(6)
    api = comer(answers_wanted=2)
    reply = api.ask(3)
    assert (len(reply["leases"]), reply["notice"]) == (2, None)  # not one more than is wanted
    assert reply["wanted"] == 2
    api.answer(reply["leases"][0])
    assert len(api.ask(3, held=[reply["leases"][1]["uuid"]])["leases"]) == 0
    assert "DONE1" not in ending(api)
    assert "Not done yet" in ending(api)
    api.answer(reply["leases"][1])
    reply = api.ask(3)
    assert (reply["leases"], reply["notice"]) == ([], "done")
    assert '<code dir="auto">DONE1</code>' in ending(api)
    assert 'href="https://p.example/c?a=1&amp;cc=DONE1"' in ending(api)
    assert "OUT1" not in ending(api)
    assert Participation.objects.get(labeler__invites=None, invite__isnull=False).completed_at is not None


def test_an_answer_taken_back_is_wanted_again(trainer: Trainer, comer: Comer) -> None:
    trainer.register(2)
    api = comer(answers_wanted=1)
    lease = api.undo(api.answer(api.ask(3)["leases"][0]))["lease"]
    assert "DONE1" not in ending(api)
    assert api.ask(3, held=[lease["uuid"]])["renewed"] == [lease["uuid"]]


@pytest.mark.both_databases
def test_leases_beyond_the_part_go_to_others(trainer: Trainer, comer: Comer) -> None:
    trainer.register(2)
    api = comer(answers_wanted=2)
    first, second = api.ask(3)["leases"]
    Invite.objects.update(answers_wanted=1)
    api.answer(first)
    assert api.ask(3, held=[second["uuid"]])["lost"] == [second["uuid"]]
    assert not Lease.objects.filter(expires_at__gt=Now(), labels=None).exists()
    api.answer(second)
    assert Label.objects.count() == 2


def test_the_code_of_those_who_are_stopped_is_another(trainer: Trainer, comer: Comer) -> None:
    trainer.register(6)
    api = comer(answers_wanted=2)
    api.ask(3)
    Participation.objects.filter(invite__isnull=False).update(stopped_at=Now())
    assert api.ask(3)["notice"] == "stopped"
    assert '<code dir="auto">OUT1</code>' in ending(api)
    assert "DONE1" not in ending(api)
    trainer.put(state="finished")
    assert "DONE1" not in ending(api)


def test_waiting_at_an_empty_queue_completes_the_part(trainer: Trainer, comer: Comer) -> None:
    api = comer(answers_wanted=50)
    assert "DONE1" not in ending(api)
    assert api.ask(3)["leases"] == []
    assert "DONE1" not in ending(api)
    waited = Now() - parts.EMPTY_FOR - timedelta(seconds=1)
    Participation.objects.filter(invite__isnull=False).update(empty_since=waited)
    api.ask(3)  # asking again begins no new wait
    [uuid] = trainer.register()
    assert "DONE1" not in ending(api)  # there is something now
    trainer.post(f"{trainer.path}/cancel", {"comparisons": [uuid]})
    assert '<code dir="auto">DONE1</code>' in ending(api)
    trainer.register()
    assert '<code dir="auto">DONE1</code>' in ending(api)  # earned once


def test_a_pair_ends_the_wait(trainer: Trainer, comer: Comer) -> None:
    api = comer()
    api.ask(3)
    doing = Participation.objects.filter(invite__isnull=False)
    assert doing.get().empty_since is not None
    trainer.register()
    api.ask(3)
    assert doing.get().empty_since is None


def test_the_end_completes_the_parts_of_labelers(trainer: Trainer, comer: Comer) -> None:
    trainer.register()
    worker, idler = comer(answers_wanted=9), comer(answers_wanted=9)
    worker.answer(worker.ask(3)["leases"][0])
    trainer.put(state="finished")
    assert "DONE1" in ending(worker)
    assert "DONE1" not in ending(idler)


PID, OTHER, STUDY, SESSION = ("5a9d64f5f6dfdd0001eaa7" + end for end in ("01", "02", "03", "04"))
SENT = {"PROLIFIC_PID": PID, "STUDY_ID": STUDY, "SESSION_ID": SESSION}


@pytest.fixture
def study(trainer: Trainer) -> Invite:
    facts = {"platform": "prolific", "limit": 5, "study": STUDY, "completion_code": "C1"}
    return new_invite(trainer.experiment, **facts)


def arrive(study: Invite, sent: Mapping[str, str] = SENT, client: Client | None = None) -> tuple[Client, Any]:
    """Follow the platform's link and press the button, which says again what the link said."""
    client = client or Client()
    page = client.get(path_of(study), sent)
    if page.status_code != 200:
        return client, page
    for name, value in sent.items():
        assert f'<input type="hidden" name="{name}" value="{value}">' in page.content.decode()
    return client, client.post(path_of(study), sent)


def test_a_participant_comes_back_as_the_same_labeler_from_any_browser(study: Invite) -> None:
    one, response = arrive(study)
    assert response.headers["Location"] == LABEL
    other, response = arrive(study, {**SENT, "SESSION_ID": OTHER})
    assert response.headers["Location"] == LABEL
    assert who(one) == who(other)
    stranger, _ = arrive(study, {**SENT, "PROLIFIC_PID": OTHER})
    assert who(stranger) != who(one)
    study.refresh_from_db()
    assert (study.uses, Arrival.objects.count()) == (2, 2)
    assert PID not in who(one).name + who(one).user.username


@pytest.mark.parametrize(
    "value",
    ["", "x" * 24, PID[:-1], PID + "0", PID.upper(), "{{%PROLIFIC_PID%}}", "a" * 5000, PID + "\n", "é" * 24],
)
@pytest.mark.parametrize("name", list(SENT))
def test_invalid_participant_id_gets_a_page(study: Invite, name: str, value: str) -> None:
    for send in (Client().get, Client().post):
        response = send(path_of(study), {**SENT, name: value})
        assert response.status_code == 400
        assert f"Missing or malformed: {name}. Open the study again" in response.content.decode()
    assert not Arrival.objects.exists()


def test_missing_participant_id_is_reported(study: Invite) -> None:
    assert Client().get(path_of(study)).status_code == 400


def test_another_study_is_refused_unless_any_may_come(study: Invite) -> None:
    sent = {**SENT, "STUDY_ID": OTHER}
    for send in (Client().get, Client().post):
        response = send(path_of(study), sent)
        assert response.status_code == 403
        assert "This link belongs to a different study" in response.content.decode()
    Invite.objects.update(study="")
    assert arrive(study, sent)[1].headers["Location"] == LABEL


def test_numbers_mean_nothing_where_the_link_is_not_for_the_platform(study: Invite) -> None:
    Invite.objects.update(platform="")
    client = Client()
    client.post(path_of(study), SENT)
    assert client.get(LABEL).status_code == 200
    assert not Arrival.objects.exists()


def test_somebody_who_is_signed_in_is_asked_before_another_participant_is(study: Invite) -> None:
    one, _ = arrive(study)
    other, _ = arrive(study, {**SENT, "PROLIFIC_PID": OTHER})
    labeler = who(other)
    page = other.get(path_of(study), SENT)
    assert f"Continue as {who(one).name}" in page.content.decode()
    assert who(other) == labeler
    other.post(path_of(study), SENT)
    assert who(other) == who(one)


def test_a_participant_who_was_shut_out_stays_out(study: Invite) -> None:
    client, _ = arrive(study)
    who(client).experiments.clear()
    assert arrive(study)[1].status_code == 410


@pytest.mark.both_databases
@pytest.mark.django_db(transaction=True)
def test_one_participant_in_many_browsers_at_once_is_one_labeler(study: Invite) -> None:
    @own_connection
    def come(_: int) -> int:
        found = Invite.objects.select_related("experiment").get(pk=study.pk)
        return invites.admit(found, invites.PlatformParticipant(PID, STUDY, SESSION)).pk

    with ThreadPoolExecutor(6) as pool:
        assert len(set(pool.map(come, range(12)))) == 1
    study.refresh_from_db()
    assert (study.uses, Arrival.objects.count(), study.participations.count()) == (1, 1, 1)


@pytest.mark.parametrize("step", ["refuse_if_closed", "_admit"])
def test_last_slot_in_two_browsers(study: Invite, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    Invite.objects.update(limit=1)
    take = getattr(invites, step)
    came: list[Labeler] = []

    def take_after_the_other(*arguments: Any) -> Any:
        monkeypatch.undo()
        came.append(invites.admit(study, invites.PlatformParticipant(PID, STUDY, SESSION)))
        return take(*arguments)

    monkeypatch.setattr(invites, step, take_after_the_other)
    assert [invites.admit(study, invites.PlatformParticipant(PID, STUDY, SESSION))] == came
    with pytest.raises(UsedUpError):
        invites.admit(study, invites.PlatformParticipant(OTHER, STUDY, SESSION))
    study.refresh_from_db()
    assert (study.uses, Arrival.objects.count()) == (1, 1)


def test_the_address_with_the_number_is_told_to_no_other_page(study: Invite) -> None:
    assert Client().get(path_of(study), SENT).headers["Referrer-Policy"] == "strict-origin"


# Forgetting


@pytest.mark.both_databases
def test_forgotten_participant_returns_as_new(trainer: Trainer, study: Invite) -> None:
    one, _ = arrive(study)
    arrive(study, {**SENT, "PROLIFIC_PID": OTHER})
    before = who(one)
    assert call_command("forget_participants", PID) == "1 forgotten"
    assert [each.participant for each in Arrival.objects.all()] == [OTHER]
    assert one.get(LABEL).status_code == 200
    again, _ = arrive(study)
    assert who(again) != before
    assert call_command("forget_participants", "--experiment", "hopper") == "2 forgotten"
    assert Labeler.objects.filter(pk=before.pk).exists()


def test_only_the_named_experiments_participants_are_forgotten(study: Invite, stranger: Trainer) -> None:
    arrive(study)
    assert call_command("forget_participants", PID, "--experiment", "walker") == "0 forgotten"
    with pytest.raises(CommandError, match="There is no experiment 'nothing'"):
        call_command("forget_participants", "--experiment", "nothing")
    with pytest.raises(CommandError, match="Pass the platform IDs of the participants to forget"):
        call_command("forget_participants")
    assert Arrival.objects.count() == 1


def test_participant_id_is_private(trainer: Trainer, study: Invite, researcher_browser: Client) -> None:
    trainer.register(2)
    client, _ = arrive(study)
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
