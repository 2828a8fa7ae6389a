"""An invitation for many, opened after single sign-on: under one's own name or under a pseudonym."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from human_feedback_site.feedback.models import Invite
from human_feedback_site.feedback.services import invites
from tests.identity_provider import IdentityProvider
from tests.site.conftest import Trainer
from tests.site.sso.conftest import Person

Make = Callable[[str], "Person"]


def new_link(trainer: Trainer) -> str:
    invite = Invite.objects.create(
        experiment=trainer.experiment,
        kind=Invite.Kind.ANONYMOUS,
        limit=2,
        expires_at=timezone.now() + timedelta(days=1),
    )
    return invites.link_of(invite, "")


@pytest.fixture
def link(trainer: Trainer) -> str:
    """An invitation for many."""
    return new_link(trainer)


def test_invitation_with_own_name(person: Make, link: str) -> None:
    mia = person("mia")
    assert mia.sign_in(link).headers["Location"] == link
    assert "Start as mia (SSO)" in mia.client.get(link).content.decode()
    user = mia.user
    response: Any = mia.client.post(link, {"own": ""})
    assert response.headers["Location"] == "/experiments/hopper/label"
    assert mia.user == user
    assert Invite.objects.get().uses == 1
    response = mia.client.get(link)  # and again, which is no use more
    assert response.headers["Location"] == "/experiments/hopper/label"
    assert Invite.objects.get().uses == 1


def test_invitation_with_a_pseudonym(person: Make, link: str) -> None:
    mia = person("mia")
    mia.sign_in()
    user = mia.user
    mia.client.post(link)
    assert mia.user != user
    assert not user.labeler.experiments.exists()


def test_invitation_without_sso_gives_a_pseudonym(link: str, at_provider: IdentityProvider) -> None:
    client = Client()
    client.force_login(bob := User.objects.create(username="bob"))
    assert "pseudonym." in client.get(link).content.decode()
    client.post(link, {"own": ""})
    assert client.session["_auth_user_id"] != str(bob.pk)


def test_removed_labeler_cannot_rejoin_by_another_link(person: Make, link: str, trainer: Trainer) -> None:
    mia = person("mia")
    mia.sign_in()
    mia.client.post(link, {"own": ""})
    labeler = mia.user.labeler
    labeler.experiments.clear()
    assert mia.client.get(link).status_code == 410
    another = new_link(trainer)
    assert "Start as" not in mia.client.get(another).content.decode()
    mia.client.post(another, {"own": ""})
    assert not labeler.experiments.exists()
