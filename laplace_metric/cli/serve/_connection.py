"""A client's connection: its headers come in time, few are of one address, a stop answers it.

uvicorn has no limit of time for headers, nor of connections of an address; and it closes idle
connections at once when it stops, which resets a request that is on its way.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, cast

from laplace_metric.cli.serve._guard import Limits

with suppress(ImportError):  # without the extra, ``require_packages`` has said so by now
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

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
        Whether the server was told to stop.
    """

    limits = Limits()
    stopping = False
    _waiting: asyncio.TimerHandle | None = None
    _writing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Count it, and start to wait for its headers."""
        super().connection_made(transport)
        most, everyone = self.limits.connections, len(self.connections)
        host = self.client_host()
        same = sum(cast(Connection, other).client_host() == host for other in self.connections)
        if same > 2 * most or everyone > ALL * most:
            transport.abort()
            return
        if same > most:
            self.app_state = {**self.app_state, "crowded": True}
        self._await_head()

    def client_host(self) -> str:
        """Address without the port."""
        return self.client[0] if self.client else ""

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget what it waited for."""
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
        """The client does not read its answer: give it a time."""
        super().pause_writing()
        self._writing = self.loop.call_later(self.limits.seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """It reads again."""
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
        """Say in the answer that the connection closes behind it."""
        if self.cycle is not None and CLOSE_HEADER not in self.headers:
            self.headers.append(CLOSE_HEADER)  # the list that the cycle looks at


def connections_within(limits: Limits) -> type[Connection]:
    """The class of connections that uvicorn takes."""
    return type("LimitedConnection", (Connection,), {"limits": limits})
