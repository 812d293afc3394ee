"""Protection of the application: the key, limits on bodies and requests at once, times.

Plain ASGI. A body is read here, up to the limit, and handed on whole. A request counts as running
once its body has arrived: neither slow bodies nor refusals keep others out.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from laplace_metric.cli.serve._metrics import ServerMetrics
from laplace_metric.errors import InputError

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]
LINGER = 5.0
"""Seconds without a byte after which the rest of a refused body is no longer thrown away. Until
then it is, so that a client that sends before it reads gets the answer."""
TURN = 0.002
"""Seconds a refusal waits, for each that there is, before it reads on: however many clients send
what is thrown away, at most 500 parts a second are read."""
LIVENESS = ("/healthz", "/health")
"""Answered without a key."""
ALWAYS = (*LIVENESS, "/metrics")
"""Answered however busy the server is; a body is not read."""
MOST_FAULTS = 100
"""Places in the code of which a traceback is logged."""
LOG = logging.getLogger("uvicorn.error")


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
    most_bytes : callable, optional
        Content-Type -> bytes that such a body may have; by default ``limits.body``.
    key : bytes or None
        That requests must hold, but for liveness.

    Attributes
    ----------
    running, held, refused : int
        Requests whose bodies have arrived, bytes of all bodies, and refusals that still read, at
        this moment.
    """

    application: Application
    limits: Limits
    metrics: ServerMetrics
    paths: frozenset[str]
    most_bytes: Callable[[str], int] | None = None
    key: bytes | None = None
    running: int = 0
    held: int = 0
    refused: int = 0
    _faults: set[tuple[type, CodeType, int]] = field(default_factory=set)

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

        try:
            await self._answer(scope, receive, noted)
        except Disconnected:
            pass
        except Exception as error:  # Starlette has answered 500 by now
            self._log(error)
        finally:
            path = scope["path"] if scope["path"] in self.paths else "other"
            self.metrics.request(path, status, time.perf_counter() - begin)

    async def _answer(self, scope: Message, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        try:
            self._check_key(scope["path"], headers)
            self._check_free(scope)
            body = b"" if scope["path"] in ALWAYS else await self._body(scope, headers, receive)
        except RequestRefused as refusal:
            await self._refuse(refusal, receive, send)
            return
        self.running += 1
        try:
            await self.application(scope, _replayed(body, receive), send)
        finally:
            self.running -= 1
            self.held -= len(body)

    def _check_key(self, path: str, headers: Mapping[bytes, bytes]) -> None:
        if self.key is None or path in LIVENESS:
            return
        scheme, _, bearer = headers.get(b"authorization", b"").partition(b" ")
        given = bearer.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"")
        if not hmac.compare_digest(given, self.key):
            raise RequestRefused(
                "the key is missing or wrong: send Authorization: Bearer KEY, or X-API-Key: KEY.",
                UNAUTHORIZED,
            )

    def _check_free(self, scope: Message) -> None:
        if scope["path"] in ALWAYS:
            return
        if scope.get("state", {}).get("crowded"):
            raise RequestRefused(
                f"{self.limits.connections} connections of this address are open: close some, or "
                "ask again later.",
                BUSY,
            )
        if self.running >= self.limits.waiting:
            raise RequestRefused(
                f"{self.limits.waiting} requests are being answered: ask again later.", BUSY
            )

    async def _body(
        self, scope: Message, headers: Mapping[bytes, bytes], receive: Receive
    ) -> bytes:
        content_type = headers.get(b"content-type", b"").decode("latin-1")
        most = self.limits.body
        if self.most_bytes is not None:
            most = self.most_bytes(media_type(content_type))
        declared = headers.get(b"content-length", b"")
        if declared.isdigit():
            self._check_size(int(declared), 0, most)
        body = bytearray()
        try:
            await asyncio.wait_for(self._fill(body, most, receive), self.limits.seconds)
            self._check_free(scope)  # others have come meanwhile
            return bytes(body)
        except BaseException as error:
            self.held -= len(body)
            if not isinstance(error, asyncio.TimeoutError):
                raise
            raise RequestRefused(
                f"the body did not come within {self.limits.seconds:g} seconds.", TIMEOUT
            ) from error

    async def _fill(self, body: bytearray, most: int, receive: Receive) -> None:
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            part = message.get("body", b"")
            self._check_size(len(part), len(body), most)
            body += part
            self.held += len(part)
            more = message.get("more_body", False)

    def _check_size(self, coming: int, there: int, most: int) -> None:
        if there + coming > most:
            raise RequestRefused(
                f"the body is too large: at most {most:,} bytes are read of this type. Send a "
                "smaller query; for images the server may be started with --max-body.",
                TOO_LARGE,
            )
        if self.held + coming > self.limits.bodies:
            raise RequestRefused(
                f"{self.limits.bodies:,} bytes are being read for all clients: ask again later.",
                BUSY,
            )

    async def _refuse(self, refusal: RequestRefused, receive: Receive, send: Send) -> None:
        """Answer at once, then read what still comes for a while, and close."""
        headers = [(b"connection", b"close"), *refusal_headers(refusal.status)]
        body = error_body(str(refusal))
        headers.append((b"content-length", str(len(body)).encode()))
        await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": True})
        self.refused += 1
        try:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._drain(receive), self.limits.seconds)
        finally:
            self.refused -= 1
        await send({"type": "http.response.body", "body": b""})

    async def _drain(self, receive: Receive) -> None:
        while True:
            message = await asyncio.wait_for(receive(), LINGER)
            if message["type"] == "http.disconnect" or not message.get("more_body", False):
                return
            await asyncio.sleep(TURN * self.refused)

    def _log(self, error: Exception) -> None:
        """The traceback of each place in the code once: requests cannot fill the log."""
        last = error.__traceback__
        while last is not None and last.tb_next is not None:
            last = last.tb_next
        assert last is not None
        place = type(error), last.tb_frame.f_code, last.tb_lineno
        if place not in self._faults and len(self._faults) < MOST_FAULTS:
            self._faults.add(place)
            LOG.error("A request failed; the next ones like it are counted only", exc_info=error)


