"""A researcher blocks a labeler and withdraws its labels, and gives it work again."""

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from human_feedback_site.feedback.models import Label, Labeler, Participation, Undo
from tests.site.conftest import Browser, Trainer

STEPS = ("block", "readmit")


@pytest.fixture
def path(trainer: Trainer, browser: Browser) -> str:
    """The page of a labeler who judged two of three pairs and holds one."""
    trainer.register(3)
    for lease in browser.lease(3)[:2]:
        browser.answer(lease)
    return f"/experiments/hopper/labelers/{Labeler.objects.get(name='you').pk}"


def table_of(client: Client) -> str:
    html = client.get("/experiments/hopper/").content.decode()
    return html.partition('id="labelers"')[2]


def test_blocking_asks_for_confirmation(path: str, researcher_browser: Client) -> None:
    assert f'href="{path}">Block' in table_of(researcher_browser)
    html = researcher_browser.get(path).content.decode()
    assert "Block you?" in html
    assert "2 labels will be withdrawn." in html
    assert f'action="{path}/block"' in html
    assert f'action="{path}/readmit"' not in html
    assert not Undo.objects.exists()


@pytest.mark.both_databases
def test_blocking_withdraws_labels_and_frees_comparisons(
    path: str,
    trainer: Trainer,
    browser: Browser,
    invite: Callable[[str], Browser],
    researcher_browser: Client,
) -> None:
    table_of(researcher_browser)  # which keeps how labelers do for some seconds
    response = researcher_browser.post(f"{path}/block")
    assert response.headers["Location"] == "/experiments/hopper/#labelers"
    assert set(Undo.objects.values_list("retracted_by__username", flat=True)) == {"ada"}
    assert Undo.objects.count() == Label.objects.count() == 2
    assert [item["decision"] for item in trainer.decisions(after=2)["items"]] == [None, None]
    assert browser.ask()["notice"] == "stopped"
    assert len(invite("other").lease(5)) == 3
    table = table_of(researcher_browser)
    assert "stopped</span>" in table
    assert f'href="{path}">Readmit' in table
    researcher_browser.post(f"{path}/block")
    assert Undo.objects.count() == 2


def test_readmission_returns_no_labels(path: str, browser: Browser, researcher_browser: Client) -> None:
    researcher_browser.post(f"{path}/block")
    html = researcher_browser.get(path).content.decode()
    assert "you no longer gets pairs" in html
    assert f'action="{path}/readmit"' in html
    assert f'action="{path}/block"' not in html  # there is nothing left to withdraw
    researcher_browser.post(f"{path}/readmit")
    assert Participation.objects.get(labeler__name="you").answered == 0
    assert len(browser.lease(5)) == 3
    assert f'href="{path}">Block' in table_of(researcher_browser)


@pytest.mark.both_databases
def test_labels_of_a_stopped_labeler(path: str, researcher_browser: Client, trainer: Trainer) -> None:
    Participation.objects.update(stopped_at=trainer.experiment.created_at)
    html = researcher_browser.get(path).content.decode()
    assert "Withdraw all labels" in html
    assert f'action="{path}/readmit"' in html


@pytest.mark.parametrize("step", STEPS)
def test_only_managers_may_block_and_need_a_csrf_token(
    path: str,
    trainer: Trainer,
    stranger: Trainer,
    browser: Browser,
    signed_in: Callable[[User], Client],
    step: str,
) -> None:
    for client in (signed_in(stranger.user), browser.client):
        assert client.get(path).status_code == client.post(f"{path}/{step}").status_code == 404
    assert Client().post(f"{path}/{step}").headers["Location"].startswith("/accounts/login/")
    forger = Client(enforce_csrf_checks=True)
    forger.force_login(trainer.user)
    assert forger.post(f"{path}/{step}").status_code == 403
    owner = signed_in(trainer.user)
    assert owner.get(f"{path}/{step}").status_code == owner.post(path).status_code == 405
    assert not Undo.objects.exists()
    assert not Participation.objects.exclude(stopped_at=None).exists()


def test_foreign_labeler_is_404(path: str, stranger: Trainer, signed_in: Callable[[User], Client]) -> None:
    elsewhere = path.replace("hopper", "walker")
    client = signed_in(stranger.user)
    statuses: list[Any] = [client.get(elsewhere).status_code]
    statuses += [client.post(f"{elsewhere}/{step}").status_code for step in STEPS]
    assert statuses == [404] * 3
    assert not Undo.objects.exists()
