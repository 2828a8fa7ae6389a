"""Test what happens on the site is queued for webhooks, once, and with the change itself."""

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import transaction
from django.db.models import F
from django.test import Client
from django.urls import clear_script_prefix, set_script_prefix
from django.utils import timezone
from pytest_django import Settings

from human_feedback_site.feedback.models import (
    Experiment,
    Label,
    Participation,
    WebhookDelivery,
    WebhookEndpoint,
)
from human_feedback_site.feedback.services import chores, experiments, moderation, webhooks
from tests.site.conftest import Browser, Trainer

pytestmark = pytest.mark.usefixtures("endpoint")


def queued() -> list[dict[str, Any]]:
    """Return what the events say, oldest first."""
    return [
        json.loads(body) for body in WebhookDelivery.objects.order_by("pk").values_list("body", flat=True)
    ]


def kinds() -> list[str]:
    return [event["type"] for event in queued()]


# Experiments that finish


@pytest.mark.parametrize("by", ["run", "site"])
def test_an_experiment_that_finishes_is_an_event_once(trainer: Trainer, by: str, settings: Settings) -> None:
    settings.PUBLIC_URL = "https://labels.example.org"
    for _ in range(2):
        if by == "run":
            trainer.put(state="finished")
        else:
            experiments.finish(Experiment.objects.all())
    [event] = queued()
    assert event["type"] == "experiment.finished"
    assert event["timestamp"].endswith("+00:00")
    url = "https://labels.example.org/experiments/hopper/"
    assert event["data"] == {"experiment": "hopper", "url": url}
    [delivery] = WebhookDelivery.objects.all()
    assert (delivery.status, delivery.attempts, delivery.experiment) == ("pending", 0, trainer.experiment)


def test_an_experiment_that_goes_on_finishes_again(trainer: Trainer) -> None:
    trainer.put(state="finished")
    trainer.put(state="running")
    trainer.put(state="finished")
    assert kinds() == ["experiment.finished"] * 2


def test_no_event_says_what_was_rolled_back(trainer: Trainer) -> None:
    with transaction.atomic():
        experiments.finish(Experiment.objects.all())
        assert kinds() == ["experiment.finished"]
        transaction.set_rollback(True)
    assert kinds() == []


def test_only_endpoints_that_want_an_event_get_it(trainer: Trainer, endpoint: WebhookEndpoint) -> None:
    endpoint.experiment_finished = False
    endpoint.save()
    trainer.put(state="finished")
    endpoint.experiment_finished, endpoint.enabled = True, False
    endpoint.save()
    trainer.put(state="running")
    trainer.put(state="finished")
    assert kinds() == []


@pytest.fixture
def below_a_path(settings: Settings) -> Iterator[None]:
    """A site whose address has a path, as requests set it."""
    settings.PUBLIC_URL = "https://example.org/teacher"
    set_script_prefix("/teacher/")
    yield
    clear_script_prefix()


@pytest.mark.usefixtures("below_a_path")
def test_links_are_the_same_in_requests_and_in_chores(trainer: Trainer) -> None:
    webhooks.announce_finished(trainer.experiment)
    clear_script_prefix()
    webhooks.announce_finished(trainer.experiment)
    links = [event["data"]["url"] for event in queued()]
    assert links == ["https://example.org/teacher/experiments/hopper/"] * 2


# Labelers that are blocked


def participation(name: str = "you") -> Any:
    return Participation.objects.filter(labeler__name=name)


def test_a_labeler_whom_checks_stop_is_an_event(trainer: Trainer, browser: Browser) -> None:
    Experiment.objects.update(gold_rate=1.0, stop_failures=2)
    trainer.register(3, gold="first")
    for _ in range(2):
        assert kinds() == []
        browser.answer(browser.lease()[0], "equal")
    [event] = queued()
    assert event["type"] == "labeler.blocked"
    assert event["data"] == {
        "experiment": "hopper",
        "url": None,
        "labeler": "you",
        "reason": "failed_checks",
    }


def test_a_labeler_whom_somebody_blocks_is_an_event_once(trainer: Trainer, label: Any) -> None:
    assert moderation.stop(participation()) == 1
    assert moderation.stop(participation()) == 0
    assert moderation.block(participation(), trainer.user) == 1
    [event] = queued()
    assert (event["data"]["labeler"], event["data"]["reason"]) == ("you", "researcher")
    moderation.readmit(participation())
    moderation.block(participation(), trainer.user)
    assert kinds() == ["labeler.blocked"] * 2


# Training that waits


def pass_time(**amount: float) -> None:
    """Let all that is known of waits and labels be longer ago."""
    by = timedelta(**amount)
    Experiment.objects.update(waiting_since=F("waiting_since") - by)
    for label in Label.objects.all():
        Label.objects.filter(pk=label.pk).update(created_at=label.created_at - by)


def look() -> int:
    """Look for waits, as the chore does."""
    return webhooks.announce_waiting(timezone.now())


