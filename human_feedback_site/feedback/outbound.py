"""HTTP POST to URLs that administrators entered, without letting them reach private networks.

An attacker who controls a host's DNS could make it resolve to an internal server (SSRF), or to a public
address when it is checked and an internal one when it is used (DNS rebinding). The host is therefore resolved
once, all its addresses are checked, and the connection is made to a checked address. TLS still verifies the
certificate against the host name. Redirects are not followed, and proxies are not used.
"""

import ipaddress
import re
import socket
import ssl
import time
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from django.conf import settings

from human_feedback_site.feedback.errors import DeliveryError

SECONDS = 10.0
"""Time limit for connecting, sending and receiving together. Resolving the host has the system's limit."""
_MAX_RESPONSE = 16_384  # bytes; only the status matters
_LINGER = 1.0  # seconds for the rest of the response, once the status is known
_HOST = r"[a-z0-9_][a-z0-9._-]*|[0-9a-f:.]+"
_IPV6_UNICAST = ipaddress.IPv6Network("2000::/3")  # all global unicast addresses assigned so far
_INTERIM = re.compile(rb"HTTP/1\.[01] 1(?!01)\d\d\b.*?\n\r?\n", re.DOTALL)  # such as 103 Early Hints
_STATUS = re.compile(rb"HTTP/1\.[01] ([2-9]\d\d|101)\b")
_LENGTH = re.compile(rb"^content-length:[ \t]*(\d{1,9})[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)
_CHUNKED = re.compile(rb"^transfer-encoding:.*chunked[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)

_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address


class Target(NamedTuple):
    """The parts of a webhook's URL; ``path`` includes the query."""

    scheme: str
    host: str
    port: int
    netloc: str
    path: str


def check_url(url: str) -> Target:
    """Return the parts of a webhook's URL, or raise :class:`DeliveryError`; the host is not resolved."""
    target = _parse(url)
    if target.scheme == "http" and not settings.WEBHOOK_ALLOWED_HOSTS:
        raise DeliveryError(_http_refused(target.host))
    try:
        literal = ipaddress.ip_address(target.host)
    except ValueError:
        return target
    _check_addresses(target, [literal])
    return target


def post(url: str, body: bytes, headers: Mapping[str, str]) -> None:
    """POST a JSON body to a webhook's URL."""
    target = _parse(url)
    addresses = _resolve(target)
    _check_addresses(target, [ipaddress.ip_address(address[0]) for _, address in addresses])
    deadline = time.monotonic() + SECONDS
    try:
        with _connect(target, addresses, deadline) as connection:
            _limit(connection, deadline)
            connection.sendall(_head(target, headers, len(body)) + body)
            status = _read_status(connection, deadline)
    except ssl.SSLCertVerificationError as error:
        message = f"{target.host} has no valid certificate: {error.verify_message}."
        raise DeliveryError(message) from None
    except TimeoutError:
        raise DeliveryError(f"{target.host} did not answer within {SECONDS:.0f} s.") from None
    except OSError as error:
        raise DeliveryError(f"Can't reach {target.host}: {error.strerror or error}.") from None
    if not 200 <= status < 300:
        redirect = "; redirects are not followed" if 300 <= status < 400 else ""
        raise DeliveryError(f"{target.host} answered with status {status}{redirect}.")


def _parse(url: str) -> Target:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:  # invalid port or IPv6 address
        host, port = "", None
    if (
        not re.fullmatch(_HOST, host)
        or not re.fullmatch(r"[!-~]+", url)
        or parts.scheme not in {"http", "https"}
        or "@" in parts.netloc
        or "#" in url
        or port == 0
    ):
        raise DeliveryError("The URL must look like https://host[:port]/path, without spaces or username.")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(parts.scheme, host, port or (443 if parts.scheme == "https" else 80), parts.netloc, path)


def _resolve(target: Target) -> list[tuple[socket.AddressFamily, Any]]:
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise DeliveryError(f"The host {target.host} can't be resolved.") from None
    return [(family, address) for family, _, _, _, address in found]


def _check_addresses(target: Target, addresses: list[_Address]) -> None:
    """Raise :class:`DeliveryError` unless all addresses may be contacted with the target's scheme."""
    if target.host in settings.WEBHOOK_ALLOWED_HOSTS:
        return
    others = [address for address in addresses if not _is_allowed(address)]
    if target.scheme == "http" and others:
        raise DeliveryError(_http_refused(target.host))
    for address in others:
        if not _is_public(address):
            raise DeliveryError(
                f"{target.host} has the address {address}, which is not public; to allow it, add the host or "
                "its network to WEBHOOK_ALLOWED_HOSTS."
            )


def _http_refused(host: str) -> str:
    return f"The URL must begin with https://; to allow http, add {host} to WEBHOOK_ALLOWED_HOSTS."


def _is_allowed(address: _Address) -> bool:
    networks = [entry for entry in settings.WEBHOOK_ALLOWED_HOSTS if "/" in entry]
    return any(address in ipaddress.ip_network(network) for network in networks)


def _is_public(address: _Address) -> bool:
    """Return True if the address is a unicast address on the internet.

    IPv6 addresses that contain an IPv4 address (mapped, 6to4, Teredo, NAT64) are not, because that address
    may be private.
    """
    if isinstance(address, ipaddress.IPv6Address) and (
        address not in _IPV6_UNICAST or address.sixtofour or address.teredo
    ):
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved)


def _connect(
    target: Target, addresses: list[tuple[socket.AddressFamily, Any]], deadline: float
) -> socket.socket:
    for index, (family, address) in enumerate(addresses):
        connection = socket.socket(family, socket.SOCK_STREAM)
        try:
            _limit(connection, deadline)
            connection.connect(address)
            if target.scheme == "http":
                return connection
            _limit(connection, deadline)
            return ssl.create_default_context().wrap_socket(connection, server_hostname=target.host)
        except OSError as error:
            connection.close()
            if isinstance(error, ssl.SSLError) or index == len(addresses) - 1:
                raise
    raise AssertionError("unreachable: a host that resolves has an address")


def _limit(connection: socket.socket, deadline: float) -> None:
    """Let the next operation on the connection time out at the deadline."""
    connection.settimeout(max(deadline - time.monotonic(), 0.001))


def _head(target: Target, headers: Mapping[str, str], length: int) -> bytes:
    lines = {
        "Host": target.netloc,
        "User-Agent": "RL-Teacher",
        "Content-Type": "application/json",
        "Content-Length": str(length),
        "Connection": "close",
        **headers,
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST {target.path} HTTP/1.1\r\n{head}\r\n".encode("ascii")


def _read_status(connection: socket.socket, deadline: float) -> int:
    """Return the status of the response, of which at most :data:`_MAX_RESPONSE` bytes are read.

    Interim responses (1xx) are skipped. After the status, the rest is read only so that the server can finish
    sending it, for at most :data:`_LINGER` seconds: some servers keep the connection open.
    """
    received, start, status = b"", 0, None
    while len(received) < _MAX_RESPONSE and not (status and _is_complete(received[start:])):
        _limit(connection, deadline)
        try:
            chunk = connection.recv(4096)
        except OSError:
            if status is None:
                raise
            break
        if not chunk:
            break
        received += chunk
        while interim := _INTERIM.match(received, start):
            start = interim.end()
        if status is None and (status := _STATUS.match(received, start)):
            deadline = min(deadline, time.monotonic() + _LINGER)
    if status is None:
        raise OSError("the answer is not HTTP")
    return int(status[1])


def _is_complete(response: bytes) -> bool:
    """Return True if the whole response has arrived, as far as its head says where it ends."""
    head, *body = re.split(rb"\n\r?\n", response, maxsplit=1)
    if not body:
        return False
    if _CHUNKED.search(head):
        return body[0].endswith(b"0\r\n\r\n")
    length = _LENGTH.search(head)
    return len(body[0]) >= int(length[1]) if length else head[9:12] in {b"204", b"304"}
