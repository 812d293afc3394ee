"""The service over HTTP: FastAPI routes, bodies of every kind, errors as JSON."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser

from laplace_metric._utils.names import utf8
from laplace_metric._utils.version import __version__
from laplace_metric.cli.serve._answers import EmbedAnswer, SearchAnswer
from laplace_metric.cli.serve._guard import (
    BAD_REQUEST,
    BUSY,
    FORBIDDEN,
    SERVER_FAULT,
    WRONG_TYPE,
    Guard,
    RequestRefused,
    media_type,
    problem,
)
from laplace_metric.cli.serve._metrics import CONTENT_TYPE
from laplace_metric.cli.serve._page import (
    ERRORS,
    PARAMETERS,
    REQUEST_BODY,
    SAFE,
    documentation,
    is_cross_fitted,
    search_page,
    thumbnail,
)
from laplace_metric.cli.serve._query import json_fields
from laplace_metric.cli.serve._service import SearchService
from laplace_metric.errors import InputError, LaplaceMetricError, NotFittedError

LOOPBACK = ("127.0.0.1", "::1")
LOCAL = re.compile(r"(127\.0\.0\.1|\[::1\]|localhost)(:\d+)?")
"""A Host header that names this machine."""
PASSED_ON = ("forwarded", "via", "x-real-ip", "origin")
"""Headers of proxies, next to x-forwarded-..., and of pages of other sites."""
READERS = 4
"""Threads that read queries, so that decoding an image holds up no other request."""
PART = 2**16
"""Bytes of a form that are parsed before other requests have their turn."""
ROUTES = APIRouter()


def application(
    service: SearchService,
    started: Callable[[], None] = lambda: None,
    key: bytes | None = None,
) -> Guard:
    """Return an ASGI application of the service, which is closed when it shuts down.

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

    app = FastAPI(
        title="laplace-metric",
        version=__version__,
        description="Neighbours with match probabilities, and queries unlike anything known.",
        docs_url=None,  # these ask for scripts from outside
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,  # it reads the Host header, which a client makes up
    )
    app.state.service, app.state.readers, app.state.trusted = service, readers, key is not None
    app.include_router(ROUTES)
    handlers: dict[Any, Callable[[Request, Any], Any]] = {
        LaplaceMetricError: _named_error,
        HTTPException: _http_error,
        Exception: _fault,
    }
    for error, handler in handlers.items():
        app.add_exception_handler(error, handler)
    paths = frozenset(route.path for route in ROUTES.routes if isinstance(route, APIRoute))
    return Guard(app, service.limits, service.metrics, paths, service.most_bytes, key)


@ROUTES.post(
    "/search",
    responses={200: {"model": SearchAnswer}, **ERRORS},
    openapi_extra={"parameters": PARAMETERS, "requestBody": REQUEST_BODY},
)
async def search(request: Request) -> Response:
    """Neighbours of one query: of an image, a text or a vector."""
    return _json(asdict(await _asked(request, _service(request).ask)))


@ROUTES.post(
    "/embed",
    responses={200: {"model": EmbedAnswer}, **ERRORS},
    openapi_extra={"requestBody": REQUEST_BODY},
)
async def embed(request: Request) -> Response:
    """The embedding of one query: of an image, a text or a vector."""
    return _json(asdict(await _asked(request, _service(request).embed)))


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
            "cross_fitted": is_cross_fitted(_service(request)),
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
        raise RequestRefused(message, SERVER_FAULT) from error


@ROUTES.get("/items/{row}")
async def item(request: Request, row: str) -> Response:
    """A thumbnail of an item of the index, if the images that it was built from are there."""
    picture = await _read(request, thumbnail, _service(request).served.gallery, row)
    return Response(picture, media_type="image/png", headers={"Cache-Control": "no-cache"})


@ROUTES.get("/docs", include_in_schema=False)
def docs(request: Request) -> Response:
    """The paths, from the schema of ``/openapi.json``."""
    return Response(documentation(request.app.openapi()), 200, SAFE, "text/html")


@ROUTES.get("/", include_in_schema=False)
async def form(request: Request) -> Response:
    """The page for people."""
    return await _page(request, 200)


@ROUTES.post("/", include_in_schema=False)
async def answered(request: Request) -> Response:
    """The page with an answer."""
    fields: Mapping[str, Any] = {}
    try:
        fields = await _read(request, await reading(request))
        answer = await _asked(request, _service(request).ask, lambda: fields)
    except (InputError, NotFittedError) as error:
        return await _page(request, _status(error), fields=fields, error=str(error))
    return await _page(request, 200, fields=fields, answer=answer)


async def _page(request: Request, status: int, **content: Any) -> Response:
    text = await _read(request, search_page, _service(request), content)
    headers = {**SAFE, **({"Retry-After": "1"} if status == BUSY else {})}
    return Response(utf8(text), status, headers, "text/html")


def _service(request: Request) -> SearchService:
    service: SearchService = request.app.state.service
    return service


async def _read(request: Request, call: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a thread of the readers."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(request.app.state.readers, call, *arguments)


async def _asked(
    request: Request,
    ask: Callable[[Mapping[str, Any]], Any],
    read: Callable[[], Mapping[str, Any]] | None = None,
) -> Any:
    fields = await reading(request) if read is None else read
    return await asyncio.wrap_future(await _read(request, lambda: ask(fields())))


async def reading(request: Request) -> Callable[[], dict[str, Any]]:
    """Return a function that parses the fields of a request, to be called in another thread."""
    kind = media_type(request)
    if kind == "multipart/form-data":
        form = await _form(request)
        return lambda: _with_address(request, form)
    body = await request.body()
    return lambda: _with_address(request, _plain_fields(kind, body))


def _with_address(request: Request, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a body, whatever its kind, and those of the address."""
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
    parts = _in_parts(await request.body())
    parser = MultiPartParser(request.headers, parts, max_files=1, max_fields=10)
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


def _json(content: Any) -> Response:
    r"""Return JSON, in which a lone surrogate of a file name is its own escape, as ``\udcff``."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(utf8(text), media_type="application/json")


def _status(error: Exception) -> int:
    """Return the status of an error of the package: 4xx unless it has another one."""
    theirs = isinstance(error, (InputError, NotFittedError))
    status: int = getattr(error, "status", BAD_REQUEST if theirs else SERVER_FAULT)
    return status


def _named_error(request: Request, error: Exception) -> Response:
    return problem(str(error), _status(error))


def _http_error(request: Request, error: HTTPException) -> Response:
    message = f"{request.method} {request.scope['path']}: {error.detail}. See /docs."
    return problem(message, error.status_code, error.headers)


def _fault(request: Request, error: Exception) -> Response:
    return problem("the server failed; its log says why.", SERVER_FAULT)
