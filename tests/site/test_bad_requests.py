"""Endpoints refuse what is malformed, malicious, or somebody else's, with a problem."""

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.conf import settings as site
from django.contrib.auth.models import User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.http import HttpResponse
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from human_feedback_site.feedback.models import Comparison, Experiment, Label, Lease
from tests.site.conftest import Browser, Invited, Trainer, client_of

SCRIPT = "<script>alert(1)</script>"
UUID_1 = "8e7505d5-1260-471c-98e8-ef3c8c74ead5"


@dataclass(frozen=True)
class Endpoint:
    """One method of one address; ``body`` is valid for it."""

    method: str
    path: str
    body: dict[str, Any]
    labeler: bool = False

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


_CLIP = {"key": "hopper/x/first.mp4", "true_return": None}
_COMPARISON = {"uuid": UUID_1, "phase": "training", "step": 0, "priority": 1, "first": _CLIP, "second": _CLIP}
PUT = Endpoint(
    "PUT",
    "/experiments/hopper",
    {"run_id": UUID_1, "env_id": "E", "prompt": "?", "n_labels": None, "fps": 40, "has_true_reward": False},
)
REGISTER = Endpoint("POST", "/experiments/hopper/comparisons", {"comparisons": [_COMPARISON]})
CANCEL = Endpoint("POST", "/experiments/hopper/cancel", {"comparisons": [UUID_1]})
POINTS = Endpoint(
    "POST",
    "/experiments/hopper/points",
    {"points": [{"step": 1, "values": {"a/b": 1.5}}], "waiting_for": None},
)
INVITES = Endpoint("POST", "/experiments/hopper/invites", {"labeler": "bot-1"})
LEASES = Endpoint("POST", "/experiments/hopper/leases", {"count": 1, "held": [], "shown": None}, labeler=True)
LABELS = Endpoint(
    "POST", "/labels", {"uuid": UUID_1, "lease": UUID_1, "choice": "left", "response_ms": 1}, labeler=True
)
UNDO = Endpoint("POST", f"/labels/{UUID_1}/undo", {"uuid": UUID_1}, labeler=True)
EPISODES = Endpoint("POST", "/experiments/hopper/episodes", {"step": 5, "key": "hopper/episodes/5.mp4"})
ENDPOINTS = [PUT, REGISTER, CANCEL, POINTS, INVITES, EPISODES, LEASES, LABELS, UNDO]


def bad(endpoint: Endpoint, field: str, *values: Any) -> list[tuple[Endpoint, Any]]:
    """The endpoint's valid body, with each of the values in turn in a field."""
    return [(endpoint, {**endpoint.body, field: value}) for value in values]


def bad_comparison(field: str, *values: Any) -> list[tuple[Endpoint, Any]]:
    return bad(REGISTER, "comparisons", *([{**_COMPARISON, field: value}] for value in values))


def bad_point(field: str, *values: Any) -> list[tuple[Endpoint, Any]]:
    return bad(POINTS, "points", *([{"step": 1, "values": {"a": 1}, field: value}] for value in values))


BAD = [
    *bad(PUT, "run_id", "no", None),
    *bad(PUT, "env_id", "", None, "x" * 201),
    *bad(PUT, "prompt", "", "a\x00b", "x" * 2001),
    *bad(PUT, "n_labels", -1, 1.5, 2**31),
    *bad(PUT, "fps", 0, None, "fast"),
    *bad(PUT, "has_true_reward", "maybe"),
    *bad(PUT, "state", "paused"),
    *bad(PUT, "invite", "", "a/b", "x" * 51),
    *bad(REGISTER, "comparisons", [], {}, [[]], [_COMPARISON, _COMPARISON], None),
    *bad(REGISTER, "comparisons", [{**_COMPARISON, "uuid": f"{UUID_1[:-3]}{i}"} for i in range(100, 301)]),
    *bad_comparison("uuid", "no"),
    *bad_comparison("phase", "later"),
    *bad_comparison("step", -1, 2**63),
    *bad_comparison("priority", "high"),
    *bad_comparison("first", None, {}, {**_CLIP, "key": ""}, {**_CLIP, "true_return": "much"}),
    *bad(CANCEL, "comparisons", ["no"], UUID_1, None),
    *bad_point("step", -1, "x", None),
    *bad_point("values", {}, [1], {"a": "x"}, {"": 1}, {"a" * 101: 1}, {"a\n": 1}),
    *bad(POINTS, "points", [{"step": 1, "values": {"a": 1}}] * 1001),
    *bad(POINTS, "waiting_for", -1),
    *bad(INVITES, "labeler", "", None, "a/b", "x" * 51, SCRIPT, "a\x00b", "a\nb", '"onload=', "../x"),
    *bad(LEASES, "count", 0, 11, "x", None),
    *bad(LEASES, "held", ["no"], UUID_1, [UUID_1] * 51),
    *bad(LEASES, "shown", "no"),
    *bad(LABELS, "uuid", "no", None),
    *bad(LABELS, "lease", "no", None),
    *bad(
        LABELS, "choice", "first", None, "LEFT", "left\x00", "left ", "", "🤸", ["left"], {"left": 1}, True, 0
    ),
    *bad(LABELS, "response_ms", -1, 2**31, "fast"),
    *bad(LABELS, "shown_ms", -1, 2**31, "long"),
    *bad(LABELS, "reason", "x" * 501, None),
    *bad(EPISODES, "step", -1, None, "x"),
    *bad(EPISODES, "key", "", None, "x" * 301),
    *bad(UNDO, "uuid", "no", None),
]


