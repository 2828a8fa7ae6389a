"""TCP proxy that can cut and slow connections between two programs, for ``benchmarks.chaos``."""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Coroutine
from typing import Any

_CHUNK = 65_536


class Link:
    """Context manager that forwards TCP connections from one local port to others.

    Args:
        port: local port to listen on.
        servers: local ports to forward to, in rotation; ports that refuse a connection are skipped.
    """

    def __init__(self, port: int, *servers: int) -> None:
        self._port, self._servers = port, deque(servers)
        self._delay = 0.0
        self._is_cut = False
        self._open: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"link-{port}", daemon=True)

    def __enter__(self) -> "Link":
        self._thread.start()
        self._do(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def cut(self) -> None:
        """Break all connections, and break new ones as soon as they open."""
        self._is_cut = True
        self._do(self._break())

    def slow(self, seconds: float) -> None:
        """Delay each chunk of data by ``seconds``, in both directions."""
        self._delay = seconds

    def restore(self) -> None:
        """Forward everything without delay again."""
        self._is_cut, self._delay = False, 0.0

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _listen(self) -> None:
        self._listener = await asyncio.start_server(self._connected, "127.0.0.1", self._port)

    async def _break(self) -> None:
        for writer in self._open:
            writer.transport.abort()

    async def _end(self) -> None:
        self._listener.close()
        await self._break()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            if self._is_cut:
                return
            with contextlib.suppress(OSError):
                await self._connect(reader, writer)
        finally:
            self._open.discard(writer)
            writer.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await self._reach()
        self._open.add(back)
        try:
            await asyncio.gather(self._pass_on(reader, back), self._pass_on(there, writer))
        finally:
            self._open.discard(back)
            back.transport.abort()

    async def _reach(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection to the next server in rotation that accepts one."""
        for _ in range(len(self._servers) - 1):
            self._servers.rotate()
            with contextlib.suppress(OSError):
                return await asyncio.open_connection("127.0.0.1", self._servers[0])
        self._servers.rotate()
        return await asyncio.open_connection("127.0.0.1", self._servers[0])

    async def _pass_on(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        """Copy data until the source closes, then close the target; OSError if either connection breaks."""
        while data := await source.read(_CHUNK):
            await asyncio.sleep(self._delay)
            target.write(data)
            await target.drain()
        if target.can_write_eof():
            target.write_eof()
