"""Test what Prometheus reads of the site: who may read it, and figures that are those of the database."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models.functions import Now
from django.test import Client
from django.test.utils import CaptureQueriesContext
from prometheus_client.parser import text_string_to_metric_families
from pytest_django import Settings

from human_feedback_site.feedback.kinds import KINDS, Kind
from human_feedback_site.feedback.models import Experiment, Label, Participation
from human_feedback_site.feedback.selectors.metrics import is_below_chance
from human_feedback_site.feedback.services import accounts
from tests.site.conftest import Browser, Invited, Trainer, expire

TOKEN = "only-for-tests-" + "0123456789" * 3
Read = Callable[..., dict[str, float]]


@pytest.fixture(autouse=True)
def token(settings: Settings) -> str:
    """The token of a site whose metrics are on."""
    settings.METRICS_TOKEN = TOKEN
    return TOKEN


@pytest.fixture
def read(token: str) -> Read:
    """Return the figures about an experiment by name, without ``rl_teacher_``."""

    def read(experiment: str = "hopper") -> dict[str, float]:
        response: Any = scrape(f"Bearer {token}")
        assert response.status_code == 200
        assert response["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        families = text_string_to_metric_families(response.content.decode())
        return {
            sample.name.removeprefix("rl_teacher_"): sample.value
            for family in families
            for sample in family.samples
            if sample.labels == {"experiment": experiment}
        }

    return read


def scrape(authorization: str | None, method: str = "GET") -> Any:
    headers = {} if authorization is None else {"Authorization": authorization}
    return Client(enforce_csrf_checks=True).generic(method, "/metrics", headers=headers)


def update(**values: object) -> None:
    Experiment.objects.filter(name="hopper").update(**values)


@pytest.mark.parametrize(
    "authorization",
    [
        *(None, "", TOKEN, f"Basic {TOKEN}", "Bearer", "Bearer ", "Bearer None", "Bearer é"),
        *(f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}"),
    ],
)
def test_without_the_token_there_is_no_such_page(trainer: Trainer, authorization: str | None) -> None:
    for method in ("GET", "HEAD", "POST", "DELETE"):
        refused = scrape(authorization, method)
        assert (refused.status_code, b"hopper" in refused.content) == (404, False)


@pytest.mark.parametrize("authorization", [None, f"Bearer {TOKEN}", "Bearer ", "Bearer None"])
def test_metrics_are_off_by_default(db: None, settings: Settings, authorization: str | None) -> None:
    settings.METRICS_TOKEN = None
    assert scrape(authorization).status_code == 404


def test_neither_a_session_nor_a_trainers_token_is_enough(trainer: Trainer, admin_client: Client) -> None:
    assert admin_client.get("/metrics").status_code == 404
    assert trainer.client.get("/metrics").status_code == 404


def test_metrics_can_only_be_read(db: None) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
        refused = scrape(f"Bearer {TOKEN}", method)
        assert (refused.status_code, refused["Allow"], refused.content) == (405, "GET, HEAD", b"")
    head = scrape(f"bearer {TOKEN}", "HEAD")
    assert (head.status_code, head.content) == (200, b"")
    assert "no-store" in head["Cache-Control"]


@pytest.mark.both_databases
def test_a_new_experiment_counts_nothing(trainer: Trainer, read: Read) -> None:
    figures = read()
    assert 0.0 <= figures.pop("trainer_silence_seconds") < 600.0
    assert figures == {
        "labels_total": 0.0,
        "withdrawn_labels_total": 0.0,
        "decisions_total": 0.0,
        "live_leases": 0.0,
        "open_comparisons": 0.0,
        "oldest_open_comparison_seconds": 0.0,
        "awaited_labels": 0.0,
        "labelers_below_chance": 0.0,
    }


@pytest.mark.both_databases
def test_work_shows_in_the_figures(trainer: Trainer, invite: Invited, read: Read) -> None:
    trainer.register(5)
    trainer.experiment.comparisons.update(created_at=Now() - timedelta(seconds=300))
    trainer.register(1)
    ada, bob = invite("ada"), invite("bob")
    first, second, third = ada.lease(3)
    [other] = bob.lease(1)
    figures = read()
    assert (figures["live_leases"], figures["open_comparisons"]) == (4, 6)
    assert 300.0 <= figures["oldest_open_comparison_seconds"] < 900.0

    ada.undo(ada.answer(first))  # gives the pair back
    ada.answer(second)
    bob.answer(other, "cant_tell")
    expire(third)
    figures = read()
    assert (figures["labels_total"], figures["withdrawn_labels_total"]) == (3, 1)
    assert (figures["decisions_total"], figures["open_comparisons"]) == (4, 4)
    assert figures["live_leases"] == 1


@pytest.mark.both_databases
def test_void_answers_are_no_labels(trainer: Trainer, browser: Browser, read: Read) -> None:
    trainer.register(2)
    first, second = browser.lease(2)
    browser.answer(first)
    Participation.objects.update(stopped_at=Now())
    browser.answer(second)
    assert Label.objects.filter(status="void").count() == 1
    assert read()["labels_total"] == 1


@pytest.mark.both_databases
def test_feed_lag_is_unread_decisions(trainer: Trainer, browser: Browser, read: Read) -> None:
    assert "feed_lag_decisions" not in read()  # as nobody knows
    trainer.register(3)
    for lease in browser.lease(3):
        browser.answer(lease)
    trainer.decisions(after=0, limit=2)
    assert read()["feed_lag_decisions"] == 3
    trainer.decisions(after=2)
    assert read()["feed_lag_decisions"] == 1
    trainer.decisions(after=3)
    assert read()["feed_lag_decisions"] == 0
    trainer.decisions(after=9)  # of a site that was set back
    assert read()["feed_lag_decisions"] == 0


def test_cursor_needs_metrics(trainer: Trainer, browser: Browser, settings: Settings) -> None:
    settings.METRICS_TOKEN = None
    trainer.decisions(after=1)
    assert trainer.experiment.feed_cursor is None


def test_waiting_trainer_reports_labels(trainer: Trainer, read: Read) -> None:
    trainer.wait_for(7)
    assert read()["awaited_labels"] == 7
    update(state="paused")
    assert read()["awaited_labels"] == 0
    update(state="running", waiting_for=None)
    assert read()["awaited_labels"] == 0


@pytest.mark.both_databases
def test_a_silent_trainer_is_seen(trainer: Trainer, read: Read) -> None:
    update(trainer_seen_at=Now() - timedelta(seconds=1000))
    assert 1000.0 <= read()["trainer_silence_seconds"] < 1600.0
    update(trainer_seen_at=None)
    assert "trainer_silence_seconds" not in read()


@pytest.mark.both_databases
def test_a_finished_experiment_is_shown_until_its_end_was_seen(trainer: Trainer, read: Read) -> None:
    update(state="finished", finished_at=Now() - timedelta(seconds=60), waiting_for=3)
    assert read()["awaited_labels"] == 0
    update(finished_at=Now() - timedelta(seconds=660))
    assert read() == {}


def test_experiments_being_deleted_are_hidden(trainer: Trainer, read: Read) -> None:
    update(deletion_asked_at=Now())
    assert read() == {}


GOOD = [[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]]
TURNED = [[0.1, 0.1, 0.8], [0.1, 0.8, 0.1], [0.8, 0.1, 0.1]]


def confusion_of(kind: Kind, right: float) -> list[list[float]]:
    """Return the matrix of a labeler who gives the right answer this often, and else the contrary."""
    return [
        [
            right * (answer == truth) + (1 - right) * (answer == kind.opposite(truth))
            for answer in kind.classes
        ]
        for truth in kind.classes
    ]


WRONG: dict[str, dict[str, object]] = {
    "fails most checks of few": {"gold_checks": "00011"},
    "fails most checks of many": {"gold_checks": "0000001111"},
    "means the other clip": {"confusion": TURNED},
    "means the other clip but knows checks": {"confusion": TURNED, "gold_checks": "1111111111"},
    **{
        f"means the contrary in {name}": {"confusion": {"pair": GOOD, name: confusion_of(kind, 0.1)}}
        for name, kind in KINDS.items()
    },
}
OTHERS: dict[str, dict[str, object]] = {
    "is new": {},
    "has done too few checks to tell": {"gold_checks": "0000"},
    "passes most checks": {"gold_checks": "00111"},
    "is at chance": {"gold_checks": "0000011111"},
    "is too fast": {"watch_checks": "0000000000"},
    "is good": {"confusion": GOOD},
    "is good in all kinds": {"confusion": {name: confusion_of(kind, 0.9) for name, kind in KINDS.items()}},
    "was stopped after checks": {"gold_checks": "00000", "stopped_at": Now()},
    "was stopped otherwise": {"confusion": TURNED, "stopped_at": Now()},
}


@pytest.mark.both_databases
def test_labelers_who_are_mostly_wrong_are_counted(trainer: Trainer, stranger: Trainer, read: Read) -> None:
    for name, values in {**WRONG, **OTHERS}.items():
        labeler = accounts.invite(trainer.experiment, name.replace(" ", "-"))
        participation = accounts.participation_of(labeler, trainer.experiment)
        Participation.objects.filter(pk=participation.pk).update(**values)
    found = Participation.objects.filter(stopped_at=None).select_related("labeler")
    wrong = [each for each in found if is_below_chance(each.gold_checks, each.confusion)]
    assert {each.labeler.name.replace("-", " ") for each in wrong} == set(WRONG)
    assert read()["labelers_below_chance"] == len(WRONG)
    assert read("walker")["labelers_below_chance"] == 0


@pytest.mark.both_databases
def test_constant_statements(trainer: Trainer, browser: Browser, stranger: Trainer, read: Read) -> None:
    with CaptureQueriesContext(connection) as few:
        read()
    trainer.register(4)
    for lease in browser.lease(2):
        browser.answer(lease)
    Trainer(trainer.user, "another").begin()
    with CaptureQueriesContext(connection) as more:
        read()
    assert len(few) == len(more) == 4


@pytest.mark.both_databases
def test_experiments_do_not_mix(trainer: Trainer, browser: Browser, stranger: Trainer, read: Read) -> None:
    stranger.register(2)
    elsewhere = Browser(stranger.invite("you"), stranger.name)
    [lease, _] = elsewhere.lease(2)
    elsewhere.answer(lease)
    ours, theirs = read(), read("walker")
    for name, expected in (("labels_total", 1), ("live_leases", 1), ("open_comparisons", 1)):
        assert (ours[name], theirs[name]) == (0, expected)
    assert ours.keys() == theirs.keys()


def test_figures_name_experiments_and_nobody_else(label: Any) -> None:
    text = scrape(f"Bearer {TOKEN}").content.decode()
    labels = [sample.labels for family in text_string_to_metric_families(text) for sample in family.samples]
    assert labels
    assert all(each == {"experiment": "hopper"} for each in labels)
