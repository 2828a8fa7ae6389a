"""Passwords and tokens may be tried a few times, no header hides an address, and names come in any script."""

import io
import logging
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.db.models.functions import Now
from django.test import Client, RequestFactory
from pytest_django import Settings

from human_feedback_site.feedback import addresses
from human_feedback_site.feedback.addresses import client_address
from human_feedback_site.feedback.errors import TooManyAttemptsError
from human_feedback_site.feedback.models import Attempts, Labeler, validate_labeler_name
from human_feedback_site.feedback.services import accounts, chores, identities, limits
from tests.site.conftest import Trainer, client_of, own_connection

PASSWORD = "correct horse battery staple"
PAGES = pytest.mark.parametrize("page", ["/accounts/login/", "/admin/login/"])
HERE, THERE = "192.0.2.1", "198.51.100.7"


@pytest.fixture
def ada(db: None) -> User:
    return User.objects.create_superuser("ada", password=PASSWORD)


def sign_in(page: str, password: str, address: str = HERE, name: str = "ada") -> Any:
    return Client(REMOTE_ADDR=address).post(page, {"username": name, "password": password})


def fail(page: str, times: int, address: str = HERE, name: str = "ada") -> list[int]:
    return [sign_in(page, "wrong", address, name).status_code for _ in range(times)]


@pytest.mark.both_databases
@PAGES
def test_after_some_failures_not_even_the_right_password_is_looked_at(ada: User, page: str) -> None:
    assert fail(page, limits.MOST_OF_NAME) == [200] * limits.MOST_OF_NAME
    refused = sign_in(page, PASSWORD)
    assert "sessionid" not in "".join(refused.cookies)
    html = refused.content.decode()
    assert "Too many attempts. Try again in 10 min." in html
    assert "Incorrect name or password" not in html
    if page == "/accounts/login/":
        assert refused.status_code == 429
        assert 400 <= int(refused.headers["Retry-After"]) <= 600


@PAGES
def test_others_at_other_addresses_are_not_locked_out(ada: User, page: str) -> None:
    fail(page, limits.MOST_OF_NAME + 1)
    assert sign_in(page, PASSWORD, THERE).status_code == 302


def test_the_two_pages_count_together_and_names_alike(ada: User) -> None:
    fail("/accounts/login/", 3)
    fail("/admin/login/", 2, name="ADA")
    assert sign_in("/accounts/login/", PASSWORD).status_code == 429


def test_another_name_at_the_same_address_may_still_be_tried(ada: User) -> None:
    fail("/accounts/login/", limits.MOST_OF_NAME + 1, name="eve")
    assert sign_in("/accounts/login/", PASSWORD).status_code == 302


@pytest.mark.both_databases
def test_signing_in_forgets_the_failures(ada: User) -> None:
    for _ in range(2):
        fail("/accounts/login/", limits.MOST_OF_NAME - 1)
        assert sign_in("/accounts/login/", PASSWORD).status_code == 302


def test_one_address_cannot_try_many_names(ada: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_OF_ADDRESS", 8)
    for number in range(4):
        fail("/accounts/login/", 2, name=f"name-{number}")
    assert sign_in("/accounts/login/", PASSWORD).status_code == 429
    assert sign_in("/accounts/login/", PASSWORD, THERE).status_code == 302


@pytest.mark.both_databases
def test_the_wait_ends_however_often_somebody_tries_meanwhile(ada: User) -> None:
    fail("/accounts/login/", limits.MOST_OF_NAME)
    ends_at = sorted(Attempts.objects.values_list("ends_at", flat=True))
    assert fail("/accounts/login/", 3) == [429] * 3
    assert sorted(Attempts.objects.values_list("ends_at", flat=True)) == ends_at
    Attempts.objects.update(ends_at=Now())
    assert sign_in("/accounts/login/", PASSWORD).status_code == 302


@pytest.mark.both_databases
def test_typed_names_are_not_kept_and_rows_expire(ada: User) -> None:
    fail("/accounts/login/", 1, name=PASSWORD)
    assert Attempts.objects.count() == 2
    assert not [row for row in Attempts.objects.values_list("digest", flat=True) if PASSWORD in row]
    assert chores.forget_attempts() == "0 deleted"
    Attempts.objects.update(ends_at=Now() - timedelta(seconds=1))
    assert chores.forget_attempts() == "2 deleted"


@pytest.mark.both_databases
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("count", [partial(limits.begin_sign_in, "ada"), limits.count_wrong_token])
def test_concurrent_attempts_count(count: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_WRONG_TOKENS", limits.MOST_OF_NAME)

    @own_connection
    def attempt(_: int) -> bool:
        try:
            count(HERE)
        except TooManyAttemptsError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, range(24))) == limits.MOST_OF_NAME


