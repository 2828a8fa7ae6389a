"""Events for webhooks: queueing and delivery.

An event is queued in the transaction that makes the change it reports. So no event is lost, and none is sent
for a change that was rolled back.

A delivery is claimed by an update that only one process can make, so no two processes send it at the same
time, and no transaction is open while a server is contacted. A claim expires, so the delivery of a process
that died is repeated. A receiver may therefore get an event twice; ``webhook-id`` identifies it.
"""

import base64
import hashlib
import hmac
import json
import logging
import secrets
import time
from base64 import b64encode
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.db.models.functions import Coalesce
from django.urls import get_script_prefix, reverse
from django.utils import timezone

from human_feedback_site.feedback.errors import DeliveryError
from human_feedback_site.feedback.models import (
    Experiment,
    Label,
    Participation,
    WebhookDelivery,
    WebhookEndpoint,
)
from human_feedback_site.feedback.outbound import post

WAITS = timedelta(minutes=5)
"""Time that training must have waited, without any label from anyone, before the event is queued."""

_Event = WebhookDelivery.Event


def create_endpoint(endpoint: WebhookEndpoint) -> str:
    """Save a new endpoint with a new secret, and return the secret."""
    endpoint.secret = _new_secret()
    endpoint.save(force_insert=True)
    return endpoint.secret


def replace_secret(endpoint: WebhookEndpoint) -> str:
    """Give the endpoint a new secret and return it. Attempts that start from now on are signed with it."""
    endpoint.secret = _new_secret()
    endpoint.save(update_fields=["secret"])
    return endpoint.secret


def _new_secret() -> str:
    return "whsec_" + b64encode(secrets.token_bytes(32)).decode()  # the format of Standard Webhooks


def reset_failures(endpoint: WebhookEndpoint) -> None:
    """Forget that attempts at the endpoint failed, because an administrator has turned it on or off."""
    WebhookEndpoint.objects.filter(pk=endpoint.pk).update(failing_since=None)


def announce_finished(experiment: Experiment) -> None:
    """Queue the event that an experiment has finished."""
    _announce(_Event.EXPERIMENT_FINISHED, experiment)


def announce_blocked(participation: Participation, *, by_checks: bool) -> None:
    """Queue the event that a labeler gets no more questions, because of failed checks or by a researcher."""
    reason = "failed_checks" if by_checks else "researcher"
    labeler = participation.labeler.name
    _announce(_Event.LABELER_BLOCKED, participation.experiment, labeler=labeler, reason=reason)


def announce_waiting(now: datetime) -> int:
    """Queue an event for each experiment whose training waits and whom nobody helps; return the number.

    Training must have waited for :data:`WAITS`, and nobody may have labeled in this time. There is one event
    for each wait, however long it lasts.
    """
    if not _subscribers(_Event.TRAINING_WAITING).exists():
        return 0
    since = now - WAITS
    answers = Label.objects.filter(
        labeler=OuterRef("labeler"), comparison__experiment=OuterRef("experiment"), created_at__gt=since
    )
    busy = Participation.objects.filter(Exists(answers), experiment=OuterRef("pk"))
    waiting = Experiment.objects.filter(~Exists(busy), _waits_unannounced(), waiting_since__lte=since)
    return sum(_announce_waiting(experiment, now) for experiment in waiting)


def _waits_unannounced() -> Q:
    return Q(state=Experiment.State.RUNNING, waiting_for__gt=0, waiting_announced_at=None)


@transaction.atomic
def _announce_waiting(experiment: Experiment, now: datetime) -> bool:
    still = Experiment.objects.filter(
        _waits_unannounced(), pk=experiment.pk, waiting_since=experiment.waiting_since
    )
    if not still.update(waiting_announced_at=now):
        return False
    waited = {"waiting_for": experiment.waiting_for, "waiting_since": _text(experiment.waiting_since)}
    _announce(_Event.TRAINING_WAITING, experiment, **waited)
    return True


def queue_tests(endpoints: QuerySet[WebhookEndpoint]) -> int:
    """Queue a test event for each enabled endpoint; return the number."""
    return _queue(endpoints.filter(enabled=True), _Event.TEST, None, {})


def _announce(event: WebhookDelivery.Event, experiment: Experiment, **data: Any) -> None:
    about = {"experiment": experiment.name, "url": _page_of(experiment)}
    _queue(_subscribers(event), event, experiment, {**about, **data})


def _subscribers(event: WebhookDelivery.Event) -> QuerySet[WebhookEndpoint]:
    return WebhookEndpoint.objects.filter(**{"enabled": True, event.value.replace(".", "_"): True})


def _queue(
    endpoints: Iterable[WebhookEndpoint],
    event: WebhookDelivery.Event,
    experiment: Experiment | None,
    data: dict[str, Any],
) -> int:
    bodies: dict[str, dict[str, Any]] = {
        WebhookEndpoint.Format.JSON: {"type": event, "timestamp": _text(timezone.now()), "data": data},
        WebhookEndpoint.Format.SLACK: {"text": _message(event, data)},
    }
    rows = [
        WebhookDelivery(
            endpoint=each, experiment=experiment, event=event, body=json.dumps(bodies[each.format])
        )
        for each in endpoints
    ]
    return len(WebhookDelivery.objects.bulk_create(rows))


def _message(event: WebhookDelivery.Event, data: dict[str, Any]) -> str:
    if event == _Event.TEST:
        return "RL-Teacher: this is a test of the webhook."
    experiment = _code(data["experiment"])
    if event == _Event.TRAINING_WAITING:
        text = (
            f"Training of {experiment} is waiting for {data['waiting_for']} label(s), and nobody is labeling."
        )
    elif event == _Event.EXPERIMENT_FINISHED:
        text = f"Experiment {experiment} has finished."
    else:
        why = "failed attention checks" if data["reason"] == "failed_checks" else "stopped by a researcher"
        text = f"Labeler {_code(data['labeler'])} gets no more questions of {experiment}: {why}."
    return f"{text} {data['url']}" if data["url"] else text


def _code(name: str) -> str:
    """Return a name that a chat shows as it is; Slack requires the escapes."""
    escaped = name.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return f"`{escaped.replace('`', chr(39))}`"


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat(timespec="seconds")


def _page_of(experiment: Experiment) -> str | None:
    """Return the URL of the experiment's page; None if ``TEACHER_PUBLIC_URL`` is not set.

    The URL must not depend on the thread: ``reverse`` adds the site's path prefix only while a request is
    processed.
    """
    path = reverse("experiment", args=[experiment.name])
    below = path.removeprefix(get_script_prefix().removesuffix("/"))
    return None if settings.PUBLIC_URL is None else settings.PUBLIC_URL + below


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
    """Return Standard Webhooks' headers: ID, Unix time, and HMAC-SHA256 of both and the body."""
    timestamp = str(int(now.timestamp()))
    key = base64.b64decode(secret.removeprefix("whsec_"))
    digest = hmac.digest(key, f"{identifier}.{timestamp}.".encode() + body, hashlib.sha256)
    return {
        "webhook-id": identifier,
        "webhook-timestamp": timestamp,
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }


def _forget_and_drop(now: datetime) -> None:
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
    try:
        attempt.result()
    except DeliveryError as error:
        _note_failure(delivery, str(error), now)
        return False
    _unchanged(delivery, status=_Status.DELIVERED, delivered_at=now, last_error="")
    WebhookEndpoint.objects.filter(pk=delivery.endpoint_id).update(failing_since=None)
    return True


def _note_failure(delivery: WebhookDelivery, error: str, now: datetime) -> None:
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
