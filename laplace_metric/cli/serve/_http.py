"""The service over HTTP: FastAPI routes, bodies of every kind, errors as JSON."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from typing import Any

from fastapi import responses

from laplace_metric._utils.names import utf8
from laplace_metric._utils.version import __version__
from laplace_metric.cli.serve._answers import EmbedAnswer, SearchAnswer
from laplace_metric.cli.serve._guard import (
    BAD_REQUEST,
    BUSY,
    FORBIDDEN,
    WRONG_TYPE,
    Guard,
    RequestRefused,
    error_body,
    media_type,
    refusal_headers,
)
from laplace_metric.cli.serve._metrics import CONTENT_TYPE
from laplace_metric.cli.serve._page import (
    ERRORS,
    PARAMETERS,
    REQUEST_BODY,
    SearchPage,
    documentation,
    thumbnail,
)
from laplace_metric.cli.serve._question import json_fields
from laplace_metric.cli.serve._service import SearchService
from laplace_metric.errors import InputError, LaplaceMetricError, NotFittedError

with suppress(ImportError):  # without the extra, ``require_packages`` has said so by now
    from fastapi import FastAPI, Request
    from fastapi.responses import PlainTextResponse, Response
    from starlette.exceptions import HTTPException
    from starlette.formparsers import MultiPartException, MultiPartParser

    pass

LOOPBACK = ("127.0.0.1", "::1")
LOCAL = re.compile(r"(127\.0\.0\.1|\[::1\]|localhost)(:\d+)?")
"""A Host header that names this machine."""
PASSED_ON = ("forwarded", "via", "x-real-ip", "origin")
"""Headers of proxies, beside x-forwarded-..., and of pages of other sites."""
READERS = 4
"""Threads that read queries."""
PART = 2**16
"""Bytes of a form that are parsed before other requests have their turn."""
SERVER_FAULT, NOT_FOUND = 500, 404
SAFE = {
    "Content-Security-Policy": "default-src 'none'; img-src 'self' data:; "
    "style-src 'unsafe-inline'; script-src 'sha256-{script}'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def application(
    service: SearchService,
    started: Callable[[], None] = lambda: None,
    key: bytes | None = None,
) -> Guard:
    """An ASGI application of the service, which is closed when it shuts down.

    ``started`` is called once requests are answered. With a ``key`` all paths but those of liveness
    need it.
    """
    readers = ThreadPoolExecutor(READERS, "reader")

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        started()
        yield
        await asyncio.get_running_loop().run_in_executor(None, service.close)
        readers.shutdown(wait=False)

    about = "Neighbours with the probability of a match, and what is unlike anything known."
    app = FastAPI(
        title="laplace-metric",
        version=__version__,
        description=about,
        docs_url=None,  # these ask for scripts from outside
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,  # it reads the Host header, which a client makes up
    )
    routes = HttpRoutes(service, readers, trusted=key is not None)
    routes.add_to(app)
    handlers: dict[Any, Callable[[Request, Any], Any]] = {
        LaplaceMetricError: _said,
        HTTPException: _http_error,
        Exception: _fault,
    }
    for error, handler in handlers.items():
        app.add_exception_handler(error, handler)
    paths = frozenset(path for path, *_ in routes.table()) - {routes.ITEM}
    return Guard(app, service.limits, service.metrics, paths, service.most_bytes, key)


class HttpRoutes:
    """Handlers of the paths.

    Parameters
    ----------
    service : SearchService
    readers : ThreadPoolExecutor
        Where bodies are read, so that decoding an image holds up no other request.
    trusted : bool
        Whether the key of the server has been checked.
    """

    ITEM = "/items/{row}"

    def __init__(
        self, service: SearchService, readers: ThreadPoolExecutor, *, trusted: bool = False
    ) -> None:
        self.service, self.readers, self.trusted = service, readers, trusted
        self.page = SearchPage()
        self.headers = {
            name: value.format(script=self.page.script_hash) for name, value in SAFE.items()
        }

    def table(self) -> list[tuple[str, str, Any, str, dict[str, Any]]]:
        """Path, method, function, one line about it, and what the schema says more."""
        asked = {"openapi_extra": {"parameters": PARAMETERS, "requestBody": REQUEST_BODY}}
        body = {"openapi_extra": {"requestBody": REQUEST_BODY}}
        hidden = {"include_in_schema": False}
        answer = {"responses": {200: {"model": SearchAnswer}, **ERRORS}, **asked}
        embedding = {"responses": {200: {"model": EmbedAnswer}, **ERRORS}, **body}
        return [
            ("/search", "POST", self.search, "Neighbours of one query.", answer),
            ("/embed", "POST", self.embed, "The embedding of one query.", embedding),
            ("/healthz", "GET", self.healthz, "Whether it runs, and what it serves.", {}),
            ("/health", "GET", self.healthz, "The same.", hidden),
            ("/metrics", "GET", self.metrics, "Counts and latencies for Prometheus.", {}),
            (
                "/reload",
                "POST",
                self.reload,
                "Load the index again; with the key, or from this machine.",
                {},
            ),
            (self.ITEM, "GET", self.item, "A thumbnail of an item of the index.", {}),
            ("/docs", "GET", self.docs, "This page.", hidden),
            ("/", "GET", self.form, "The page for people.", hidden),
            ("/", "POST", self.answered, "The page with an answer.", hidden),
        ]

    def add_to(self, app: FastAPI) -> None:
        """Make them routes of ``app``."""
        for path, method, function, about, more in self.table():
            app.add_api_route(
                path, function, methods=[method], summary=about, response_model=None, **more
            )

    async def search(self, request: Request) -> Response:
        """An image, a text or a vector; k, and threshold or precision."""
        answer = await self._asked(self.service.ask, await reading(request))
        return JSONResponse(asdict(answer))

    async def embed(self, request: Request) -> Response:
        """An image, a text or a vector."""
        answer = await self._asked(self.service.embed, await reading(request))
        return JSONResponse(asdict(answer))

    async def healthz(self) -> Response:
        """200 as long as searches are answered."""
        served = self.service.served
        calibration = served.gallery.index.calibration
        facts = {"calibrated": calibration is not None, "drift_watched": served.drift is not None}
        facts["cross_fitted"] = calibration is not None and calibration.cross_fitted
        content = {"status": "ok", "items": len(served.gallery.index), "kind": served.reader.kind}
        return JSONResponse({**content, **facts})

    async def metrics(self) -> Response:
        """In the text format 0.0.4."""
        text = await self._off_loop(self.service.metrics_text)
        return PlainTextResponse(text, media_type=CONTENT_TYPE)

    async def reload(self, request: Request) -> Response:
        """Answered when the new index is in place; a bad one leaves the old one there."""
        if not self.trusted:
            require_local(request)
        try:
            items = await self._off_loop(self.service.reload)
        except RequestRefused:
            raise
        except (LaplaceMetricError, OSError) as error:
            message = f"the index could not be loaded, the old one goes on: {error}"
            raise RequestRefused(message, SERVER_FAULT) from error
        return JSONResponse({"items": items})

    async def item(self, row: str) -> Response:
        """PNG, where the images that the index was built from are still there."""
        gallery = self.service.served.gallery
        picture = await asyncio.get_running_loop().run_in_executor(
            self.readers, thumbnail, gallery, row
        )
        return Response(picture, media_type="image/png", headers={"Cache-Control": "no-cache"})

    async def docs(self, request: Request) -> Response:
        """From the schema of ``/openapi.json``."""
        return HTMLResponse(documentation(request.app.openapi()), headers=self.headers)

    async def form(self) -> Response:
        """Without an answer."""
        return await self._page(200)

    async def answered(self, request: Request) -> Response:
        """Answer the form of the page."""
        fields: Mapping[str, Any] = {}
        try:
            read = await reading(request)
            fields = await asyncio.get_running_loop().run_in_executor(self.readers, read)
            answer = await self._asked(self.service.ask, lambda: fields)
        except (InputError, NotFittedError) as error:
            status = getattr(error, "status", BAD_REQUEST)
            return await self._page(status, fields=fields, error=str(error))
        return await self._page(200, fields=fields, answer=answer)

    async def _page(self, status: int, **content: Any) -> Response:
        loop = asyncio.get_running_loop()
        text = await loop.run_in_executor(self.readers, self.page.render, self.service, content)
        headers = {**self.headers, **({"Retry-After": "1"} if status == BUSY else {})}
        return HTMLResponse(text, status, headers=headers)

    async def _asked(
        self, ask: Callable[[Mapping[str, Any]], Any], read: Callable[[], Mapping[str, Any]]
    ) -> Any:
        loop = asyncio.get_running_loop()
        waiting = await loop.run_in_executor(self.readers, lambda: ask(read()))
        return await asyncio.wrap_future(waiting)

    async def _off_loop(self, call: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(None, call, *arguments)


async def reading(request: Request) -> Callable[[], dict[str, Any]]:
    """Return a function that parses the fields of a request, to be called in another thread."""
    kind = media_type(request.headers.get("content-type", ""))
    if kind == "multipart/form-data":
        form = await _form(request)
        return lambda: _with_address(request, form)
    body = await request.body()
    return lambda: _with_address(request, _plain_fields(kind, body))


def _with_address(request: Request, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a body, whatever its kind, and those of the address."""
    address, pairs = dict(request.query_params), request.query_params.multi_items()
    repeated = sorted(set(address) & set(fields))
    if repeated or len(address) < len(pairs):
        raise RequestRefused(f"{', '.join(repeated) or 'a field'} is given twice: give it once.")
    return {**address, **fields}


