"""Single sign-on at a real provider: who comes in or joins, with which role, and how they leave."""

import html
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.contrib.auth.models import User
from django.test import Client

from human_feedback_site.feedback.models import Identity, Invite, Labeler
from human_feedback_site.feedback.services import invites
from tests.identity_provider import IdentityProvider
from tests.site.conftest import Trainer, client_of, new_invite
from tests.site.sso.conftest import Configure, Person

Make = Callable[[str], "Person"]


def roles(user: User) -> tuple[bool, bool]:
    return user.is_staff, user.is_superuser


def test_first_sign_in_creates_a_labeler(person: Make, at_provider: IdentityProvider) -> None:
    mia = person("mia")
    assert mia.sign_in().headers["Location"] == "/"
    assert "Nothing to label yet" in mia.client.get("/").content.decode()
    assert roles(mia.user) == (False, False)
    assert not mia.user.has_usable_password()
    assert (mia.user.username, mia.user.email) == ("mia", "")
    assert Labeler.objects.get().name == "mia (SSO)"
    assert Identity.objects.get().issuer == at_provider.url


def test_later_sign_in_finds_the_same_user(person: Make) -> None:
    first, again = person("mia"), person("mia")
    first.sign_in()
    again.sign_in()
    assert again.user == first.user
    assert User.objects.count() == 1


@pytest.mark.parametrize(("name", "expected"), [("ada", (True, False)), ("root", (True, True))])
def test_group_gives_a_role(person: Make, name: str, expected: tuple[bool, bool]) -> None:
    somebody = person(name)
    somebody.sign_in()
    assert roles(somebody.user) == expected
    assert somebody.client.get("/admin/").status_code == (200 if name == "root" else 302)


def test_leaving_the_group_removes_the_role(person: Make, at_provider: IdentityProvider) -> None:
    ada = person("ada")
    ada.sign_in()
    at_provider.set_group("ada", "staff")
    ada.sign_in()
    assert roles(ada.user) == (False, False)
    at_provider.set_group("ada", "admins")
    ada.sign_in()
    assert roles(ada.user) == (True, True)


def test_admin_sets_roles(person: Make, at_provider: IdentityProvider, configure: Configure) -> None:
    configure(at_provider.variables | {"OIDC_RESEARCHERS": "", "OIDC_ADMINS": ""})
    ada = person("ada")
    ada.sign_in()
    assert roles(ada.user) == (False, False)
    User.objects.update(is_staff=True)
    ada.sign_in()
    assert roles(ada.user) == (True, False)


def test_local_account_of_the_same_name_is_kept(person: Make) -> None:
    local = User.objects.create_superuser("mia", "mia@example.org", "a-long-enough-password")
    mia = person("mia")
    mia.sign_in()
    assert mia.user != local
    assert re.fullmatch("mia-[0-9a-f]{8}", mia.user.username)
    assert roles(mia.user) == (False, False)
    assert Client().login(username="mia", password="a-long-enough-password")


def test_user_removed_at_the_provider_stays_out(person: Make, at_provider: IdentityProvider) -> None:
    mia, again = person("mia"), person("mia")
    mia.sign_in()
    at_provider.set_active("mia", active=False)
    with pytest.raises(AssertionError, match="The provider refuses"):
        again.sign_in()
    assert not again.is_signed_in
    with pytest.raises(AssertionError, match="The provider refuses"):
        mia.sign_in()  # the provider forgot its session, too


def test_session_expires(person: Make, at_provider: IdentityProvider, configure: Configure) -> None:
    configure(at_provider.variables | {"OIDC_SESSION_HOURS": "2"})
    mia = person("mia")
    mia.sign_in()
    ends = mia.client.session.get_expiry_date()
    assert 7100 < mia.client.session.get_expiry_age() <= 7200
    session = mia.client.session
    session["anything"] = 1
    session.save()
    assert mia.client.session.get_expiry_date() == ends


def test_user_disabled_here_stays_out(person: Make) -> None:
    mia = person("mia")
    mia.sign_in()
    User.objects.update(is_active=False)
    assert not mia.is_signed_in
    response = mia.sign_in()
    assert response.status_code == 403
    assert "Your account on this site is disabled." in response.content.decode()
    assert not mia.is_signed_in


@pytest.mark.parametrize("address", ["/accounts/logout/", "/admin/logout/"])
def test_signing_out_ends_both_sessions(person: Make, address: str) -> None:
    root = person("root")
    root.sign_in()
    response = root.client.post(address)
    assert "no-store" in response.headers["Cache-Control"]
    page = response.content.decode()
    assert not root.is_signed_in
    [elsewhere] = re.findall(r'http-equiv="refresh" content="0; url=([^"]+)"', page)
    assert root.visit_provider(html.unescape(elsewhere)) == "/accounts/login/"
    assert "/login/" in root.session.get(root.leave()).url  # the provider asks again


def test_admins_are_redirected_to_the_sign_in_page(person: Make) -> None:
    root = person("root")
    response: Any = root.client.get("/admin/feedback/labeler/", follow=True)
    assert "Single sign-on" in response.content.decode()
    assert "next=%2Fadmin%2Ffeedback%2Flabeler%2F" in response.content.decode()
    assert root.sign_in("/admin/").headers["Location"] == "/admin/"
    assert root.client.get("/admin/").status_code == 200


def test_signing_in_returns_to_the_previous_page(person: Make) -> None:
    page = Client().get("/accounts/login/?next=/experiments/hopper/label%3Fa%3D1").content.decode()
    assert 'href="/accounts/sso/?next=%2Fexperiments%2Fhopper%2Flabel%3Fa%3D1"' in page
    assert person("mia").sign_in("/experiments/hopper/label?a=1").headers["Location"].endswith("/label?a=1")


