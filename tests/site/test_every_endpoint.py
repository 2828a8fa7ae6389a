"""Every address, every role and every method: what nobody, labelers, researchers, tokens and the admin get.

A new address needs a row. What belongs to somebody else answers 404.
"""

import itertools
import json
import re
import socket
import sys
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.core import signing
from django.db import transaction
from django.test import Client
from django.urls import URLResolver, get_resolver
from django.utils import timezone

from human_feedback_site.feedback.services import accounts, experiments, invites
from human_feedback_site.feedback.services.accounts import (
    create_token,
    labeler_named,
    revoke_tokens,
)
from human_feedback_site.feedback.tables.columns import TABLES
from human_feedback_site.feedback.tables.files import FILE_TYPES
from tests.databases import is_sqlite
from tests.site.conftest import RUN, Browser, Trainer, assert_guarded

# The admin is a superuser who owns nothing; "other" is a researcher with experiments of its own.
ROLES = ("nobody", "outsider", "labeler", "other", "owner", "admin")
# Of the owner, but for the second; "elsewhere" is good for another experiment alone.
TOKENS = ("own", "foreign", "elsewhere", "expired", "revoked")
METHODS = {"GET", "POST", "PUT", "PATCH", "DELETE", "TRACE"}
PASSWORD = "correct horse"  # of the owner
UUID_1 = "8e7505d5-1260-471c-98e8-ef3c8c74ead5"
X, E = "experiments/<slug:name>/", "/experiments/hopper/"
API_X, API_E = f"api/v1/{X}", f"/api/v1{E}"


@dataclass(frozen=True)
class Row:
    """One method of one address, and the status that each role gets, in the order of the roles."""

    route: str
    method: str
    path: str
    expected: tuple[int, ...]
    body: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def is_api(self) -> bool:
        """Return whether it answers with JSON alone."""
        return self.route.startswith("api/v1/")

    def of_tokens(self) -> dict[str, int]:
        """What each token gets: it opens what its user may, of the API for researchers, and no page."""
        of = dict(zip(ROLES, self.expected, strict=True))
        if not self.is_api or of["labeler"] != 403:
            return dict.fromkeys(TOKENS, of["nobody"])
        return {"own": of["owner"], "foreign": of["other"], "elsewhere": 403, "expired": 401, "revoked": 401}


def page(route: str, *expected: int, method: str = "GET", path: str | None = None, **body: Any) -> Row:
    return Row(X + route, method, E + (route if path is None else path), expected, body)


def api(route: str, *expected: int, method: str = "GET", path: str | None = None, **body: Any) -> Row:
    return Row(API_X + route, method, API_E + (route if path is None else path), expected, body)


TO_ALL = (200,) * 6
MANAGED = (302, 404, 404, 404, 200, 200)  # pages of an experiment, for who manages it
STEERED = (302, 404, 404, 404, 302, 302)  # and its forms, which lead to a page
LABELED = (302, 404, 200, 404, 200, 404)  # pages of labelers; its owner may label, too
OWNED = (401, 403, 403, 404, 200, 404)  # the API is the owner's alone
LEASED = (401, 404, 200, 404, 200, 404)
ANSWERED = (401, 404, 201, 404, 404, 404)  # whose it is

SETTINGS: dict[str, Any] = {  # of an experiment, all changed
    "overlap": 2,
    "overlap_share": 0.1,
    "overlap_more": 4,
    "aggregation": "majority",
    "gold_rate": 0.2,
    "repeat_rate": 0.3,
    "min_watch_ms": 500,
    "warn_failures": 2,
    "stop_failures": 4,
}
LABELERS_OWN = (302, 404, 302, 404, 404, 404)  # an answer, which is its labeler's alone

