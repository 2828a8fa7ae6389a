"""Network time-outs that mean that no byte has moved for a while, however large a transfer or slow a line.

Each time-out limits one operation on a socket. Data that the kernel has taken counts as sent, so the kernel
may take only as little as a slow line sends before the time-out for the response.
"""

import io
import json
import socket
from collections.abc import Mapping
from typing import Any

from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection

CONNECT_SECONDS, READ_SECONDS = 15.0, 30.0
"""Time-outs to connect or to send the next 16 KiB, and to receive the next bytes."""
_BLOCK = 2**14
SEND_BUFFER = (socket.SOL_SOCKET, socket.SO_SNDBUF, 2**15)
"""Socket option that limits what the kernel takes at once, to twice this number of bytes."""


class FileInBlocks(io.FileIO):
    """File to upload that is read, and so sent, in blocks of at most 16 KiB, each with its own time-out."""

    def read(self, size: int | None = -1, /) -> bytes:
        """Return the next bytes: at most ``size`` and at most 16 KiB; empty at the end of the file."""
        return super().read(_BLOCK if size is None or size < 0 else min(size, _BLOCK)) or b""


class PatientAdapter(HTTPAdapter):
    """Transport for a ``requests`` session that uploads over slow lines; pass bodies as :func:`json_file`."""

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        """Create the connection pools with small send buffers."""
        options["socket_options"] = [*HTTPConnection.default_socket_options, SEND_BUFFER]
        super().init_poolmanager(*args, **options)


def json_file(body: Mapping[str, Any]) -> io.BytesIO:
    """Return JSON as a file, which is sent in blocks, each with its own time-out."""
    return io.BytesIO(json.dumps(body, allow_nan=False).encode())
