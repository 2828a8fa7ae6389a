"""PostgreSQL ends a connection that the site keeps from one request to the next."""

import pytest
from django.db import connection, connections

from tests.site.conftest import Browser, Trainer

pytestmark = pytest.mark.postgresql_only  # a file closes no connections


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