def media_type(content_type: str) -> str:
    """Content-Type without its parameters.

    Examples
    --------
    >>> media_type("Text/Plain; charset=utf-8")
    'text/plain'
    """
    return content_type.split(";")[0].strip().lower()


def refusal_headers(status: int) -> list[tuple[bytes, bytes]]:
    """Headers of an error: of JSON, and when or how to ask again."""
    headers = [(b"content-type", b"application/json")]
    if status == BUSY:
        headers.append((b"retry-after", b"1"))
    if status == UNAUTHORIZED:
        headers.append((b"www-authenticate", b"Bearer"))
    return headers


def error_body(message: str) -> bytes:
    """The JSON of every refusal.

    Examples
    --------
    >>> error_body("no")
    b'{"error": "no"}'
    """
    return json.dumps({"error": message}).encode()


def _replayed(body: bytes, receive: Receive) -> Receive:
    sent = False

    async def replay() -> Message:
        nonlocal sent
        if sent:
            return await receive()  # only a disconnect can come
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


# How much a request may ask for, and what it is told when it asks for more.


BAD_REQUEST, UNAUTHORIZED, FORBIDDEN, TIMEOUT, CONFLICT = 400, 401, 403, 408, 409
TOO_LARGE, WRONG_TYPE, BUSY, STOPPING = 413, 415, 503, 503
BODIES = 64 * 2**20
"""Bytes of all bodies in memory, unless a single one may have more."""


class RequestRefused(InputError):
    """A request that is not answered; ``status`` is that of HTTP, 400 to 599.

    Examples
    --------
    >>> RequestRefused("the body is too large", TOO_LARGE).status
    413
    """

    def __init__(self, message: str, status: int = BAD_REQUEST) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Limits:
    """Limits on the cost of one request, and of all of them together.

    Parameters
    ----------
    body : int
        Bytes.
    bodies : int
        Bytes of all bodies that are arriving or being answered.
    pixels : int or None
        Of an image as it comes; None: 32 million where images are scaled, 1 million where the
        model gets them as they are.
    k : int
        Neighbours.
    text : int
        Characters.
    width : int or None
        Numbers of a vector; None where the model alone knows.
    waiting : int
        Requests at once whose bodies have arrived.
    seconds : float
        In which a body must have come, and an answer must have been read.
    head_seconds : float
        In which the headers of a request must have come.
    connections : int
        Of one client address.
    """

    body: int = 10 * 2**20
    bodies: int = BODIES
    pixels: int | None = None
    k: int = 1000
    text: int = 20_000
    width: int | None = None
    waiting: int = 64
    seconds: float = 30.0
    head_seconds: float = 10.0
    connections: int = 128

    def of_an_image(self, *, scaled: bool) -> int:
        """Pixels that an image may have."""
        if self.pixels is not None:
            return self.pixels
        return 32_000_000 if scaled else 1_000_000
