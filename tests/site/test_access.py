"""Every endpoint refuses whoever may not use it, and whatever it cannot understand, with a problem."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

if TYPE_CHECKING:
    from django.http import HttpResponse

    from tests.site.conftest import Api, Browser, Trainer

UUID_1 = "8e7505d5-1260-471c-98e8-ef3c8c74ead5"


@dataclass(frozen=True)
class Endpoint:
    """One method of one address; ``body`` is valid for it."""

    method: str
    path: str
    body: dict[str, Any] | None = None
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
ENDPOINTS = [
    *(PUT, REGISTER, CANCEL, POINTS, INVITES, EPISODES, LEASES, LABELS, UNDO),
    Endpoint("GET", "/experiments/hopper/examples", labeler=True),
    Endpoint("GET", "/experiments/hopper/progress", labeler=True),
    Endpoint("GET", "/experiments/hopper/comparisons"),
    Endpoint("GET", "/experiments/hopper/decisions"),
    *(
        Endpoint("GET", f"/experiments/hopper/{table}.{extension}")
        for table in ("comparisons", "labels")
        for extension in ("csv", "parquet")
    ),
    Endpoint("GET", f"/experiments/hopper/leases/{UUID_1}"),
]


def bad(endpoint: Endpoint, field: str, *values: Any) -> list[tuple[Endpoint, Any]]:
    """The endpoint's valid body, with each of the values in turn in a field."""
    return [(endpoint, {**(endpoint.body or {}), field: value}) for value in values]


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
    *bad(INVITES, "labeler", "", None, "a/b", "x" * 51),
    *bad(LEASES, "count", 0, 6, "x", None),
    *bad(LEASES, "held", ["no"], UUID_1, [UUID_1] * 51),
    *bad(LEASES, "shown", "no"),
    *bad(LABELS, "uuid", "no", None),
    *bad(LABELS, "lease", "no", None),
    *bad(LABELS, "choice", "first", None),
    *bad(LABELS, "response_ms", -1, 2**31, "fast"),
    *bad(LABELS, "shown_ms", -1, 2**31, "long"),
    *bad(EPISODES, "step", -1, None, "x"),
    *bad(EPISODES, "key", "", None, "x" * 301),
    *bad(UNDO, "uuid", "no", None),
]
RESEARCHER = [endpoint for endpoint in ENDPOINTS if not endpoint.labeler]
LABELER = [endpoint for endpoint in ENDPOINTS if endpoint.labeler]
WITH_BODY = [endpoint for endpoint in ENDPOINTS if endpoint.body is not None]
METHODS = {"GET", "PUT", "POST", "PATCH", "DELETE"}


def check_problem(response: HttpResponse, status: int, hint: object = "") -> Any:
    assert response.status_code == status, (hint, response.content.decode())
    assert response["Content-Type"] == "application/problem+json"
    problem = json.loads(response.content)
    assert problem["status"] == status
    assert set(problem) - {"errors"} == {"type", "title", "status", "detail"}
    assert problem["detail"]
    return problem


@pytest.fixture
def anonymous(browser: Browser) -> Api:
    browser.client.logout()
    return browser


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=str)
def test_nobody_is_let_in_without_signing_in(anonymous: Api, endpoint: Endpoint) -> None:
    response = anonymous.send(endpoint.method, endpoint.path, endpoint.body)
    check_problem(response, 401)
    assert response["WWW-Authenticate"] == ("Session" if endpoint.labeler else "Bearer")


@pytest.mark.parametrize("header", ["Bearer tt_wrong", "Bearer ", "bearer x y"])
@pytest.mark.parametrize("endpoint", RESEARCHER, ids=str)
def test_a_wrong_token_is_refused(anonymous: Api, endpoint: Endpoint, header: str) -> None:
    anonymous.client = Client(headers={"Authorization": header})
    check_problem(anonymous.send(endpoint.method, endpoint.path, endpoint.body), 401)


def test_the_token_of_an_inactive_user_is_refused(trainer: Trainer) -> None:
    User.objects.filter(pk=trainer.user.pk).update(is_active=False)
    check_problem(trainer.send("GET", f"{trainer.path}/decisions"), 401)


def test_the_token_of_somebody_who_is_no_longer_staff_is_refused(trainer: Trainer) -> None:
    User.objects.filter(pk=trainer.user.pk).update(is_staff=False)
    check_problem(trainer.send("GET", f"{trainer.path}/decisions"), 403)


@pytest.mark.parametrize("endpoint", RESEARCHER, ids=str)
def test_labelers_may_not_do_what_researchers_do(browser: Browser, endpoint: Endpoint) -> None:
    check_problem(browser.send(endpoint.method, endpoint.path, endpoint.body), 403)


@pytest.mark.parametrize("endpoint", LABELER, ids=str)
def test_a_token_does_not_make_a_labeler(trainer: Trainer, endpoint: Endpoint) -> None:
    check_problem(trainer.send(endpoint.method, endpoint.path, endpoint.body), 401)


@pytest.mark.parametrize("endpoint", [each for each in RESEARCHER if each.method != "PUT"], ids=str)
def test_experiments_of_others_do_not_exist(trainer: Trainer, stranger: Trainer, endpoint: Endpoint) -> None:
    check_problem(stranger.send(endpoint.method, endpoint.path, endpoint.body), 404)


