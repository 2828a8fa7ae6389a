"""Webhooks reach the internet, and of private networks only what is allowed; administrators manage them."""

import contextlib
import re
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django import Settings

from human_feedback_site.feedback import outbound
from human_feedback_site.feedback.errors import DeliveryError
from human_feedback_site.feedback.models import WebhookDelivery, WebhookEndpoint
from human_feedback_site.feedback.outbound import check_url, post
from human_feedback_site.feedback.services import webhooks
from tests.site.webhooks.conftest import Receiver
from tests.waiting import free_port

PRIVATE = [
    *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1"),  # loopback, private, carrier
    *("169.254.169.254", "224.0.0.1", "240.0.0.1", "255.255.255.255", "0.0.0.0"),  # noqa: S104
    *("192.0.2.1", "198.18.0.1"),  # documentation, benchmarks
    *("::1", "::", "fe80::1", "fc00::1", "ff02::1", "2001:db8::1", "fec0::1"),
    *("::ffff:127.0.0.1", "::ffff:8.8.8.8", "::8.8.8.8"),  # IPv4 in IPv6
    *("2002:7f00:1::", "2002:808:808::", "2001::1", "64:ff9b::a00:1"),
]
PUBLIC = "8.8.8.8"


class Resolver:
    """Resolve hosts, and count the calls."""

    def __init__(self) -> None:
        self.answers: list[list[str]] = []
        self.asked = 0

    def __call__(self, host: str, port: int, **_: Any) -> list[Any]:
        self.asked += 1
        addresses = self.answers.pop(0)
        return [
            (socket.AF_INET6, 1, 6, "", (address, port, 0, 0))
            if ":" in address
            else (socket.AF_INET, 1, 6, "", (address, port))
            for address in addresses
        ]


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Resolver:
    resolver = Resolver()
    monkeypatch.setattr(socket, "getaddrinfo", resolver)
    return resolver


@pytest.fixture
def nothing_is_allowed(settings: Settings) -> None:
    settings.WEBHOOK_ALLOWED_HOSTS = []


@pytest.fixture
def no_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where a connection is made."""

    def connect(*_: object) -> None:
        raise AssertionError("connected")

    monkeypatch.setattr(outbound, "_connect", connect)


def test_a_request_says_what_it_is(receiver: Receiver) -> None:
    post(receiver.url, b'{"a": 1}', {"webhook-id": "7"})
    [request] = receiver.received
    assert (request.path, request.body) == ("/hook?team=a", b'{"a": 1}')
    assert request.headers["host"] == f"127.0.0.1:{receiver.server_port}"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["webhook-id"] == "7"


@pytest.mark.parametrize("status", [301, 302, 307, 400, 404, 410, 500, 503])
def test_redirects_and_errors_are_failures(receiver: Receiver, status: int) -> None:
    receiver.status = status
    receiver.headers = {"Location": receiver.url}
    with pytest.raises(DeliveryError, match=f"answered with status {status}"):
        post(receiver.url, b"{}", {})
    assert len(receiver.received) == 1


@pytest.mark.usefixtures("nothing_is_allowed", "no_connections")
@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses_are_refused(resolver: Resolver, address: str) -> None:
    """Also where a public one comes first."""
    resolver.answers = [[address], [PUBLIC, address]]
    for _ in range(2):
        with pytest.raises(DeliveryError, match="is not public"):
            post("https://hooks.example/", b"{}", {})
    literal = f"[{address}]" if ":" in address else address
    with pytest.raises(DeliveryError, match="is not public"):
        check_url(f"https://{literal}/")


@pytest.mark.usefixtures("nothing_is_allowed", "no_connections")
@pytest.mark.parametrize("address", [PUBLIC, "2606:4700:4700::1111"])
def test_public_addresses_are_contacted(resolver: Resolver, address: str) -> None:
    resolver.answers = [[address]]
    with pytest.raises(AssertionError, match="connected"):
        post("https://hooks.example/", b"{}", {})


@pytest.mark.usefixtures("nothing_is_allowed", "no_connections")
@pytest.mark.parametrize("host", ["localhost", "127.1", "0x7f.1", "2130706433", "[::1]", "[::ffff:7f00:1]"])
def test_this_machine_is_refused_however_it_is_written(host: str) -> None:
    with pytest.raises(DeliveryError, match="is not public"):
        post(f"https://{host}/", b"{}", {})


@pytest.mark.usefixtures("no_connections")
@pytest.mark.parametrize("allowed", [["10.0.0.0/8"], ["other.example"], []])
def test_http_needs_permission(settings: Settings, resolver: Resolver, allowed: list[str]) -> None:
    settings.WEBHOOK_ALLOWED_HOSTS = allowed
    resolver.answers = [[PUBLIC], ["10.0.0.1", PUBLIC]]
    for _ in range(2):
        with pytest.raises(
            DeliveryError, match=r"must begin with https://; to allow http, add hooks.example"
        ):
            post("http://hooks.example/", b"{}", {})


def test_a_host_is_allowed_by_its_name(settings: Settings, resolver: Resolver, receiver: Receiver) -> None:
    settings.WEBHOOK_ALLOWED_HOSTS = ["hooks.lab"]
    resolver.answers = [["127.0.0.1"]]
    post(f"http://HOOKS.lab:{receiver.server_port}/", b"{}", {})
    assert receiver.received[0].headers["host"] == f"HOOKS.lab:{receiver.server_port}"


def test_checked_address_is_used(resolver: Resolver, tls_receiver: Receiver) -> None:
    """Whoever answers with another address the second time gains nothing. The certificate is the host's."""
    resolver.answers = [["127.0.0.1"]]
    post(f"https://hooks.example:{tls_receiver.server_port}/", b"{}", {})
    assert resolver.asked == 1
    assert tls_receiver.received[0].headers["host"] == f"hooks.example:{tls_receiver.server_port}"


