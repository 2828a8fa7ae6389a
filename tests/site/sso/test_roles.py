"""Roles follow the claim that holds a user's groups, and are never lost or missed without a log line."""

from typing import Any

import pytest
from django.contrib.auth.models import User
from pytest_django import Settings

from human_feedback_site.feedback.services import identities

SAME, LOST = (
    "the roles of mia are unchanged: the claim groups ",
    "mia loses the role admin: the claim groups is ",
)
NEAR = "mia gets no role from Admins: the claim groups is "


@pytest.fixture(autouse=True)
def roles(db: None, settings: Settings) -> None:
    settings.OIDC_RESEARCHERS, settings.OIDC_ADMINS = ["researchers"], ["Admins"]


def sign_in(claims: dict[str, Any]) -> User:
    who = {"iss": "https://login.example", "sub": "1", "preferred_username": "mia"}
    user = identities.user_of(who | claims)
    user.refresh_from_db()
    return user


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    assert not any("\n" in line or len(line) > 500 for line in caplog.messages)
    return [line.removeprefix("Single sign-on: ") for line in caplog.messages]


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ({}, f"{SAME}is missing; let the provider add it"),
        ({"groups": None}, f"{SAME}is missing"),
        ({"_claim_names": {"groups": "src1"}, "_claim_sources": {}}, f"{SAME}was left out, because the user"),
        ({"hasgroups": True}, f"{SAME}was left out, because the user has too many groups"),
        ({"_claim_names": 7}, f"{SAME}is missing"),
        ({"groups": {"Admins": {"org": "lab"}}}, f"{SAME}must be an array of strings, not {{'Admins'"),
        ({"groups": [{"name": "Admins"}]}, f"{SAME}must be an array of strings, not [{{'name'"),
        ({"groups": 7}, f"{SAME}must be an array of strings, not 7"),
        ({"groups": ["/"]}, f"{SAME}must be an array of strings, not ['/']"),
        ({"groups": []}, f"{LOST}[]."),
        ({"groups": " "}, f"{LOST}' '."),
        ({"groups": ["researchers"]}, f"{LOST}['researchers']."),
        ({"groups": ["x\n" * 300]}, f"{LOST}['x\\nx"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_role_changes_are_logged(caplog: pytest.LogCaptureFixture, claims: dict[str, Any], said: str) -> None:
    assert sign_in({"groups": ["Admins"]}).is_superuser
    assert logged(caplog) == []
    assert sign_in(claims).is_superuser == said.startswith(SAME)
    [line] = logged(caplog)
    assert line.startswith(said)


@pytest.mark.parametrize(
    ("name", "claims"),
    [
        ("groups", {"groups": ["/Admins"]}),  # Keycloak's full paths
        ("groups", {"groups": "staff, Admins"}),
        ("groups", {"groups": [None, "Admins"]}),
        ("realm_access.roles", {"realm_access": {"roles": ["Admins"]}}),
        ("resource_access.a.b.roles", {"resource_access": {"a": 1, "a.b": {"roles": ["Admins"]}}}),
        ("https://lab.example/roles", {"https://lab.example/roles": ["Admins"]}),
        ("groups", {"groups": ["Admins"], "_claim_names": {"groups": "src1"}}),
    ],
    ids=str,
)
def test_groups_are_found_in_any_claim(
    settings: Settings, caplog: pytest.LogCaptureFixture, name: str, claims: dict[str, Any]
) -> None:
    settings.OIDC_ROLE_CLAIM = name
    assert sign_in(claims).is_superuser
    assert logged(caplog) == []


@pytest.mark.parametrize(
    "groups",
    [["/lab/Admins"], ["admins"], "Domain Admins", ["CN=Admins,OU=Lab"], ["staff", "ADMINS "]],
    ids=str,
)
def test_near_miss_of_a_group_is_logged(caplog: pytest.LogCaptureFixture, groups: object) -> None:
    user = sign_in({"groups": groups})
    assert not user.is_staff
    assert logged(caplog) == [f"{NEAR}{groups!r}."]


@pytest.mark.parametrize("groups", [["Adminsx", "staff"], ["Admins-old"], []], ids=str)
def test_other_groups_are_not_logged(caplog: pytest.LogCaptureFixture, groups: object) -> None:
    assert not sign_in({"groups": groups}).is_staff
    assert logged(caplog) == []


def test_unicode_forms_of_a_group_are_equal(settings: Settings) -> None:
    settings.OIDC_ADMINS = ["/Bu\u0308ro"]
    assert sign_in({"groups": ["B\u00fcro"]}).is_superuser
