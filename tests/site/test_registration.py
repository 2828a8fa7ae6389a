"""Experiments from creation to their end; comparisons, registered with both clips, once, or not at all."""

import json
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from pytest_django import Settings

from human_feedback_site.feedback.media.store import FolderMedia
from human_feedback_site.feedback.models import Comparison, Experiment, TrainingPoint
from human_feedback_site.feedback.selectors.experiments import learning_curves
from human_feedback_site.feedback.services import experiments
from tests.site.conftest import Browser, Trainer, side_of, stored


@pytest.mark.both_databases
def test_two_hundred_fit_into_one_request(trainer: Trainer) -> None:
    body = {"comparisons": [trainer.comparison() for _ in range(200)]}
    assert trainer.post(f"{trainer.path}/comparisons", body) == {"registered": 200, "existing": 0}


@pytest.mark.parametrize(
    "change",
    [
        {"phase": "pretraining"},
        {"step": 101},
        {"priority": 2},
        {"first": {"true_return": 3.0}},
        {"second": {"key": "x"}},
    ],
    ids=str,
)
def test_a_known_uuid_with_other_content_is_a_conflict(trainer: Trainer, change: dict[str, object]) -> None:
    comparison = trainer.comparison()
    trainer.post(f"{trainer.path}/comparisons", {"comparisons": [comparison]})
    for name, value in change.items():
        comparison[name] = {**comparison[name], **value} if isinstance(value, dict) else value
    body = {"comparisons": [trainer.comparison(), comparison]}
    assert trainer.send("POST", f"{trainer.path}/comparisons", body).status_code == 409
    assert Comparison.objects.count() == 1


@pytest.mark.both_databases
def test_a_uuid_of_another_experiment_is_a_conflict(trainer: Trainer, stranger: Trainer) -> None:
    [uuid] = stranger.register()
    comparison = trainer.comparison(uuid=uuid)
    response = trainer.send("POST", f"{trainer.path}/comparisons", {"comparisons": [comparison]})
    assert response.status_code == 409


def test_unreadable_clips_are_named_and_refused(trainer: Trainer, media_folder: Path) -> None:
    good, gone, empty = (trainer.comparison() for _ in range(3))
    (media_folder / gone["first"]["key"]).unlink()
    (media_folder / empty["second"]["key"]).write_bytes(b"")
    response = trainer.send("POST", f"{trainer.path}/comparisons", {"comparisons": [good, gone, empty]})
    assert response.status_code == 422
    problem = json.loads(response.content)
    pointers = ["#/comparisons/1/first/key", "#/comparisons/2/second/key"]
    assert [error["pointer"] for error in problem["errors"]] == pointers
    assert gone["first"]["key"] in problem["errors"][0]["detail"]
    assert not Comparison.objects.exists()


@pytest.mark.parametrize(
    "key",
    [
        *("walker/1/first.mp4", "hopperx/first.mp4", "hopper", "hopper/", "/hopper/a.mp4"),
        *("hopper/../walker/a.mp4", "hopper//a.mp4", "hopper/./a.mp4", "hopper/.hidden"),
        *(
            "hopper/a\\b.mp4",
            "hopper/a b.mp4",
            "hopper/%2e%2e/walker/a.mp4",
            "hopper/🤸.mp4",
            "hopper/a.mp4\n",
        ),
        *("javascript:alert(1)", "https://evil.example/a.mp4", "//evil.example/a.mp4", "file:///etc/passwd"),
        f"hopper/{'a' * 280}",  # longer than a file's name can be
        *("data:video/mp4;base64,AAAA", "hopper:80/a.mp4", "hopper/a.mp4?x=1", "hopper/a.mp4#x"),
    ],
)
def test_foreign_keys_are_refused(trainer: Trainer, stranger: Trainer, key: str) -> None:
    stranger.upload("walker/1/first.mp4")
    stranger.upload("walker/a.mp4")
    comparison = trainer.comparison()
    comparison["first"]["key"] = key
    response = trainer.send("POST", f"{trainer.path}/comparisons", {"comparisons": [comparison]})
    assert response.status_code == 422
    assert not Comparison.objects.exists()