def test_a_run_of_somebody_else_cannot_be_resumed(trainer: Trainer, stranger: Trainer) -> None:
    body = trainer.description(prompt="Mine now")
    check_problem(stranger.send("PUT", trainer.path, body), 404)
    assert trainer.experiment.prompt == "Which hops higher?"


def test_labelers_see_only_experiments_they_were_invited_to(browser: Browser, stranger: Trainer) -> None:
    check_problem(browser.send("POST", f"{stranger.path}/leases", {"count": 1}), 404)


def test_leases_and_labels_of_others_do_not_exist(trainer: Trainer, invite: Callable[[str], Browser]) -> None:
    trainer.register()
    one, other = invite("one"), invite("other")
    [lease] = one.lease()
    check_problem(other.send("POST", "/labels", other.label(lease)), 404)
    label = one.answer(lease)
    check_problem(other.send("POST", f"/labels/{label['uuid']}/undo", {"uuid": str(uuid4())}), 404)


def test_leases_of_other_experiments_are_not_shown(
    trainer: Trainer, stranger: Trainer, browser: Browser
) -> None:
    trainer.register()
    [lease] = browser.lease()
    check_problem(stranger.send("GET", f"{stranger.path}/leases/{lease['uuid']}"), 404)


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=str)
def test_other_methods_are_refused(trainer: Trainer, browser: Browser, endpoint: Endpoint) -> None:
    allowed = {each.method for each in ENDPOINTS if each.path == endpoint.path}
    for method in METHODS - allowed:
        response = (browser if endpoint.labeler else trainer).send(method, endpoint.path, {})
        check_problem(response, 405)
        assert endpoint.method in response["Allow"]


@pytest.mark.parametrize("endpoint", WITH_BODY, ids=str)
def test_bodies_that_do_not_fit_are_refused(trainer: Trainer, browser: Browser, endpoint: Endpoint) -> None:
    bodies = [body for each, body in BAD if each is endpoint]
    assert bodies
    for body in [*bodies, [], "text", 7, {}]:
        response = (browser if endpoint.labeler else trainer).send(endpoint.method, endpoint.path, body)
        problem = check_problem(response, 400, str(body)[:200])
        assert problem["errors"]
        assert all(error["pointer"].startswith("#") and error["detail"] for error in problem["errors"])


@pytest.mark.parametrize("endpoint", WITH_BODY, ids=str)
def test_what_is_not_json_is_refused(trainer: Trainer, browser: Browser, endpoint: Endpoint) -> None:
    client = (browser if endpoint.labeler else trainer).client
    path = f"/api/v1{endpoint.path}"
    for content in (b"", b"{", b"\xff", b'{"count": NaN}', b'{"count": 1e999}'):
        response: Any = client.generic(endpoint.method, path, content, content_type="application/json")
        check_problem(response, 400, content)


@pytest.mark.parametrize("endpoint", WITH_BODY, ids=str)
def test_other_content_types_are_refused(trainer: Trainer, browser: Browser, endpoint: Endpoint) -> None:
    client = (browser if endpoint.labeler else trainer).client
    path = f"/api/v1{endpoint.path}"
    check_problem(client.generic(endpoint.method, path, "a=1", content_type="text/plain"), 415)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "path",
    [
        *("/labels/no-uuid/undo", "/experiments/hopper/leases/no-uuid", "/nothing", "/experiments/hopper/"),
        *("/experiments/a%00b/points", "/experiments/a b/points", "/experiments//points"),
    ],
)
def test_addresses_without_anything_are_problems_too(trainer: Trainer, path: str) -> None:
    check_problem(trainer.send("POST", path, {}), 404)


@pytest.mark.parametrize("what", ["decisions", "comparisons"])
def test_pages_that_make_no_sense_are_refused(trainer: Trainer, what: str) -> None:
    for query in ("after=-1", "after=x", "limit=0", "limit=1001", "after=9" + "9" * 30):
        check_problem(trainer.send("GET", f"{trainer.path}/{what}?{query}"), 400, query)


def test_infinite_returns_are_refused(trainer: Trainer) -> None:
    comparison = trainer.comparison()
    comparison["first"]["true_return"] = "1e999"
    check_problem(trainer.send("POST", f"{trainer.path}/comparisons", {"comparisons": [comparison]}), 400)


def test_writing_with_a_session_needs_the_csrf_token(trainer: Trainer, browser: Browser) -> None:
    trainer.register()
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = browser.client.cookies
    body = json.dumps({"count": 1})
    path = "/api/v1/experiments/hopper/leases"
    check_problem(strict.post(path, body, content_type="application/json"), 403)  # type: ignore[arg-type]
    strict.get("/experiments/hopper/label")
    token = strict.cookies["csrftoken"].value
    accepted = strict.post(path, body, content_type="application/json", headers={"X-CSRFToken": token})
    assert accepted.status_code == 200


def test_every_endpoint_is_in_the_list_above() -> None:
    listed = {endpoint.path.replace("hopper", "*").replace(UUID_1, "*") for endpoint in ENDPOINTS}
    assert set(_api_routes(get_resolver().url_patterns)) == listed


def _api_routes(patterns: Any, prefix: str = "") -> Iterator[str]:
    for each in patterns:
        route = prefix + str(each.pattern)
        if isinstance(each, URLResolver):
            yield from _api_routes(each.url_patterns, route)
        elif isinstance(each, URLPattern) and route.startswith("api/v1/"):
            yield "/" + re.sub(r"<\w+:\w+>", "*", route.removeprefix("api/v1/"))
