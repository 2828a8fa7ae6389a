"""Delivery of queued webhook events: claims, signatures, retries and giving up.

A delivery is claimed by an update that only one process can make, so no two processes send it at the same
time, and no transaction is open while a server is contacted. A claim expires, so the delivery of a process
that died is repeated. A receiver may therefore get an event twice; ``webhook-id`` identifies it.
"""

import base64
import hashlib
import hmac
import logging
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from datetime import datetime, timedelta

from django.db.models import F
from django.db.models.functions import Coalesce
from django.utils import timezone

from human_feedback_site.feedback.errors import DeliveryError
from human_feedback_site.feedback.models import WebhookDelivery, WebhookEndpoint
from human_feedback_site.feedback.outbound import post

DELAYS = tuple(timedelta(minutes=minutes) for minutes in (1, 3, 9, 27, 81, 243, 729))
"""Time from each failed attempt to the next one; a delivery whose last attempt fails is given up."""
ATTEMPTS = len(DELAYS) + 1
DISABLE_AFTER = timedelta(days=3)
KEPT = timedelta(days=30)
_CLAIM = timedelta(minutes=2)  # longer than an attempt, and than a chore may take under Celery
_PARALLEL = 8  # endpoints
_CANDIDATES = 20  # deliveries to try to claim; other processes may be claiming the first ones

_Status = WebhookDelivery.Status
_log = logging.getLogger(__name__)


def deliver(until: float, clock: Callable[[], datetime] = timezone.now) -> tuple[int, int]:
    """Attempt the deliveries that are due; return how many attempts succeeded and how many failed.

    Starts no new attempt once :func:`time.monotonic` passes ``until``. Endpoints are contacted in parallel,
    each with one delivery at a time, so that slow ones don't hold up the others. An endpoint whose attempt
    failed gets no other one in this call.
    """
    _forget_and_drop(clock())
    succeeded, failing = 0, set[int]()
    running: dict[Future[None], WebhookDelivery] = {}
    with ThreadPoolExecutor(_PARALLEL) as pool:  # for the network only: the database stays with this thread
        while True:
            while len(running) < _PARALLEL and time.monotonic() < until:
                busy = failing | {delivery.endpoint_id for delivery in running.values()}
                claimed = _claim(clock(), busy)
                if claimed is None:
                    break
                running[pool.submit(_send, claimed, clock())] = claimed
            if not running:
                return succeeded, len(failing)
            for attempt in wait(running, return_when=FIRST_COMPLETED).done:
                delivery = running.pop(attempt)
                if _note(delivery, attempt, clock()):
                    succeeded += 1
                else:
                    failing.add(delivery.endpoint_id)


def signed_headers(secret: str, identifier: str, now: datetime, body: bytes) -> dict[str, str]:
    """Return the headers that Standard Webhooks defines: ID, Unix time and HMAC-SHA256 of both and the body.

    ``secret`` is ``whsec_`` followed by the key in base64.
    """
    timestamp = str(int(now.timestamp()))
    key = base64.b64decode(secret.removeprefix("whsec_"))
    digest = hmac.digest(key, f"{identifier}.{timestamp}.".encode() + body, hashlib.sha256)
    return {
        "webhook-id": identifier,
        "webhook-timestamp": timestamp,
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }


def _forget_and_drop(now: datetime) -> None:
    """Delete old deliveries, and give up those that must not be attempted again."""
    old = WebhookDelivery.objects.exclude(status=_Status.PENDING).filter(created_at__lt=now - KEPT)
    old.delete()
    pending = WebhookDelivery.objects.filter(status=_Status.PENDING)
    disabled = pending.filter(endpoint__enabled=False)
    disabled.update(status=_Status.FAILED, last_error="The endpoint is disabled.")
    interrupted = pending.filter(attempts__gte=ATTEMPTS, due_at__lte=now)  # the last claim has expired
    interrupted.update(status=_Status.FAILED, last_error="The last attempt was interrupted.")


def _claim(now: datetime, busy: set[int]) -> WebhookDelivery | None:
    """Claim a delivery that is due and whose endpoint is not in ``busy``; None if there is none."""
    due = WebhookDelivery.objects.filter(status=_Status.PENDING, endpoint__enabled=True, due_at__lte=now)
    candidates = due.exclude(endpoint__in=busy).select_related("endpoint").order_by("due_at", "pk")
    for delivery in candidates[:_CANDIDATES]:
        if _unchanged(delivery, due_at=now + _CLAIM, attempts=F("attempts") + 1):
            delivery.attempts += 1
            return delivery
    return None


def _unchanged(delivery: WebhookDelivery, **changes: object) -> bool:
    """Update a pending delivery unless another process has claimed it; return True if it was updated."""
    same = WebhookDelivery.objects.filter(pk=delivery.pk, status=_Status.PENDING, attempts=delivery.attempts)
    return bool(same.update(**changes))


def _send(delivery: WebhookDelivery, now: datetime) -> None:
    endpoint, body = delivery.endpoint, delivery.body.encode()
    post(endpoint.url, body, signed_headers(endpoint.secret, str(delivery.uuid), now, body))


def _note(delivery: WebhookDelivery, attempt: "Future[None]", now: datetime) -> bool:
    """Record the result of an attempt; return True if the server accepted the event."""
    try:
        attempt.result()
    except DeliveryError as error:
        _note_failure(delivery, str(error), now)
        return False
    _unchanged(delivery, status=_Status.DELIVERED, delivered_at=now, last_error="")
    WebhookEndpoint.objects.filter(pk=delivery.endpoint_id).update(failing_since=None)
    return True


def _note_failure(delivery: WebhookDelivery, error: str, now: datetime) -> None:
    """Schedule the next attempt, or give up after the last one."""
    endpoint = WebhookEndpoint.objects.filter(pk=delivery.endpoint_id)
    endpoint.update(failing_since=Coalesce("failing_since", now))
    _log.warning(
        "Webhook %s: attempt %d of %d to send %s failed: %s",
        *(delivery.endpoint, delivery.attempts, ATTEMPTS, delivery.event, error),
    )
    if delivery.attempts < ATTEMPTS:
        _unchanged(delivery, due_at=now + DELAYS[delivery.attempts - 1], last_error=error)
        return
    _unchanged(delivery, status=_Status.FAILED, last_error=error)
    if endpoint.filter(enabled=True, failing_since__lte=now - DISABLE_AFTER).update(enabled=False):
        _log.error("Webhook %s is now disabled: it failed for %d days", delivery.endpoint, DISABLE_AFTER.days)