def test_second_address_is_tried(resolver: Resolver, receiver: Receiver) -> None:
    resolver.answers = [["127.0.0.2", "127.0.0.1"]]  # nobody listens on the first
    post(f"http://hooks.example:{receiver.server_port}/", b"{}", {})
    assert len(receiver.received) == 1


def test_a_certificate_of_another_host_is_refused(resolver: Resolver, tls_receiver: Receiver) -> None:
    resolver.answers = [["127.0.0.1"]]
    with pytest.raises(DeliveryError, match=r"^other.example has no valid certificate: Hostname mismatch"):
        post(f"https://other.example:{tls_receiver.server_port}/", b"{}", {})
    assert tls_receiver.received == []


def test_a_certificate_that_nobody_vouches_for_is_refused(
    resolver: Resolver, tls_receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    resolver.answers = [["127.0.0.1"]]
    with pytest.raises(DeliveryError, match="has no valid certificate: self-signed"):
        post(f"https://hooks.example:{tls_receiver.server_port}/", b"{}", {})
    assert tls_receiver.received == []


@pytest.mark.parametrize(
    "url",
    [
        *("", "hooks.example", "ftp://hooks.example/", "https:///path", "https://user:word@hooks.example/"),
        *("https://hooks.example/a b", "https://hooks.example/\r\nHost: x", "https://hooks.example/#part"),
        *(
            "https://hooks.example:0/",
            "https://hooks.example:70000/",
            "https://[::1/",
            "https://höoks.example/",
        ),
        *("https://.example/", "https://hooks.example\\@x/", "https://hooks_%41.example/"),
    ],
)
def test_malformed_urls_are_refused(url: str) -> None:
    for check in (check_url, lambda url: post(url, b"{}", {})):
        with pytest.raises(DeliveryError, match="must look like"):
            check(url)


@pytest.fixture
def script(request: pytest.FixtureRequest) -> Iterator[int]:
    """A server that sends some bytes whatever it is asked, then leaves the connection open; its port."""
    done = threading.Event()

    def serve() -> None:
        connection, _ = server.accept()
        with connection, contextlib.suppress(OSError):
            connection.recv(100_000)
            connection.sendall(request.param)
            done.wait()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        done.set()
        thread.join()


@pytest.mark.parametrize("script", [b"", b"HTTP/1.1 2", b"HTTP/1.1 103\r\n\r\n"], indirect=True)
def test_a_server_that_does_not_answer_is_given_up(script: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbound, "SECONDS", 0.1)
    with pytest.raises(DeliveryError, match=r"^127.0.0.1 did not answer within"):
        post(f"http://127.0.0.1:{script}/", b"{}", {})


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    "script",
    [
        OK + b"Content-Length: 2\r\n\r\nok",
        OK + b"Content-Length: 0\r\nConnection: keep-alive\r\n\r\n",
        CHUNKED,
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.0 200 OK\ncontent-length:2\n\nok",
        b"HTTP/1.1 100 Continue\r\n\r\n" + CHUNKED,
        b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nX: HTTP/1.1 500\r\n\r\n" * 2 + CHUNKED,
    ],
    indirect=True,
)
def test_kept_connection_is_left_after_the_response(script: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbound, "_limit", lambda connection, _: connection.settimeout(60.0))
    post(f"http://127.0.0.1:{script}/", b"{}", {})


