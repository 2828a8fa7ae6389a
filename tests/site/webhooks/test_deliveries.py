"""Events are sent signed, again where that failed, and by one process at a time."""

import io
import logging
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.utils import timezone
from standardwebhooks import Webhook

from human_feedback_site.feedback.models import WebhookDelivery, WebhookEndpoint
from human_feedback_site.feedback.services import webhooks
from human_feedback_site.feedback.services.chores import send_webhooks
from tests.documents import blocks_of, page_of
from tests.servers import serving
from tests.site.conftest import Trainer, own_connection, race
from tests.site.webhooks.conftest import Clock, Receiver
from tests.waiting import free_port

NEVER = float("inf")
DELAYS = [1, 3, 9, 27, 81, 243, 729]  # minutes, as the page says


def queue() -> WebhookDelivery:
    """Queue a test event for all endpoints; return the last one."""
    assert webhooks.queue_tests(WebhookEndpoint.objects.all())
    return WebhookDelivery.objects.latest("pk")


def states() -> list[tuple[str, int]]:
    return list(WebhookDelivery.objects.order_by("pk").values_list("status", "attempts"))


def test_an_event_is_sent_once_and_its_signature_holds(endpoint: WebhookEndpoint, receiver: Receiver) -> None:
    delivery = queue()
    assert webhooks.deliver(NEVER) == (1, 0)
    assert webhooks.deliver(NEVER) == (0, 0)
    [request] = receiver.received
    assert request.headers["webhook-id"] == str(delivery.uuid)
    event = Webhook(endpoint.secret).verify(request.body, request.headers)
    assert event == {"type": "test", "timestamp": event["timestamp"], "data": {}}
    assert states() == [("delivered", 1)]
    assert WebhookDelivery.objects.get().delivered_at is not None


def test_the_program_of_the_page_tells_genuine_events(endpoint: WebhookEndpoint, receiver: Receiver) -> None:
    shown: dict[str, Any] = {}
    exec("\n".join(blocks_of(page_of("webhooks"), "python")), shown)  # noqa: S102 (of this project's own page)
    is_genuine = shown["is_genuine"]
    queue()
    webhooks.deliver(NEVER)
    [request] = receiver.received
    assert is_genuine(endpoint.secret, request.headers, request.body)
    assert not is_genuine(endpoint.secret, request.headers, request.body + b" ")
    assert not is_genuine("whsec_c2VjcmV0", request.headers, request.body)
    old = {**request.headers, **webhooks.signed_headers(
        endpoint.secret, request.headers["webhook-id"], timezone.now() - timedelta(minutes=6), request.body
    )}  # fmt: skip
    assert not is_genuine(endpoint.secret, old, request.body)


def test_failed_event_is_retried(endpoint: WebhookEndpoint, receiver: Receiver, clock: Clock) -> None:
    receiver.status = 500
    queue()
    for attempt, minutes in enumerate(DELAYS, 1):
        assert webhooks.deliver(NEVER, clock) == (0, 1)
        assert states() == [("pending", attempt)]
        clock.now += timedelta(minutes=minutes, seconds=-1)
        assert webhooks.deliver(NEVER, clock) == (0, 0)
        clock.now += timedelta(seconds=1)
    assert webhooks.deliver(NEVER, clock) == (0, 1)
    assert states() == [("failed", 8)]
    assert WebhookDelivery.objects.get().last_error == "127.0.0.1 answered with status 500."
    clock.now += timedelta(days=9)
    assert webhooks.deliver(NEVER, clock) == (0, 0)
    assert len({request.headers["webhook-id"] for request in receiver.received}) == 1
    assert len({request.body for request in receiver.received}) == 1
    assert len(receiver.received) == 8


def test_event_arrives_later(endpoint: WebhookEndpoint, receiver: Receiver, clock: Clock) -> None:
    receiver.status = 503
    queue()
    webhooks.deliver(NEVER, clock)
    endpoint.refresh_from_db()
    assert endpoint.failing_since == clock.now
    receiver.status = 200
    clock.now += timedelta(minutes=1)
    assert webhooks.deliver(NEVER, clock) == (1, 0)
    endpoint.refresh_from_db()
    assert endpoint.failing_since is None
    assert WebhookDelivery.objects.get().last_error == ""


def fail_for_days(receiver: Receiver, clock: Clock, days: int) -> None:
    """Let all attempts fail, of an event a day."""
    receiver.status = 500
    for _ in range(days):
        queue()
        for minutes in (0, *DELAYS):
            clock.now += timedelta(minutes=minutes)
            WebhookDelivery.objects.filter(attempts=0).update(due_at=clock.now)
            webhooks.deliver(NEVER, clock)
        clock.now += timedelta(hours=6)


