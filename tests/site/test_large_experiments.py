"""Test what labelers and trainers wait for does not read all that there ever was."""

import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from human_feedback_site.environment import POSTGRESQL_OPTIONS
from human_feedback_site.feedback.models import Comparison, Labeler, Lease, Participation
from human_feedback_site.feedback.selectors.browse import Filters, Matching
from tests.site.conftest import Browser, Expire, Trainer

pytestmark = pytest.mark.both_databases


def plan_of(statement: str) -> str:
    """Return how the database goes about a statement if it can use an index at all."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SET LOCAL enable_seqscan = off")  # tables of tests are too small for an index
            cursor.execute("SET LOCAL enable_bitmapscan = off")
        cursor.execute(f"EXPLAIN {'' if connection.vendor == 'postgresql' else 'QUERY PLAN'} {statement}")
        return "\n".join(str(row[-1]) for row in cursor.fetchall())


def sorted_by(plan: str) -> Sequence[str]:
    """Return what PostgreSQL sorts, except the few decisions of one comparison."""
    return [key for key in re.findall(r"Sort Key: (.*)", plan) if key != "u0.seq DESC"]


def statements_with(context: CaptureQueriesContext, *words: str) -> Sequence[str]:
    queries: list[dict[str, Any]] = context.captured_queries
    return [query["sql"] for query in queries if all(word in query["sql"] for word in words)]


HISTORY = 300


def live_through(trainer: Trainer) -> None:
    """Have a past that planners know of: answered pairs, leases that are over, labelers who came and went."""
    answered = Comparison.objects.bulk_create(
        Comparison(
            uuid=uuid4(),
            experiment=trainer.experiment,
            phase="training",
            step=1,
            priority=1,
            first_key="first.mp4",
            second_key="second.mp4",
            status="answered",
            n_labels=1,
        )
        for _ in range(HISTORY)
    )
    ended = timezone.now() - timedelta(days=1)
    Lease.objects.bulk_create(
        Lease(comparison=comparison, labeler=labeler, swapped=False, expires_at=ended)
        for labeler in Labeler.objects.all()
        for comparison in answered
    )
    others = User.objects.bulk_create(User(username=f"past-{number}") for number in range(100))
    labelers = Labeler.objects.bulk_create(
        Labeler(user=user, name=user.username, invited_by=trainer.user) for user in others
    )
    Participation.objects.bulk_create(
        Participation(labeler=labeler, experiment=trainer.experiment) for labeler in labelers
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


@pytest.fixture
def asked(trainer: Trainer, browser: Browser) -> CaptureQueriesContext:
    """The statements of a request for work."""
    trainer.register(3)
    browser.answer(browser.lease()[0])
    live_through(trainer)
    with CaptureQueriesContext(connection) as context:
        assert browser.lease()
    return context


def test_the_queue_is_read_in_its_order(asked: CaptureQueriesContext) -> None:
    [queue] = statements_with(asked, "ORDER BY c.priority DESC")
    plan = plan_of(queue)
    assert "comparison_queue" in plan
    assert "Sort" not in plan
    assert "TEMP B-TREE" not in plan


@pytest.mark.postgresql_only
def test_lease_queries_have_good_plans(trainer: Trainer, browser: Browser) -> None:
    rounds = POSTGRESQL_OPTIONS["prepare_threshold"] + 1
    trainer.register(rounds)
    for _ in range(rounds):
        browser.answer(browser.lease()[0])
    live_through(trainer)
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement FROM pg_prepared_statements")
        prepared = [statement for (statement,) in cursor.fetchall()]
    assert sum("feedback_lease" in statement for statement in prepared) >= 4
    [queue] = [statement for statement in prepared if "ORDER BY c.priority DESC" in statement]
    plan = plan_of(f"(GENERIC_PLAN) {queue.replace('%', '%%')}")  # whatever its values
    assert "comparison_queue" in plan
    assert "Sort" not in plan


def test_held_leases_are_found_among_live_ones(asked: CaptureQueriesContext) -> None:
    [held] = statements_with(asked, "pair_uuid")
    assert "lease_by_labeler" in plan_of(held)


def test_past_leases_use_an_index(trainer: Trainer, browser: Browser, expire: Expire) -> None:
    trainer.register(5)
    held = browser.lease(3)
    expire(held[0])
    live_through(trainer)
    with CaptureQueriesContext(connection) as context:
        assert len(browser.ask(4, held=[lease["uuid"] for lease in held])["renewed"]) == 3
    by_number = '"feedback_lease"."uuid" IN'
    for words in ("ORDER BY c.priority DESC", "pair_uuid", by_number, 'UPDATE "feedback_lease"'):
        [statement] = statements_with(context, words)
        plan = plan_of(statement)
        assert "Seq Scan" not in plan
        assert "SCAN" not in plan.replace("SCAN part", "")  # of SQLite; parts are what was found


@pytest.mark.postgresql_only  # SQLite does not see that these indexes will do
@pytest.mark.parametrize("order", ["newest", "oldest"])
@pytest.mark.parametrize("decision", ["equal", "cant_tell"])
def test_rare_decisions_are_found_by_an_index(trainer: Trainer, decision: str, order: str) -> None:
    live_through(trainer)
    with CaptureQueriesContext(connection) as context:
        assert list(Matching(trainer.experiment, Filters(decision=decision, order=order))[:25]) == []
    [seldom] = statements_with(context, '"feedback_decision"."decision"')
    plan = plan_of(seldom)
    assert "decision_seldom" in plan
    assert not sorted_by(plan)


@pytest.mark.postgresql_only
@pytest.mark.parametrize("order", ["newest", "oldest"])
def test_unlabeled_comparisons_are_found_by_an_index(trainer: Trainer, order: str) -> None:
    uuids = trainer.register(2)
    live_through(trainer)
    with CaptureQueriesContext(connection) as context:
        found = Matching(trainer.experiment, Filters(decision="none", order=order))
        assert {str(comparison.uuid) for comparison in found[:25]} == set(uuids)
        assert len(found) == 2
    for statement in statements_with(context, '"feedback_comparison"."n_labels" = 0'):
        plan = plan_of(statement)
        # Either holds the pairs without a label one after the other.
        assert "comparison_unlabeled" in plan or "comparison_by_labels" in plan
        assert not sorted_by(plan)


@pytest.mark.parametrize("order", ["priority", "labels"])
def test_the_orders_of_the_browser_are_read_without_sorting(trainer: Trainer, order: str) -> None:
    live_through(trainer)
    with CaptureQueriesContext(connection) as context:
        assert len(Matching(trainer.experiment, Filters(order=order))[:25]) == 25
    [page] = statements_with(context, "LIMIT 25")
    plan = plan_of(page)
    assert f"comparison_by_{order}" in plan
    assert not sorted_by(plan)
    assert "TEMP B-TREE" not in plan


def test_a_trainer_counts_what_is_open_alone(trainer: Trainer) -> None:
    trainer.register(3)
    live_through(trainer)
    with CaptureQueriesContext(connection) as context:
        trainer.decisions()
    [count] = statements_with(context, "COUNT", '"feedback_comparison"."phase"')
    plan = plan_of(count)
    assert "comparison_queue" in plan