@pytest.mark.parametrize("elsewhere", ["https://elsewhere.example/", "//elsewhere.example/", "javascript:x"])
def test_signing_in_never_redirects_elsewhere(person: Make, elsewhere: str) -> None:
    assert person("mia").sign_in(elsewhere).headers["Location"] == "/"


def test_signing_in_replaces_the_previous_session(person: Make) -> None:
    local = User.objects.create_user("bob", password="a-long-enough-password")
    mia = person("mia")
    mia.client.force_login(local)
    session = mia.client.session
    session["of"] = "bob"
    session.save()
    mia.sign_in()
    assert mia.user != local
    assert "of" not in mia.client.session
    assert "http-equiv" in mia.client.post("/accounts/logout/").content.decode()


def test_request_has_state_nonce_and_pkce_challenge(person: Make) -> None:
    asked = parse_qs(urlsplit(person("mia").leave()).query)
    assert asked["code_challenge_method"] == ["S256"]
    assert {"state", "nonce", "code_challenge"} <= asked.keys()
    assert asked["scope"] == ["openid profile"]


def test_code_works_once_in_its_browser(person: Make) -> None:
    mia, eve = person("mia"), person("eve")
    address = mia.visit_provider(mia.leave())
    eve.leave()
    for client, status in ((eve.client, 400), (mia.client, 302), (mia.client, 400)):
        assert client.get(address).status_code == status
    assert not eve.is_signed_in
    assert mia.is_signed_in


@pytest.mark.parametrize(
    "query", ["", "?state=forged&code=forged", "?error=access_denied", "?state=a&error=b"]
)
def test_forged_callback_changes_nothing(person: Make, query: str) -> None:
    mia = person("mia")
    mia.sign_in()
    response = mia.client.get(f"/accounts/sso/callback/{query}")
    assert response.status_code == 400
    assert "This sign-in has expired" in response.content.decode()
    assert mia.is_signed_in


def test_provider_refusal_is_explained(person: Make) -> None:
    mia = person("mia")
    [state] = parse_qs(urlsplit(mia.leave()).query)["state"]
    response = mia.client.get("/accounts/sso/callback/", {"state": state, "error": "access_denied"})
    assert response.status_code == 403
    assert "The sign-in service refused." in response.content.decode()


@pytest.mark.parametrize("address", ["/accounts/sso/", "/accounts/sso/callback/"])
def test_callback_accepts_only_get(person: Make, address: str) -> None:
    client = person("mia").client
    assert client.post(address).status_code == 405
    assert client.delete(address).status_code == 405


def test_password_still_works_for_local_accounts(at_provider: IdentityProvider) -> None:
    User.objects.create_user("bob", password="a-long-enough-password")
    client = Client()
    body = {"username": "bob", "password": "a-long-enough-password"}
    response: Any = client.post("/accounts/login/?state=a&code=b", body)
    assert response.headers["Location"] == "/"
    response = client.post("/accounts/logout/")
    assert response.headers["Location"] == "/accounts/login/"  # and not to the provider


@pytest.mark.parametrize(("language", "shown"), [("en", "Sign in with"), ("zh-hans", "登录")])
def test_button_shows_the_providers_name(
    at_provider: IdentityProvider, configure: Configure, language: str, shown: str
) -> None:
    configure(at_provider.variables | {"OIDC_NAME": "Lab <b>"})
    page = Client(headers={"Accept-Language": language}).get("/accounts/login/").content.decode()
    [button] = re.findall(r'<a class="button wide" href="/accounts/sso/">(.*?)</a>', page, re.DOTALL)
    assert "Lab &lt;b&gt;" in button
    assert shown in button


def new_link(trainer: Trainer) -> str:
    return invites.link_of(new_invite(trainer.experiment, limit=2), "")


@pytest.fixture
def link(trainer: Trainer) -> str:
    """An invitation for many."""
    return new_link(trainer)


def test_invitation_with_own_name(person: Make, link: str) -> None:
    mia = person("mia")
    assert mia.sign_in(link).headers["Location"] == link
    assert "Start as mia (SSO)" in mia.client.get(link).content.decode()
    user = mia.user
    response: Any = mia.client.post(link, {"own": ""})
    assert response.headers["Location"] == "/experiments/hopper/label"
    assert mia.user == user
    assert Invite.objects.get().uses == 1
    response = mia.client.get(link)  # and again, which is no use more
    assert response.headers["Location"] == "/experiments/hopper/label"
    assert Invite.objects.get().uses == 1


def test_invitation_with_a_pseudonym(person: Make, link: str) -> None:
    mia = person("mia")
    mia.sign_in()
    user = mia.user
    mia.client.post(link)
    assert mia.user != user
    assert not user.labeler.experiments.exists()


def test_invitation_without_sso_gives_a_pseudonym(link: str, at_provider: IdentityProvider) -> None:
    client = client_of(bob := User.objects.create(username="bob"))
    assert "pseudonym." in client.get(link).content.decode()
    client.post(link, {"own": ""})
    assert client.session["_auth_user_id"] != str(bob.pk)


def test_removed_labeler_cannot_rejoin_by_another_link(person: Make, link: str, trainer: Trainer) -> None:
    mia = person("mia")
    mia.sign_in()
    mia.client.post(link, {"own": ""})
    labeler = mia.user.labeler
    labeler.experiments.clear()
    assert mia.client.get(link).status_code == 410
    another = new_link(trainer)
    assert "Start as" not in mia.client.get(another).content.decode()
    mia.client.post(another, {"own": ""})
    assert not labeler.experiments.exists()