def check_problem(response: HttpResponse, status: int, hint: object = "") -> Any:
    assert response.status_code == status, (hint, response.content.decode())
    assert response["Content-Type"] == "application/problem+json"
    problem = json.loads(response.content)
    assert problem["status"] == status
    assert set(problem) - {"errors"} == {"type", "title", "status", "detail"}
    assert problem["detail"]
    return problem


@pytest.mark.parametrize(
    "header", ["Bearer tt_wrong", "Bearer ", "bearer x y", "Basic YTpi", "Token tt_wrong"]
)
def test_a_wrong_token_is_refused(trainer: Trainer, header: str) -> None:
    trainer.client = Client(headers={"Authorization": header})
    check_problem(trainer.send("GET", f"{trainer.path}/decisions"), 401)


@pytest.mark.parametrize(("lost", "status"), [("is_active", 401), ("is_staff", 403)])
def test_the_token_of_a_former_researcher_is_refused(trainer: Trainer, lost: str, status: int) -> None:
    User.objects.filter(pk=trainer.user.pk).update(**{lost: False})
    check_problem(trainer.send("GET", f"{trainer.path}/decisions"), status)


@pytest.mark.both_databases
@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=str)
def test_bodies_that_do_not_fit_are_refused(trainer: Trainer, browser: Browser, endpoint: Endpoint) -> None:
    bodies = [body for each, body in BAD if each is endpoint]
    assert bodies
    for body in [*bodies, [], "text", 7, {}]:
        response = (browser if endpoint.labeler else trainer).send(endpoint.method, endpoint.path, body)
        problem = check_problem(response, 400, str(body)[:200])
        assert problem["errors"]
        assert all(error["pointer"].startswith("#") and error["detail"] for error in problem["errors"])


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=str)
def test_invalid_json_is_refused(trainer: Trainer, browser: Browser, endpoint: Endpoint) -> None:
    client = (browser if endpoint.labeler else trainer).client
    path = f"/api/v1{endpoint.path}"
    for content in (b"", b"{", b"\xff", b'{"count": NaN}', b'{"count": 1e999}'):
        response: Any = client.generic(endpoint.method, path, content, content_type="application/json")
        check_problem(response, 400, content)


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=str)
def test_other_content_types_are_refused(trainer: Trainer, browser: Browser, endpoint: Endpoint) -> None:
    client = (browser if endpoint.labeler else trainer).client
    path = f"/api/v1{endpoint.path}"
    check_problem(client.generic(endpoint.method, path, "a=1", content_type="text/plain"), 415)  # type: ignore[arg-type]


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=str)
def test_ten_megabytes_are_too_much(trainer: Trainer, browser: Browser, endpoint: Endpoint) -> None:
    client = browser if endpoint.labeler else trainer
    response = client.send(endpoint.method, endpoint.path, {"padding": "x" * 10 * 2**20})
    problem = check_problem(response, 413)
    assert problem["title"] == "Request Entity Too Large"  # with any Python
    assert "2621440 bytes" in problem["detail"]


