"""Events for webhooks. They are queued here; :mod:`~.deliveries` sends them.

An event is queued in the transaction that makes the change it reports. So no event is lost, and none is sent
for a change that was rolled back.
"""

import json
import secrets
from base64 import b64encode
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.urls import get_script_prefix, reverse
from django.utils import timezone

from human_feedback_site.feedback.models import (
    Experiment,
    Label,
    Participation,
    WebhookDelivery,
    WebhookEndpoint,
)

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
    """Queue the event that a labeler gets no more pairs.

    ``by_checks`` is True if the labeler failed too many checks, and False if a researcher or an administrator
    stopped or blocked the labeler.
    """
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
    """Queue the event unless another process has queued it; return True if it was queued."""
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
    """Return an event as a message for a chat."""
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
        text = f"Labeler {_code(data['labeler'])} gets no more pairs of {experiment}: {why}."
    return f"{text} {data['url']}" if data["url"] else text


def _code(name: str) -> str:
    """Return a name that a chat shows as it is; Slack requires the escapes."""
    escaped = name.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return f"`{escaped.replace('`', chr(39))}`"


def _text(moment: datetime | None) -> str | None:
    """Return a time in ISO 8601 format."""
    return None if moment is None else moment.isoformat(timespec="seconds")


def _page_of(experiment: Experiment) -> str | None:
    """Return the URL of the experiment's page; None if ``TEACHER_PUBLIC_URL`` is not set.

    The URL must not depend on the thread: ``reverse`` adds the site's path prefix only while a request is
    processed.
    """
    path = reverse("experiment", args=[experiment.name])
    below = path.removeprefix(get_script_prefix().removesuffix("/"))
    return None if settings.PUBLIC_URL is None else settings.PUBLIC_URL + below
