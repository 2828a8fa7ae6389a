"""Creating, resuming, pausing and finishing experiments, and what trainers send beside comparisons."""

from collections.abc import Callable
from uuid import uuid4

import pytest
from pytest_django import Settings

from human_feedback_site.feedback.models import Experiment, TrainingPoint
from human_feedback_site.feedback.selectors.experiments import learning_curves
from tests.site.conftest import Browser, Trainer


@pytest.mark.both_databases
def test_a_new_experiment_is_created_and_an_old_one_resumed(trainer: Trainer) -> None:
    trainer.name = "second"
    assert trainer.send("PUT", trainer.path, trainer.description()).status_code == 201
    assert (
        trainer.send("PUT", trainer.path, trainer.description(prompt="Which is faster?")).status_code == 200
    )
    assert trainer.experiment.prompt == "Which is faster?"


def test_the_reply_says_where_to_label(trainer: Trainer) -> None:
    reply = trainer.put()
    addresses = {"page_url", "label_url", "invite_url", "watch_url"}
    assert set(reply) == {"name", "run_id", "state", "prompt", "last_seq"} | addresses
    assert reply["page_url"] == "http://testserver/experiments/hopper/"
    assert reply["run_id"] == trainer.run_id
    assert reply["label_url"] == "http://testserver/experiments/hopper/label"
    assert reply["invite_url"].startswith("http://testserver/j/")


def test_addresses_for_people_use_the_public_url(trainer: Trainer, settings: Settings) -> None:
    settings.PUBLIC_URL = "https://teach.example.org"
    reply = trainer.put()
    assert reply["label_url"] == "https://teach.example.org/experiments/hopper/label"
    assert reply["invite_url"].startswith("https://teach.example.org/j/")


@pytest.mark.parametrize("name", ["with space", "a" * 101, "a.b", "ä", "a%00b"])
def test_odd_names_are_refused(trainer: Trainer, name: str) -> None:
    assert trainer.send("PUT", f"/experiments/{name}", trainer.description()).status_code == 400


@pytest.mark.both_databases
def test_another_run_cannot_take_over_a_name(trainer: Trainer, stranger: Trainer) -> None:
    for body in (trainer.description(run_id=str(uuid4())), stranger.description()):
        assert trainer.send("PUT", trainer.path, body).status_code == 409
    assert stranger.send("PUT", trainer.path, stranger.description()).status_code == 409
    assert str(trainer.experiment.run_id) == trainer.run_id


def test_the_rate_of_gold_is_taken_from_a_new_run_and_then_set_on_the_site_alone(trainer: Trainer) -> None:
    assert trainer.experiment.gold_rate == 0.0
    trainer.put(gold_rate=0.5)
    assert trainer.experiment.gold_rate == 0.0
    trainer.name = "other"
    trainer.put(gold_rate=0.05)
    assert trainer.experiment.gold_rate == 0.05
    for odd in (-0.1, 1.5, "much", None):
        body = trainer.description(gold_rate=odd)
        assert trainer.send("PUT", trainer.path, body).status_code == 400


def test_resuming_leaves_the_state_alone_unless_it_says_so(trainer: Trainer) -> None:
    Experiment.objects.update(state=Experiment.State.PAUSED)
    assert trainer.put()["state"] == "paused"
    assert trainer.put(state="running")["state"] == "running"
    assert trainer.put(state="finished")["state"] == "finished"


@pytest.mark.parametrize("state", [Experiment.State.PAUSED, Experiment.State.FINISHED])
def test_pause_and_finish_reach_trainer_and_labeler(trainer: Trainer, browser: Browser, state: str) -> None:
    trainer.register()
    Experiment.objects.update(state=state)
    assert trainer.decisions()["state"] == state
    reply = browser.ask()
    assert (reply["state"], reply["leases"]) == (state, [])


def test_labelers_see_that_training_waits(trainer: Trainer, browser: Browser) -> None:
    point = {"step": 10, "values": {"labels/asked": 3}}
    trainer.post(f"{trainer.path}/points", {"points": [point], "waiting_for": 7})
    assert browser.ask()["waiting_for"] == 7
    trainer.post(f"{trainer.path}/points", {"points": []})
    assert browser.ask()["waiting_for"] == 7
    trainer.post(f"{trainer.path}/points", {"points": [], "waiting_for": None})
    assert browser.ask()["waiting_for"] is None


@pytest.mark.both_databases
def test_points_sent_again_replace_the_old_ones(trainer: Trainer) -> None:
    for value in (1.5, 2.5):
        points = [{"step": step, "values": {"a": value, "b": -value}} for step in (20, 10)]
        assert trainer.post(f"{trainer.path}/points", {"points": points}) == {"stored": 4}
    assert TrainingPoint.objects.count() == 4
    assert learning_curves(trainer.experiment, 10)["a"] == [
        {"step": 10, "value": 2.5},
        {"step": 20, "value": 2.5},
    ]


@pytest.mark.both_databases
@pytest.mark.parametrize("n", [1, 2, 10, 11, 95])
def test_long_curves_are_thinned_but_keep_their_ends(trainer: Trainer, n: int) -> None:
    steps = [100 * index for index in range(n)]
    points = [{"step": step, "values": {"a": step, "b": 0.5}} for step in steps]
    trainer.post(f"{trainer.path}/points", {"points": points})
    kept = [point["step"] for point in learning_curves(trainer.experiment, 10)["a"]]
    assert (kept[0], kept[-1]) == (steps[0], steps[-1])
    assert len(kept) <= 11
    assert kept == sorted(set(kept))
    assert kept == steps or n > 10


@pytest.mark.both_databases
def test_a_point_twice_in_one_request_is_stored_once(trainer: Trainer) -> None:
    points = [{"step": 1, "values": {"a": value}} for value in (1.0, 2.0)]
    assert trainer.post(f"{trainer.path}/points", {"points": points}) == {"stored": 1}
    assert TrainingPoint.objects.get().value == 2.0


def test_an_invitation_names_its_labeler(trainer: Trainer, invite: Callable[[str], Browser]) -> None:
    for name in ("labeler-1", "labeler-1", "labeler-2"):
        invite(name)
    names = sorted(trainer.experiment.labelers.values_list("name", flat=True))
    assert names == ["labeler-1", "labeler-2", "you"]


def test_labelers_of_two_researchers_are_two_people(trainer: Trainer, stranger: Trainer) -> None:
    for run in (trainer, stranger):
        run.client.logout()
        assert run.client.get(run.put(invite="you")["invite_url"]).status_code == 302
    [mine] = trainer.experiment.labelers.all()
    [theirs] = stranger.experiment.labelers.all()
    assert mine.name == theirs.name == "you"
    assert mine.user != theirs.user


def test_the_owner_may_label_without_an_invitation(trainer: Trainer, browser: Browser) -> None:
    trainer.register()
    browser.client.force_login(trainer.user)
    [lease] = browser.lease()
    assert browser.answer(lease)["status"] == "counted"
