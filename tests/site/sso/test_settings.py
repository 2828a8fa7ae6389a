"""Variables of single sign-on: without them nothing changes, and those that can't work are refused."""

import io
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.test import Client, override_settings
from django.urls import NoReverseMatch, reverse

from tests.site.conftest import settings_of
from tests.site.sso.conftest import Configure

BLOCK = {
    "OIDC_ISSUER": "https://login.example.org/realms/lab/",
    "OIDC_CLIENT_ID": "rl-teacher",
    "OIDC_CLIENT_SECRET": "a-secret",
}


@pytest.fixture
def read(tmp_path: Path) -> Any:
    """Read the settings from these variables."""
    return lambda **variables: settings_of(TEACHER_STATE_DIR=str(tmp_path), **variables)


def test_without_variables_sso_is_off(db: None, read: Any) -> None:
    assert read()["AUTHENTICATION_BACKENDS"] == ["django.contrib.auth.backends.ModelBackend"]
    for address in ("/accounts/sso/", "/accounts/sso/callback/"):
        assert Client().get(address).status_code == 404
    with pytest.raises(NoReverseMatch):
        reverse("sso")
    page = Client().get("/accounts/login/").content.decode()
    assert "sso" not in page
    assert "Single sign-on" not in page


def test_sso_adds_only_urls_and_a_backend(read: Any, configure: Configure) -> None:
    without, given = read(), read(**BLOCK)
    changed = {name for name in given if given[name] != without[name]}
    own = {name for name in changed if name.startswith("OIDC_")}
    assert own == {"OIDC_ISSUER", "OIDC_RP_CLIENT_ID", "OIDC_RP_CLIENT_SECRET"}
    assert changed - own == {"SINGLE_SIGN_ON", "AUTHENTICATION_BACKENDS"}
    configure(BLOCK)
    assert reverse("sso-callback") == "/accounts/sso/callback/"


def test_values_are_parsed(read: Any) -> None:
    given = read(**BLOCK, OIDC_RESEARCHERS="a, b,", OIDC_SCOPES="profile  groups", OIDC_NAME=" Lab ")
    assert given["OIDC_ISSUER"] == "https://login.example.org/realms/lab"
    assert given["OIDC_RESEARCHERS"] == ["a", "b"]
    assert given["OIDC_RP_SCOPES"] == "openid profile groups"
    assert given["OIDC_NAME"] == "Lab"
    assert (given["OIDC_ROLE_CLAIM"], given["OIDC_SESSION_HOURS"]) == ("groups", 8)


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost", "[::1]:8080"])
def test_local_provider_may_use_http(read: Any, host: str) -> None:
    assert read(**BLOCK | {"OIDC_ISSUER": f"http://{host}"})["SINGLE_SIGN_ON"]


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"OIDC_ISSUER": "http://login.example.org"}, "must begin with https://"),
        ({"OIDC_ISSUER": "http://127.0.0.1.example.org"}, "must begin with https://"),
        ({"OIDC_ISSUER": "login.example.org"}, "must look like https://"),
        ({"OIDC_SESSION_HOURS": "0"}, "must be a whole number from 1 to 720"),
    ],
)
def test_invalid_values_are_refused(read: Any, variables: dict[str, str], message: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=re.escape(message)):
        read(**BLOCK | variables)


def test_missing_package_is_named(read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mozilla_django_oidc", None)
    with pytest.raises(ImproperlyConfigured, match=r"pip install 'rl-teacher\[sso\]'"):
        read(**BLOCK)


@pytest.mark.parametrize("missing", BLOCK)
def test_incomplete_settings_name_what_is_missing(read: Any, missing: str) -> None:
    given = {name: value for name, value in BLOCK.items() if name != missing}
    assert f"set {missing}, or unset {' and '.join(given)}." in problem(read(**given))


def test_roles_alone_are_incomplete(read: Any) -> None:
    assert "or unset OIDC_RESEARCHERS." in problem(read(OIDC_RESEARCHERS="researchers"))


def problem(values: dict[str, Any]) -> str:
    """Return what ``manage.py check`` says."""
    del values["DATABASES"]  # Django would not notice that they change
    with override_settings(**values), pytest.raises(CommandError, match=r"feedback\.E001") as caught:
        call_command("check", stdout=io.StringIO(), stderr=io.StringIO())
    return str(caught.value)


def test_complete_settings_are_accepted(read: Any) -> None:
    values = read(**BLOCK)
    del values["DATABASES"]
    with override_settings(**values):
        call_command("check", stdout=io.StringIO())