def test_known_clips_are_not_checked_again(trainer: Trainer, media_folder: Path) -> None:
    comparison = trainer.comparison()
    trainer.post(f"{trainer.path}/comparisons", {"comparisons": [comparison]})
    (media_folder / comparison["first"]["key"]).unlink()
    reply = trainer.post(f"{trainer.path}/comparisons", {"comparisons": [comparison]})
    assert reply == {"registered": 0, "existing": 1}


@pytest.mark.both_databases
@pytest.mark.django_db(transaction=True)
def test_clip_checks_do_not_block_writes(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    readable = FolderMedia.readable

    def readable_after_a_write(store: FolderMedia, key: str) -> bool:
        Experiment.objects.update(waiting_for=3)  # waits for ever if the registration holds its lock
        connection.close()  # of this thread
        return readable(store, key)

    monkeypatch.setattr(FolderMedia, "readable", readable_after_a_write)
    trainer.register(3)
    assert trainer.experiment.waiting_for == 3


@pytest.mark.both_databases
@pytest.mark.django_db(transaction=True)
def test_overtaken_registration_adds_the_rest(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = trainer.comparison(), trainer.comparison()
    path = f"{trainer.path}/comparisons"
    refuse_unreadable = experiments._refuse_unreadable

    def be_overtaken(*arguments: Any) -> None:
        monkeypatch.undo()
        assert trainer.post(path, {"comparisons": [one]}) == {"registered": 1, "existing": 0}
        refuse_unreadable(*arguments)

    monkeypatch.setattr(experiments, "_refuse_unreadable", be_overtaken)
    assert trainer.post(path, {"comparisons": [one, two]}) == {"registered": 1, "existing": 1}


def test_store_failure_stops_the_checks(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def fail(store: FolderMedia, key: str) -> bool:
        asked.append(key)
        time.sleep(0.02)
        raise ConnectionError

    monkeypatch.setattr(FolderMedia, "readable", fail)
    with pytest.raises(ConnectionError):
        trainer.register(100)
    assert len(asked) < 100


@pytest.mark.both_databases
def test_cancelling_twice_is_cancelling_once_and_answered_ones_stay(
    trainer: Trainer, browser: Browser
) -> None:
    [answered] = trainer.register()
    browser.answer(browser.lease()[0])
    [wanted, cancelled] = trainer.register(2)
    body = {"comparisons": [answered, cancelled, str(uuid4())]}
    assert trainer.post(f"{trainer.path}/cancel", body) == {"cancelled": 1}
    assert trainer.post(f"{trainer.path}/cancel", body) == {"cancelled": 0}
    assert [stored(uuid).status for uuid in (answered, wanted, cancelled)] == [
        "answered",
        "open",
        "cancelled",
    ]


def test_answer_to_a_cancelled_comparison_is_kept(trainer: Trainer, browser: Browser) -> None:
    uuids = trainer.register()
    [lease] = browser.lease()
    trainer.post(f"{trainer.path}/cancel", {"comparisons": uuids})
    reply = browser.ask(held=[lease["uuid"]])
    assert (reply["lost"], reply["renewed"], reply["leases"]) == ([lease["uuid"]], [], [])
    assert browser.answer(lease)["status"] == "surplus"
    assert trainer.decisions()["items"] == []


@pytest.mark.both_databases
def test_list_of_comparisons(trainer: Trainer, browser: Browser) -> None:
    first, second = trainer.register(2)
    [lease] = browser.lease()  # the newest
    browser.answer(lease, side_of(lease, "second"))
    reply = trainer.get(f"{trainer.path}/comparisons?limit=1")
    assert [item["uuid"] for item in reply["items"]] == [first]
    [item] = trainer.get(f"{trainer.path}/comparisons?after={reply['items'][0]['id']}")["items"]
    assert (item["uuid"], item["status"], item["n_labels"]) == (second, "answered", 1)
    assert (item["decision"], item["probability"]) == ("second", 0.0)
    assert (item["first"]["true_return"], item["second"]["true_return"]) == (2.0, 1.0)
    assert trainer.client.get(item["first"]["url"]).getvalue()


def test_addresses_for_people_use_the_public_url(trainer: Trainer, settings: Settings) -> None:
    settings.PUBLIC_URL = "https://teach.example.org"
    reply = trainer.put()
    assert reply["label_url"] == "https://teach.example.org/experiments/hopper/label"
    assert reply["invite_url"].startswith("https://teach.example.org/j/")


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