PAGES = [
    Row("", "GET", "/", (302, 200, 200, 200, 200, 200)),
    page("", 302, 404, 302, 404, 200, 200),
    page("live", *MANAGED),
    page("comparisons", *MANAGED),
    page("review", *MANAGED),
    page("comparisons/<uuid:uuid>", *MANAGED, path="comparisons/{comparison}"),
    *(
        page(f"comparisons/<uuid:uuid>/{side}", *STEERED, path=f"comparisons/{{comparison}}/{side}")
        for side in ("first", "second")
    ),
    *(  # a pair has no such clips
        page(f"comparisons/<uuid:uuid>/{side}", 302, *[404] * 5, path=f"comparisons/{{comparison}}/{side}")
        for side in ("third", "fourth")
    ),
    page(
        "comparisons/<uuid:uuid>/act",
        *STEERED,
        method="POST",
        path="comparisons/{comparison}/act",
        action="relabel",
    ),
    page("episodes/<number:step>", 302, 404, 302, 404, 302, 302, path="episodes/7"),
    page("examples/<uuid:uuid>", *STEERED, method="POST", path="examples/{comparison}", better="first"),
    page("examples/<uuid:uuid>/remove", *STEERED, method="POST", path="examples/{comparison}/remove"),
    page("label", *LABELED),
    page("history", *LABELED),
    *(
        page(
            "history/<uuid:label_uuid>",
            *LABELERS_OWN,
            method="POST",
            path="history/{label}",
            uuid=UUID_1,
            choice=choice,
        )
        for choice in ("left", "right")  # as it was answered, and otherwise
    ),
    *(
        page(f"history/<uuid:label_uuid>/{side}", *LABELERS_OWN, path=f"history/{{label}}/{side}")
        for side in ("left", "right")
    ),
    page("history/<uuid:label_uuid>/clips/<number:place>", *LABELERS_OWN, path="history/{label}/clips/2"),
    page("done", *LABELED),
    page("consent", 302, 404, 302, 404, 302, 404),  # there is no text, so it leads on
    page("consent", 302, 404, 302, 404, 302, 404, method="POST"),
    page("consent/text", *STEERED, method="POST", text=""),
    page("invite", *MANAGED, method="POST", labeler="mia"),
    page("invites", *MANAGED),
    page("invites", 302, 404, 404, 404, 302, 302, method="POST", kind="named", labeler_name="mia", days=1),
    page("invites/<number:number>/revoke", *STEERED, method="POST", path="invites/{invite}/revoke"),
    page("labelers/<number:number>", *MANAGED, path="labelers/{labeler}"),
    *(
        page(f"labelers/<number:number>/{step}", *STEERED, method="POST", path=f"labelers/{{labeler}}/{step}")
        for step in ("block", "readmit")
    ),
    page("participants", *MANAGED),
    page("participants/forget", *STEERED, method="POST", all="yes"),
    page("participants/forget", *STEERED, method="POST", participant="0" * 24),
    *(
        page("<slug:table>.<slug:extension>", *MANAGED, path=f"{table}.{extension}")
        for table in TABLES
        for extension in FILE_TYPES
    ),
    page("settings", *MANAGED),
    page("settings", *STEERED, method="POST", **SETTINGS),
    page("prompt", *STEERED, method="POST", prompt="Which?", version=1),
    page("pause", *STEERED, method="POST"),
    page("resume", *STEERED, method="POST"),
    page("finish", *MANAGED),
    page("finish", *STEERED, method="POST", confirm="yes"),
    page("reopen", *STEERED, method="POST"),
    Row("join/<str:token>", "GET", "/join/forged", (404,) * 6),
    Row("join/<str:token>", "GET", "{join}", (302, 200, 200, 200, 200, 200)),  # who is signed in is asked
    Row("join/<str:token>", "POST", "{join}", (302,) * 6),
    Row("j/<str:token>", "GET", "/j/forged", (404,) * 6),
    Row("j/<str:token>", "GET", "{short}", (302, 200, 302, 200, 200, 200)),
    Row("j/<str:token>", "POST", "{short}", (302,) * 6),
    Row("j/<str:token>", "GET", "{owner_link}", (302,) * 6),
    Row("session", "GET", "/session", TO_ALL),
    Row("accounts/login/", "GET", "/accounts/login/", TO_ALL),
    Row("accounts/login/", "POST", "/accounts/login/", (302,) * 6, {"username": "ada", "password": PASSWORD}),
    Row("i18n/setlang/", "POST", "/i18n/setlang/", (302,) * 6, {"language": "en", "next": "/"}),
    Row("media/<str:token>", "GET", "/media/forged", (404,) * 6),
    Row("media/<str:token>", "GET", "{clip}", TO_ALL),  # the link is the key
    Row("livez", "GET", "/livez", TO_ALL),
    Row("readyz", "GET", "/readyz", TO_ALL),
    Row("api/schema/", "GET", "/api/schema/", TO_ALL),
    Row("api/docs/", "GET", "/api/docs/", TO_ALL),
    Row("accounts/logout/", "POST", "/accounts/logout/", (302,) * 6),
]
PUT = {**RUN, "run_id": UUID_1, "n_labels": None}
CLIP = {"key": "{key}", "true_return": 1.0}
PAIR = {"uuid": UUID_1, "phase": "training", "step": 1, "priority": 1, "first": CLIP, "second": CLIP}
EXPERIMENT = "api/v1/experiments/<str:name>"
ENDPOINTS = [
    Row(EXPERIMENT, "PUT", "/api/v1/experiments/own", (401, 403, 403, 201, 201, 201), PUT),
    Row(EXPERIMENT, "PUT", "/api/v1/experiments/hopper", OWNED, {**PUT, "run_id": "{run_id}"}),
    api("comparisons", *OWNED),
    api("comparisons", *OWNED, method="POST", comparisons=[PAIR]),
    api("decisions", *OWNED),
    api("cancel", *OWNED, method="POST", comparisons=[]),
    api("points", *OWNED, method="POST", points=[]),
    api("episodes", *OWNED, method="POST", step=1, key="{key}"),
    api("invites", *OWNED, method="POST", labeler="mia"),
    api("leases/<uuid:uuid>", *OWNED, path="leases/{lease}"),
    *(api(f"{table}.{extension}", *OWNED) for table in TABLES for extension in FILE_TYPES),
    api("leases", *LEASED, method="POST", count=1),
    api("examples", *LEASED),
    api("progress", *LEASED),
    Row(
        *("api/v1/labels", "POST", "/api/v1/labels", ANSWERED),
        {"uuid": UUID_1, "lease": "{lease}", "choice": "left"},
    ),
    Row(
        *("api/v1/labels/<uuid:uuid>/undo", "POST", "/api/v1/labels/{label}/undo", ANSWERED),
        {"uuid": UUID_1},
    ),
]
ROWS = PAGES + ENDPOINTS
# What nobody gets: beside each there is a row of the same address with a link that is good.
FORGED = {"/j/forged", "/join/forged", "/media/forged"}
MORE_METHODS = {
    "accounts/login/": {"PUT"},  # Django takes it for a POST
    "i18n/setlang/": METHODS,  # all but POST only lead on
}


