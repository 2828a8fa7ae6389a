"""Chores keep tables small without losing an answer, and say when a trainer is away."""

import io
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.core.management import CommandError, call_command
from django.db.models.functions import Now
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from human_feedback_site.feedback.models import Experiment, Label, Lease
from human_feedback_site.feedback.services import chores
from human_feedback_site.feedback.services.experiments import trainer_away
from tests.site.conftest import Browser, Invited, Trainer

MONTH = timedelta(days=31)


def age(lease: Any, by: timedelta = MONTH) -> None:
    """Let a lease have expired long ago."""
    Lease.objects.filter(uuid=lease["uuid"]).update(expires_at=Now() - by)


def leases() -> list[str]:
    return [str(uuid) for uuid in Lease.objects.order_by("pk").values_list("uuid", flat=True)]


# Leases


def test_an_answer_that_could_count_arrives_after_any_time(browser: Browser, lease: Any) -> None:
    age(lease, by=10 * MONTH)
    assert chores.forget_leases() == "0 deleted"
    assert browser.answer(lease)["status"] == "counted"


def test_surplus_after_weeks(browser: Browser, lease: Any, invite: Invited) -> None:
    age(lease, by=timedelta(days=29))
    quick = invite("quick")
    quick.answer(quick.lease()[0])
    chores.forget_leases()
    assert browser.answer(lease)["status"] == "surplus"


@pytest.mark.both_databases
@pytest.mark.parametrize("end", ["answered", "cancelled", "finished"])
def test_leases_that_nobody_answered_go_when_no_answer_can_count(
    trainer: Trainer, browser: Browser, invite: Invited, end: str
) -> None:
    uuids = trainer.register()
    [lease] = browser.lease()
    age(lease)
    if end == "answered":
        quick = invite("quick")
        quick.answer(quick.lease()[0])
    elif end == "cancelled":
        trainer.post(f"{trainer.path}/cancel", {"comparisons": uuids})
    else:
        trainer.put(state="finished")
    assert chores.forget_leases() == "1 deleted"
    assert lease["uuid"] not in leases()
    assert chores.forget_leases() == "0 deleted"


def test_leases_with_an_answer_or_from_an_undo_are_evidence(trainer: Trainer, browser: Browser) -> None:
    trainer.register(2)
    answered, other = browser.lease(2)
    again = browser.undo(browser.answer(answered))["lease"]
    trainer.put(state="finished")
    for lease in (answered, other, again):
        age(lease)
    chores.forget_leases()
    assert leases() == [answered["uuid"], again["uuid"]]
    assert Label.objects.get().lease.uuid.hex == answered["uuid"].replace("-", "")


@pytest.mark.both_databases
def test_leases_go_in_batches(trainer: Trainer, browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chores, "_LEASES_AT_ONCE", 2)
    trainer.register(5)
    for lease in browser.lease(5):
        age(lease)
    trainer.put(state="finished")
    assert chores.forget_leases() == "5 deleted"


def test_chores_stop_on_time(trainer: Trainer, browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chores, "WORK_SECONDS", -1.0)
    trainer.register()
    age(browser.lease()[0])
    trainer.put(state="finished")
    assert chores.forget_leases() == "0 deleted"
    assert len(leases()) == 1


# Trainers


def is_away() -> bool:
    return Experiment.objects.filter(trainer_away()).exists()


@pytest.mark.parametrize("state", ["running", "paused"])
def test_absent_trainer_waits_for_nobody(trainer: Trainer, browser: Browser, state: str) -> None:
    trainer.wait_for(7)
    Experiment.objects.update(state=state)
    trainer.silence(120)
    assert chores.forget_stale_runs() == "0 found"
    assert browser.ask()["waiting_for"] == 7
    trainer.silence(190)
    assert chores.forget_stale_runs() == "1 found"
    assert browser.ask()["waiting_for"] is None
    assert is_away()
    trainer.wait_for(6)
    assert not is_away()
    assert browser.ask()["waiting_for"] == 6


def test_labeling_goes_on_without_the_trainer(trainer: Trainer, browser: Browser) -> None:
    trainer.register()
    trainer.silence(190)
    chores.forget_stale_runs()
    assert browser.answer(browser.lease()[0])["status"] == "counted"
    assert is_away()  # what labelers do is no sign of life of the trainer


def test_a_finished_run_is_not_away(trainer: Trainer) -> None:
    trainer.put(state="finished")
    trainer.silence(190)
    assert not is_away()


def test_a_trainer_that_was_never_heard_from_counts_from_the_beginning(trainer: Trainer) -> None:
    Experiment.objects.update(trainer_seen_at=None)
    assert not is_away()
    Experiment.objects.update(created_at=Now() - timedelta(seconds=190))
    assert is_away()


@pytest.mark.parametrize(
    "sign",
    [
        lambda trainer: trainer.put(),
        lambda trainer: trainer.register(),
        lambda trainer: trainer.decisions(),
        lambda trainer: trainer.post(f"{trainer.path}/cancel", {"comparisons": []}),
        lambda trainer: trainer.wait_for(1),
    ],
    ids=["put", "register", "decisions", "cancel", "points"],
)
def test_trainer_requests_are_heartbeats(trainer: Trainer, sign: Callable[[Trainer], object]) -> None:
    trainer.silence(190)
    sign(trainer)
    assert not is_away()


