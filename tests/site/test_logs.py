"""Each request leaves one line, all that is logged meanwhile carries its id, and nothing opens a door."""

import io
import json
import logging
import logging.config
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import DjangoAssertNumQueries, Settings

from human_feedback_site.feedback.api import authentication, researcher_views
from human_feedback_site.feedback.media.store import media_store
from human_feedback_site.feedback.services import accounts
from human_feedback_site.logs import configuration
from tests.site.conftest import Browser, Trainer

Start = Callable[[str], io.StringIO]
PASSWORD = "correct horse battery staple"


@pytest.fixture
def start(settings: Settings) -> Iterator[Start]:
    """Begin to log in a format, and return where the lines go."""

    def start(log_format: str) -> io.StringIO:
        logging.config.dictConfig(configuration(log_format))
        stream = io.StringIO()
        for name in (None, "gunicorn.error"):
            (handler,) = logging.getLogger(name).handlers
            assert isinstance(handler, logging.StreamHandler)
            handler.setStream(stream)
        return stream

    yield start
    logging.config.dictConfig(settings.LOGGING)


@pytest.fixture
def log(start: Start) -> io.StringIO:
    return start("json")


def lines(log: io.StringIO) -> list[dict[str, Any]]:
    """Return what has been logged since the last call."""
    found = [json.loads(line) for line in log.getvalue().splitlines()]
    log.seek(0)
    log.truncate()
    return found


def test_a_request_is_one_line_with_the_pattern_of_its_address(trainer: Trainer, log: io.StringIO) -> None:
    answer = trainer.send("GET", f"{trainer.path}/decisions?after=0")
    (line,) = lines(log)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
    took = line.pop("milliseconds")
    assert 0 <= took < 10_000
    route = "/api/v1/experiments/<slug:name>/decisions"
    assert line == {
        "level": "INFO",
        "logger": "human_feedback_site.access",
        "request_id": answer["X-Request-ID"],
        "message": f"GET {route} 200, {took} ms, user {trainer.user.pk}",
        "method": "GET",
        "route": route,
        "status": 200,
        "user": trainer.user.pk,
    }


def test_plain_lines_say_the_same(trainer: Trainer, start: Start) -> None:
    log = start("plain")
    answer = trainer.send("GET", "/labels")
    request_id = re.escape(answer["X-Request-ID"])
    expected = (
        rf"\d{{4}}-.{{18}},?\d* INFO human_feedback_site.access \[{request_id}\]: GET /api/v1/labels 4\d\d, "
    )
    assert re.match(expected, log.getvalue())
    assert log.getvalue().count("\n") == 1


def test_a_labeler_is_known_by_number(browser: Browser, log: io.StringIO) -> None:
    browser.ask()
    (line,) = lines(log)
    assert line["user"] == User.objects.get(labeler__name="you").pk