# Fields that pages read beside those in the table.
FIELDS = {
    X + "comparisons": {"state", "decision", "labeler", "since", "text", "order", "disagreement"},
    X + "examples/<uuid:uuid>": {"explanation", "practice", "page"},
    X + "consent": {"answer", "version"},
    X + "invites": {"limit", "note", "study", "completion_code", "return_url", "answers_wanted"},
    X + "participants/forget": {"participant"},
    "accounts/login/": {"next", "username", "password"},
}


@pytest.fixture
def clients(
    trainer: Trainer, stranger: Trainer, browser: Browser, enter: Callable[[Trainer], Client]
) -> dict[str, Client]:
    """Somebody in each role, before an experiment that was there first."""
    root = User.objects.create(username="root", is_staff=True, is_superuser=True)
    trainer.user.set_password(PASSWORD)
    trainer.user.save()
    users = {"other": stranger.user, "owner": trainer.user, "admin": root}
    found = {"nobody": Client(), "outsider": enter(stranger), "labeler": browser.client}
    for role, user in users.items():
        found[role] = Client()
        found[role].force_login(user)
    return found


@pytest.fixture
def tokens(trainer: Trainer, stranger: Trainer) -> dict[str, Client]:
    now = timezone.now()
    found = {
        "own": create_token(trainer.user, expires_at=now + timedelta(hours=1)),
        "foreign": create_token(stranger.user),
        "elsewhere": create_token(trainer.user, experiment="elsewhere"),
        "expired": create_token(trainer.user, expires_at=now - timedelta(seconds=1)),
        "revoked": create_token(trainer.user, name="leaked"),
    }
    revoke_tokens(trainer.user.api_tokens.filter(name="leaked"))
    return {role: Client(headers={"Authorization": f"Bearer {token}"}) for role, token in found.items()}


@pytest.fixture
def enter() -> Callable[[Trainer], Client]:
    """Make a labeler of an experiment, and return its browser."""

    def enter(trainer: Trainer) -> Client:
        client = Client()
        client.get(trainer.put(invite="elsewhere")["invite_url"])
        return client

    return enter


@pytest.fixture
def places(trainer: Trainer, browser: Browser) -> dict[str, object]:
    """Return what stands in braces in the table."""
    return places_of(trainer, browser, "you")


