"""The list of experiments."""

import re
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from human_feedback_site.feedback.models import Experiment, Invite, Labeler
from human_feedback_site.feedback.services import experiments
from tests.site.conftest import Browser, SignedIn, Trainer


def text(client: Client, path: str = "/") -> str:
    response = client.get(path)
    assert response.status_code == 200
    return response.content.decode()


@pytest.mark.django_db
def test_anonymous_users_are_asked_to_sign_in() -> None:
    response = Client().get("/")
    assert (response.status_code, response.headers["Location"]) == (302, "/accounts/login/?next=/")


@pytest.mark.both_databases
def test_researchers_see_own_experiments(
    trainer: Trainer, stranger: Trainer, browser: Browser, researcher_browser: Client
) -> None:
    trainer.register(3)
    browser.answer(browser.lease()[0])
    html = text(researcher_browser)
    assert "/experiments/hopper/" in html
    assert "Which hops higher?" in html
    assert "running" in html
    assert '<progress value="1" max="700"' in html
    assert "walker" not in html


def test_an_admin_sees_every_experiment(trainer: Trainer, stranger: Trainer, signed_in: SignedIn) -> None:
    html = text(signed_in(User.objects.create(username="root", is_staff=True, is_superuser=True)))
    assert "/experiments/hopper/" in html
    assert "/experiments/walker/" in html


@pytest.mark.both_databases
def test_labelers_see_remaining_answers(trainer: Trainer, browser: Browser) -> None:
    trainer.register(3)
    browser.answer(browser.lease()[0])
    link = trainer.post(f"{trainer.path}/invites", {"labeler": "you"})["invite_url"]
    Invite.objects.update(answers_wanted=12)
    browser.client.get(link)
    assert '<progress value="0" max="12"' in text(browser.client)
    browser.answer(browser.lease()[0])
    assert '<progress value="1" max="12"' in text(browser.client)


def test_labelers_see_only_invited_experiments(trainer: Trainer, stranger: Trainer, browser: Browser) -> None:
    html = text(browser.client)
    assert "/experiments/hopper/label" in html
    assert '"/experiments/hopper/"' not in html
    assert "<progress" not in html
    assert "walker" not in html


def test_waiting_training_is_shown(trainer: Trainer, browser: Browser) -> None:
    Experiment.objects.update(waiting_for=1)
    assert "training is waiting for 1 answer<" in text(browser.client)
    Experiment.objects.update(waiting_for=5)
    assert "training is waiting for 5 answers<" in text(browser.client)
    Experiment.objects.update(state="finished")
    html = text(browser.client)
    assert "training is waiting" not in html
    assert "finished" in html


def test_researchers_without_experiments_get_instructions(researcher: User, signed_in: SignedIn) -> None:
    assert "teach -p human" in text(signed_in(researcher))


def test_labelers_without_experiments_read_about_invitations(browser: Browser) -> None:
    Labeler.objects.get().experiments.clear()
    html = text(browser.client)
    assert "invitation link" in html
    assert "teach -p" not in html


@pytest.mark.both_databases
def test_number_of_statements_is_constant(
    trainer: Trainer, researcher_browser: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    for number in range(12):
        experiments.put_experiment(trainer.user, f"more-{number}", uuid4(), trainer_values())
    with django_assert_max_num_queries(4):
        assert "more-11" in text(researcher_browser)


def test_a_long_list_has_pages(trainer: Trainer, researcher_browser: Client) -> None:
    for number in range(30):
        experiments.put_experiment(trainer.user, f"more-{number}", uuid4(), trainer_values())
    assert "/experiments/hopper/" not in text(researcher_browser)
    assert "/experiments/hopper/" in text(researcher_browser, "/?page=2")
    assert "/experiments/hopper/" in text(researcher_browser, "/?page=99")


def trainer_values() -> dict[str, object]:
    return {"env_id": "Hopper-v1", "prompt": "?", "n_labels": None, "fps": 40, "has_true_reward": False}


def test_labeler_has_one_name(trainer: Trainer, browser: Browser, researcher_browser: Client) -> None:
    shown = re.compile(r'<span class="account"[^>]*>([^<]+)</span>')
    trainer.register()
    browser.answer(browser.lease()[0])
    pages = ("/", "/experiments/hopper/label", "/experiments/hopper/history", "/experiments/hopper/done")
    assert {page: shown.findall(browser.client.get(page).content.decode()) for page in pages} == {
        page: ["you"] for page in pages
    }
    link = trainer.invite("mia")
    assert "You are signed in as you;" in browser.client.get(link).content.decode()
    html = researcher_browser.get("/experiments/hopper/").content.decode()
    assert shown.findall(html) == ["ada"]
    assert re.findall(r'<th scope="row"[^>]*>([^<]+)</th>|<span dir="auto">(you[^<]*)</span>', html) == [
        ("you", ""),
        ("", "you"),
    ]
