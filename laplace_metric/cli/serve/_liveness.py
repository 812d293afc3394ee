"""Liveness by a thread and a port of its own, which no request of the server can hold up.

The application answers ``/healthz``, too, but on the loop that also reads requests, and only while
connections are free. This thread reads nothing but a few bytes of a head, for two seconds at most;
above ``MOST`` connections the oldest one is dropped, so that a probe always finds room.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress

SECONDS, MOST, BYTES = 2.0, 64, 4096
"""For a head; connections at once; of a head."""
BACKLOG = 2048
"""Connections that wait to be accepted: a fuller queue would cost a probe a second."""
PATHS = (b"/healthz", b"/health")
ALIVE = b'{"status":"alive"}'
HEAD = b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
END = b"Connection: close\r\n\r\n"


class Liveness:
    """Answers ``GET /healthz`` and ``GET /health`` at a listening socket, until ``close``."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self._open: list[asyncio.StreamWriter] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="liveness", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Port of the socket."""
        return int(self.listener.getsockname()[1])

    def close(self) -> None:
        """Stop the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self.listener.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        start = asyncio.start_server(self._answer, sock=self.listener, limit=BYTES, backlog=BACKLOG)
        server = self._loop.run_until_complete(start)
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.append(writer)
        if len(self._open) > MOST:
            self._open[0].transport.abort()
        broken = (asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.TimeoutError)
        with suppress(*broken, OSError):
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), SECONDS)
            asked = head.split(b" ", 2)[1:2]
            alive = head.startswith(b"GET ") and asked != [] and asked[0] in PATHS
            status, body = (b"200 OK", ALIVE) if alive else (b"404 Not Found", b"{}")
            writer.write(HEAD % (status, len(body)) + END + body)
            await asyncio.wait_for(writer.drain(), SECONDS)
        self._open.remove(writer)
        writer.close()