def places_of(trainer: Trainer, browser: Browser, name: str) -> dict[str, object]:
    """Make something of each kind in an experiment, where the labeler of that name has the browser."""
    [comparison] = trainer.register()
    trainer.register(2, priority=2)
    experiments.add_episode(trainer.experiment, 7, f"{trainer.name}/{comparison}/first.mp4")
    lease, answered = browser.lease(2)
    invite = invites.invite_by_name(trainer.experiment, "invited")
    return {
        "comparison": comparison,
        "labeler": labeler_named(trainer.user, name).pk,
        "lease": lease["uuid"],
        "label": browser.answer(answered, "left")["uuid"],
        "clip": lease["left"]["url"],
        "key": f"{trainer.name}/{comparison}/first.mp4",
        "run_id": trainer.run_id,
        "invite": invite.pk,
        "join": f"/join/{signing.dumps({'invite': invite.pk}, salt=accounts.INVITE_SALT)}",
        "short": accounts.invite_url(trainer.experiment, name, ""),
        "owner_link": accounts.owner_url(
            trainer.experiment, name, trainer.user.api_tokens.earliest("pk"), ""
        ),
    }


def filled(text: str, places: dict[str, object]) -> str:
    return re.sub(r"{(\w+)}", lambda name: str(places[name[1]]), text)


def send(client: Client, row: Row, places: dict[str, object], method: str | None = None) -> Any:
    """Send a request as if it were the first: what it changed is taken back."""
    data, content_type = (
        (filled(json.dumps(row.body), places), "application/json")
        if row.is_api
        else (urlencode(row.body), "application/x-www-form-urlencoded")
    )
    cookies = copy(client.cookies)
    with transaction.atomic():
        response: Any = client.generic(method or row.method, filled(row.path, places), data, content_type)
        b"".join(response)  # all of a download
        transaction.set_rollback(True)
    client.cookies = cookies
    # An invitation's address may carry a participant's number; what is refused unread leads nowhere.
    is_told_nothing = row.route.startswith(("j/", "join/")) and response.status_code not in {403, 405}
    assert_guarded(response, "strict-origin" if is_told_nothing else "same-origin")
    if row.is_api and response.status_code >= 400:
        problem = json.loads(response.content)
        assert response["Content-Type"] == "application/problem+json"
        assert problem["status"] == response.status_code
        assert set(problem) - {"errors"} == {"type", "title", "status", "detail"}
        assert ("WWW-Authenticate" in response) == (response.status_code == 401)
    return response


def test_each_row_lets_somebody_do_it() -> None:
    """Check where nobody may, a row would hold as well without any look at who asks."""
    assert {row.path for row in ROWS if min(row.expected) >= 400} == FORGED
    for row in ROWS:
        same = [each for each in ROWS if (each.route, each.method) == (row.route, row.method)]
        assert any(min(each.expected) < 400 for each in same), row


def test_each_role_gets_what_the_table_says(
    clients: dict[str, Client], tokens: dict[str, Client], places: dict[str, object]
) -> None:
    everybody = clients | tokens
    wrong = []
    for row in ROWS:
        expected = dict(zip(ROLES, row.expected, strict=True)) | row.of_tokens()
        found = {role: send(everybody[role], row, places).status_code for role in expected}
        wrong += [
            (str(row), role, found[role], expected[role]) for role in found if found[role] != expected[role]
        ]
        if row.route.startswith(X):
            path = filled(row.path, places)
            assert send(everybody["nobody"], row, places)["Location"] == f"/accounts/login/?next={path}"
    assert wrong == []  # (request, role, found, expected)


def changes_answer(row: Row) -> bool:
    return row.method == "POST" and "{label}" in row.path


def test_a_blocked_labeler_sees_its_own_pages_and_is_given_nothing(
    clients: dict[str, Client], places: dict[str, object], browser: Browser, trainer: Trainer
) -> None:
    [held] = browser.lease()
    assert clients["owner"].post(f"{E}labelers/{places['labeler']}/block").status_code == 302
    decided = trainer.decisions()["items"]
    expected = [  # its answers are withdrawn already
        (str(row), 409 if changes_answer(row) else row.expected[ROLES.index("labeler")]) for row in ROWS
    ]
    assert [(str(row), send(browser.client, row, places).status_code) for row in ROWS] == expected
    assert (browser.lease(), browser.ask()["notice"]) == ([], "stopped")
    late = browser.client.post("/api/v1/labels", browser.label(held), "application/json")
    assert (late.status_code, trainer.decisions()["items"]) == (201, decided)


