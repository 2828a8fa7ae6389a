"""Names in any script are taken as they are, however they are typed, in each place that takes one."""

import io
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.test import Client

from human_feedback_site.feedback.models import Labeler, validate_labeler_name
from human_feedback_site.feedback.services import accounts, identities
from tests.site.conftest import Trainer

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
    ada = Client()
    ada.force_login(trainer.user)
    assert ada.post("/experiments/hopper/invite", {"labeler": f" {name} "}).status_code == 200


def by_form(trainer: Trainer, name: str) -> None:
    ada = Client()
    ada.force_login(trainer.user)
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
