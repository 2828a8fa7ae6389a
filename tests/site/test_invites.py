"""Links that let people in: by name or without, for a while, so many times, until they are revoked."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connections
from django.db.models.functions import Now
from django.test import Client
from django.utils import timezone

from human_feedback_site.feedback.errors import UsedUpError
from human_feedback_site.feedback.models import Invite, Label, Labeler, Lease, Participation
from human_feedback_site.feedback.services import accounts, invites, parts
from human_feedback_site.feedback.services.invites import pseudonym
from tests.site.conftest import Api, Trainer

LABEL = "/experiments/hopper/label"
DONE = "/experiments/hopper/done"
Make = Callable[..., Invite]


@pytest.fixture
def make(trainer: Trainer) -> Make:
    """Make invitations without names."""

    def make(**changes: Any) -> Invite:
        facts = {"kind": "anonymous", "limit": 5, "expires_at": timezone.now() + timedelta(days=1)}
        return Invite.objects.create(experiment=trainer.experiment, **{**facts, **changes})

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
    client = Client()
    client.force_login(researcher)
    return client


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

    def come(_: int) -> bool:
        try:
            invites.admit(Invite.objects.select_related("experiment").get(pk=invite.pk))
        except UsedUpError:
            return False
        finally:
            connections.close_all()
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(come, range(16))) == 4
    invite.refresh_from_db()
    assert (invite.uses, invite.participations.count()) == (4, 4)


# A labeler's part


@pytest.fixture
def comer(make: Make, api: Callable[[Client], Api]) -> Callable[..., Api]:
    """Let somebody in by a link with codes."""

    def comer(**changes: Any) -> Api:
        codes = {
            "completion_code": "DONE1",
            "screen_out_code": "OUT1",
            "return_url": "https://p.example/c?a=1",
        }
        client, _ = enter(make(**{**codes, **changes}))
        return api(client)

    return comer


@pytest.fixture
def api() -> Callable[[Client], Api]:
    from tests.site.conftest import Api

    return Api


def ask(api: Api, count: int = 3, **body: object) -> Any:
    return api.post("/experiments/hopper/leases", {"count": count, **body})


def answer(api: Api, lease: Any, uuid: str) -> Any:
    return api.post("/labels", {"uuid": uuid, "lease": lease["uuid"], "choice": "left"})


UUIDS = [f"8e7505d5-1260-471c-98e8-ef3c8c74ead{number}" for number in range(10)]


def ending(api: Api) -> str:
    html: str = api.client.get(DONE).content.decode()
    return html


def test_wanted_answers_give_the_code(trainer: Trainer, comer: Callable[..., Api]) -> None:
    trainer.register(6)
    api = comer(answers_wanted=2)
    reply = ask(api)
    assert (len(reply["leases"]), reply["notice"]) == (2, None)  # not one more than is wanted
    assert reply["wanted"] == 2
    answer(api, reply["leases"][0], UUIDS[0])
    assert len(ask(api, held=[reply["leases"][1]["uuid"]])["leases"]) == 0
    assert "DONE1" not in ending(api)
    assert "Not done yet" in ending(api)
    answer(api, reply["leases"][1], UUIDS[1])
    reply = ask(api)
    assert (reply["leases"], reply["notice"]) == ([], "done")
    assert '<code dir="auto">DONE1</code>' in ending(api)
    assert 'href="https://p.example/c?a=1&amp;cc=DONE1"' in ending(api)
    assert "OUT1" not in ending(api)
    assert Participation.objects.get(labeler__invites=None, invite__isnull=False).completed_at is not None


def test_an_answer_taken_back_is_wanted_again(trainer: Trainer, comer: Callable[..., Api]) -> None:
    trainer.register(2)
    api = comer(answers_wanted=1)
    answer(api, ask(api)["leases"][0], UUIDS[0])
    lease = api.post(f"/labels/{UUIDS[0]}/undo", {"uuid": UUIDS[1]})["lease"]
    assert "DONE1" not in ending(api)
    assert ask(api, held=[lease["uuid"]])["renewed"] == [lease["uuid"]]


@pytest.mark.both_databases
def test_leases_beyond_the_part_go_to_others(trainer: Trainer, comer: Callable[..., Api]) -> None:
    trainer.register(2)
    api = comer(answers_wanted=2)
    first, second = ask(api)["leases"]
    Invite.objects.update(answers_wanted=1)
    answer(api, first, UUIDS[0])
    assert ask(api, held=[second["uuid"]])["lost"] == [second["uuid"]]
    assert not Lease.objects.filter(expires_at__gt=Now(), labels=None).exists()
    answer(api, second, UUIDS[1])
    assert Label.objects.count() == 2


def test_the_code_of_those_who_are_stopped_is_another(trainer: Trainer, comer: Callable[..., Api]) -> None:
    trainer.register(6)
    api = comer(answers_wanted=2)
    ask(api)
    Participation.objects.filter(invite__isnull=False).update(stopped_at=Now())
    assert ask(api)["notice"] == "stopped"
    assert '<code dir="auto">OUT1</code>' in ending(api)
    assert "DONE1" not in ending(api)
    trainer.put(state="finished")
    assert "DONE1" not in ending(api)


def test_waiting_at_an_empty_queue_completes_the_part(trainer: Trainer, comer: Callable[..., Api]) -> None:
    api = comer(answers_wanted=50)
    assert "DONE1" not in ending(api)
    assert ask(api)["leases"] == []
    assert "DONE1" not in ending(api)
    waited = Now() - parts.EMPTY_FOR - timedelta(seconds=1)
    Participation.objects.filter(invite__isnull=False).update(empty_since=waited)
    ask(api)  # asking again begins no new wait
    [uuid] = trainer.register()
    assert "DONE1" not in ending(api)  # there is something now
    trainer.post(f"{trainer.path}/cancel", {"comparisons": [uuid]})
    assert '<code dir="auto">DONE1</code>' in ending(api)
    trainer.register()
    assert '<code dir="auto">DONE1</code>' in ending(api)  # earned once


def test_a_pair_ends_the_wait(trainer: Trainer, comer: Callable[..., Api]) -> None:
    api = comer()
    ask(api)
    doing = Participation.objects.filter(invite__isnull=False)
    assert doing.get().empty_since is not None
    trainer.register()
    ask(api)
    assert doing.get().empty_since is None


def test_the_end_completes_the_parts_of_labelers(trainer: Trainer, comer: Callable[..., Api]) -> None:
    trainer.register()
    worker, idler = comer(answers_wanted=9), comer(answers_wanted=9)
    answer(worker, ask(worker)["leases"][0], UUIDS[0])
    trainer.put(state="finished")
    assert "DONE1" in ending(worker)
    assert "DONE1" not in ending(idler)