def test_other_experiments_objects_are_not_found(
    clients: dict[str, Client], places: dict[str, object], stranger: Trainer
) -> None:
    [asked] = stranger.register()
    elsewhere = Browser(stranger.put(invite="elsewhere")["invite_url"], stranger.name)
    foreign = places_of(stranger, elsewhere, "elsewhere")
    shown = foreign["comparison"]
    clients["other"].post(f"/experiments/walker/examples/{shown}", {"better": "first"})
    removal = f"{E}examples/{{comparison}}/remove"  # of what need not be there
    links = {"{join}", "{short}", "{owner_link}", "{clip}"}  # are good for everybody
    named = [row for row in ROWS if "{" in row.path and row.path not in {removal, *links}]
    found = {(str(row), send(clients["owner"], row, foreign).status_code) for row in named}
    found |= {
        (
            str(row),
            send(
                clients["owner"], replace(row, path=row.path.replace("hopper", "nothing")), places
            ).status_code,
        )
        for row in ROWS
        if row.route.startswith(X)
    }
    assert [row for row, status in found if status != 404] == []
    clients["owner"].post(removal.format(comparison=shown))
    assert stranger.experiment.examples.count() == 1
    clients["owner"].post(f"{API_E}cancel", {"comparisons": [asked]}, "application/json")
    assert stranger.experiment.comparisons.get(uuid=asked).status == "open"


def test_other_methods_are_refused(clients: dict[str, Client], places: dict[str, object]) -> None:
    wrong = []
    for row in ROWS:
        allowed = {each.method for each in ROWS if each.route == row.route} | MORE_METHODS.get(
            row.route, set()
        )
        for method in METHODS - allowed:
            response = send(clients["owner"], row, places, method)
            if response.status_code != 405 or row.method not in response["Allow"]:
                wrong.append((method, row.path, response.status_code))
    assert wrong == []


def test_wrong_methods_get_an_html_page(clients: dict[str, Client], places: dict[str, object]) -> None:
    shown = set()
    for row in ROWS:
        for method in {"GET", "POST"} - {each.method for each in ROWS if each.route == row.route}:
            response = send(clients["owner"], row, places, method)
            is_page = not row.route.startswith(("api/", "media/", "livez", "readyz"))
            if is_page and response.status_code == 405:
                shown.add((row.route, method))
                assert response.headers["Allow"]
                assert response.headers["Content-Type"].startswith("text/html")
                html = response.content.decode()
                assert "<h1" in html.partition("This page can’t be opened directly")[0], row.path
                assert 'href="/"' in html
    assert len({route for route, method in shown if method == "GET"}) > 10
    assert len({route for route, method in shown if method == "POST"}) > 5


def test_csrf_token_is_required(clients: dict[str, Client], places: dict[str, object]) -> None:
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = clients["owner"].cookies
    writing = [row for row in ROWS if row.method != "GET"]
    assert [str(row) for row in writing if send(strict, row, places).status_code != 403] == []


@pytest.fixture
def called() -> Iterator[list[object]]:
    """Whom this process has called since, by Python's own account."""
    found: list[object] = []
    recorders.append(found)
    yield found
    recorders.remove(found)


recorders: list[list[object]] = []


def note_calls(event: str, arguments: tuple[object, ...]) -> None:
    if recorders and event in {"socket.connect", "socket.getaddrinfo", "socket.sendto"}:
        recorders[-1].append(arguments[-1])


sys.addaudithook(note_calls)  # there is no way to take it off again


def test_given_addresses_are_neither_called_nor_redirected_to(
    clients: dict[str, Client], places: dict[str, object], trainer: Trainer, called: list[object]
) -> None:
    addresses = "http://169.254.169.254/latest", "//example.org"
    for row, address in itertools.product(ROWS, addresses):
        for name in {*row.body, *FIELDS.get(row.route, ()), "next"}:
            changed = replace(row, body={**row.body, name: address})
            if row.method == "GET":
                changed = replace(changed, path=f"{row.path}?{urlencode(changed.body)}", body={})
            response = send(clients["owner"], changed, places)
            assert led_to(response) in {"", "testserver"}, changed
    for address in addresses:
        pair = trainer.comparison(first={"key": address, "true_return": 1.0})
        refused = trainer.send("POST", f"{trainer.path}/comparisons", {"comparisons": [pair]})
        assert refused.status_code in {400, 422}
    assert called == []


def led_to(response: Any) -> str:
    """The host that a redirect names, as browsers read it: a backslash is a slash."""
    return urlsplit(str(response.get("Location", "")).replace("\\", "/")).netloc


def test_somebody_who_is_called_is_noted(called: list[object]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()).close()
        assert server.getsockname() in called


