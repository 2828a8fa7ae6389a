"""Test how the client reports what goes wrong; what goes right is in tests/contract."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from teacher.errors import SiteRefusedError, SiteUnreachableError
from teacher.files import read_token
from teacher.labeling.client import FeedbackClient

Answer = tuple[int, dict[str, str], bytes]
RIGHT = "tt_right"
OpenClient = Callable[..., FeedbackClient]


@pytest.fixture
def open_client() -> Iterator[OpenClient]:
    """A client of a server that always gives one answer and says in a header what token it got."""
    servers, clients, threads = [], [], []

    def open_one(answer: Answer, token: str = RIGHT) -> FeedbackClient:
        status, headers, body = answer

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                sent = body.replace(b"TOKEN", self.headers["Authorization"].encode())
                self.send_header("Content-Length", str(len(sent)))
                self.end_headers()
                self.wfile.write(sent)

            def log_message(self, *_: object) -> None:
                pass

        server = HTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        client = FeedbackClient(f"http://127.0.0.1:{server.server_port}", token)
        servers.append(server)
        clients.append(client)
        threads.append(thread)
        return client

    yield open_one
    for client in clients:
        client.close()
    for server, thread in zip(servers, threads, strict=True):
        server.shutdown()
        server.server_close()
        thread.join()


def problem(status: int, detail: str) -> Answer:
    body = {"type": "about:blank", "title": "Trouble", "status": status, "detail": detail}
    return status, {"Content-Type": "application/problem+json"}, json.dumps(body).encode()


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503])
def test_transient_errors_are_retried(open_client: OpenClient, status: int) -> None:
    with pytest.raises(SiteUnreachableError, match="not now"):
        open_client(problem(status, "not now")).decisions("x", 0)


@pytest.mark.parametrize(
    ("status", "hint"), [(401, "TEACHER_TOKEN"), (403, "researcher"), (404, "so it is"), (409, "so it is")]
)
def test_permanent_errors_say_what_to_do(open_client: OpenClient, status: int, hint: str) -> None:
    with pytest.raises(SiteRefusedError, match=hint) as refusal:
        open_client(problem(status, "so it is")).decisions("x", 0)
    assert refusal.value.status == status
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("body", [b"<html>welcome</html>", b"[]", b"{}", b'{"state": "dancing"}'])
def test_an_address_that_is_no_labeling_site_is_named(open_client: OpenClient, body: bytes) -> None:
    with pytest.raises(SiteRefusedError, match="check the URL"):
        open_client((200, {}, body)).decisions("x", 0)


def test_a_redirect_is_reported_and_not_followed(open_client: OpenClient) -> None:
    with pytest.raises(SiteRefusedError, match=r"https://labels\.example/"):
        open_client((301, {"Location": "https://labels.example/"}, b"")).decisions("x", 0)


def test_nobody_listening_says_so() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound, so that nobody else takes it, and not listening
        client = FeedbackClient(f"http://127.0.0.1:{nobody.getsockname()[1]}", "tt_right")
        with pytest.raises(SiteUnreachableError, match="refused"):
            client.decisions("x", 0)
        client.close()


def test_a_password_in_netrc_does_not_take_the_tokens_place(
    open_client: OpenClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("default login someone password secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    client = open_client(problem(404, "TOKEN"))
    with pytest.raises(SiteRefusedError, match="Bearer tt_right"):
        client.decisions("x", 0)


@pytest.mark.parametrize("content", [b"tt_right\xff", b"tt\n_right", "tt_right…".encode(), b"tt\0right"])
def test_damaged_token_is_sent(open_client: OpenClient, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "token").write_bytes(content)
    client = open_client(problem(401, "TOKEN"), token=read_token(tmp_path / "token"))
    with pytest.raises(SiteRefusedError):
        client.decisions("x", 0)


def test_local_sites_bypass_proxies(open_client: OpenClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with pytest.raises(SiteRefusedError, match="here"):
        open_client(problem(404, "here")).decisions("x", 0)