def _plain_fields(kind: str, body: bytes) -> dict[str, Any]:
    if kind == "application/json":
        return json_fields(body)
    if kind == "text/plain":
        try:
            return {"text": body.decode()}
        except UnicodeDecodeError as error:
            raise RequestRefused("the text is not UTF-8.") from error
    if kind.startswith("image/") or kind in ("application/octet-stream", ""):
        return {"image": body}
    raise RequestRefused(
        f"Content-Type {kind!r:.60} is not read: send image/*, text/plain, application/json or "
        "multipart/form-data.",
        WRONG_TYPE,
    )


async def _in_parts(body: bytes) -> AsyncGenerator[bytes, None]:
    for start in range(0, len(body), PART):
        yield body[start : start + PART]
        await asyncio.sleep(0)


async def _form(request: Request) -> dict[str, Any]:
    body = await request.body()
    parser = MultiPartParser(request.headers, _in_parts(body), max_files=1, max_fields=10)
    try:
        form = await parser.parse()
    except (MultiPartException, LookupError, ValueError) as error:
        why = getattr(error, "message", str(error))
        raise RequestRefused(f"the form cannot be read: {why}") from error
    fields: dict[str, Any] = {}
    for name, value in form.multi_items():
        if name in fields:
            raise RequestRefused(f"field {name!r:.60} is given twice: give it once.")
        fields[name] = value if isinstance(value, str) else await value.read()
    await form.close()
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
    passed_on = any(
        name in PASSED_ON or name.startswith("x-forwarded-") for name in request.headers
    )
    if client not in LOOPBACK or named is None or passed_on:
        raise RequestRefused(
            "reload is for clients on the server's own machine, without a proxy between. Send "
            "SIGHUP to the server instead, or start it with --api-key-file and send the key.",
            FORBIDDEN,
        )