def test_an_endpoint_that_fails_for_days_is_disabled(
    endpoint: WebhookEndpoint, receiver: Receiver, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    fail_for_days(receiver, clock, 3)
    endpoint.refresh_from_db()
    assert endpoint.enabled
    fail_for_days(receiver, clock, 1)
    endpoint.refresh_from_db()
    assert not endpoint.enabled
    assert endpoint.failing_since is not None
    [error] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert error.getMessage() == "Webhook pager is now disabled: it failed for 3 days"
    assert endpoint.secret not in caplog.text
    assert "/hook" not in caplog.text  # addresses may hold secrets


def test_disabled_endpoint_drops_events(endpoint: WebhookEndpoint, receiver: Receiver) -> None:
    queue()
    WebhookEndpoint.objects.update(enabled=False)
    assert webhooks.deliver(NEVER) == (0, 0)
    assert states() == [("failed", 0)]
    assert receiver.received == []


def test_failures_delay_no_other(endpoint: WebhookEndpoint, receiver: Receiver) -> None:
    webhooks.create_endpoint(WebhookEndpoint(name="away", url=f"http://127.0.0.1:{free_port()}/"))
    for _ in range(3):
        queue()
    assert webhooks.deliver(NEVER) == (3, 1)
    assert len(receiver.received) == 3


def test_a_slow_endpoint_delays_no_other(endpoint: WebhookEndpoint, receiver: Receiver) -> None:
    quick, is_done = Receiver(), threading.Event()

    def meanwhile() -> None:  # the first event is answered once the other endpoint has them all
        receiver.status = 204 if is_done.wait(5) else 500

    receiver.meanwhile = meanwhile
    quick.meanwhile = lambda: is_done.set() if len(quick.received) == 3 else None
    with serving(quick):
        webhooks.create_endpoint(WebhookEndpoint(name="quick", url=quick.url))
        for _ in range(3):
            queue()
        assert webhooks.deliver(NEVER) == (6, 0)


def test_no_attempt_begins_when_time_is_up(endpoint: WebhookEndpoint, receiver: Receiver) -> None:
    queue()
    assert webhooks.deliver(time.monotonic() - 1) == (0, 0)
    assert states() == [("pending", 0)]


def test_old_events_are_forgotten(endpoint: WebhookEndpoint, receiver: Receiver, clock: Clock) -> None:
    queue()
    webhooks.deliver(NEVER, clock)
    clock.now += timedelta(days=29)
    webhooks.deliver(NEVER, clock)
    assert states() == [("delivered", 1)]
    clock.now += timedelta(days=2)
    webhooks.deliver(NEVER, clock)
    assert states() == []


def test_new_secret_signs_later_events(endpoint: WebhookEndpoint, receiver: Receiver) -> None:
    before = endpoint.secret
    queue()
    secret = webhooks.replace_secret(endpoint)
    assert secret != before
    webhooks.deliver(NEVER)
    Webhook(secret).verify(receiver.received[0].body, receiver.received[0].headers)


@pytest.mark.both_databases
def test_stale_claims_are_resent(endpoint: WebhookEndpoint, receiver: Receiver, clock: Clock) -> None:
    queue()
    assert webhooks._claim(clock.now, set()) is not None  # and no more is heard of it
    clock.now += timedelta(seconds=119)
    assert webhooks.deliver(NEVER, clock) == (0, 0)
    clock.now += timedelta(seconds=1)
    assert webhooks.deliver(NEVER, clock) == (1, 0)


def test_poison_event_is_dropped(endpoint: WebhookEndpoint, receiver: Receiver, clock: Clock) -> None:
    queue()
    for _ in range(8):
        assert webhooks._claim(clock.now, set()) is not None
        clock.now += timedelta(minutes=2)
    assert webhooks.deliver(NEVER, clock) == (0, 0)
    assert states() == [("failed", 8)]
    assert receiver.received == []


def test_lost_claim_changes_nothing(endpoint: WebhookEndpoint, receiver: Receiver, clock: Clock) -> None:
    """It took so long that another process has sent the event meanwhile."""
    queue()
    slow = webhooks._claim(clock.now, set())
    assert slow is not None
    clock.now += timedelta(minutes=2)
    webhooks.deliver(NEVER, clock)
    webhooks._note_failure(slow, "too late", clock.now)
    assert states() == [("delivered", 2)]
    assert WebhookDelivery.objects.get().last_error == ""


@pytest.mark.django_db(transaction=True)
@pytest.mark.both_databases
def test_processes_share_the_events_and_send_each_once(endpoint: WebhookEndpoint, receiver: Receiver) -> None:
    for _ in range(12):
        queue()
    results = race(*[lambda: webhooks.deliver(NEVER)] * 4)
    assert sum(sent for sent, _ in results) == 12
    sent = [request.headers["webhook-id"] for request in receiver.received]
    assert len(sent) == len(set(sent)) == 12


@pytest.mark.django_db(transaction=True)
@pytest.mark.both_databases
def test_the_database_is_free_while_a_server_takes_its_time(
    endpoint: WebhookEndpoint, receiver: Receiver
) -> None:
    """Another process claims nothing, and writes meanwhile."""
    queue()
    seen: list[object] = []

    @own_connection
    def meanwhile() -> None:
        seen.append(webhooks.deliver(NEVER))
        WebhookEndpoint.objects.update(name="written")

    receiver.meanwhile = meanwhile
    assert webhooks.deliver(NEVER) == (1, 0)
    assert seen == [(0, 0)]
    assert WebhookEndpoint.objects.get().name == "written"


def test_the_chore_queues_waits_and_sends_what_is_due(
    trainer: Trainer, endpoint: WebhookEndpoint, receiver: Receiver
) -> None:
    assert send_webhooks() == "0 sent"
    trainer.put(state="finished")
    webhooks.create_endpoint(WebhookEndpoint(name="away", url=f"http://127.0.0.1:{free_port()}/"))
    trainer.put(state="running")
    trainer.wait_for(3)
    type(trainer.experiment).objects.update(waiting_since=timezone.now() - timedelta(minutes=6))
    out = io.StringIO()
    call_command("chores", stdout=out)
    assert "webhooks: 2 sent, 1 failed" in out.getvalue()
    assert len(receiver.received) == 2
