"""Protection of the application: the key, limits on bodies and requests at once, times.

Plain ASGI. A body is read here, up to the limit, and handed on in parts. A request counts as
running once its body has arrived: neither slow bodies nor refusals keep others out.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import CodeType

import anyio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from laplace_metric.cli.serve._metrics import ServerMetrics
from laplace_metric.errors import InputError

BODIES = 64 * 2**20
"""Bytes of all bodies in memory, unless a single one may have more."""
PART = 2**16
"""Bytes of a body that the application gets before other requests have their turn."""
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
CLIENT_GONE = 499
"""Status in the metrics if a client did not wait for its answer."""
MOST_FAULTS = 100
"""Places in the code of which a traceback is logged."""
LOG = logging.getLogger("uvicorn.error")


class RequestRefused(InputError):
    """A request that is not answered; ``status`` is that of HTTP, 400 to 599.

    Examples
    --------
    >>> RequestRefused("the body is too large", 413).status
    413
    """

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Limits:
    """Limits on the cost of one request, and of all of them together.

    Parameters
    ----------
    body : int
        Bytes of one body.
    bodies : int
        Bytes of all bodies that are arriving or being answered.
    pixels : int or None
        Pixels of an image as it comes; None: 32 million where images are scaled, 1 million where
        the model gets them as they are.
    waiting : int
        Requests at once whose bodies have arrived.
    seconds : float
        Time in which a body must have come, and an answer must have been read.
    head_seconds : float
        Time in which the headers of a request must have come.
    connections : int
        Connections of one client address.
    """

    body: int = 10 * 2**20
    bodies: int = BODIES
    pixels: int | None = None
    waiting: int = 64
    seconds: float = 30.0
    head_seconds: float = 10.0
    connections: int = 128


@dataclass
class Gate:
    """An application behind limits.

    Parameters
    ----------
    application : ASGI application
    limits : Limits
    metrics : ServerMetrics
    paths : set of str
        Names of paths in metrics; any other is "other", so that clients cannot make names.
    most_bytes : callable
        Content-Type without parameters -> bytes that such a body may have.
    key : bytes or None
        Key of every request but those of liveness; None: no key is needed.

    Attributes
    ----------
    running, held, refused : int
        Requests whose bodies have arrived, bytes of all bodies, and refusals that still read, at
        this moment.
    """

    application: ASGIApp
    limits: Limits
    metrics: ServerMetrics
    paths: frozenset[str]
    most_bytes: Callable[[str], int]
    key: bytes | None = None
    running: int = 0
    held: int = 0
    refused: int = 0
    _faults: set[tuple[type, CodeType, int]] = field(default_factory=set)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; pass anything else on."""
        if scope["type"] != "http":
            await self.application(scope, receive, send)
            return
        begin, status = time.perf_counter(), CLIENT_GONE

        async def noted(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self._answer(Request(scope, receive), noted)
        except ClientDisconnect:
            pass
        except Exception as error:  # Starlette has answered 500 by now
            self._log(error)
        finally:
            path = scope["path"] if scope["path"] in self.paths else "other"
            self.metrics.request(path, status, time.perf_counter() - begin)

    async def _answer(self, request: Request, send: Send) -> None:
        path, body = request.scope["path"], bytearray()
        try:
            self._check_key(path, request.headers)
            if path not in ALWAYS:
                body = await self._body(request)
        except RequestRefused as refusal:
            await self._refuse(refusal, request.receive, send)
            return
        size = len(body)
        self.running += 1
        try:
            await self.application(request.scope, _replayed(body, request.receive), send)
        finally:
            self.running -= 1
            self.held -= size

    def _check_key(self, path: str, headers: Mapping[str, str]) -> None:
        if self.key is None or path in LIVENESS:
            return
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        given = bearer.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        if not hmac.compare_digest(given.encode("latin-1"), self.key):
            raise RequestRefused(
                "the key is missing or wrong: send Authorization: Bearer KEY, or X-API-Key: KEY.",
                401,
            )

    async def _body(self, request: Request) -> bytearray:
        """Read a body within the limits; ``held`` counts it unless it is refused."""
        self._check_free(request)
        most, body = self.most_bytes(media_type(request)), bytearray()
        declared = request.headers.get("content-length", "")
        if declared.isdecimal():
            self._check_size(int(declared), 0, most)
        try:
            with anyio.fail_after(self.limits.seconds):
                async for part in request.stream():
                    self._check_size(len(part), len(body), most)
                    body += part
                    self.held += len(part)
            self._check_free(request)  # others have come meanwhile
        except BaseException as error:
            self.held -= len(body)
            if not isinstance(error, TimeoutError):
                raise
            limit = f"{self.limits.seconds:g} seconds"
            raise RequestRefused(f"the body did not come within {limit}.", 408) from error
        return body

    def _check_free(self, request: Request) -> None:
        if request.scope.get("state", {}).get("crowded"):
            raise RequestRefused(
                f"{self.limits.connections} connections of this address are open: close some, or "
                "ask again later.",
                503,
            )
        if self.running >= self.limits.waiting:
            raise RequestRefused(
                f"{self.limits.waiting} requests are being answered: ask again later.", 503
            )

    def _check_size(self, coming: int, there: int, most: int) -> None:
        if there + coming > most:
            raise RequestRefused(
                f"the body is too large: at most {most:,} bytes are read of this type. Send a "
                "smaller query; for images the server may be started with --max-body.",
                413,
            )
        if self.held + coming > self.limits.bodies:
            raise RequestRefused(
                f"{self.limits.bodies:,} bytes are being read for all clients: ask again later.",
                503,
            )

    async def _refuse(self, refusal: RequestRefused, receive: Receive, send: Send) -> None:
        """Answer at once, then read what still comes for a while, and close."""
        answer = problem(str(refusal), refusal.status, {"Connection": "close"})
        head = {"type": "http.response.start", "status": refusal.status}
        await send({**head, "headers": answer.raw_headers})
        await send({"type": "http.response.body", "body": answer.body, "more_body": True})
        self.refused += 1
        try:
            with anyio.move_on_after(self.limits.seconds):
                more = True
                while more:
                    more = False
                    with anyio.move_on_after(LINGER):
                        more = (await receive()).get("more_body", False)
                    await anyio.sleep(TURN * self.refused)
        finally:
            self.refused -= 1
        await send({"type": "http.response.body", "body": b""})

    def _log(self, error: Exception) -> None:
        """Log the traceback of each place in the code once: requests cannot fill the log."""
        *_, (frame, line) = traceback.walk_tb(error.__traceback__)
        place = type(error), frame.f_code, line
        if place not in self._faults and len(self._faults) < MOST_FAULTS:
            self._faults.add(place)
            LOG.error("A request failed; the next ones like it are counted only", exc_info=error)


def media_type(request: Request) -> str:
    """Return the Content-Type without its parameters."""
    return request.headers.get("content-type", "").split(";")[0].strip().lower()


def problem(message: str, status: int, headers: Mapping[str, str] | None = None) -> Response:
    """Return the response of every error: JSON, and when or how to ask again.

    Examples
    --------
    >>> problem("no", 400).body
    b'{"error": "no"}'
    """
    more = {503: {"Retry-After": "1"}, 401: {"WWW-Authenticate": "Bearer"}}.get(status, {})
    content = json.dumps({"error": message})
    return Response(content, status, {**(headers or {}), **more}, "application/json")


def _replayed(body: bytearray, receive: Receive) -> Receive:
    """Return a function that gives a body in parts, which leave it, and then what else comes."""
    going_on = True

    async def replay() -> Message:
        nonlocal going_on
        if not going_on:
            return await receive()  # only a disconnect can come
        part = bytes(body[:PART])
        del body[:PART]
        going_on = len(body) > 0
        await asyncio.sleep(0)
        return {"type": "http.request", "body": part, "more_body": going_on}

    return replay