@pytest.mark.both_databases
def test_signs_of_life_are_written_at_most_twice_a_minute(trainer: Trainer) -> None:
    trainer.silence(5)
    before = trainer.experiment.trainer_seen_at
    trainer.decisions()
    assert trainer.experiment.trainer_seen_at == before
    trainer.silence(35)
    trainer.decisions()
    seen = trainer.experiment.trainer_seen_at
    assert seen is not None
    assert abs(timezone.now() - seen) < timedelta(minutes=2)


@pytest.mark.both_databases
def test_a_database_whose_clock_is_ahead_takes_every_sign_of_life(trainer: Trainer) -> None:
    Experiment.objects.update(trainer_seen_at=timezone.now() + timedelta(hours=1))
    trainer.decisions()
    seen = trainer.experiment.trainer_seen_at
    assert seen is not None
    assert seen < timezone.now() + timedelta(minutes=1)


def test_bots_are_no_trainers(trainer: Trainer, lease: Any) -> None:
    trainer.silence(190)
    trainer.get(f"{trainer.path}/leases/{lease['uuid']}")
    trainer.post(f"{trainer.path}/invites", {"labeler": "bot-1"})
    assert is_away()


@pytest.mark.parametrize(
    ("language", "text"),
    [("en", "No contact with the trainer since"), ("zh-CN", "与训练程序失去联系")],
)
def test_the_page_says_since_when_the_trainer_is_away(trainer: Trainer, language: str, text: str) -> None:
    client = Client(headers={"Accept-Language": language})
    client.force_login(trainer.user)
    Experiment.objects.update(waiting_for=919)
    html = client.get("/experiments/hopper/").content.decode()
    assert text not in html
    assert ">919<" in html
    trainer.silence(7200)
    html = client.get("/experiments/hopper/").content.decode()
    since = trainer.experiment.trainer_seen_at
    assert since is not None
    assert text in html
    assert f"{since:%Y-%m-%d %H:%M}" in html
    assert ">919<" not in html


def test_the_admin_says_since_when_the_trainer_is_away(trainer: Trainer, root: Client) -> None:
    trainer.silence(7200)
    pages = (
        reverse("admin:feedback_experiment_changelist"),
        reverse("admin:feedback_experiment_change", args=[trainer.experiment.pk]),
    )
    cell = re.compile(r"(?s)away[_ ]since.*?(\w{3,4}\. \d+, \d{4}|\w{3,9} \d+, \d{4})")
    for page in pages:
        assert cell.search(root.get(page).content.decode())
    assert root.get(pages[0] + "?o=-3").status_code == 200


# The end


def finished_at(trainer: Trainer) -> Any:
    return trainer.experiment.finished_at


def test_an_experiment_notes_when_it_finished_and_that_it_goes_on(trainer: Trainer) -> None:
    assert finished_at(trainer) is None
    trainer.put(state="finished")
    first = finished_at(trainer)
    assert abs(timezone.now() - first) < timedelta(minutes=2)
    trainer.put(state="finished")
    trainer.put(prompt="Which one turns over?")
    assert finished_at(trainer) == first
    trainer.put(state="running")
    assert finished_at(trainer) is None


def test_an_experiment_may_be_made_finished(trainer: Trainer) -> None:
    Experiment.objects.filter(pk=trainer.experiment.pk).delete()
    trainer.put(state="finished")
    assert finished_at(trainer) is not None


# All of them


def test_old_sessions_go_and_others_stay(browser: Browser, client: Client, researcher: User) -> None:
    client.force_login(researcher)
    old = client.session.session_key
    Session.objects.filter(pk=old).update(expire_date=timezone.now() - timedelta(days=1))
    assert chores.forget_sessions() == "1 deleted"
    assert not Session.objects.filter(pk=old).exists()
    assert browser.ask()["state"] == "running"


def run_chores() -> str:
    out = io.StringIO()
    call_command("chores", stdout=out, stderr=out)
    return out.getvalue()


@pytest.mark.both_databases
def test_the_command_does_all_chores_and_says_what_each_did(trainer: Trainer, browser: Browser) -> None:
    trainer.register()
    age(browser.lease()[0])
    trainer.wait_for(3)
    trainer.put(state="finished")
    Experiment.objects.update(finished_at=Now() - timedelta(days=31))
    assert run_chores().splitlines() == [
        "labels of 0.1.0: 0 labels completed",
        "stale runs: 0 found",
        "labelers: 0 decisions revised",
        "deletions: 0 finished",
        "expired leases: 1 deleted",
        "expired clips: 2 deleted",
        "expired sessions: 0 deleted",
        "attempts to sign in: 0 deleted",
        "webhooks: 0 sent",
    ]
    assert all(line.split(": ")[1].startswith("0 ") for line in run_chores().splitlines())


def test_a_chore_that_fails_keeps_no_other_from_being_done(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> str:
        raise RuntimeError("the roof is leaking")

    both = {"roof": fail, "sessions": chores.forget_sessions}
    monkeypatch.setattr("human_feedback_site.feedback.management.commands.chores.CHORES", both)
    out = io.StringIO()
    with pytest.raises(CommandError, match="1 of 2 maintenance tasks failed: roof"):
        call_command("chores", stdout=out, stderr=out)
    assert "roof: failed with RuntimeError: the roof is leaking" in out.getvalue()
    assert "sessions: 0 deleted" in out.getvalue()
