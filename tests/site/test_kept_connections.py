"""What is kept between requests on PostgreSQL: connections, which may break, and plans of statements."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.db import connection, connections

from human_feedback_site.environment import POSTGRESQL_OPTIONS

if TYPE_CHECKING:
    from tests.site.conftest import Browser, Trainer

pytestmark = pytest.mark.skipif(connection.vendor != "postgresql", reason="a file closes no connections")


def close_from_the_other_side() -> None:
    """Let the server end the connection that the site keeps."""
    ended = connection.connection.info.backend_pid
    other = connections.create_connection("default")
    with other.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 10000)", [ended])
    other.close()


@pytest.mark.django_db(transaction=True)
def test_a_labeler_does_not_notice_that_a_connection_was_closed(trainer: Trainer, browser: Browser) -> None:
    trainer.register()
    close_from_the_other_side()
    [lease] = browser.lease()
    close_from_the_other_side()
    assert browser.answer(lease)["status"] == "counted"


def plans() -> dict[str, str]:
    """Statements that are prepared, and how the server goes about each whatever its values."""
    found = {}
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")  # tables of tests are too small for an index
        cursor.execute("SET LOCAL enable_bitmapscan = off")
        cursor.execute("SELECT statement FROM pg_prepared_statements WHERE statement LIKE '%feedback%'")
        for (statement,) in cursor.fetchall():
            cursor.execute(f"EXPLAIN (GENERIC_PLAN) {statement}".replace("%", "%%"))
            found[statement] = "\n".join(line for (line,) in cursor.fetchall())
    return found


def test_what_labelers_ask_for_is_planned_once(trainer: Trainer, browser: Browser) -> None:
    rounds = POSTGRESQL_OPTIONS["prepare_threshold"] + 1
    trainer.register(rounds)
    for _ in range(rounds):
        browser.answer(browser.lease()[0])
    found = plans()
    assert sum("feedback_lease" in statement for statement in found) >= 5
    [queue] = [plan for statement, plan in found.items() if "ORDER BY c.priority DESC" in statement]
    assert "comparison_queue" in queue
    assert "Sort" not in queue
    [renewal] = [plan for statement, plan in found.items() if "UPDATE feedback_lease" in statement]
    assert "lease_by_labeler" in renewal