def _said(request: Request, error: Exception) -> Response:
    """Turn an error of the package into a response; 4xx unless it says otherwise."""
    theirs = isinstance(error, (InputError, NotFittedError))
    status = getattr(error, "status", BAD_REQUEST if theirs else SERVER_FAULT)
    return _problem(str(error), status)


def _problem(message: str, status: int, headers: Mapping[str, str] | None = None) -> Response:
    response = Response(error_body(message), status, headers)
    response.raw_headers.extend(refusal_headers(status))
    return response


def _http_error(request: Request, error: Any) -> Response:
    message = f"{request.method} {request.scope['path']}: {error.detail}. See /docs."
    return _problem(message, error.status_code, error.headers)


def _fault(request: Request, error: Exception) -> Response:
    return _problem("the server failed; its log says why.", SERVER_FAULT)


# Responses whose text may hold names of files that are not UTF-8.


class JSONResponse(responses.JSONResponse):
    r"""JSON, in which a lone surrogate is its own escape, such as ``\udcff``."""

    def render(self, content: Any) -> bytes:
        """Return the bytes of the body."""
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return utf8(text)


class HTMLResponse(responses.HTMLResponse):
    """A page, in which a lone surrogate stands as its escape."""

    def render(self, content: Any) -> bytes:
        """Return the bytes of the body."""
        return utf8(content)
