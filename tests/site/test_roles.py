"""Every address and every role: what nobody, labelers, researchers and the admin get.

A new address needs a row. What belongs to somebody else answers 404.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.test import Client
from django.urls import URLResolver, get_resolver

from human_feedback_site.feedback.models import Invite
from human_feedback_site.feedback.services import invites
from human_feedback_site.feedback.services.accounts import labeler_named, participation_of
from human_feedback_site.feedback.table_files import FILE_TYPES
from human_feedback_site.feedback.tables import TABLES

if TYPE_CHECKING:
    from tests.site.conftest import Browser, Trainer

# The admin is a superuser who owns nothing; "other" is a researcher with experiments of its own.
ROLES = ("nobody", "outsider", "labeler", "other", "owner", "admin")
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

PAGES = [
    Row("", "GET", "/", (302, 200, 200, 200, 200, 200)),
    page("", 302, 404, 302, 404, 200, 200),
    page("live", *MANAGED),
    page("comparisons", *MANAGED),
    page("comparisons/<uuid:uuid>", *MANAGED, path="comparisons/{comparison}"),
    page(
        "comparisons/<uuid:uuid>/act",
        *STEERED,
        method="POST",
        path="comparisons/{comparison}/act",
        action="relabel",
    ),
    page("examples/<uuid:uuid>", *STEERED, method="POST", path="examples/{comparison}", better="first"),
    page("examples/<uuid:uuid>/remove", *STEERED, method="POST", path="examples/{comparison}/remove"),
    page("label", *LABELED),
    page("history", *LABELED),
    page(
        "history/<uuid:label_uuid>",
        *(302, 404, 404, 404, 404, 404),  # it is nobody's
        method="POST",
        path=f"history/{UUID_1}",
        uuid=UUID_1,
        choice="left",
    ),
    page("done", *LABELED),
    page("consent", 302, 404, 302, 404, 302, 404),  # there is no text, so it leads on
    page("consent/text", *STEERED, method="POST", text=""),
    page("invite", *MANAGED, method="POST", labeler="mia"),
    page("invites", *MANAGED),
    page("invites", 302, 404, 404, 404, 302, 302, method="POST", kind="named", labeler_name="mia", days=1),
    page("invites/<int:number>/revoke", *STEERED, method="POST", path="invites/{invite}/revoke"),
    page("labelers/<int:number>", *MANAGED, path="labelers/{labeler}"),
    *(
        page(f"labelers/<int:number>/{step}", *STEERED, method="POST", path=f"labelers/{{labeler}}/{step}")
        for step in ("block", "readmit")
    ),
    page("participants", *MANAGED),
    page("participants/forget", *STEERED, method="POST", all="yes"),
    *(
        page("<slug:table>.<slug:extension>", *MANAGED, path=f"{table}.{extension}")
        for table in TABLES
        for extension in FILE_TYPES
    ),
    page(
        "prompt", 302, 404, 404, 404, 302, 409, method="POST", prompt="Which?", version=1
    ),  # the owner was faster
    page("pause", *STEERED, method="POST"),
    page("resume", *STEERED, method="POST"),
    page("finish", *STEERED, method="POST", confirm="yes"),
    page("reopen", *STEERED, method="POST"),
    Row("join/<str:token>", "GET", "/join/forged", (404,) * 6),
    Row("session", "GET", "/session", TO_ALL),
    Row("accounts/login/", "GET", "/accounts/login/", TO_ALL),
    Row("i18n/setlang/", "POST", "/i18n/setlang/", (302,) * 6, {"language": "en", "next": "/"}),
    Row("media/<str:token>", "GET", "/media/forged", (404,) * 6),
    Row("livez", "GET", "/livez", TO_ALL),
    Row("readyz", "GET", "/readyz", TO_ALL),
    Row("api/schema/", "GET", "/api/schema/", TO_ALL),
    Row("api/docs/", "GET", "/api/docs/", TO_ALL),
    Row("accounts/logout/", "POST", "/accounts/logout/", (302,) * 6),
]
PUT = {
    "run_id": UUID_1,
    "env_id": "E",
    "prompt": "?",
    "n_labels": None,
    "fps": 40,
    "has_true_reward": False,
}
ENDPOINTS = [
    Row(
        "api/v1/experiments/<str:name>", "PUT", "/api/v1/experiments/own", (401, 403, 403, 201, 404, 404), PUT
    ),
    api("comparisons", *OWNED),
    api("comparisons", 401, 403, 403, 404, 400, 404, method="POST"),
    api("decisions", *OWNED),
    api("cancel", *OWNED, method="POST", comparisons=[]),
    api("points", *OWNED, method="POST", points=[]),
    api("episodes", 401, 403, 403, 404, 422, 404, method="POST", step=1, key="hopper/episodes/1.mp4"),
    api("invites", *OWNED, method="POST", labeler="mia"),
    api("leases/<uuid:uuid>", 401, 403, 403, 404, 404, 404, path=f"leases/{UUID_1}"),
    *(api(f"{table}.{extension}", *OWNED) for table in TABLES for extension in FILE_TYPES),
    api("leases", *LEASED, method="POST", count=1),
    api("examples", *LEASED),
    api("progress", *LEASED),
    Row(
        *("api/v1/labels", "POST", "/api/v1/labels", (401, 404, 404, 404, 404, 404)),
        {"uuid": UUID_1, "lease": UUID_1, "choice": "left"},
    ),
    Row(
        *("api/v1/labels/<uuid:uuid>/undo", "POST", f"/api/v1/labels/{UUID_1}/undo"),
        (401, 404, 404, 404, 404, 404),
        {"uuid": UUID_1},
    ),
]
ROWS = PAGES + ENDPOINTS


@pytest.fixture
def clients(
    trainer: Trainer, stranger: Trainer, browser: Browser, enter: Callable[[Trainer], Client]
) -> dict[str, Client]:
    """Somebody in each role, before an experiment that was there first."""
    root = User.objects.create(username="root", is_staff=True, is_superuser=True)
    users = {"other": stranger.user, "owner": trainer.user, "admin": root}
    found = {"nobody": Client(), "outsider": enter(stranger), "labeler": browser.client}
    for role, user in users.items():
        found[role] = Client()
        found[role].force_login(user)
    return found


@pytest.fixture
def enter() -> Callable[[Trainer], Client]:
    """Make a labeler of an experiment, and return its browser."""

    def enter(trainer: Trainer) -> Client:
        client = Client()
        client.get(trainer.put(invite="elsewhere")["invite_url"])
        return client

    return enter


def send(client: Client, row: Row, path: str) -> int:
    if row.path.startswith("/api/v1/") and row.method != "GET":
        response = client.generic(row.method, path, json.dumps(row.body), content_type="application/json")
    elif row.method == "GET":
        response = client.get(path)
    else:
        response = client.post(path, row.body)
    return int(response.status_code)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_each_role_gets_what_the_table_says(row: Row, clients: dict[str, Client], trainer: Trainer) -> None:
    invite = invites.invite_by_name(trainer.experiment, "invited")
    [comparison] = trainer.register()
    labeler = participation_of(labeler_named(trainer.user, "you"), trainer.experiment).labeler_id
    places = {"invite": invite.pk, "comparison": comparison, "labeler": labeler}
    path = row.path
    for name, value in places.items():
        path = path.replace(f"{{{name}}}", str(value))
    assert {role: send(clients[role], row, path) for role in ROLES} == dict(
        zip(ROLES, row.expected, strict=True)
    )


def test_every_address_has_a_row() -> None:
    missing = set(_routes(get_resolver().url_patterns)) - {row.route for row in ROWS}
    assert sorted(missing) == []


def _routes(patterns: Any, prefix: str = "") -> Iterator[str]:
    for each in patterns:
        route = prefix + str(each.pattern)
        if route == "admin/":
            continue
        if isinstance(each, URLResolver):
            yield from _routes(each.url_patterns, route)
        else:
            yield route


def test_the_django_admin_is_for_the_admin_alone(clients: dict[str, Client]) -> None:
    lists = [f"/admin/{model._meta.app_label}/{model._meta.model_name}/" for model in admin.site._registry]
    assert len(lists) > 10
    for path in ["/admin/", *lists]:
        found = {role: clients[role].get(path).status_code for role in ROLES}
        assert found == {**dict.fromkeys(ROLES, 302), "admin": 200}, path


def test_only_the_admin_is_shown_the_way_to_it(clients: dict[str, Client]) -> None:
    shown = {role: b"/admin/" in clients[role].get("/", follow=True).content for role in ROLES}
    assert shown == {**dict.fromkeys(ROLES, False), "admin": True}


def test_an_invitation_of_somebody_else_cannot_be_guessed(clients: dict[str, Client]) -> None:
    assert not Invite.objects.exists()
    assert clients["owner"].post("/experiments/hopper/invites/1/revoke").status_code == 404
