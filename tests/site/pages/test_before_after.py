"""The videos that show labelers how the agent changes, examples, and a film beside the pairs."""

import json
from pathlib import Path
from typing import Any

import pytest
from django.core.cache import cache
from django.core.exceptions import ValidationError
from django.db.models.functions import Now
from django.test import Client

from human_feedback_site.feedback.models import Comparison, Episode, Example, Experiment, Label, Labeler
from human_feedback_site.feedback.selectors.labeling import BeforeAfter, before_after
from tests.site.conftest import Browser, Invited, Trainer


def change(trainer: Trainer, labeler: str = "you") -> BeforeAfter | None:
    user = Labeler.objects.get(name=labeler).user
    return before_after(user, [trainer.experiment]).get(trainer.experiment.pk)


def test_video_shows_its_number_of_answered_comparisons(trainer: Trainer, browser: Browser) -> None:
    trainer.register(3)
    trainer.register(1, gold="first")
    trainer.film(100)
    labels = [browser.answer(lease) for lease in browser.lease(2)]
    trainer.film(200)
    browser.undo(labels[0])
    trainer.film(300)
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
    trainer.film(100)
    assert change(trainer) is None  # there is one video
    trainer.film(150)
    assert change(trainer) is None  # and there are no answers
    for lease in you.lease(2):
        you.answer(lease)
    mia.answer(mia.lease()[0])
    trainer.film(200)
    you.answer(you.lease()[0])
    assert change(trainer) == BeforeAfter(100, 200, 3, 2)
    assert change(trainer, "mia") == BeforeAfter(100, 200, 3, 1)
    trainer.post(f"{trainer.path}/points", {"points": [{"step": 200, "values": {"labels/answered": 1}}]})
    trainer.film(210)  # of an agent that had learned from one answer
    assert change(trainer) == BeforeAfter(100, 210, 1, 1)
    Episode.objects.update(answered=None)  # registered before the site counted
    assert change(trainer) == BeforeAfter(100, 210, None, 3)
    Experiment.objects.update(media_deleted_at=Now())
    assert change(trainer) is None
    trainer.film(300)
    assert change(trainer) is None


def test_labelers_see_the_change(trainer: Trainer, browser: Browser, researcher_browser: Client) -> None:
    trainer.register(3)
    trainer.film(100)
    browser.answer(browser.lease()[0])
    pages = ("/", f"{trainer.path}/done")

    def shown(client: Client) -> list[str]:
        return [client.get(page).content.decode() for page in pages]

    assert not any("before-after" in html for html in shown(browser.client))
    trainer.film(200)
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
    trainer.film(100)
    trainer.film(200)
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


def example(trainer: Trainer, better: str = "first", **changes: object) -> Example:
    [uuid] = trainer.register()
    comparison = Comparison.objects.get(uuid=uuid)
    return Example.objects.create(
        experiment=trainer.experiment, comparison=comparison, better=better, **changes
    )


def test_an_answer_says_how_long_its_clips_were_in_sight(trainer: Trainer, browser: Browser) -> None:
    trainer.register(2)
    one, other = browser.lease(2)
    browser.answer(one, shown_ms=1_200)
    browser.answer(other)
    assert list(Label.objects.order_by("pk").values_list("shown_ms", flat=True)) == [1_200, None]


def test_examples_come_with_answers(trainer: Trainer, browser: Browser, media_folder: Path) -> None:
    made = [example(trainer, "first", explanation="It jumps."), example(trainer, "second", practice=True)]
    made += [example(trainer, "equal"), example(trainer, "cant_tell")]
    items = browser.get(f"{trainer.path}/examples")["items"]
    assert [item["practice"] for item in items] == [False, True, False, False]
    assert items[0]["explanation"] == "It jumps."
    assert [item["better"] for item in items[2:]] == ["equal", "cant_tell"]
    for each, item in zip(made, items[:2], strict=False):
        key = {"first": each.comparison.first_key, "second": each.comparison.second_key}[each.better]
        (media_folder / key).write_bytes(b"the better one")
        response = browser.client.get(item[item["better"]]["url"])
        assert response.getvalue() == b"the better one"


def test_the_better_example_is_not_always_on_one_side(trainer: Trainer, browser: Browser) -> None:
    for _ in range(2):
        example(trainer, "first")
    items = browser.get(f"{trainer.path}/examples")["items"]
    assert {item["better"] for item in items} == {"left", "right"}


def test_examples_whose_clips_are_deleted_are_left_out(trainer: Trainer, browser: Browser) -> None:
    example(trainer)
    Experiment.objects.update(media_deleted_at=Now())
    assert browser.get(f"{trainer.path}/examples") == {"items": []}


def test_an_example_is_of_an_experiment_of_the_same_owner(trainer: Trainer, stranger: Trainer) -> None:
    theirs = Comparison.objects.get(uuid=stranger.register()[0])
    wrong = Example(experiment=trainer.experiment, comparison=theirs, better="first")
    with pytest.raises(ValidationError, match="same owner"):
        wrong.full_clean()


def test_the_film_of_the_largest_step_is_shown(trainer: Trainer, browser: Browser) -> None:
    assert browser.get(f"{trainer.path}/progress")["episode"] is None
    for step in (300, 100):
        trainer.film(step)
    episode = browser.get(f"{trainer.path}/progress")["episode"]
    assert episode["step"] == 300
    assert browser.client.get(episode["url"]).getvalue()
    Experiment.objects.update(media_deleted_at=Now())
    assert browser.get(f"{trainer.path}/progress")["episode"] is None


@pytest.mark.both_databases
def test_a_film_of_the_same_step_takes_the_place_of_the_old_one(trainer: Trainer) -> None:
    for name in ("a", "b"):
        trainer.film(7, name)
    assert Episode.objects.get().key == "hopper/episodes/b.mp4"


@pytest.mark.parametrize("key", ["hopper/episodes/9.mp4", "walker/episodes/9.mp4", "hopper/../walker/9.mp4"])
def test_a_film_that_is_not_there_or_of_another_experiment_is_refused(trainer: Trainer, key: str) -> None:
    if key.startswith("walker"):
        trainer.upload(key)
    response = trainer.send("POST", f"{trainer.path}/episodes", {"step": 9, "key": key})
    assert response.status_code == 422
    assert json.loads(response.content)["errors"][0]["pointer"] == "#/key"
    assert not Episode.objects.exists()


@pytest.mark.both_databases
def test_progress_counts_the_pairs_of_everybody(trainer: Trainer, browser: Browser) -> None:
    trainer.register(3)
    browser.answer(browser.lease()[0])
    progress = browser.get(f"{trainer.path}/progress")
    assert (progress["answered"], progress["wanted"], progress["waiting"]) == (1, 700, 2)
    Experiment.objects.update(state="paused")
    assert browser.get(f"{trainer.path}/progress")["waiting"] == 0


def test_training_does_not_restart_after_an_undo(trainer: Trainer, browser: Browser) -> None:
    trainer.put(pretrain_labels=2)
    trainer.register(3, phase="pretraining")
    first, second = browser.lease(2)
    browser.answer(first, "cant_tell")
    label = browser.answer(second)

    def start() -> Any:
        cache.clear()
        return browser.get(f"{trainer.path}/progress")["start"]

    assert start() == {"answered": 1, "wanted": 2}
    browser.undo(label)
    assert start() == {"answered": 0, "wanted": 2}
    trainer.register()
    assert start() is None
