"""Administrators, and nobody else, manage webhooks; a secret is shown once."""

import re
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django import Settings

from human_feedback_site.feedback.models import WebhookDelivery, WebhookEndpoint
from human_feedback_site.feedback.services import webhooks
from tests.site.conftest import Browser, Trainer
from tests.site.webhooks.conftest import Receiver

LIST, ADD = "admin:feedback_webhookendpoint_changelist", "admin:feedback_webhookendpoint_add"
FORM = {"name": "chat", "url": "https://hooks.example/1", "format": "slack", "enabled": "on"}
FORM["training_waiting"] = "on"


def change(endpoint: WebhookEndpoint) -> str:
    return reverse("admin:feedback_webhookendpoint_change", args=[endpoint.pk])


def act(root: Client, action: str, *chosen: WebhookEndpoint) -> str:
    """Run an action on endpoints; return what it shows."""
    body = {"action": action, "_selected_action": [each.pk for each in chosen]}
    return root.post(reverse(LIST), body, follow=True).content.decode()


def secret_in(shown: str) -> str:
    [secret] = re.findall(r'<pre id="secret">(whsec_[\w+/=]+)</pre>', shown)
    return str(secret)


def edit(root: Client, endpoint: WebhookEndpoint, **changes: Any) -> Any:
    """Save the endpoint's form with changes; None is a box that is not ticked."""
    shown: Any = root.get(change(endpoint)).context["adminform"].form
    fields = {field.html_name: field.initial for field in shown}
    initial = {field.html_initial_name: field.initial for field in shown}
    sent = {**fields, **changes}
    ticked = {name: value for name, value in sent.items() if value not in {None, False}}
    return root.post(change(endpoint), {**ticked, **initial})


def test_a_new_endpoint_shows_its_secret_once(root: Client) -> None:
    response = root.post(reverse(ADD), FORM)
    assert response.status_code == 200
    assert "no-store" in response["Cache-Control"]
    endpoint = WebhookEndpoint.objects.get()
    assert secret_in(response.content.decode()) == endpoint.secret
    assert endpoint.format == "slack"
    shown = root.get(reverse(LIST)).content.decode()
    assert '<td class="field-events">training is waiting</td>' in shown
    for address in (reverse(LIST), change(endpoint), change(endpoint).replace("change", "history")):
        shown = root.get(address).content.decode()
        assert "chat" in shown
        assert "whsec_" not in shown
    assert not LogEntry.objects.filter(change_message__contains="whsec_").exists()


def test_a_secret_is_replaced_and_shown_once(root: Client, endpoint: WebhookEndpoint) -> None:
    before = endpoint.secret
    secret = secret_in(act(root, "replace_secret", endpoint))
    endpoint.refresh_from_db()
    assert secret == endpoint.secret != before
    assert "whsec_" not in root.get(change(endpoint)).content.decode()
    other = WebhookEndpoint(name="other", url="https://hooks.example/")
    webhooks.create_endpoint(other)
    assert "Select exactly one webhook." in act(root, "replace_secret", endpoint, other)


def test_a_form_keeps_the_secret(root: Client, endpoint: WebhookEndpoint) -> None:
    assert edit(root, endpoint, name="beeper", labeler_blocked=None).status_code == 302
    after = WebhookEndpoint.objects.get()
    assert (after.name, after.labeler_blocked, after.secret) == ("beeper", False, endpoint.secret)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("hooks.example", "must look like https://host"),
        ("https://user:word@hooks.example/", "must look like https://host"),
        ("http://hooks.example/", "must begin with https://"),
        ("https://127.0.0.1/", "is not public"),
        ("https://[::ffff:10.0.0.1]/", "is not public"),
    ],
)
def test_urls_that_cannot_work_are_refused(root: Client, settings: Settings, url: str, said: str) -> None:
    settings.WEBHOOK_ALLOWED_HOSTS = []
    assert said in root.post(reverse(ADD), {**FORM, "url": url}).content.decode()
    assert not WebhookEndpoint.objects.exists()


def test_test_event_is_queued(root: Client, endpoint: WebhookEndpoint, receiver: Receiver) -> None:
    off = WebhookEndpoint(name="off", url=receiver.url, enabled=False)
    webhooks.create_endpoint(off)
    assert "1 test event(s) queued" in act(root, "send_test", endpoint, off)
    assert receiver.received == []
    webhooks.deliver(float("inf"))
    assert len(receiver.received) == 1
    shown = root.get(reverse("admin:feedback_webhookdelivery_changelist")).content.decode()
    assert "delivered" in shown


def test_deliveries_cannot_be_changed(root: Client, endpoint: WebhookEndpoint) -> None:
    webhooks.queue_tests(WebhookEndpoint.objects.all())
    delivery = WebhookDelivery.objects.get()
    address = reverse("admin:feedback_webhookdelivery_change", args=[delivery.pk])
    assert root.get(address).status_code == 200
    assert root.post(address, {"body": "{}"}).status_code == 403
    assert root.get(reverse("admin:feedback_webhookdelivery_add")).status_code == 403


def test_admins_see_what_was_disabled_until_they_enable_it(root: Client, endpoint: WebhookEndpoint) -> None:
    said = "The webhook pager was disabled because it failed for days."
    WebhookEndpoint.objects.update(failing_since=timezone.now())
    assert "failing since" in root.get(reverse(LIST)).content.decode()
    assert said not in root.get("/admin/").content.decode()
    WebhookEndpoint.objects.update(enabled=False)
    assert said in root.get("/admin/").content.decode()
    assert "disabled, failing since" in root.get(reverse(LIST)).content.decode()
    assert edit(root, endpoint, enabled="on").status_code == 302
    assert said not in root.get("/admin/").content.decode()
    assert '<td class="field-state">on</td>' in root.get(reverse(LIST)).content.decode()


def test_the_list_can_be_limited_to_endpoints_that_fail(root: Client, endpoint: WebhookEndpoint) -> None:
    for failing_since, counts in ((None, [1, 0, 1]), (timezone.now(), [1, 1, 0])):
        WebhookEndpoint.objects.update(failing_since=failing_since)
        lists = [root.get(reverse(LIST), query) for query in ({}, {"failing": "1"}, {"failing": "0"})]
        assert [len(each.context["cl"].result_list) for each in lists] == counts


def test_an_endpoint_that_is_turned_off_says_so(root: Client, endpoint: WebhookEndpoint) -> None:
    WebhookEndpoint.objects.update(failing_since=timezone.now())
    assert edit(root, endpoint, enabled=None).status_code == 302
    assert '<td class="field-state">off</td>' in root.get(reverse(LIST)).content.decode()


@pytest.mark.parametrize("who", ["nobody", "labeler", "researcher"])
def test_nobody_else_sees_or_changes_webhooks(
    trainer: Trainer, browser: Browser, endpoint: WebhookEndpoint, who: str
) -> None:
    client = browser.client if who == "labeler" else Client()
    if who == "researcher":
        client.force_login(trainer.user)
    for address in (reverse(LIST), reverse(ADD), change(endpoint), "/admin/feedback/webhookdelivery/"):
        for response in (client.get(address), client.post(address, FORM)):
            assert response.status_code == 302
            assert response["Location"].startswith("/admin/login/")
    client.post(reverse(LIST), {"action": "send_test", "_selected_action": [endpoint.pk]})
    assert WebhookEndpoint.objects.get().name == "pager"
    assert not WebhookDelivery.objects.exists()
