"""Chores may be done by several processes at once, and while labelers answer."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connections
from django.db.models.functions import Now

from human_feedback_site.feedback.models import Experiment, Label, Lease
from human_feedback_site.feedback.services.chores import CHORES, expire_media, forget_leases
from tests.site.conftest import Browser, Trainer

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.both_databases]

ROUNDS = 6
MONTH = timedelta(days=31)


def race(*functions: Callable[[], Any]) -> list[Any]:
    """Call functions at the same moment, each with a database connection of its own; return their results."""
    barrier = threading.Barrier(len(functions))

    def go(function: Callable[[], Any]) -> Any:
        try:
            barrier.wait()
            return function()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(functions)) as pool:
        return list(pool.map(go, functions))


def test_all_chores_at_once_do_what_one_does(trainer: Trainer, browser: Browser, media_folder: Path) -> None:
    trainer.register(20)
    browser.lease(5)
    Lease.objects.update(expires_at=Now() - MONTH)
    trainer.put(state="finished")
    Experiment.objects.update(finished_at=Now() - MONTH)
    race(*(chore for chore in CHORES.values() for _ in range(3)))
    assert not Lease.objects.exists()
    assert list(media_folder.iterdir()) == []
    assert trainer.experiment.media_deleted_at is not None
    assert trainer.decisions()["open"] == 0


def test_answer_keeps_its_lease_or_the_lease_is_gone(trainer: Trainer, browser: Browser) -> None:
    for _ in range(ROUNDS):
        trainer.put(state="running")
        trainer.register()
        [lease] = browser.lease()
        Lease.objects.update(expires_at=Now() - MONTH)
        trainer.put(state="finished")
        body = browser.label(lease)
        status, _ = race(lambda: browser.send("POST", "/labels", body).status_code, forget_leases)  # noqa: B023
        assert status in {201, 404, 409}
        assert Label.objects.filter(uuid=str(body["uuid"])).exists() == (status == 201)
        assert Lease.objects.filter(uuid=lease["uuid"]).exists() == (status == 201)


def test_answers_during_expiry(trainer: Trainer, browser: Browser, invite: Callable[[str], Browser]) -> None:
    others = [invite(name) for name in ("mia", "leo")]
    for _ in range(ROUNDS):
        Experiment.objects.update(media_deleted_at=None)
        trainer.overlap(3)
        trainer.put(state="running")
        trainer.register()
        leases = [each.lease()[0] for each in (browser, *others)]
        trainer.put(state="finished")
        Experiment.objects.update(finished_at=Now() - MONTH)
        answers = [
            lambda each=each, lease=lease: each.answer(lease)["status"]
            for each, lease in zip((browser, *others), leases, strict=True)
        ]
        assert set(race(*answers, expire_media)[:3]) <= {"counted", "surplus"}
        assert trainer.decisions()["open"] == 0
