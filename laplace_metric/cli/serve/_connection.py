"""Sockets: what a client's connection may do, and liveness by a thread and a port of its own.

uvicorn has no limit of time for headers, nor of connections of an address; and it closes idle
connections at once when it stops, which resets a request that is on its way.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from laplace_metric.cli.serve._guard import Limits

LAST = 0.5
"""Seconds for which a connection without a request stays open after the server was stopped."""
CLOSE_HEADER = (b"connection", b"close")
ALL = 4
"""Most connections of all clients, as a multiple of those of one address."""


class Connection(H11Protocol):
    """One connection of uvicorn, within ``limits``.

    Above the limit of its address, requests get 503 (but for liveness); above twice the limit,
    and above that of all addresses, a connection is closed at once.

    Attributes
    ----------
    limits : Limits
    stopping : bool
        True once the server was told to stop.
    """

    limits = Limits()
    stopping = False
    _waiting: asyncio.TimerHandle | None = None
    _writing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Count it, and start to wait for its headers."""
        super().connection_made(transport)
        most, host = self.limits.connections, self.client_host()
        same = sum(cast(Connection, other).client_host() == host for other in self.connections)
        if same > 2 * most or len(self.connections) > ALL * most:
            transport.abort()
            return
        if same > most:
            self.app_state = {**self.app_state, "crowded": True}
        self._await_head()

    def client_host(self) -> str:
        """Return the address without the port."""
        return self.client[0] if self.client else ""

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clocks."""
        super().connection_lost(exc)
        for timer in (self._waiting, self._writing):
            if timer is not None:
                timer.cancel()

    def handle_events(self) -> None:
        """Read what has come; the time for headers runs while h11 waits for the end of them."""
        super().handle_events()
        if self.stopping:
            self._make_last()
        if self.conn.their_state is h11.IDLE:
            self._await_head()
        elif self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _await_head(self) -> None:
        if self._waiting is None:
            seconds = self.limits.head_seconds
            self._waiting = self.loop.call_later(seconds, self.transport.abort)

    def pause_writing(self) -> None:
        """Give a client that does not read its answer some time."""
        super().pause_writing()
        self._writing = self.loop.call_later(self.limits.seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop that clock: the client reads again."""
        super().resume_writing()
        if self._writing is not None:
            self._writing.cancel()

    def shutdown(self) -> None:
        """Answer the request that runs, or one that comes within ``LAST`` seconds, and close."""
        if not self.stopping:
            self.stopping = True
            self.loop.call_later(LAST, self.shutdown)
            self._make_last()
        elif not self.transport.is_closing():
            super().shutdown()

    def _make_last(self) -> None:
        """Announce in the answer that the connection closes behind it."""
        if self.cycle is not None and CLOSE_HEADER not in self.headers:
            self.headers.append(CLOSE_HEADER)  # the list that the cycle reads


def connections_within(limits: Limits) -> type[Connection]:
    """Return the class of connections that uvicorn takes."""
    return type("LimitedConnection", (Connection,), {"limits": limits})


# Liveness. The application answers ``/healthz``, too, but on the loop that also reads requests,
# and only while connections are free. This thread reads a few bytes of a head, for two seconds at
# most; above ``MOST`` connections the oldest one is dropped, so that a probe always finds room.


SECONDS, MOST, BYTES = 2.0, 64, 4096
"""For a head; connections at once; of a head."""
BACKLOG = 2048
"""Connections that wait to be accepted: a fuller queue would cost a probe a second."""
PROBES = (b"GET /healthz ", b"GET /health ")
ANSWER = (
    b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
    b"Connection: close\r\n\r\n%s"
)
ALIVE = b'{"status":"alive"}'


class Liveness(AbstractContextManager["Liveness"]):
    """Answers ``GET /healthz`` and ``GET /health`` at a socket, until the end of a ``with``."""

    def __init__(self, listener: socket.socket) -> None:
        self.port = int(listener.getsockname()[1])
        self._listener, self._open = listener, list[asyncio.StreamWriter]()
        self._ready = threading.Event()
        run = partial(asyncio.run, self._serve())
        self._thread = threading.Thread(target=run, name="liveness", daemon=True)
        self._thread.start()
        self._ready.wait()

    def __exit__(self, *_: object) -> None:
        """Stop the thread, and with it the answers that are on their way."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(
            self._answer, sock=self._listener, limit=BYTES, backlog=BACKLOG
        )
        self._ready.set()
        await self._stop.wait()
        server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.append(writer)
        if len(self._open) > MOST:
            self._open[0].transport.abort()
        with suppress(EOFError, asyncio.LimitOverrunError, asyncio.TimeoutError, OSError):
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), SECONDS)
            alive = head.startswith(PROBES)
            status, body = (b"200 OK", ALIVE) if alive else (b"404 Not Found", b"{}")
            writer.write(ANSWER % (status, len(body), body))
            await asyncio.wait_for(writer.drain(), SECONDS)
        self._open.remove(writer)
        writer.close()
