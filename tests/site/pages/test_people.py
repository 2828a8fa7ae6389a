"""A researcher's invitations, participants and labelers; who is signed in by which link; accounts."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core import signing
from django.test import Client, RequestFactory
from django.utils import timezone
from django.utils.http import base36_to_int, int_to_base36
from pytest_django import Settings

from human_feedback_site.feedback.api import problems
from human_feedback_site.feedback.models import (
    Arrival,
    Experiment,
    Invite,
    Label,
    Labeler,
    Participation,
    Undo,
)
from human_feedback_site.feedback.services import accounts, invites
from tests.site.conftest import Browser, Invited, Trainer, new_invite

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
    [link] = re.findall(r'value="http://testserver(/j/[^"]+)"', html)
    labeler = Client()
    assert labeler.post(link).status_code == 302
    assert "uses: 1 of 1" in researcher_browser.get(PATH).content.decode()
    assert "/j/" not in researcher_browser.get(PATH).content.decode()


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


@pytest.fixture
def arrivals(trainer: Trainer) -> list[Arrival]:
    invite = new_invite(trainer.experiment, platform="prolific", limit=9)
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
    assert "you no longer gets questions" in html
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


@pytest.fixture
def link(trainer: Trainer) -> str:
    url: str = trainer.put(invite="mia")["invite_url"]
    return url.removeprefix("http://testserver")


def signed_in_as(client: Client) -> str | None:
    account = client.get("/session").json()["account"]
    found = Labeler.objects.filter(user=account.split("-")[0]).first() if account else None
    return found.name if found else None


def test_link_signs_its_labeler_in(link: str) -> None:
    client = Client()
    response: Any = client.get(link)
    assert (response.status_code, response.headers["Location"]) == (302, "/experiments/hopper/label")
    assert signed_in_as(client) == "mia"
    assert not Labeler.objects.get(name="mia").user.has_usable_password()


def test_second_use_gives_the_same_labeler(link: str) -> None:
    for _ in range(2):
        assert signed_in_as_after(Client(), link) == "mia"
    assert Labeler.objects.filter(name="mia").count() == 1


def signed_in_as_after(client: Client, link: str) -> str | None:
    client.get(link)
    return signed_in_as(client)


def test_signed_in_user_is_asked_before_switching(
    link: str, invite: Invited, researcher_browser: Client
) -> None:
    leo = invite("leo").client
    html = leo.get(link).content.decode()
    assert "Continue as mia" in html
    assert signed_in_as(leo) == "leo"
    response: Any = leo.post(link)
    assert response.headers["Location"] == "/experiments/hopper/label"
    assert signed_in_as(leo) == "mia"
    assert "Stay signed in as ada" in researcher_browser.get(link).content.decode()


def test_switching_needs_a_csrf_token(link: str, trainer: Trainer) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(trainer.user)
    response = client.post(link)
    assert response.status_code == 403
    assert "This form has expired" in response.content.decode()


@pytest.mark.parametrize("forged", ["{link}x", "{link}:x", "/join/abc"])
def test_forged_link_is_invalid(link: str, forged: str) -> None:
    assert_link_refused(forged.format(link=link), 404, "not valid")


def test_run_link_is_short_and_unguessable(link: str, trainer: Trainer, settings: Settings) -> None:
    experiment = trainer.experiment
    assert re.fullmatch(r"/j/[0-9a-z-]+", link)
    assert len(link) <= 24
    one, two, hour, signature = link.removeprefix("/j/").split("-")
    other = accounts.invite(experiment, "noa")
    for forged in (
        f"{one}-{int_to_base36(other.pk)}-{hour}-{signature}",
        f"{int_to_base36(experiment.pk + 1)}-{two}-{hour}-{signature}",
        f"{one}-{two}-{int_to_base36(base36_to_int(hour) + 1)}-{signature}",
        f"{one}-{two}-{hour}-{'2' * 10}",
        accounts.stored_url(experiment.pk, "").removeprefix("/j/"),
        f"{one}-{signature}",
        f"{one}-{two}-{signature}",
        signature,
    ):
        assert Client().get(f"/j/{forged}").status_code == 404
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "a new key", [settings.SECRET_KEY]
    assert signed_in_as_after(Client(), link) == "mia"
    settings.SECRET_KEY_FALLBACKS = []
    assert Client().get(link).status_code == 404


def test_links_of_earlier_versions_still_work(link: str, trainer: Trainer) -> None:
    claims = {"experiment": trainer.experiment.pk, "labeler": "mia"}
    old = f"/join/{signing.dumps(claims, salt=accounts.INVITE_SALT)}"
    assert signed_in_as_after(Client(), old) == "mia"


def test_link_of_a_deleted_experiment_is_invalid(link: str) -> None:
    Experiment.objects.all().delete()
    assert Client().get(link).status_code == 404


def test_old_link_has_expired(link: str, settings: Settings) -> None:
    settings.INVITE_MAX_AGE_SECONDS = -1
    assert_link_refused(link, 410, "expired")


def test_removed_labeler_stays_out(link: str) -> None:
    User.objects.filter(labeler__name="mia").update(is_active=False)
    assert_link_refused(link, 410, "withdrawn")


def assert_link_refused(link: str, status: int, word: str) -> None:
    client = Client()
    response = client.get(link)
    assert response.status_code == status
    assert word in response.content.decode()
    assert signed_in_as(client) is None


def test_old_link_does_not_readmit_a_removed_labeler(trainer: Trainer, link: str) -> None:
    Client().get(link)
    Labeler.objects.get(name="mia").experiments.clear()
    trainer.put(invite="mia")  # a run that goes on invites nobody again
    assert_link_refused(link, 410, "withdrawn")
    trainer.post(f"{trainer.path}/invites", {"labeler": "mia"})
    assert signed_in_as_after(Client(), link) == "mia"


def test_a_labeler_can_be_invited_to_a_second_experiment(trainer: Trainer) -> None:
    second = type(trainer)(trainer.user, "cheetah")
    links = [each.put(invite="you")["invite_url"] for each in (trainer, second)]
    for link in links:
        assert signed_in_as_after(Client(), link) == "you"


def test_link_gives_no_admin_access(link: str) -> None:
    User.objects.filter(labeler__name="mia").update(is_staff=True)
    client = Client()
    response: Any = client.get(link)
    assert response.headers["Location"] == "/accounts/login/?next=%2Fexperiments%2Fhopper%2Flabel"
    assert signed_in_as(client) is None
    assert client.post(link).headers["Location"].startswith("/accounts/login/")
    assert signed_in_as(client) is None
    client.force_login(User.objects.get(labeler__name="mia"))
    response = client.get(link)
    assert response.headers["Location"] == "/experiments/hopper/label"


PASSWORD = "a-long-enough-password"


@pytest.fixture
def ada(db: None) -> User:
    return User.objects.create_user("ada", password=PASSWORD)


def test_signing_in_leads_back_to_where_one_was(ada: User) -> None:
    client = Client()
    page = client.get("/accounts/login/?next=/experiments/hopper/label").content.decode()
    assert 'value="/experiments/hopper/label"' in page
    body = {"username": "ada", "password": PASSWORD, "next": "/experiments/hopper/label"}
    response: Any = client.post("/accounts/login/", body)
    assert response.headers["Location"] == "/experiments/hopper/label"


def test_a_wrong_password_is_said_and_the_name_kept(ada: User) -> None:
    html = Client().post("/accounts/login/", {"username": "ada", "password": "wrong"}).content.decode()
    assert "Incorrect name or password." in html
    assert 'value="ada"' in html
    assert "wrong" not in html.replace("Incorrect name or password.", "")


def test_signing_out_ends_the_session(browser: Browser) -> None:
    response: Any = browser.client.post("/accounts/logout/")
    assert response.headers["Location"] == "/accounts/login/"
    assert browser.client.get("/session").json() == {"account": None}


@pytest.mark.django_db
@pytest.mark.parametrize("language", ["zh-CN", "zh-Hans", "zh-SG,zh;q=0.8", "zh"])
def test_chinese_browsers_get_chinese(language: str) -> None:
    html = Client(headers={"Accept-Language": language}).get("/accounts/login/").content.decode()
    assert "登录" in html
    assert "Sign in" not in html


@pytest.mark.django_db
def test_the_switch_remembers_the_language_and_returns(settings: Settings) -> None:
    settings.REOPEN_COMMAND = "teach site"  # as on an embedded site
    client = Client()
    response: Any = client.post("/i18n/setlang/", {"language": "zh-hans", "next": "/accounts/login/?next=/x"})
    assert response.headers["Location"] == "/accounts/login/?next=/x"
    assert "登录" in client.get("/accounts/login/").content.decode()
    client.post("/i18n/setlang/", {"language": "en", "next": "/"})
    page = client.get("/accounts/login/").content.decode()
    assert "Sign in" in page
    assert "teach site RUN" in page


@pytest.mark.django_db
def test_an_address_without_a_page_says_so() -> None:
    response = Client().get("/nothing-here")
    assert response.status_code == 404
    assert "Page not found" in response.content.decode()


def test_a_failure_has_a_page_that_needs_nothing() -> None:
    response = problems.server_error(RequestFactory().get("/"))
    assert response.status_code == 500
    assert "none of your answers were lost" in response.content.decode()


def test_a_page_that_is_not_allowed_says_so() -> None:
    response = problems.permission_denied(RequestFactory().get("/"), PermissionError())
    assert response.status_code == 403
    assert "You don’t have access to this page" in response.content.decode()


EXPERIMENT = "/experiments/hopper/invite"


def test_the_link_signs_the_new_labeler_in(trainer: Trainer, researcher_browser: Client) -> None:
    assert f'action="{EXPERIMENT}"' in researcher_browser.get("/experiments/hopper/").content.decode()
    html = researcher_browser.post(EXPERIMENT, {"labeler": " grace "}).content.decode()
    [link] = re.findall(r'<input id="link" value="http://testserver(/j/[^"]+)" readonly>', html)
    here = researcher_browser.post(EXPERIMENT, {"labeler": "zoe"}, headers={"host": "localhost:8000"})
    assert ("this computer only" in html, "this computer only" in here.content.decode()) == (False, True)
    labeler = Client()
    labeling = labeler.get(link, follow=True)
    assert labeling.request["PATH_INFO"] == "/experiments/hopper/label"
    assert "This link is for “grace”." in labeling.content.decode()


@pytest.mark.parametrize("name", ["", "ada (owner)", "x" * 51, "<b>"])
def test_names_refused_by_the_api_are_refused(researcher_browser: Client, name: str) -> None:
    response = researcher_browser.post(EXPERIMENT, {"labeler": name})
    assert response.status_code == 400
    assert "Use 1 to 50 letters" in response.content.decode()
    assert list(Labeler.objects.values_list("name", flat=True)) == ["you"]


def test_blocked_cookies_are_reported(trainer: Trainer) -> None:
    client, link = Client(), trainer.put(invite="mia")["invite_url"]
    label = client.get(link).headers["Location"]
    client.cookies.clear()  # as the browser does
    page = client.get(label, follow=True).content.decode()
    assert "your browser blocks this site’s cookies." in page
    assert "just open your invitation link" not in page
    client.cookies["csrftoken"] = "x"  # a session that has expired
    page = client.get(label, follow=True).content.decode()
    assert "cookies" not in page
    assert "just open your invitation link" in page
