"""Nothing that a provider sends is believed before it is verified; the variables of single sign-on."""

import io
import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from django.contrib.auth.models import User
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.test import Client, override_settings
from django.urls import NoReverseMatch, reverse

from tests.servers import Handler, serving
from tests.site.conftest import settings_of
from tests.site.sso.conftest import Configure, Person

OWN, FOREIGN = (rsa.generate_private_key(public_exponent=65537, key_size=2048) for _ in range(2))
CURVE = ec.generate_private_key(ec.SECP256R1())
CLIENT, SECRET = "rl-teacher", "a-secret-of-the-client-long-enough"


class Forger(ThreadingHTTPServer):
    """A provider whose next answers a test decides.

    Attributes:
        metadata: changes to what it says about itself; None takes a field away.
        claims: changes to the claims of the ID token, likewise.
        key, algorithm, header: what the token is signed with.
        answers: what it answers at a path instead, as status and body.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.metadata: dict[str, object] = {}
        self.claims: dict[str, object] = {}
        self.key: Any = OWN
        self.algorithm = "RS256"
        self.header: dict[str, object] = {"kid": "1"}
        self.answers: dict[str, tuple[int, str]] = {}
        self.authorization = ""
        self.nonce = ""

    def answer(self, path: str) -> tuple[int, str]:
        if path in self.answers:
            return self.answers[path]
        return 200, json.dumps(getattr(self, f"_{path.rpartition('/')[2].replace('-', '_')}")())

    def _openid_configuration(self) -> object:
        urls = {"authorization_endpoint": "authorize", "token_endpoint": "token"}
        urls |= {"jwks_uri": "keys", "userinfo_endpoint": "userinfo"}
        found = {"issuer": self.url, **{name: f"{self.url}/{path}" for name, path in urls.items()}}
        return _without_none(found | self.metadata)

    def _keys(self) -> object:
        rs = jwt.algorithms.RSAAlgorithm.to_jwk(OWN.public_key(), as_dict=True)
        es = jwt.algorithms.ECAlgorithm.to_jwk(CURVE.public_key(), as_dict=True)
        return {"keys": [{**rs, "kid": "1", "alg": "RS256"}, {**es, "kid": "2", "alg": "ES256"}]}

    def _token(self) -> object:
        now = int(time.time())
        claims = {
            "iss": self.url,
            "sub": "mia",
            "aud": CLIENT,
            "exp": now + 60,
            "iat": now,
            "nonce": self.nonce,
        }
        token = jwt.encode(_without_none(claims | self.claims), self.key, self.algorithm, self.header)
        return {"id_token": token, "access_token": "x", "token_type": "Bearer"}

    def _userinfo(self) -> object:
        return {"sub": "mia", "groups": ["researchers"]}


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


class _Answer(Handler):
    def do_GET(self) -> None:
        status, body = self.server.answer(self.path)
        self.reply(status, body, [("Content-Type", "application/json")])

    def do_POST(self) -> None:
        self.body()
        self.server.authorization = self.headers.get("Authorization", "")
        self.do_GET()


@pytest.fixture
def forger(db: None, configure: Configure) -> Iterator[Forger]:
    """A provider that forges nothing yet."""
    server = Forger()
    with serving(server):
        block = {"OIDC_ISSUER": server.url, "OIDC_CLIENT_ID": CLIENT, "OIDC_CLIENT_SECRET": SECRET}
        configure(block | {"OIDC_RESEARCHERS": "researchers"})
        yield server


@pytest.fixture
def come_back(forger: Forger) -> Callable[[], tuple[Person, Any]]:
    """Sign in at the provider; return who did, and the site's answer."""

    def come_back() -> tuple[Person, Any]:
        mia = Person("mia")
        asked = parse_qs(urlsplit(mia.leave()).query)
        forger.nonce = asked["nonce"][0]
        query = {"state": asked["state"][0], "code": "x"}
        return mia, mia.client.get("/accounts/sso/callback/", query)

    return come_back


ComeBack = Callable[[], tuple[Person, Any]]


def test_honest_provider_is_accepted(forger: Forger, come_back: ComeBack) -> None:
    mia, _ = come_back()
    assert mia.is_signed_in
    assert mia.user.is_staff  # by what the userinfo endpoint says
    assert forger.authorization.startswith("Basic ")  # it names no other way


def test_elliptic_curve_signatures_are_accepted(forger: Forger, come_back: ComeBack) -> None:
    forger.metadata = {"id_token_signing_alg_values_supported": ["ES256"]}
    forger.key, forger.algorithm, forger.header = CURVE, "ES256", {"kid": "2"}
    assert come_back()[0].is_signed_in


def test_groups_in_the_token_win(forger: Forger, come_back: ComeBack) -> None:
    forger.claims = {"groups": "others"}
    mia, _ = come_back()
    assert not mia.user.is_staff


def test_groups_from_userinfo_count(forger: Forger, come_back: ComeBack) -> None:
    forger.claims = {"_claim_names": {"groups": "src1"}}
    assert come_back()[0].user.is_staff


