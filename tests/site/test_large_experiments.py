"""What labelers and trainers wait for does not read all that there ever was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

if TYPE_CHECKING:
    from tests.site.conftest import Browser, Trainer


def plan_of(statement: str) -> str:
    """How the database goes about a statement if it can use an index at all."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SET LOCAL enable_seqscan = off")  # tables of tests are too small for an index
            cursor.execute("SET LOCAL enable_bitmapscan = off")
        cursor.execute(f"EXPLAIN {'' if connection.vendor == 'postgresql' else 'QUERY PLAN'} {statement}")
        return "\n".join(str(row[-1]) for row in cursor.fetchall())


def statements_with(context: CaptureQueriesContext, *words: str) -> Sequence[str]:
    queries: list[dict[str, Any]] = context.captured_queries
    return [query["sql"] for query in queries if all(word in query["sql"] for word in words)]


@pytest.fixture
def asked(trainer: Trainer, browser: Browser) -> CaptureQueriesContext:
    """The statements of a request for work."""
    trainer.register(3)
    browser.answer(browser.lease()[0])
    with CaptureQueriesContext(connection) as context:
        assert browser.lease()
    return context


def test_the_queue_is_read_in_its_order(asked: CaptureQueriesContext) -> None:
    [queue] = statements_with(asked, "ORDER BY c.priority DESC")
    plan = plan_of(queue)
    assert "comparison_queue" in plan
    assert "Sort" not in plan
    assert "TEMP B-TREE" not in plan


def test_what_a_labeler_holds_is_found_among_what_is_live(asked: CaptureQueriesContext) -> None:
    [renewal] = statements_with(asked, "UPDATE feedback_lease SET expires_at")
    assert "lease_by_labeler" in plan_of(renewal)


def test_a_trainer_counts_what_is_open_alone(trainer: Trainer) -> None:
    with CaptureQueriesContext(connection) as context:
        trainer.decisions()
    [count] = statements_with(context, "COUNT", '"feedback_comparison"."phase"')
    plan = plan_of(count)
    assert "comparison_queue" in plan
