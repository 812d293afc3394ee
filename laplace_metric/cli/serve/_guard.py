"""What stands before the application: limits on bodies and on requests at once, and times.

Plain ASGI. A body is read here, up to the limit, and handed on whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from laplace_metric.cli.serve._limits import BUSY, TOO_LARGE, Limits, RequestRefused
from laplace_metric.cli.serve._metrics import ServerMetrics

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]
TIMEOUT = 408
LINGER = 5.0
"""Seconds for which the rest of a body that is too large is thrown away, so that a client that
sends before it reads gets the answer."""
ALWAYS = ("/healthz", "/metrics")
"""Answered however busy the server is."""


class Disconnected(Exception):
    """The client went away before its body was there."""


@dataclass
class Guard:
    """An application behind limits.

    Parameters
    ----------
    application : ASGI application
    limits : Limits
    metrics : ServerMetrics
    paths : set of str
        Names of paths in metrics; any other is "other", so that clients cannot make names.

    Attributes
    ----------
    running : int
        Requests at this moment.
    """

    application: Application
    limits: Limits
    metrics: ServerMetrics
    paths: frozenset[str]
    running: int = 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """One connection's request."""
        if scope["type"] != "http":
            await self.application(scope, receive, send)
            return
        begin, status = time.perf_counter(), 499  # of a client that did not wait

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self.running += 1
        try:
            await self._answer(scope, receive, noted)
        except Disconnected:
            pass
        finally:
            self.running -= 1
            path = scope["path"] if scope["path"] in self.paths else "other"
            self.metrics.request(path, status, time.perf_counter() - begin)

    async def _answer(self, scope: Message, receive: Receive, send: Send) -> None:
        try:
            if self.running > self.limits.waiting and scope["path"] not in ALWAYS:
                raise RequestRefused(
                    f"{self.limits.waiting} requests are being answered: ask again later.", BUSY
                )
            body = await self._body(scope, receive)
        except RequestRefused as refusal:
            await _refuse(refusal, receive, send)
            return
        await self.application(scope, _replayed(body, receive), send)

    async def _body(self, scope: Message, receive: Receive) -> bytes:
        declared = dict(scope["headers"]).get(b"content-length", b"")
        if declared.isdigit() and int(declared) > self.limits.body:
            raise self._too_large()
        try:
            return await asyncio.wait_for(self._all(receive), self.limits.seconds)
        except asyncio.TimeoutError as error:
            raise RequestRefused(
                f"the body did not come within {self.limits.seconds:g} seconds.", TIMEOUT
            ) from error

    async def _all(self, receive: Receive) -> bytes:
        body, more = bytearray(), True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            body += message.get("body", b"")
            if len(body) > self.limits.body:
                raise self._too_large()
            more = message.get("more_body", False)
        return bytes(body)

    def _too_large(self) -> RequestRefused:
        return RequestRefused(
            f"the body is too large: at most {self.limits.body:,} bytes are read. Send a smaller "
            "image, or start the server with --max-body.",
            TOO_LARGE,
        )


def error_body(message: str) -> bytes:
    """The JSON of every refusal.

    Examples
    --------
    >>> error_body("no")
    b'{"error": "no"}'
    """
    return json.dumps({"error": message}).encode()


async def _refuse(refusal: RequestRefused, receive: Receive, send: Send) -> None:
    """Answer at once, then read what still comes for a while, and close."""
    body = error_body(str(refusal))
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    headers.append((b"content-length", str(len(body)).encode()))
    if refusal.status == BUSY:
        headers.append((b"retry-after", b"1"))
    start = {"type": "http.response.start", "status": refusal.status, "headers": headers}
    await send(start)
    await send({"type": "http.response.body", "body": body, "more_body": True})
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(_drain(receive), LINGER)
    await send({"type": "http.response.body", "body": b""})


async def _drain(receive: Receive) -> None:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            return


def _replayed(body: bytes, receive: Receive) -> Receive:
    sent = False

    async def replay() -> Message:
        nonlocal sent
        if sent:
            return await receive()  # only a disconnect can come
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