@pytest.mark.both_databases
@pytest.mark.parametrize(
    "path",
    [
        *("/labels/no-uuid/undo", "/experiments/hopper/leases/no-uuid", "/nothing", "/experiments/hopper/"),
        *("/experiments/a%00b/points", "/experiments/a b/points", "/experiments//points"),
    ],
)
def test_addresses_without_anything_are_problems_too(trainer: Trainer, path: str) -> None:
    check_problem(trainer.send("POST", path, {}), 404)


@pytest.mark.both_databases
@pytest.mark.parametrize("what", ["decisions", "comparisons"])
def test_pages_that_make_no_sense_are_refused(trainer: Trainer, what: str) -> None:
    for query in ("after=-1", "after=x", "limit=0", "limit=1001", "after=9" + "9" * 30):
        check_problem(trainer.send("GET", f"{trainer.path}/{what}?{query}"), 400, query)


def test_infinite_returns_are_refused(trainer: Trainer) -> None:
    comparison = trainer.comparison()
    comparison["first"]["true_return"] = "1e999"
    check_problem(trainer.send("POST", f"{trainer.path}/comparisons", {"comparisons": [comparison]}), 400)


def test_every_endpoint_with_a_body_is_in_the_list_above(client: Client) -> None:
    schema = client.get("/api/schema/?format=json").json()
    described = {
        (method.upper(), path.removeprefix("/api/v1"))
        for path, operations in schema["paths"].items()
        for method, operation in operations.items()
        if "requestBody" in operation
    }
    listed = {
        (each.method, each.path.replace("hopper", "{name}").replace(UUID_1, "{uuid}")) for each in ENDPOINTS
    }
    assert listed == described


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        ('{"points": [], "x": "\\ud800"}', "surrogate"),
        ('{"points": [], "\\udfff": 1}', "surrogate"),
        ('{"points": [{"step": 1' + "0" * 9_000 + "}]}", "JSON parse error"),
    ],
    ids=["lists", "objects", "surrogate", "surrogate in a key", "long number"],
)
def test_it_is_refused_with_a_problem(trainer: Trainer, body: str, detail: str) -> None:
    response = trainer.client.post(f"/api/v1{trainer.path}/points", body, content_type="application/json")
    assert (response.status_code, response["Content-Type"]) == (400, "application/problem+json")
    assert detail in json.loads(response.content)["detail"]


def test_a_character_of_two_surrogates_is_kept(trainer: Trainer) -> None:
    body = json.dumps(trainer.description(prompt="Which one is a 🤸?"))
    assert "\\ud83e" in body
    assert trainer.put(prompt="Which one is a 🤸?")["prompt"] == "Which one is a 🤸?"


def test_pointers_escape_the_characters_that_separate_them(trainer: Trainer) -> None:
    points = [{"step": 1, "values": {"a/b~c": "x"}}]
    response = trainer.send("POST", f"{trainer.path}/points", {"points": points})
    [error] = json.loads(response.content)["errors"]
    assert error["pointer"] == "#/points/0/values/a~1b~0c"


def test_undo_before_its_answer_is_refused_and_repeatable(browser: Browser, lease: Any) -> None:
    label = browser.label(lease)
    undo = {"uuid": str(uuid4())}
    path = f"/labels/{label['uuid']}/undo"
    assert browser.send("POST", path, undo).status_code == 404
    browser.post("/labels", label)
    assert browser.send("POST", path, undo).status_code == 201
    assert Comparison.objects.get().n_labels == 0


def test_an_answer_sent_again_after_its_undo_stays_undone(
    trainer: Trainer, browser: Browser, lease: Any
) -> None:
    label = browser.label(lease)
    browser.post("/labels", label)
    browser.undo(label)
    assert browser.send("POST", "/labels", label).status_code == 200
    assert Comparison.objects.get().n_labels == 0
    assert trainer.decisions()["items"][-1]["decision"] is None


def test_reordered_answers_count_for_their_own_leases(trainer: Trainer, browser: Browser) -> None:
    trainer.register(3)
    given = browser.lease(3)
    for lease, choice in zip(reversed(given), ("left", "right", "equal"), strict=True):
        assert browser.answer(lease, choice)["status"] == "counted"
    said = {str(label.comparison.uuid): label.choice for label in Label.objects.select_related("comparison")}
    assert [said[lease["comparison"]] for lease in given] == ["equal", "right", "left"]