@pytest.mark.both_databases
def test_training_that_waits_long_is_an_event_once(trainer: Trainer) -> None:
    trainer.wait_for(7)
    pass_time(minutes=4)
    assert look() == 0
    pass_time(minutes=2)
    trainer.wait_for(6)  # the same wait
    assert look() == 1
    pass_time(minutes=60)
    assert look() == 0
    [event] = queued()
    assert event["type"] == "training.waiting"
    assert event["data"]["waiting_for"] == 6
    assert event["data"]["waiting_since"].endswith("+00:00")


def test_each_wait_is_an_event(trainer: Trainer) -> None:
    for _ in range(2):
        trainer.wait_for(7)
        pass_time(minutes=6)
        assert look() == 1
        trainer.wait_for(None)
        assert look() == 0
    assert kinds() == ["training.waiting"] * 2


def test_a_trainer_that_was_away_goes_on_with_its_wait(trainer: Trainer) -> None:
    trainer.wait_for(7)
    pass_time(minutes=6)
    assert look() == 1
    Experiment.objects.update(trainer_seen_at=timezone.now() - timedelta(hours=1))
    chores.forget_stale_runs()
    assert look() == 0
    trainer.wait_for(7)
    assert look() == 0


def test_a_run_that_starts_again_waits_anew(trainer: Trainer) -> None:
    trainer.wait_for(7)
    pass_time(minutes=6)
    assert look() == 1
    trainer.put()
    assert trainer.experiment.waiting_for is None
    trainer.wait_for(7)
    assert look() == 0
    pass_time(minutes=6)
    assert look() == 1


@pytest.mark.both_databases
def test_nobody_is_called_while_somebody_labels(trainer: Trainer, browser: Browser) -> None:
    trainer.register(2)
    trainer.wait_for(2)
    pass_time(minutes=10)
    browser.answer(browser.lease()[0])
    assert look() == 0
    pass_time(minutes=6)
    assert look() == 1


def test_other_labels_do_not_help(trainer: Trainer, stranger: Trainer, browser: Browser) -> None:
    stranger.register()
    other: Any = type(browser)(stranger.invite("you"), stranger.name)
    other.answer(other.lease()[0])
    trainer.wait_for(2)
    Experiment.objects.filter(name=trainer.name).update(waiting_since=timezone.now() - timedelta(minutes=6))
    assert look() == 1


@pytest.mark.parametrize("change", [{"state": "paused"}, {"state": "finished"}, {"waiting_for": 0}])
def test_waits_that_need_no_people_are_no_events(trainer: Trainer, change: dict[str, Any]) -> None:
    trainer.wait_for(7)
    pass_time(minutes=6)
    Experiment.objects.update(**change)
    assert look() == 0


def test_restarted_run_starts_a_new_wait(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer.wait_for(7)
    pass_time(minutes=6)
    announce: Callable[..., bool] = webhooks._announce_waiting

    def end_first(*args: Any) -> bool:
        trainer.wait_for(None)
        return announce(*args)

    monkeypatch.setattr(webhooks, "_announce_waiting", end_first)
    assert look() == 0
    assert kinds() == []


def test_an_endpoint_that_comes_later_is_told_of_a_wait(trainer: Trainer, endpoint: WebhookEndpoint) -> None:
    endpoint.enabled = False
    endpoint.save()
    trainer.wait_for(7)
    pass_time(minutes=6)
    assert look() == 0
    endpoint.enabled = True
    endpoint.save()
    assert look() == 1


def test_events_of_an_experiment_that_is_created_finished_name_it(trainer: Trainer, client: Client) -> None:
    values = trainer.description(state="finished")
    experiments.put_experiment(trainer.user, "late", UUID(values.pop("run_id")), values)
    [event] = queued()
    assert event["data"]["experiment"] == "late"


# Messages for chats


def test_a_chat_gets_messages_and_a_program_gets_data(trainer: Trainer, settings: Settings) -> None:
    settings.PUBLIC_URL = "https://labels.example.org"
    webhooks.create_endpoint(WebhookEndpoint(name="chat", url="https://hooks.example/", format="slack"))
    trainer.put(state="finished")
    message, said = queued()
    assert said["type"] == "experiment.finished"
    url = "https://labels.example.org/experiments/hopper/"
    assert message == {"text": f"Experiment `hopper` has finished. {url}"}


@pytest.mark.parametrize(
    ("event", "data", "text"),
    [
        ("test", {}, "RL-Teacher: this is a test of the webhook."),
        (
            "training.waiting",
            {"waiting_for": 3, "waiting_since": None},
            "Training of `hopper` is waiting for 3 label(s), and nobody is labeling.",
        ),
        (
            "labeler.blocked",
            {"labeler": "<!channel> `a` & b", "reason": "failed_checks"},
            (
                "Labeler `&lt;!channel&gt; 'a' &amp; b` gets no more questions of `hopper`: "
                "failed attention checks."
            ),
        ),
        (
            "labeler.blocked",
            {"labeler": "mia", "reason": "researcher"},
            "Labeler `mia` gets no more questions of `hopper`: stopped by a researcher.",
        ),
    ],
)
def test_messages(endpoint: WebhookEndpoint, event: str, data: dict[str, Any], text: str) -> None:
    about = {"experiment": "hopper", "url": None} if data else {}
    endpoint.format = "slack"
    webhooks._queue([endpoint], WebhookDelivery.Event(event), None, {**about, **data})
    assert queued() == [{"text": text}]