@pytest.mark.parametrize(
    "groups", [None, "researchers-x", ["x"], [["researchers"]], {"a": "researchers"}, 7, True]
)
def test_other_values_give_no_role(forger: Forger, come_back: ComeBack, groups: object) -> None:
    forger.metadata = {"userinfo_endpoint": None}
    forger.claims = {"groups": groups}
    mia, _ = come_back()
    assert not mia.user.is_staff


@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "https://elsewhere.example"},
        {"iss": None},
        {"aud": "another-client"},
        {"aud": ["another-client"]},
        {"aud": None},
        {"azp": "another-client"},
        {"exp": 1},
        {"exp": None},
        {"iat": 99_999_999_999},
        {"nonce": "of-another-sign-in"},
        {"nonce": None},
        {"sub": "eve"},  # the userinfo endpoint says mia
        {"sub": None},
        {"sub": ""},
        {"sub": "x" * 256},
        {"sub": "a\0b"},
    ],
    ids=str,
)
def test_wrong_claims_are_refused(forger: Forger, come_back: ComeBack, claims: dict[str, object]) -> None:
    forger.claims = claims
    if claims.get("sub") != "eve":
        forger.metadata = {"userinfo_endpoint": None}
    _expect_nobody(come_back)


@pytest.mark.parametrize(
    ("key", "algorithm", "header"),
    [
        (FOREIGN, "RS256", {"kid": "1"}),
        (FOREIGN, "RS256", {"kid": "unknown"}),
        (OWN, "RS256", {}),
        (CURVE, "ES256", {"kid": "2"}),  # the provider names RS256
        (SECRET, "HS256", {"kid": "1"}),
        (None, "none", {"kid": "1"}),
    ],
    ids=["another key", "unknown key", "no key", "ES256", "HS256", "none"],
)
def test_wrong_signatures_are_refused(
    forger: Forger, come_back: ComeBack, key: object, algorithm: str, header: dict[str, object]
) -> None:
    forger.key, forger.algorithm, forger.header = key, algorithm, header
    _expect_nobody(come_back)


@pytest.mark.parametrize("path", ["/token", "/keys", "/userinfo"])
@pytest.mark.parametrize("answer", [(500, ""), (200, "<html>"), (200, "[]"), (200, "{}")], ids=str)
def test_broken_token_responses_are_refused(
    forger: Forger, come_back: ComeBack, path: str, answer: tuple[int, str]
) -> None:
    forger.answers[path] = answer
    _expect_nobody(come_back)


def _expect_nobody(come_back: ComeBack) -> None:
    mia, response = come_back()
    assert response.status_code == 502
    assert "The sign-in service is not available" in response.content.decode()
    assert not mia.is_signed_in
    assert not User.objects.exists()


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"issuer": "https://elsewhere.example"}, "must contain the issuer http://127.0.0.1"),
        ({"issuer": None}, "must contain the issuer http://127.0.0.1"),
        ({"token_endpoint": "http://elsewhere.example/token"}, "token_endpoint must be an https URL"),
        ({"jwks_uri": None}, "jwks_uri must be an https URL, not None"),
        ({"end_session_endpoint": "javascript:x"}, "end_session_endpoint must be an https URL"),
    ],
)
def test_untrusted_metadata_is_refused(
    forger: Forger, caplog: pytest.LogCaptureFixture, metadata: dict[str, object], message: str
) -> None:
    forger.metadata = metadata
    _expect_no_redirect(caplog, message)


@pytest.mark.parametrize("answer", [(404, ""), (200, "<html>"), (200, "[]")], ids=str)
def test_missing_metadata_is_logged_in_one_line(
    forger: Forger, caplog: pytest.LogCaptureFixture, answer: tuple[int, str]
) -> None:
    forger.answers["/.well-known/openid-configuration"] = answer
    _expect_no_redirect(caplog, f"{forger.url}/.well-known/openid-configuration ")


def _expect_no_redirect(caplog: pytest.LogCaptureFixture, message: str) -> None:
    response = Person("mia").client.get("/accounts/sso/")
    assert response.status_code == 502
    [line] = [each.getMessage() for each in caplog.records if each.name.endswith("sso.views")]
    assert line.startswith("Single sign-on failed: ")
    assert message in line
    assert "\n" not in line


def test_unreachable_provider_signs_nobody_in(
    forger: Forger, come_back: ComeBack, configure: Configure, caplog: pytest.LogCaptureFixture
) -> None:
    mia, _ = come_back()
    configure({"OIDC_ISSUER": "http://127.0.0.1:9", "OIDC_CLIENT_ID": CLIENT, "OIDC_CLIENT_SECRET": SECRET})
    response: Any = mia.client.post("/accounts/logout/")
    assert response.headers["Location"] == "/accounts/login/"
    assert not mia.is_signed_in
    assert "signed out here, but not at the identity provider" in caplog.text


def test_no_secret_is_logged(forger: Forger, come_back: ComeBack, caplog: pytest.LogCaptureFixture) -> None:
    forger.answers["/token"] = (400, '{"error": "invalid_grant"}')
    with caplog.at_level("DEBUG"):
        come_back()
    assert "invalid_grant" in caplog.text
    assert SECRET not in caplog.text


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
