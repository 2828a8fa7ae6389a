"""The videos that show labelers how the agent has changed, and the setting that hides them."""

import pytest
from django.core.cache import cache
from django.db.models.functions import Now
from django.test import Client

from human_feedback_site.feedback.models import Episode, Experiment, Labeler
from human_feedback_site.feedback.selectors.labeling import BeforeAfter, before_after
from tests.site.conftest import Browser, Invited, Trainer


@pytest.fixture(autouse=True)
def no_old_counts() -> None:
    cache.clear()


def film(trainer: Trainer, step: int) -> None:
    key = f"{trainer.name}/episodes/{step}.mp4"
    trainer.upload(key)
    trainer.post(f"{trainer.path}/episodes", {"step": step, "key": key})


def change(trainer: Trainer, labeler: str = "you") -> BeforeAfter | None:
    user = Labeler.objects.get(name=labeler).user
    return before_after(user, [trainer.experiment]).get(trainer.experiment.pk)


def test_video_shows_its_number_of_answered_comparisons(trainer: Trainer, browser: Browser) -> None:
    trainer.register(3)
    trainer.register(1, gold="first")
    film(trainer, 100)
    labels = [browser.answer(lease) for lease in browser.lease(2)]
    film(trainer, 200)
    browser.undo(labels[0])
    film(trainer, 300)
    progress = browser.get(f"{trainer.path}/progress")
    assert [(each["step"], each["answered"]) for each in progress["episodes"]] == [
        (100, 0),
        (200, 2),
        (300, 1),
    ]
    assert progress["episode"] == progress["episodes"][-1]


@pytest.mark.both_databases
def test_change_counts_answers_until_newest_video(trainer: Trainer, invite: Invited) -> None:
    you, mia = invite("you"), invite("mia")
    trainer.register(5)
    film(trainer, 100)
    assert change(trainer) is None  # there is one video
    film(trainer, 150)
    assert change(trainer) is None  # and there are no answers
    for lease in you.lease(2):
        you.answer(lease)
    mia.answer(mia.lease()[0])
    film(trainer, 200)
    you.answer(you.lease()[0])
    assert change(trainer) == BeforeAfter(100, 200, 3, 2)
    assert change(trainer, "mia") == BeforeAfter(100, 200, 3, 1)
    Episode.objects.update(answered=None)  # registered before the site counted
    assert change(trainer) == BeforeAfter(100, 200, None, 2)
    Experiment.objects.update(media_deleted_at=Now())
    assert change(trainer) is None
    film(trainer, 300)
    assert change(trainer) is None


def test_labelers_see_the_change(trainer: Trainer, browser: Browser, researcher_browser: Client) -> None:
    trainer.register(3)
    film(trainer, 100)
    browser.answer(browser.lease()[0])
    pages = ("/", f"{trainer.path}/done")

    def shown(client: Client) -> list[str]:
        return [client.get(page).content.decode() for page in pages]

    assert not any("before-after" in html for html in shown(browser.client))
    film(trainer, 200)
    for html in shown(browser.client):
        assert f'src="{trainer.path}/episodes/100"' in html
        assert f'src="{trainer.path}/episodes/200"' in html
        assert "After 1 answer, 1 of them yours" in " ".join(html.split())
    home, done = shown(researcher_browser)
    assert "before-after" not in home  # the experiment's page has all its videos
    assert "After 1 answer " in " ".join(done.split())


def test_videos_can_be_hidden(trainer: Trainer, browser: Browser, researcher_browser: Client) -> None:
    trainer.register(2)
    browser.answer(browser.lease()[0])
    film(trainer, 100)
    film(trainer, 200)
    address = f"{trainer.path}/episodes/200"

    def status(client: Client) -> int:
        return client.get(address).status_code

    assert (status(browser.client), status(researcher_browser)) == (302, 302)
    Experiment.objects.update(show_episodes=False)
    progress = browser.get(f"{trainer.path}/progress")
    assert (progress["episode"], progress["episodes"]) == (None, [])
    assert (status(browser.client), status(researcher_browser)) == (404, 302)
    assert change(trainer) is None
    assert "episodes/200" in researcher_browser.get(f"{trainer.path}/").content.decode()
