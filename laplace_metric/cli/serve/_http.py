"""The service over HTTP: FastAPI routes, bodies of every kind, errors as JSON, pages for people.

Sockets: what a client's connection may do, and liveness by a thread and a port of its own.

uvicorn has no limit of time for headers, nor of connections of an address; and it closes idle
connections at once when it stops, which resets a request that is on its way.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import json
import re
import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any, cast

import h11
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from PIL import Image
from pydantic import BaseModel
from pydantic_core import from_json
from starlette.exceptions import HTTPException
from uvicorn.protocols.http.h11_impl import H11Protocol

from laplace_metric._utils import __version__
from laplace_metric._utils.names import utf8
from laplace_metric.cli._gallery import LoadedIndex
from laplace_metric.cli._output import templates
from laplace_metric.cli._sources import IMAGES
from laplace_metric.cli.serve._guard import Gate, Limits, RequestRefused, media_type, problem
from laplace_metric.cli.serve._metrics import CONTENT_TYPE
from laplace_metric.cli.serve._query import EmbedAnswer, Question, SearchAnswer
from laplace_metric.cli.serve._service import SearchService
from laplace_metric.errors import InputError, LaplaceMetricError, NotFittedError

LOOPBACK = ("127.0.0.1", "::1")
LOCAL = re.compile(r"(127\.0\.0\.1|\[::1\]|localhost)(:\d+)?")
"""A Host header that names this machine."""
PASSED_ON = ("forwarded", "via", "x-forwarded-", "x-real-ip", "origin")
"""How headers of proxies begin, and those of pages of other sites."""
READERS = 4
"""Threads that read queries, so that decoding an image holds up no other request."""
USUAL = 0.9
"""Precision that the form asks for, where the index can guarantee it."""
SIDE = 160
"""Longest side of a thumbnail in pixels; a smaller image stays as it is."""
TEMPLATES = templates()
SCRIPT = TEMPLATES.get_template("search.js.j2").render()
"""The one script: it sends the form when an image is dropped or chosen. The page works without."""
_HASH = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
SAFE = {
    "Content-Security-Policy": "default-src 'none'; img-src 'self' data:; "
    f"style-src 'unsafe-inline'; script-src 'sha256-{_HASH}'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
"""Headers of pages."""

_FIELDS = Question.model_json_schema()["properties"]
_PLAIN = {name: schema for name, schema in _FIELDS.items() if name != "image"}
_BODIES = {
    "image/*": {"type": "string", "format": "binary"},
    "text/plain": {"type": "string"},
    "application/json": {"type": "object", "properties": _PLAIN},
    "multipart/form-data": {"type": "object", "properties": _FIELDS},
}
ASKED = {
    "requestBody": {
        "required": True,
        "description": "One query, of the kind of the index. The other fields stand next to it, "
        "or in the address.",
        "content": {kind: {"schema": schema} for kind, schema in _BODIES.items()},
    }
}
"""What OpenAPI says of a query; every error is JSON with one field, "error"."""
ROUTES = APIRouter()


def application(service: SearchService, key: bytes | None = None) -> Gate:
    """Return an ASGI application of the service.

    With a ``key`` all paths but those of liveness need it.
    """
    app = FastAPI(
        title="laplace-metric",
        version=__version__,
        description="Neighbours with match probabilities, and queries unlike anything known.",
        docs_url=None,  # these ask for scripts from outside
        redoc_url=None,
        redirect_slashes=False,  # it reads the Host header, which a client makes up
    )
    for error in (LaplaceMetricError, HTTPException, Exception):
        app.add_exception_handler(error, _problem)
    app.state.service, app.state.trusted = service, key is not None
    app.state.readers = ThreadPoolExecutor(READERS, "reader")
    app.include_router(ROUTES)
    paths = frozenset(route.path for route in ROUTES.routes if isinstance(route, APIRoute))
    limits, most_bytes = service.limits, lambda kind: service.served.reader.most_bytes(kind)
    return Gate(app, limits, service.metrics, paths, most_bytes, key)


@ROUTES.post("/search", responses={200: {"model": SearchAnswer}}, openapi_extra=ASKED)
async def search(request: Request) -> Response:
    """Neighbours of one query: of an image, a text or a vector."""
    return _json(await _answer(request, _service(request).ask, await fields_of(request)))


@ROUTES.post("/embed", responses={200: {"model": EmbedAnswer}}, openapi_extra=ASKED)
async def embed(request: Request) -> Response:
    """The embedding of one query: of an image, a text or a vector."""
    return _json(await _answer(request, _service(request).embed, await fields_of(request)))


@ROUTES.get("/healthz")
@ROUTES.get("/health", include_in_schema=False)
async def healthz(request: Request) -> Response:
    """Facts about what is served; 200 as long as searches are answered."""
    served = _service(request).served
    return _json(
        {
            "status": "ok",
            "items": len(served.index),
            "kind": served.reader.kind,
            "calibrated": served.index.calibration is not None,
            "drift_watched": served.drift is not None,
            "cross_fitted": served.cross_fitted,
        }
    )


@ROUTES.get("/metrics")
def metrics(request: Request) -> Response:
    """Counts and latencies for Prometheus."""
    return Response(_service(request).metrics_text(), media_type=CONTENT_TYPE)


@ROUTES.post("/reload")
def reload(request: Request) -> Response:
    """Load the index again; with the key, or from this machine. A bad one leaves the old one."""
    if not request.app.state.trusted:
        require_local(request)
    try:
        return _json({"items": _service(request).reload()})
    except RequestRefused:
        raise
    except (LaplaceMetricError, OSError) as error:
        message = f"the index could not be loaded, the old one goes on: {error}"
        raise RequestRefused(message, 500) from error


@ROUTES.get("/items/{row}")
async def item(request: Request, row: str) -> Response:
    """A thumbnail of an item of the index, if the images that it was built from are there."""
    picture = await _in_thread(request, thumbnail, _service(request).served.gallery, row)
    return Response(picture, media_type="image/png", headers={"Cache-Control": "no-cache"})


@ROUTES.get("/docs", include_in_schema=False)
def docs(request: Request) -> Response:
    """The paths, from the schema of ``/openapi.json``, without scripts from outside."""
    page = TEMPLATES.get_template("routes.html.j2").render(schema=request.app.openapi())
    return Response(page, 200, SAFE, "text/html")


@ROUTES.api_route("/", methods=["GET", "POST"], include_in_schema=False)
async def page(request: Request) -> Response:
    """The page for people, with an answer to what was sent."""
    service, status, said = _service(request), 200, ""
    fields, answer = dict[str, Any](), None
    if request.method == "POST":
        try:
            fields = await fields_of(request)
            answer = await _answer(request, service.ask, fields)
        except (InputError, NotFittedError) as error:
            status, said = _status(error), str(error)
    text = await _in_thread(request, search_page, service, fields, answer, said)
    headers = {**SAFE, **({"Retry-After": "1"} if status == 503 else {})}
    return Response(utf8(text), status, headers, "text/html")


def _service(request: Request) -> SearchService:
    service: SearchService = request.app.state.service
    return service


async def _in_thread(request: Request, call: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a thread of the readers."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(request.app.state.readers, call, *arguments)


async def _answer(request: Request, ask: Callable[..., Any], fields: dict[str, Any]) -> Any:
    """Read a query in a thread of the readers, and wait for the model."""
    return await asyncio.wrap_future(await _in_thread(request, ask, fields))


async def fields_of(request: Request) -> dict[str, Any]:
    """Return the fields of a body, whatever its kind, and those of the address.

    Raises
    ------
    RequestRefused
        For a body that cannot be read, and a field that is given twice.
    """
    kind, pairs = media_type(request), list[tuple[str, Any]](request.query_params.multi_items())
    if kind == "multipart/form-data":
        try:
            async with request.form(max_files=1, max_fields=10) as form:
                for name, value in form.multi_items():
                    pairs.append((name, value if isinstance(value, str) else await value.read()))
        except (HTTPException, LookupError, ValueError) as error:
            why = error.detail if isinstance(error, HTTPException) else error
            raise RequestRefused(f"the form cannot be read: {why}") from error
    elif kind == "application/json":
        try:
            content = from_json(await request.body(), allow_inf_nan=False)
        except ValueError as error:
            raise RequestRefused(f"the body is not JSON of finite numbers: {error}.") from error
        if not isinstance(content, dict):
            raise RequestRefused('the body is no JSON object: send {"text": ...} or the like.')
        pairs += content.items()
    elif kind == "text/plain":
        pairs.append(("text", await request.body()))
    elif kind.startswith("image/") or kind in ("application/octet-stream", ""):
        pairs.append(("image", await request.body()))
    else:
        raise RequestRefused(
            f"Content-Type {kind!r:.60} is not read: send image/*, text/plain, application/json or "
            "multipart/form-data.",
            415,
        )
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise RequestRefused("a field is given twice: give each once, in the body or the address.")
    return fields


def require_local(request: Request) -> None:
    """Check that a request is of this machine, and of no page of another site or a proxy.

    A proxy on this machine that sets none of its usual headers is not seen: give a key there.

    Raises
    ------
    RequestRefused
        If it is not.
    """
    client = request.client.host if request.client is not None else ""
    named = LOCAL.fullmatch(request.headers.get("host", ""))
    passed_on = any(name.startswith(PASSED_ON) for name in request.headers)
    if client not in LOOPBACK or named is None or passed_on:
        raise RequestRefused(
            "reload is for clients on the server's own machine, without a proxy between. Send "
            "SIGHUP to the server instead, or start it with --api-key-file and send the key.",
            403,
        )


def search_page(
    service: SearchService,
    fields: Mapping[str, Any],
    answer: SearchAnswer | None = None,
    error: str = "",
) -> str:
    """Return the page with the form, the fields that were sent, an answer or an error."""
    served, picture, usual = service.served, None, service.precision
    if usual is None:
        with suppress(LaplaceMetricError):
            served.guaranteed(USUAL)
            usual = USUAL
    if answer is not None and served.reader.kind == IMAGES:
        with served.reader.picture(fields["image"]) as image:
            picture = base64.b64encode(png(image)).decode()
    return TEMPLATES.get_template("search.html.j2").render(
        served=served,
        fields=fields,
        precision=usual,
        usual=USUAL,
        answer=answer,
        error=error,
        picture=picture,
        script=SCRIPT,
    )


def thumbnail(gallery: LoadedIndex, row: str) -> bytes:
    """Return a PNG of the item at a row of the index.

    Raises
    ------
    RequestRefused
        If there is no such item, or its image is not below the folder that was indexed.
    """
    if gallery.posterior.recipe.kind != IMAGES:
        raise RequestRefused("the items of this index are not images.", 404)
    if not re.fullmatch("[0-9]{1,9}", row) or int(row) >= len(gallery.index):
        raise RequestRefused(f"there is no item {row!r:.40}.", 404)
    try:
        return png(gallery.item_pictures(inside=True)[int(row)])
    except InputError as error:  # its message holds paths of this machine
        raise RequestRefused(
            f"the image of item {row} cannot be read, or lies outside of the folder that the "
            "server may read: start it with --data, the folder that holds the items.",
            404,
        ) from error


def png(image: Image.Image) -> bytes:
    """Return an image as PNG with at most ``SIDE`` pixels a side."""
    image.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def _json(content: Any) -> Response:
    r"""Return JSON, in which a lone surrogate of a file name is its own escape, as ``\udcff``."""
    content = content.model_dump() if isinstance(content, BaseModel) else content
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(utf8(text), media_type="application/json")


def _status(error: Exception) -> int:
    """Return the status of an error of the package: 4xx unless it has another one."""
    theirs = isinstance(error, (InputError, NotFittedError))
    status: int = getattr(error, "status", 400 if theirs else 500)
    return status


def _problem(request: Request, error: Any) -> Response:
    """Return the response of any exception; only those of the package and of HTTP say why."""
    if isinstance(error, HTTPException):
        message = f"{request.method} {request.scope['path']}: {error.detail}. See /docs."
        return problem(message, error.status_code, error.headers)
    if isinstance(error, LaplaceMetricError):
        return problem(str(error), _status(error))
    return problem("the server failed; its log says why.", 500)


# Sockets: what a client's connection may do, and liveness by a thread and a port of its own.

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
