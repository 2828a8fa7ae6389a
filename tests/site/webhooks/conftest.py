"""Webhooks' endpoints that are real servers of this machine."""

import ssl
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from django.utils import timezone
from pytest_django import Settings

from human_feedback_site.feedback.models import WebhookEndpoint
from human_feedback_site.feedback.services import webhooks
from tests.servers import Handler, serving


@dataclass(frozen=True)
class Received:
    """A request that a receiver got; header names are in lowercase."""

    path: str
    headers: dict[str, str]
    body: bytes


class Receiver(ThreadingHTTPServer):
    """A server that keeps requests, and answers with a status after calling something."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.received: list[Received] = []
        self.status = 204
        self.headers: dict[str, str] = {}
        self.meanwhile: Callable[[], object] = lambda: None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook?team=a"

    def handle_error(self, *_: object) -> None:
        """Say nothing: clients that refuse a certificate go away."""


class _Handler(Handler):
    def do_POST(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.received.append(Received(self.path, headers, self.body()))
        self.server.meanwhile()
        self.reply(self.server.status, headers=self.server.headers.items())


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A server that accepts all events."""
    receiver = Receiver()
    with serving(receiver):
        yield receiver


@pytest.fixture
def tls_receiver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """Receive over TLS, with a certificate of ``hooks.example`` that this process trusts."""
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-subj", "/CN=hooks.example", "-addext", "subjectAltName=DNS:hooks.example", "-days", "2"]
    subprocess.run([*command, "-out", certificate, "-keyout", key], check=True, capture_output=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    receiver = Receiver()
    receiver.socket = context.wrap_socket(receiver.socket, server_side=True, do_handshake_on_connect=False)
    with serving(receiver):
        yield receiver


@pytest.fixture(autouse=True)
def loopback_is_allowed(settings: Settings) -> None:
    """Let webhooks reach this machine."""
    settings.WEBHOOK_ALLOWED_HOSTS = ["127.0.0.0/8"]


@pytest.fixture
def endpoint(db: None, receiver: Receiver) -> WebhookEndpoint:
    """An endpoint for all events, which the receiver gets."""
    endpoint = WebhookEndpoint(name="pager", url=receiver.url)
    webhooks.create_endpoint(endpoint)
    return endpoint


class Clock:
    """A clock that stands still unless it is moved; all that is queued meanwhile is due."""

    def __init__(self) -> None:
        self.now = timezone.now() + timedelta(hours=1)

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()
