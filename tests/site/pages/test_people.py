"""A researcher's invitations, participants and labelers: made, listed, revoked, blocked and forgotten."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from human_feedback_site.feedback.models import Arrival, Invite, Label, Labeler, Participation, Undo
from human_feedback_site.feedback.services import invites
from tests.site.conftest import Browser, Invited, SignedIn, Trainer

PATH = "/experiments/hopper/invites"
PEOPLE = "/experiments/hopper/participants"
NAMED = {"kind": "named", "labeler_name": "mia", "days": "7", "answers_wanted": "", "once": "on"}
MANY = {"kind": "anonymous", "note": "Batch <b>1</b>", "limit": "3", "days": "30", "answers_wanted": "40"}
PROLIFIC = {
    **MANY,
    "platform": "prolific",
    "completion_code": "C0DE",
    "screen_out_code": "NO",
    "return_url": "https://app.prolific.com/submissions/complete",
}


def test_experiment_without_invitations_says_so(researcher_browser: Client) -> None:
    html = researcher_browser.get(PATH).content.decode()
    assert "No invitations yet" in html
    assert PEOPLE not in html


def test_personal_link_is_created_listed_and_works(researcher_browser: Client) -> None:
    response: Any = researcher_browser.post(PATH, NAMED)
    [invite] = Invite.objects.all()
    assert (response.status_code, response.headers["Location"]) == (302, f"{PATH}#invite-{invite.pk}")
    assert (invite.limit, invite.answers_wanted) == (1, None)
    assert invite.labeler is not None
    assert timedelta(days=6) < invite.expires_at - timezone.now() <= timedelta(days=7)
    html = researcher_browser.get(PATH).content.decode()
    assert "mia" in html
    assert "uses: 0 of 1" in html
    [link] = re.findall(r'value="http://testserver(/join/[^"]+)"', html)
    labeler = Client()
    assert labeler.post(link).status_code == 302
    assert "uses: 1 of 1" in researcher_browser.get(PATH).content.decode()
    assert "/join/" not in researcher_browser.get(PATH).content.decode()


def test_shared_link_is_created_with_its_codes(researcher_browser: Client) -> None:
    researcher_browser.post(PATH, {**PROLIFIC, "study": ""})
    [invite] = Invite.objects.all()
    assert (invite.kind, invite.limit, invite.answers_wanted) == ("anonymous", 3, 40)
    assert (invite.platform, invite.completion_code, invite.screen_out_code) == ("prolific", "C0DE", "NO")
    html = researcher_browser.get(PATH).content.decode()
    assert "Batch &lt;b&gt;1&lt;/b&gt;" in html
    assert "<b>1</b>" not in html


def test_codes_without_a_platform_are_dropped(researcher_browser: Client) -> None:
    researcher_browser.post(PATH, {**PROLIFIC, "platform": ""})
    [invite] = Invite.objects.all()
    assert (invite.completion_code, invite.screen_out_code, invite.return_url) == ("", "", "")


@pytest.mark.parametrize(
    "wrong",
    [
        *({"labeler_name": "a/b"}, {"labeler_name": ""}, {"days": "0"}, {"days": "366"}, {"days": "x"}),
        *({"answers_wanted": "0"}, {"answers_wanted": "-1"}, {"answers_wanted": "9" * 30}),
    ],
)
def test_invalid_personal_links_are_refused(researcher_browser: Client, wrong: dict[str, str]) -> None:
    assert_refused(researcher_browser, {**NAMED, **wrong})


@pytest.mark.parametrize(
    "wrong",
    [
        *({"limit": "0"}, {"limit": ""}, {"limit": "9" * 30}, {"note": "x" * 101}, {"platform": "other"}),
        *({"study": "no"}, {"completion_code": ""}, {"completion_code": "a b"}, {"screen_out_code": "<b>"}),
        *({"return_url": "http://plain.example"}, {"return_url": "javascript:alert(1)"}, {"note": "a\x00"}),
    ],
)
def test_invalid_shared_links_are_refused(researcher_browser: Client, wrong: dict[str, str]) -> None:
    assert_refused(researcher_browser, {**PROLIFIC, **wrong})


def assert_refused(client: Client, form: dict[str, str]) -> None:
    response = client.post(PATH, form)
    assert response.status_code == 400
    assert 'role="alert"' in response.content.decode()
    assert not Invite.objects.exists()


@pytest.mark.parametrize("form", [{}, {"kind": "other"}])
def test_invalid_form_creates_nothing(researcher_browser: Client, form: dict[str, str]) -> None:
    assert researcher_browser.post(PATH, form).status_code == 400
    assert not Invite.objects.exists()


def test_revoked_link_admits_nobody(researcher_browser: Client) -> None:
    researcher_browser.post(PATH, MANY)
    [invite] = Invite.objects.all()
    response: Any = researcher_browser.post(f"{PATH}/{invite.pk}/revoke")
    assert response.headers["Location"] == f"{PATH}#invite-{invite.pk}"
    assert "revoked" in researcher_browser.get(PATH).content.decode()
    assert Client().post(invites.link_of(invite, "")).status_code == 410


def test_other_owners_invitations_cannot_be_revoked(researcher_browser: Client, stranger: Trainer) -> None:
    foreign = invites.invite_by_name(stranger.experiment, "mia")
    assert researcher_browser.post(f"{PATH}/{foreign.pk}/revoke").status_code == 404
    assert researcher_browser.post(f"/experiments/walker/invites/{foreign.pk}/revoke").status_code == 404
    foreign.refresh_from_db()
    assert foreign.revoked_at is None


@pytest.fixture
def arrivals(trainer: Trainer) -> list[Arrival]:
    invite = Invite.objects.create(
        experiment=trainer.experiment,
        kind="anonymous",
        platform="prolific",
        limit=9,
        expires_at=timezone.now() + timedelta(days=1),
    )
    sent = [invites.PlatformParticipant(f"{number:024x}", "a" * 24, "b" * 24) for number in range(3)]
    for each in sent:
        invites.admit(invite, each)
    return list(Arrival.objects.order_by("pk"))


def test_participants_are_listed_and_forgotten(researcher_browser: Client, arrivals: list[Arrival]) -> None:
    assert PEOPLE in researcher_browser.get(PATH).content.decode()
    html = researcher_browser.get(PEOPLE).content.decode()
    assert all(each.participant in html for each in arrivals)
    assert html.count("in progress") == 3
    researcher_browser.post(f"{PEOPLE}/forget", {"participant": arrivals[0].participant})
    assert Arrival.objects.count() == 2
    researcher_browser.post(f"{PEOPLE}/forget", {})
    assert Arrival.objects.count() == 2
    researcher_browser.post(f"{PEOPLE}/forget", {"all": "yes"})
    assert not Arrival.objects.exists()
    assert Labeler.objects.filter(arrivals=None, participations__invite__isnull=False).count() == 3
    assert "all IDs were deleted" in researcher_browser.get(PEOPLE).content.decode()


def test_only_managers_see_participants(
    stranger: Trainer, browser: Browser, arrivals: list[Arrival], signed_in: SignedIn
) -> None:
    for client in (browser.client, signed_in(stranger.user)):
        assert [client.get(path).status_code for path in (PATH, PEOPLE)] == [404, 404]
        assert client.post(PATH, MANY).status_code == 404
        assert client.post(f"{PEOPLE}/forget", {"all": "yes"}).status_code == 404
    assert (
        Client().post(f"{PEOPLE}/forget", {"all": "yes"}).headers["Location"].startswith("/accounts/login/")
    )
    assert Arrival.objects.count() == 3


STEPS = ("block", "readmit")


@pytest.fixture
def path(trainer: Trainer, browser: Browser) -> str:
    """The page of a labeler who judged two of three pairs and holds one."""
    trainer.register(3)
    for lease in browser.lease(3)[:2]:
        browser.answer(lease)
    return f"/experiments/hopper/labelers/{Labeler.objects.get(name='you').pk}"


def table_of(client: Client) -> str:
    html = client.get("/experiments/hopper/").content.decode()
    return html.partition('id="labelers"')[2]


def test_blocking_asks_for_confirmation(path: str, researcher_browser: Client) -> None:
    assert f'href="{path}">Block' in table_of(researcher_browser)
    html = researcher_browser.get(path).content.decode()
    assert "Block you?" in html
    assert "2 labels will be withdrawn." in html
    assert f'action="{path}/block"' in html
    assert f'action="{path}/readmit"' not in html
    assert not Undo.objects.exists()


@pytest.mark.both_databases
def test_blocking_withdraws_labels_and_frees_comparisons(
    path: str, trainer: Trainer, browser: Browser, invite: Invited, researcher_browser: Client
) -> None:
    table_of(researcher_browser)  # which keeps how labelers do for some seconds
    response = researcher_browser.post(f"{path}/block")
    assert response.headers["Location"] == "/experiments/hopper/#labelers"
    assert set(Undo.objects.values_list("retracted_by__username", flat=True)) == {"ada"}
    assert Undo.objects.count() == Label.objects.count() == 2
    assert [item["decision"] for item in trainer.decisions(after=2)["items"]] == [None, None]
    assert browser.ask()["notice"] == "stopped"
    assert len(invite("other").lease(5)) == 3
    table = table_of(researcher_browser)
    assert "stopped</span>" in table
    assert f'href="{path}">Readmit' in table
    researcher_browser.post(f"{path}/block")
    assert Undo.objects.count() == 2


def test_readmission_returns_no_labels(path: str, browser: Browser, researcher_browser: Client) -> None:
    researcher_browser.post(f"{path}/block")
    html = researcher_browser.get(path).content.decode()
    assert "you no longer gets pairs" in html
    assert f'action="{path}/readmit"' in html
    assert f'action="{path}/block"' not in html  # there is nothing left to withdraw
    researcher_browser.post(f"{path}/readmit")
    assert Participation.objects.get(labeler__name="you").answered == 0
    assert len(browser.lease(5)) == 3
    assert f'href="{path}">Block' in table_of(researcher_browser)


@pytest.mark.both_databases
def test_labels_of_a_stopped_labeler(path: str, researcher_browser: Client, trainer: Trainer) -> None:
    Participation.objects.update(stopped_at=trainer.experiment.created_at)
    html = researcher_browser.get(path).content.decode()
    assert "Withdraw all labels" in html
    assert f'action="{path}/readmit"' in html


@pytest.mark.parametrize("step", STEPS)
def test_only_managers_may_block_and_need_a_csrf_token(
    path: str, trainer: Trainer, stranger: Trainer, browser: Browser, signed_in: SignedIn, step: str
) -> None:
    for client in (signed_in(stranger.user), browser.client):
        assert client.get(path).status_code == client.post(f"{path}/{step}").status_code == 404
    assert Client().post(f"{path}/{step}").headers["Location"].startswith("/accounts/login/")
    forger = Client(enforce_csrf_checks=True)
    forger.force_login(trainer.user)
    assert forger.post(f"{path}/{step}").status_code == 403
    owner = signed_in(trainer.user)
    assert owner.get(f"{path}/{step}").status_code == owner.post(path).status_code == 405
    assert not Undo.objects.exists()
    assert not Participation.objects.exclude(stopped_at=None).exists()


def test_foreign_labeler_is_404(path: str, stranger: Trainer, signed_in: SignedIn) -> None:
    elsewhere = path.replace("hopper", "walker")
    client = signed_in(stranger.user)
    statuses: list[Any] = [client.get(elsewhere).status_code]
    statuses += [client.post(f"{elsewhere}/{step}").status_code for step in STEPS]
    assert statuses == [404] * 3
    assert not Undo.objects.exists()