def test_nobody_is_asked_for_only_because_of_the_log(
    browser: Browser, trainer: Trainer, log: io.StringIO, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    trainer.register()
    url = browser.lease()[0]["left"]["url"]
    lines(log)
    with django_assert_num_queries(0):
        assert browser.client.get(url).getvalue()
    (line,) = lines(log)
    assert (line["route"], line["user"]) == ("/media/<str:token>", None)


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
def test_probes_leave_no_line(client: Client, db: None, log: io.StringIO, path: str) -> None:
    assert client.get(path)["X-Request-ID"]
    assert lines(log) == []


@pytest.mark.parametrize("given", ["a", "0b5e1d0e-5c3c-4b8c-9d5e-0d7f8a3c2b11", "Root=1.A_b", "x" * 64])
def test_well_formed_request_id_is_kept(client: Client, log: io.StringIO, given: str) -> None:
    answer = client.get("/nothing", headers={"X-Request-ID": given})
    well_formed = "=" not in given
    assert (answer["X-Request-ID"] == given) is well_formed
    assert [line["request_id"] for line in lines(log)] == [answer["X-Request-ID"]]


@pytest.mark.parametrize("given", ["", "x" * 65, "two words", "a\tb", "<script>", '"}', "é"])
def test_any_other_id_is_replaced(client: Client, log: io.StringIO, given: str) -> None:
    answers = [client.get("/nothing", headers={"X-Request-ID": given}) for _ in range(2)]
    ids = [answer["X-Request-ID"] for answer in answers]
    assert all(re.fullmatch(r"[0-9a-f]{32}", request_id) for request_id in ids)
    assert len(set(ids)) == 2


def test_a_failure_is_logged_once_with_its_traceback_under_the_id_that_people_see(
    trainer: Trainer, browser: Browser, log: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        logging.getLogger("some.library").warning("beforehand")
        raise RuntimeError("it broke")

    monkeypatch.setattr(researcher_views, "decisions_after", fail)
    monkeypatch.setattr(accounts, "participation_of", fail)
    for client, path in (
        (trainer.client, "/api/v1/experiments/hopper/decisions"),
        (browser.client, "/experiments/hopper/label"),
    ):
        client.raise_request_exception = False
        answer = client.get(path)
        assert answer.status_code == 500
        found = lines(log)
        assert {line["request_id"] for line in found} == {answer["X-Request-ID"]}
        assert answer["X-Request-ID"] in answer.content.decode()
        names = [line["logger"] for line in found]
        assert names == ["some.library", "django.request", "human_feedback_site.access"]
        assert ["it broke" in line.get("traceback", "") for line in found] == [False, True, False]


def test_refusals_are_in_the_line_of_the_request_alone(trainer: Trainer, log: io.StringIO) -> None:
    trainer.send("GET", "/nothing")
    trainer.send("POST", f"{trainer.path}/points", {})
    assert [(line["level"], line["status"]) for line in lines(log)] == [("INFO", 404), ("INFO", 400)]


def test_lines_outside_of_requests_have_no_id(client: Client, log: io.StringIO) -> None:
    client.get("/nothing")
    lines(log)
    logging.getLogger("gunicorn.error").info("Booting")
    assert [(line["message"], line["request_id"]) for line in lines(log)] == [("Booting", None)]


@pytest.mark.parametrize("log_format", ["json", "plain"])
def test_no_key_password_or_cookie_is_ever_logged(
    trainer: Trainer, start: Start, log_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = accounts.create_token(trainer.user)
    invitation, clip = trainer.put(invite="zoe")["invite_url"], media_store().url("hopper/x/first.mp4")
    trainer.user.set_password(PASSWORD)
    trainer.user.save()
    log = start(log_format)
    client = Client(enforce_csrf_checks=True, raise_request_exception=False)

    form = {"username": "ada", "password": PASSWORD}
    client.post("/accounts/login/", form)  # without a CSRF token
    client.get("/accounts/login/")
    form["csrfmiddlewaretoken"] = client.cookies["csrftoken"].value
    client.post("/accounts/login/", form)
    keys = [token, PASSWORD, *(link.split("/")[-1] for link in (invitation, clip))]
    keys += [cookie.value for cookie in client.cookies.values()]
    assert len(keys) == 6
    for path in (invitation, clip, f"{invitation}/more"):
        client.get(path)
        client.post(path, {"next": invitation})
    monkeypatch.setattr(accounts, "accept_invite", complain)
    monkeypatch.setattr(authentication, "token_of", complain)
    client.get(invitation)
    client.get("/api/v1/experiments/hopper", headers={"Authorization": f"Bearer {token}"})

    text = log.getvalue()
    assert text.count("Forbidden (CSRF") == 3
    assert text.count("RuntimeError: cannot use ***") == 2
    assert [key for key in keys if key[:16] in text or key[-16:] in text] == []


def complain(key: str) -> None:
    raise RuntimeError(f"cannot use {key}")


@pytest.mark.parametrize(
    ("written", "logged"),
    [
        ("could not connect to redis://:pa55@host:6379/0", "could not connect to redis://***@host:6379/0"),
        ("postgresql://u:p%40ss@h/d", "postgresql://***@h/d"),
        ("GET /x.mp4?X-Amz-Signature=0a1b&y=1", "GET /x.mp4?X-Amz-Signature=***&y=1"),
        (
            "/join/x?PROLIFIC_PID=5a9d&STUDY_ID=1&SESSION_ID=6b",
            "/join/x?PROLIFIC_PID=***&STUDY_ID=1&SESSION_ID=***",
        ),
        ("signed with whsec_MfKQ9r8GKYqrTwjU+/=", "signed with ***"),
        ("at 12:34:56, http://host:8000/a@b", "at 12:34:56, http://host:8000/a@b"),
    ],
)
def test_keys_of_other_services_are_left_out(start: Start, written: str, logged: str) -> None:
    log = start("plain")
    logging.getLogger("some.library").error(written)
    assert log.getvalue().rstrip("\n").split("]: ")[1] == logged