@pytest.mark.parametrize(
    "address", ["https://example.org/", "//example.org", "/\\\\example.org", "https:///example.org"]
)
def test_redirects_stay_on_the_site(researcher: User, address: str) -> None:
    researcher.set_password("correct horse")
    researcher.save()
    client = Client()
    body = {"username": "ada", "password": "correct horse", "next": address}
    assert client.post("/accounts/login/", body)["Location"] == "/"
    chosen = client.post("/i18n/setlang/", {"language": "en", "next": address}, headers={"Referer": address})
    assert chosen["Location"] == "/"


@pytest.mark.both_databases
def test_no_page_fails_at_odd_values(clients: dict[str, Client], places: dict[str, object]) -> None:
    odd = ["\0", "9" * 40, "-1<%\U0010ffff\u202e" if is_sqlite() else "x" * 30_000]
    for row, value in itertools.product(PAGES, odd):
        fields = row.body.keys() | FIELDS.get(row.route, set()) | ({"page"} if row.method == "GET" else set())
        for name in fields:
            changed = replace(row, body={**row.body, name: value})
            if row.method == "GET":
                changed = replace(changed, path=f"{row.path}?{urlencode(changed.body)}", body={})
            assert send(clients["owner"], changed, places).status_code < 500
    for address in ("labelers", "invites"):
        path = f"/experiments/hopper/{address}/{10**40}"
        assert clients["owner"].get(path).status_code == 404


def test_a_token_for_one_experiment_makes_it_and_serves_it(trainer: Trainer) -> None:
    token = create_token(trainer.user, experiment="own")
    client = Client(headers={"Authorization": f"Bearer {token}"})
    body = trainer.description(run_id=UUID_1)
    for _ in range(2):
        assert client.put("/api/v1/experiments/own", body, "application/json").status_code in {200, 201}
    assert client.get("/api/v1/experiments/own/decisions").status_code == 200
    refused = client.get("/api/v1/experiments/hopper/decisions")
    assert (refused.status_code, "limited to a different experiment" in refused.json()["detail"]) == (
        403,
        True,
    )
    assert client.put("/api/v1/experiments/other", body, "application/json").status_code == 403


def test_every_address_has_a_row() -> None:
    routes = {route for route in _routes(get_resolver().url_patterns) if not route.startswith("admin/")}
    assert routes == {row.route for row in ROWS} | {"metrics"}  # for no role; test_metrics.py asks for it


def _routes(patterns: Any, prefix: str = "") -> Iterator[str]:
    for each in patterns:
        route = prefix + str(each.pattern)
        if isinstance(each, URLResolver):
            yield from _routes(each.url_patterns, route)
        else:
            yield route


def test_admin_redirects_others_to_login(clients: dict[str, Client], tokens: dict[str, Client]) -> None:
    others = {role: client for role, client in (clients | tokens).items() if role != "admin"}
    routes = [route for route in _routes(get_resolver().url_patterns) if route.startswith("admin/")]
    paths = {"/" + re.sub("<[^>]+>", "1", route) for route in routes if "(?P" not in route} - {
        "/admin/login/",
        "/admin/logout/",
    }
    assert len(paths) > 80
    wrong = []
    for role, path, method in itertools.product(others, paths, ("GET", "POST")):
        response: Any = others[role].generic(method, path)
        assert_guarded(response)
        if not response.get("Location", "").startswith("/admin/login/?"):
            wrong.append((role, method, path, response.status_code))
    assert wrong == []


@pytest.mark.both_databases
def test_the_django_admin_shows_the_admin_every_list(clients: dict[str, Client]) -> None:
    lists = [f"/admin/{model._meta.app_label}/{model._meta.model_name}/" for model in admin.site._registry]
    assert len(lists) > 10
    assert [path for path in ["/admin/", *lists] if clients["admin"].get(path).status_code != 200] == []


@pytest.mark.both_databases
@pytest.mark.parametrize("query", ["status__exact=%00", "q=%00", "%00=1"])
def test_the_django_admin_refuses_what_no_database_holds(clients: dict[str, Client], query: str) -> None:
    response = clients["admin"].get(f"/admin/feedback/comparison/?{query}")
    assert response.status_code == 400


def test_only_the_admin_is_shown_the_way_to_it(clients: dict[str, Client]) -> None:
    shown = {role: b"/admin/" in clients[role].get("/", follow=True).content for role in ROLES}
    assert shown == {**dict.fromkeys(ROLES, False), "admin": True}