@pytest.mark.both_databases
@pytest.mark.django_db(transaction=True)
def test_concurrent_guesses_get_one_answer(ada: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_WRONG_TOKENS", 7)

    def password(_: int) -> int:
        return int(sign_in("/accounts/login/", "wrong").status_code)

    def token(number: int) -> int:
        guess = {"Authorization": f"Bearer tt_{number}"}
        return Client(headers=guess).get("/api/v1/experiments/hopper").status_code

    for guess, looked_at, most in ((password, 200, limits.MOST_OF_NAME), (token, 401, 7)):
        with ThreadPoolExecutor(8) as pool:
            statuses = list(pool.map(own_connection(guess), range(24)))
        assert Counter(statuses) == {looked_at: most, 429: 24 - most}


def test_only_wrong_tokens_are_limited(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_WRONG_TOKENS", 3)
    path = f"/api/v1{trainer.path}/decisions"
    guess = {"Authorization": "Bearer tt_wrong"}
    assert [Client(headers=guess).get(path).status_code for _ in range(4)] == [401, 401, 401, 429]
    refused = Client(headers=guess).get(path)
    assert refused["Content-Type"] == "application/problem+json"
    assert 400 <= int(refused["Retry-After"]) <= 600
    assert trainer.send("GET", f"{trainer.path}/decisions").status_code == 200
    assert Client(headers=guess, REMOTE_ADDR=THERE).get(path).status_code == 401


@pytest.mark.parametrize(
    ("proxies", "forwarded", "found"),
    [
        (0, "203.0.113.9", HERE),
        (1, "203.0.113.9", "203.0.113.9"),
        (1, "6.6.6.6, 203.0.113.9", "203.0.113.9"),
        (2, "6.6.6.6, 203.0.113.9, 10.0.0.1", "203.0.113.9"),
        (2, "203.0.113.9", HERE),
        (1, "", HERE),
        (1, "unknown", HERE),
        (1, "6.6.6.6, <script>", HERE),
        (1, "2001:db8::1", "2001:db8::1"),
        (1, "10.0.2.1:5123", "10.0.2.1"),
        (1, "6.6.6.6:1, 10.0.2.1:5123", "10.0.2.1"),
        (2, "203.0.113.9:80 , 10.0.2.1:5123", "203.0.113.9"),
        (1, '"10.0.2.1:5123"', "10.0.2.1"),
        (1, '6.6.6.6, " 10.0.2.1"', "10.0.2.1"),
        (1, "[2001:db8::1]:5123", "2001:db8::1"),
        (1, "[2001:db8::1]", "2001:db8::1"),
        (1, '"[2001:DB8::1]:5123"', "2001:db8::1"),
        (1, "2001:db8:0:0:0:0:0:1:5123", "2001:db8::1"),
        (1, "fe80::1%eth0", "fe80::1"),
        (1, "6.6.6.6,", HERE),  # the proxy knew no address; what is left of it may be forged
        (1, "6.6.6.6, ", HERE),
        (1, '6.6.6.6, ""', HERE),
        (1, "6.6.6.6,\t", HERE),
        (2, "6.6.6.6,,10.0.0.1", HERE),
        (2, "6.6.6.6, 203.0.113.9,", "203.0.113.9"),
        (1, "  ", HERE),
        (1, "10.0.2.1:99999", "10.0.2.1"),
        (1, "[2001:db8::1]x", HERE),
        (1, "[203.0.113.9]:80", HERE),
        (1, "[2001:db8::1", HERE),
        (1, "[]:80", HERE),
        (1, "10.0.2.1:", HERE),
        (1, "10.0.2.1:http", HERE),
        (1, ":5123", HERE),
        (1, "10.0.2.256:5123", HERE),
        (1, "_hidden", HERE),
        (1, ", ,", HERE),
    ],
)
def test_address_from_proxies(settings: Settings, proxies: int, forwarded: str, found: str) -> None:
    settings.PROXIES = proxies
    request = RequestFactory().get("/", headers={"X-Forwarded-For": forwarded}, REMOTE_ADDR=HERE)
    assert client_address(request) == found


def test_an_entry_that_cannot_be_read_is_logged_once(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(addresses, "_complained", threading.Event())
    settings.PROXIES = 1
    for entry in ("203.0.113.9:80", "proxy-7:80" + 100 * "x", "unknown"):
        request = RequestFactory().get("/", headers={"X-Forwarded-For": entry}, REMOTE_ADDR=HERE)
        client_address(request)
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert "has 'proxy-7:80" in record.getMessage()
    assert f"share the rate limit of {HERE}" in record.getMessage()
    assert len(record.getMessage()) < 300


def test_a_forged_header_does_not_make_new_attempts(ada: User, settings: Settings) -> None:
    settings.PROXIES = 1
    for number in range(limits.MOST_OF_NAME):
        client = Client(headers={"X-Forwarded-For": f"6.6.6.{number}, {THERE}"})
        client.post("/accounts/login/", {"username": "ada", "password": "wrong"})
    for forwarded, status in ((f"6.6.6.9, {THERE}", 429), ("198.51.100.8:80", 302)):
        client = Client(headers={"X-Forwarded-For": forwarded})
        answer = client.post("/accounts/login/", {"username": "ada", "password": PASSWORD})
        assert answer.status_code == status


def test_the_addresses_of_an_ipv6_network_count_as_one() -> None:
    assert limits.network("2001:db8:1:2:aaaa::1") == limits.network("2001:db8:1:2:bbbb::2")
    assert limits.network("2001:db8:1:2::1") != limits.network("2001:db8:1:3::1")
    assert limits.network("::ffff:192.0.2.1") == "192.0.2.1"
    assert limits.network("") == ""


HINDI, TAMIL, PERSIAN, SINHALA = "मीरा", "தமிழ்", "علی\u200cرضا", "ශ්\u200dරී"
COMPOSED, DECOMPOSED = "Jos\u00e9", "Jose\u0301"


@pytest.mark.parametrize(
    "name",
    [
        HINDI,
        TAMIL,
        PERSIAN,
        SINHALA,
        COMPOSED,
        DECOMPOSED,
        "สมหญิง",
        "Nguyễn",
        "李雷",
        "e\u0301" * 50,
        "a.b-c_7",
    ],
)
def test_names_are_letters_of_any_script(name: str) -> None:
    validate_labeler_name(name)


@pytest.mark.parametrize(
    "name",
    [
        *("", "x" * 51, "a b", "<b>", "a\n", "\u0301a", "-\u0301", "a\u20dd", "😀"),
        *(
            "mi\u200da",
            "mia\u200d",
            "mia\ufe0f",
            "\u3164",
            "علی\u200c",
            "mi\u200ba",
            "mi\u202ea",
        ),  # invisible
    ],
    ids=ascii,
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="Use 1 to 50 letters"):
        validate_labeler_name(name)


def by_run(trainer: Trainer, name: str) -> None:
    assert Client().get(trainer.put(invite=name)["invite_url"]).status_code == 302


def by_api(trainer: Trainer, name: str) -> None:
    trainer.post(f"{trainer.path}/invites", {"labeler": name})


def by_page(trainer: Trainer, name: str) -> None:
    ada = client_of(trainer.user)
    assert ada.post("/experiments/hopper/invite", {"labeler": f" {name} "}).status_code == 200


def by_form(trainer: Trainer, name: str) -> None:
    ada = client_of(trainer.user)
    form = {"kind": "named", "labeler_name": name, "days": "3"}
    assert ada.post("/experiments/hopper/invites", form).status_code in {200, 302}


def by_command(trainer: Trainer, name: str) -> None:
    call_command("create_invite", "hopper", name, site_url="http://testserver", stdout=io.StringIO())


@pytest.mark.parametrize("invite", [by_run, by_api, by_page, by_form, by_command])
def test_a_name_is_one_labeler(trainer: Trainer, invite: Callable[[Trainer, str], None]) -> None:
    Labeler.objects.all().delete()
    for name in (DECOMPOSED, COMPOSED, HINDI, PERSIAN):
        invite(trainer, name)
    assert set(Labeler.objects.values_list("name", flat=True)) == {COMPOSED, HINDI, PERSIAN}
    assert Labeler.objects.get(name=DECOMPOSED).user.username.startswith(f"{COMPOSED}-")


@pytest.mark.parametrize(
    ("name", "username"),
    [
        (HINDI, HINDI),
        (DECOMPOSED, COMPOSED),
        (PERSIAN, "علیرضا"),
        (f"{TAMIL} x@example.org", f"{TAMIL}-x"),
        ("\u0301", "user"),
    ],
)
def test_single_sign_on_keeps_a_name(db: None, name: str, username: str) -> None:
    user = identities.user_of({"iss": "https://login.example", "sub": "1", "preferred_username": name})
    assert user.username == username
    user.full_clean(exclude=["password"])


@pytest.mark.parametrize("name", [HINDI, PERSIAN, "mia (SSO)", "(\u0301)"])
def test_admin_can_edit_users_with_such_names(trainer: Trainer, name: str) -> None:
    accounts.labeler_named(trainer.user, name).user.full_clean(exclude=["password"])


def test_the_admin_finds_a_name_however_it_is_typed(trainer: Trainer, root: Client) -> None:
    accounts.labeler_named(trainer.user, COMPOSED)
    shown: Any = root.get("/admin/feedback/labeler/", {"q": DECOMPOSED}).context["cl"]
    assert [labeler.name for labeler in shown.result_list] == [COMPOSED]


def test_django_takes_usernames_with_marks(db: None) -> None:
    User(username=HINDI, password="x").full_clean()
    with pytest.raises(ValidationError, match="valid username"):
        User(username="a b", password="x").full_clean()


def test_commands_find_a_user_and_a_token_however_they_are_typed(db: None) -> None:
    user = User.objects.create(username=COMPOSED, is_staff=True)
    call_command("create_token", DECOMPOSED, name=DECOMPOSED, stdout=io.StringIO())
    assert user.api_tokens.get().name == COMPOSED
    call_command("revoke_tokens", DECOMPOSED, name=DECOMPOSED, stdout=io.StringIO())
    assert not user.api_tokens.exists()
