"""Watch links: which browsers may watch, pause and finish a run, and until when."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from human_feedback_site.feedback.models import ApiToken, Experiment
from human_feedback_site.feedback.services.accounts import create_token, rotate_token, watch_url
from tests.site.conftest import Browser, Trainer

PATH = "/experiments/hopper/"


@pytest.fixture
def links(trainer: Trainer) -> dict[str, str]:
    """The two links that a run prints."""
    told = trainer.put()
    return {name: told[f"{name}_url"].removeprefix("http://testserver") for name in ("invite", "watch")}


def may_watch(client: Client) -> bool:
    """Return True if the browser may see the run and its comparisons, and may pause it: all or none."""
    gets = [client.get(f"{PATH}{page}").status_code for page in ("", "live", "comparisons", "finish")]
    Experiment.objects.update(state="running")
    client.post(f"{PATH}pause")
    allowed = gets == [200] * 4
    assert allowed or 200 not in gets
    assert (Experiment.objects.get().state == "paused") == allowed
    Experiment.objects.update(state="running")
    return allowed


@pytest.mark.parametrize("order", [("invite", "watch"), ("watch", "invite"), ("watch",)])
def test_both_links_in_one_browser_label_and_watch(links: dict[str, str], order: tuple[str, ...]) -> None:
    client = Client()
    for name in order:
        assert client.get(links[name]).status_code == 302
    assert may_watch(client)
    page, label = (client.get(PATH + each).content.decode() for each in ("", "label"))
    assert f'href="{PATH}label"' in page
    assert f'href="{PATH}"' in label
    assert f'href="{PATH}"' in client.get("/").content.decode()
    assert client.get("/admin/").status_code == 302


def test_labeler_without_link_only_labels(links: dict[str, str], invite: Callable[[str], Browser]) -> None:
    for client in (invite("zoe").client, Client()):
        if client.cookies.get("sessionid") is None:
            client.get(links["invite"])
        assert not may_watch(client)
        assert f'href="{PATH}"' not in client.get(f"{PATH}label").content.decode()


def test_watch_link_is_for_one_experiment(
    trainer: Trainer, links: dict[str, str], invite: Callable[[str], Browser]
) -> None:
    run = {"run_id": uuid4(), "fps": 40, "env_id": "E", "prompt": "?", "has_true_reward": False}
    other = Experiment.objects.create(owner=trainer.user, name="other", **run)
    zoe = invite("zoe").client
    account = zoe.get("/session").json()
    zoe.get(links["watch"])
    assert zoe.get("/session").json() == account
    assert zoe.get(PATH).status_code == 200
    assert zoe.get(f"/experiments/{other.name}/").status_code == 404


def test_watch_link_never_signs_staff_in(links: dict[str, str]) -> None:
    User.objects.filter(labeler__name="you").update(is_staff=True)
    client = Client()
    assert client.get(links["watch"]).headers["Location"] == f"/accounts/login/?next={PATH}"
    assert client.get("/session").json() == {"account": None}


def revoke(token: ApiToken) -> None:
    token.delete()


def expire(token: ApiToken) -> None:
    ApiToken.objects.filter(pk=token.pk).update(expires_at=timezone.now() - timedelta(seconds=1))


def narrow(token: ApiToken) -> None:
    ApiToken.objects.filter(pk=token.pk).update(experiment="other")


def demote(token: ApiToken) -> None:
    User.objects.filter(pk=token.user_id).update(is_staff=False)


@pytest.mark.parametrize("end", [revoke, expire, rotate_token, narrow, demote])
def test_watch_link_ends_with_its_token(
    trainer: Trainer, links: dict[str, str], end: Callable[[ApiToken], object]
) -> None:
    watching = Client()
    watching.get(links["watch"])
    assert may_watch(watching)
    end(trainer.user.api_tokens.earliest("pk"))
    create_token(trainer.user, experiment="other")
    assert not may_watch(watching)
    late: Any = Client().get(links["watch"])
    assert (late.status_code, "last" in late.content.decode()) == (410, True)


def test_old_watch_link_has_expired(links: dict[str, str], settings: Settings) -> None:
    settings.INVITE_MAX_AGE_SECONDS = -1
    assert Client().get(links["watch"]).status_code == 410
    assert Client().get(links["watch"][:-1]).status_code == 404


def test_invitation_is_no_watch_link(trainer: Trainer, links: dict[str, str]) -> None:
    token = links["invite"].removeprefix("/j/")
    assert Client().get(f"/w/{token}").status_code == 410
    stranger = User.objects.create(username="eve", is_staff=True)
    create_token(stranger)
    forged = watch_url(trainer.experiment, "you", stranger.api_tokens.get(), "")
    assert Client().get(forged).status_code == 410