@pytest.mark.parametrize(
    ("script", "status"),
    [
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "404"),
        (b"HTTP/1.1 101 Switching Protocols\r\nContent-Length: 0\r\n\r\n", "101"),
    ],
    indirect=["script"],
)
def test_interim_answers_do_not_hide_the_last_one(script: int, status: str) -> None:
    with pytest.raises(DeliveryError, match=f"answered with status {status}"):
        post(f"http://127.0.0.1:{script}/", b"{}", {})


@pytest.mark.parametrize("script", [OK, OK + b"\r\nhalf"], indirect=True)
def test_the_rest_of_an_answer_is_not_waited_for_long(script: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbound, "SECONDS", 60.0)
    monkeypatch.setattr(outbound, "_LINGER", 0.05)
    post(f"http://127.0.0.1:{script}/", b"{}", {})


@pytest.mark.parametrize("script", [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"], indirect=True)
def test_headers_alone_are_a_success(script: int, monkeypatch: pytest.MonkeyPatch) -> None:
    timeouts = iter([60.0, 60.0, 60.0, 0.01])  # to connect, send, hear the answer, and what does not follow
    monkeypatch.setattr(outbound, "_limit", lambda connection, _: connection.settimeout(next(timeouts)))
    post(f"http://127.0.0.1:{script}/", b"{}", {})
    assert not list(timeouts)


@pytest.mark.parametrize("script", [b"SSH-2.0-OpenSSH_9.2\r\n" * 1000], indirect=True)
def test_non_http_replies_are_refused_early(script: int) -> None:
    with pytest.raises(DeliveryError, match="the answer is not HTTP"):
        post(f"http://127.0.0.1:{script}/", b"{}", {})


def test_servers_that_are_away_are_named(receiver: Receiver) -> None:
    with pytest.raises(DeliveryError, match=r"^Can't reach 127.0.0.1: Connection refused.$"):
        post(f"http://127.0.0.1:{free_port()}/", b"{}", {})
    with pytest.raises(DeliveryError, match=r"^The host nowhere.invalid can't be resolved.$"):
        post("https://nowhere.invalid/", b"{}", {})
    with pytest.raises(DeliveryError, match=r"Can't reach 127.0.0.1: .*SSL"):
        post(receiver.url.replace("http:", "https:"), b"{}", {})


LIST, ADD = "admin:feedback_webhookendpoint_changelist", "admin:feedback_webhookendpoint_add"
FORM = {"name": "chat", "url": "https://hooks.example/1", "format": "slack", "enabled": "on"}
FORM["training_waiting"] = "on"


def change(endpoint: WebhookEndpoint) -> str:
    return reverse("admin:feedback_webhookendpoint_change", args=[endpoint.pk])


def act(root: Client, action: str, *chosen: WebhookEndpoint) -> str:
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