@pytest.mark.parametrize("state", ["paused", "finished"])
def test_closed_experiment_leases_nothing(trainer: Trainer, browser: Browser, state: str) -> None:
    trainer.register(2)
    [lease] = browser.lease()
    Experiment.objects.update(state=state)
    reply = browser.ask(2, held=[lease["uuid"]])
    assert (reply["leases"], reply["renewed"], reply["lost"]) == ([], [], [lease["uuid"]])
    assert reply["state"] == trainer.decisions()["state"] == state


def test_leases_and_labels_of_others_do_not_exist(trainer: Trainer, invite: Invited) -> None:
    trainer.register()
    one, other = invite("one"), invite("other")
    [lease] = one.lease()
    check_problem(other.send("POST", "/labels", other.label(lease)), 404)
    label = one.answer(lease)
    check_problem(other.send("POST", f"/labels/{label['uuid']}/undo", {"uuid": str(uuid4())}), 404)


@pytest.mark.both_databases
def test_abandoned_lease_goes_to_the_next(trainer: Trainer, invite: Invited, settings: Settings) -> None:
    settings.LEASE_SECONDS = 1
    trainer.register()
    leaver, other = invite("leaver"), invite("other")
    leaver.lease()
    while not (taken := other.lease()):
        pass  # the database's clock goes on
    old, new = Lease.objects.order_by("pk")
    assert str(new.uuid) == taken[0]["uuid"]
    assert old.expires_at <= new.created_at < old.expires_at + timedelta(seconds=5)


@pytest.mark.both_databases
@pytest.mark.parametrize("said", ["1999-01-01T00:00:00Z", "2099-01-01T00:00:00Z"])
def test_a_browsers_clock_says_nothing(browser: Browser, lease: Any, said: str) -> None:
    browser.answer(lease, created_at=said, expires_at=said, response_ms=2**31 - 1)
    label = Label.objects.get()
    assert abs(label.created_at - timezone.now()) < timedelta(minutes=5)
    assert label.lease.created_at <= label.created_at


@pytest.mark.both_databases
@pytest.mark.parametrize(
    "name", ["%3Cscript%3E", "a%00b", "%F0%9F%A4%B8", "a%2Fb", "..%2Fx", "with space", "a" * 101, "a.b", "ä"]
)
def test_names_of_experiments_are_plain(trainer: Trainer, name: str) -> None:
    response = trainer.send("PUT", f"/experiments/{name}", trainer.description())
    assert response.status_code == (404 if "%2F" in name else 400)
    assert Experiment.objects.count() == 1


@pytest.mark.both_databases
@pytest.mark.parametrize("path", ["/experiments/hopper/leases", "/labels"])
def test_a_session_that_no_site_gave_is_nobodys(trainer: Trainer, path: str) -> None:
    trainer.register()
    client = Client()
    client.cookies.load(f'{site.SESSION_COOKIE_NAME}="abcdefgh\\000ijkl"')  # NUL, as cookies write it
    body = json.dumps({"count": 1, "uuid": str(uuid4()), "lease": str(UUID(int=1)), "choice": "left"})
    response = client.post(f"/api/v1{path}", body, content_type="application/json")
    assert response.status_code == 401


PAGES = pytest.mark.parametrize(
    "path", ["/accounts/login/", "/admin/login/", "/i18n/setlang/", "/experiments/hopper/prompt"]
)


@PAGES
def test_files_are_as_little_as_other_forms(trainer: Trainer, path: str) -> None:
    file = SimpleUploadedFile("film.mp4", bytes(3 * 2**20))
    client = client_of(trainer.user)
    response = client.post(path, {"file": file})
    assert (response.status_code, response.content) == (413, b"The request must not exceed 2621440 bytes.")
    assert "Content-Security-Policy" in response


@pytest.mark.parametrize("length", ["x", "-1", "9" * 5000])
def test_invalid_content_length_is_read_as_zero(db: None, length: str) -> None:
    assert Client().get("/accounts/login/", CONTENT_LENGTH=length).status_code == 200


@PAGES
@pytest.mark.parametrize("charset", ["rot13", "base64", "idna", "utf-7", "utf-16"])
def test_forms_are_utf_8(trainer: Trainer, path: str, charset: str) -> None:
    client = client_of(trainer.user)
    form = b'--x\r\nContent-Disposition: form-data; name="prompt"\r\n\r\na\r\n--x--\r\n'
    content_type = f"multipart/form-data; boundary=x; charset={charset}"
    response: Any = client.generic("POST", path, form, content_type)
    assert response.status_code == 400
