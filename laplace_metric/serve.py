"""An index behind HTTP, run by ``laplace-metric serve`` or by any ASGI server.

``create_app`` makes an ASGI application of an ``Index`` or a ``Guard``. Answers are those of
``Index.search``; queries that wait for the model enter it together. A proxy has to handle slow
clients, limits of connections and TLS: the page "Serve" has a tested file for nginx.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import shlex
import socket
import time
from argparse import Namespace
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from types import NoneType
from typing import Annotated, Any

from laplace_metric._utils import __version__
from laplace_metric._utils.batching import Worker
from laplace_metric._utils.validation import check_count, check_share
from laplace_metric.cli._coarser_table import levels_of
from laplace_metric.cli._open_source import require_data
from laplace_metric.cli._options import parser_of
from laplace_metric.errors import (
    InputError,
    LaplaceMetricError,
    MissingPackageError,
    NotFittedError,
)
from laplace_metric.guard import Guard, check_one_kind
from laplace_metric.probabilistic_embedder import ProbabilisticEmbedder
from laplace_metric.search import Index

try:
    import uvicorn
    from fastapi import APIRouter, Depends, FastAPI, Request
    from fastapi.responses import JSONResponse, Response
    from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
    from pydantic import ValidationError
    from starlette.datastructures import Headers
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect
except ImportError as error:
    install = "pip install 'laplace-metric[serve]'"
    raise MissingPackageError(str(error.name), "laplace_metric.serve", install) from error

from laplace_metric.cli._served import (
    EmbedAnswer,
    Question,
    Read,
    SearchAnswer,
    Service,
    served_by,
)

__all__ = ["create_app"]

PATHS = ("/search", "/embed", "/healthz", "/metrics")
BODIES = {
    "application/json": {"schema": Question.model_json_schema()},
    "image/*": {"schema": {"type": "string", "format": "binary"}},
}
BEARER = HTTPBearer(auto_error=False)
ASKED = {"requestBody": {"required": True, "content": BODIES}}


class Door:
    """Refuse bodies that are too long or have two lengths, and count every answer."""

    def __init__(self, app: Any, most: int, requests: Counter, seconds: Histogram) -> None:
        self.app, self.most, self.requests, self.seconds = app, most, requests, seconds

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request; pass anything else on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begin, came, status = time.perf_counter(), 0, 499  # 499: the client has gone

        async def limited() -> Any:
            nonlocal came
            message = await receive()
            came += len(message.get("body", b""))
            if came > self.most:
                raise HTTPException(413, f"the body is longer than {self.most:,} bytes.")
            return message

        async def counted(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        refusal = self._refusal(Headers(scope=scope), scope["http_version"])
        try:
            await (refusal or self.app)(scope, limited, counted)
        finally:
            path = scope["path"] if scope["path"] in PATHS else "other"
            self.requests.labels(path, status).inc()
            self.seconds.labels(path).observe(time.perf_counter() - begin)

    def _refusal(self, headers: Headers, version: str) -> Response | None:
        # Of two lengths a proxy may take the other one: the rest of the body would then be a
        # request of its own ("smuggling"). h11 takes such requests, so they are refused here.
        length, chunked = headers.get("content-length", "0"), "transfer-encoding" in headers
        if chunked and ("content-length" in headers or version == "1.0"):
            said = "give Content-Length or Transfer-Encoding, not both; chunks need HTTP/1.1."
            return problem(400, said, {"Connection": "close"})
        if not length.isdecimal() or int(length) > self.most:
            said = f"Content-Length {length:.20}: at most {self.most:,} bytes are read."
            return problem(413, said, {"Connection": "close"})
        return None


def problem(status: int, said: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return the response of every error: JSON with one field."""
    return JSONResponse({"error": said}, status, dict(headers or {}))


async def _failed(_: Request, error: Any) -> Response:
    """Answer an exception: 4xx with its words if the request is at fault, else 500 without."""
    if isinstance(error, HTTPException):
        return problem(error.status_code, error.detail, error.headers)
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = "".join(f"[{at}]" if isinstance(at, int) else at for at in first["loc"])
        return problem(422, f"{place}: {first['msg']}.")
    if isinstance(error, (InputError, NotFittedError)):
        return problem(422, str(error))
    if isinstance(error, ClientDisconnect):
        return problem(400, "the body did not come whole.")
    return problem(500, "the server failed: its log has the reason.")


def create_app(
    index: Index | Guard | None = None,
    embedder: Any = None,
    *,
    read: str | Read = "vectors",
    precision: float | None = None,
    coarser: Any = None,
    api_key: str | None = None,
    batch: int = 16,
    waiting: int = 64,
    max_body: int = 10 * 2**20,
) -> FastAPI:
    """Make an ASGI application with ``/search``, ``/embed``, ``/healthz`` and ``/metrics``.

    Parameters
    ----------
    index : Index, Guard or None
        Index that is searched; a guard brings its embedder, its precision, ``by_class`` and
        ``coarser`` levels. None, the default, is for ``uvicorn --factory
        laplace_metric.serve:create_app``: the environment variable ``LAPLACE_METRIC_SERVE`` then
        has the words of the command ``laplace-metric serve``, such as ``index --model
        my_model:embedder``, and ``LAPLACE_METRIC_API_KEY`` the key; the other arguments are not
        used.
    embedder : LaplaceEmbedder or None
        Posterior of ``index``, for ``/embed``; a guard has its own. None, the default: no
        ``/embed``.
    read : "vectors", "texts" or function
        Form of the queries. A function turns a PIL image into an input of the model [C, H, W], and
        queries are images. Default: "vectors".
    precision : float in (0, 1) or None
        Share of the answers that are right, to be guaranteed for requests that name no precision.
        None, the default: that of a guard, else no decision.
    coarser : list of levels, a level, or None
        Groups of the labels with which a query is answered where its label is not sure enough, as
        for ``Guard``; answers to a precision then have a ``level``. None, the default: those of a
        guard, else labels alone.
    api_key : str or None
        Key that requests send as ``Authorization: Bearer KEY``, except to ``/healthz``. Set it if
        others reach the server. None, the default: no key.
    batch : int
        Largest number of queries, of several requests, in one call of the model. Lower it if the
        memory of the device is too small. Default: 16.
    waiting : int
        Largest number of requests that wait for the model; more get 503 with ``Retry-After``.
        Default: 64.
    max_body : int
        Largest body of a request, in bytes; a larger one gets 413. Default: 10 MiB.

    Raises
    ------
    InputError
        For an ``index`` or ``embedder`` of another type, such as the path of a file; for other
        values of ``read`` and the numbers; for an index that cannot guarantee ``precision``; for
        ``coarser`` levels as ``Guard``, and next to a guard ``by_class``; and if nothing names an
        index.
    NotFittedError
        For a ``precision`` of an index that is not calibrated, and for ``coarser`` levels of it.

    Examples
    --------
    >>> from fastapi.testclient import TestClient
    >>> from sklearn.datasets import load_digits
    >>> x, y = load_digits(return_X_y=True)
    >>> app = create_app(Guard(x[:900], y[:900], precision=0.95))
    >>> response = TestClient(app).post("/search", json={"vectors": x[900:902].tolist(), "k": 1})
    >>> [answer["label"] for answer in response.json()]
    [4, 9]
    """
    if index is None:
        return _application(parser_of("serve").parse(_words()))
    by_class = isinstance(index, Guard) and index.by_class
    if isinstance(index, Guard):
        precision = index.precision if precision is None else precision
        coarser = index.coarser if coarser is None else coarser
        embedder, index = index.embedder, index.index
    _check_served(index, embedder)
    levels = None if coarser is None else index._levels(coarser)
    check_one_kind(by_class, levels)
    if not (callable(read) or read in ("vectors", "texts")):
        raise InputError(f"read={read!r}: pass 'vectors', 'texts', or a function of a PIL image.")
    if precision is not None:
        check_share("precision", precision)
    for name, count in {"batch": batch, "waiting": waiting, "max_body": max_body}.items():
        check_count(name, count)
    registry = CollectorRegistry()
    ours: Any = {"namespace": "laplace_metric", "registry": registry}
    requests = Counter("requests", "By path and status.", ["path", "status"], **ours)
    seconds = Histogram("request_seconds", "To the answer.", ["path"], **ours)
    Gauge("index_items", "Items of the index.", **ours).set_function(lambda: len(index))
    worker = Worker(batch, waiting)
    service = Service(
        index, embedder, read, precision, worker, registry, by_class=by_class, coarser=levels
    )
    readers = ThreadPoolExecutor(1, "reader")  # one image at a time is decoded

    def check_key(given: Annotated[HTTPAuthorizationCredentials | None, Depends(BEARER)]) -> None:
        told = "" if given is None else given.credentials
        if api_key is not None and not secrets.compare_digest(told.encode(), api_key.encode()):
            headers = {"WWW-Authenticate": "Bearer"}
            raise HTTPException(401, "send the key, as Authorization: Bearer KEY.", headers)

    async def answered(request: Request) -> Response:
        service.check_free()  # before the body is read
        kind, path = request.headers.get("content-type", "").lower(), request.scope["path"]
        asked = path, kind, await request.body(), dict(request.query_params)
        loop = asyncio.get_running_loop()
        rows = await asyncio.wrap_future(await loop.run_in_executor(readers, service.job, *asked))
        return Response(json.dumps(rows, allow_nan=False), media_type="application/json")

    def metrics() -> Response:
        """Return counts and latencies for Prometheus."""
        return Response(generate_latest(registry), media_type="text/plain; version=0.0.4")

    def healthz() -> dict[str, Any]:
        """Return the number of items, the kind of queries, and whether it is calibrated."""
        kind = "images" if callable(read) else read
        calibrated = index.calibration is not None
        return {"items": len(index), "queries": kind, "calibrated": calibrated}

    app = FastAPI(
        title="laplace-metric",
        version=__version__,
        docs_url=None,  # pages that load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    keyed = APIRouter(dependencies=[Depends(check_key)])
    answers: dict[str, Any] = {"/search": SearchAnswer}
    if embedder is not None:
        answers["/embed"] = EmbedAnswer
    for path, model in answers.items():
        responses: Any = {200: {"model": list[model]}}  # type: ignore[valid-type]
        keyed.post(path, responses=responses, openapi_extra=ASKED)(answered)
    keyed.get("/metrics")(metrics)
    app.get("/healthz")(healthz)
    app.include_router(keyed)
    for kind in (HTTPException, ValidationError, LaplaceMetricError, ClientDisconnect, Exception):
        app.add_exception_handler(kind, _failed)
    app.add_middleware(Door, most=max_body, requests=requests, seconds=seconds)
    return app


def _words() -> list[str]:
    """Return the words of the command that the environment has.

    Raises
    ------
    InputError
        If it has none, or a quote has no end.
    """
    given = os.environ.get("LAPLACE_METRIC_SERVE", "")
    try:
        words = shlex.split(given)
    except ValueError as error:
        raise InputError(
            f"LAPLACE_METRIC_SERVE={given!r:.200}: {str(error).lower()}. Close each quote."
        ) from error
    if not words:
        raise InputError("LAPLACE_METRIC_SERVE is not set: give the words of the command.")
    return words


def _check_served(index: Any, embedder: Any) -> None:
    """Refuse what cannot answer a request, such as the path of a file that was not loaded."""
    if not isinstance(index, Index):
        raise InputError(
            f"index {_given(index)}: pass a Guard or an Index, loaded first from a file by "
            "Guard.load(path) or Index.load(path, embedder)."
        )
    if not isinstance(embedder, (ProbabilisticEmbedder, NoneType)):
        raise InputError(
            f"embedder {_given(embedder)}: pass a fitted LaplaceEmbedder, loaded first from a file "
            "by LaplaceEmbedder.load(path, model), or None."
        )


def _given(value: Any) -> str:
    """Name a path by its text, anything else by its type."""
    of_path = isinstance(value, (str, os.PathLike))
    return f"is {str(value)!r}" if of_path else f"is a {type(value).__name__}"


# ``laplace-metric serve``: the application of an index on disk, run by uvicorn.


def serve(options: Namespace) -> None:
    """Load an index and answer until a signal stops the server.

    Raises
    ------
    InputError
        For an index, a key or an address that cannot be used, and a host that others reach without
        a key.
    """
    if not options.host:
        raise InputError("--host '' is empty: give an address, such as 127.0.0.1.")
    if not (options.insecure or is_loopback(options.host) or read_key(options)):
        raise InputError(
            f"--host {options.host}: anyone who reaches this address could search. Give "
            "--api-key-file, or --insecure if something else keeps others away."
        )
    require_data(options)
    require_address(options.host, options.port)
    uvicorn.run(
        _application(options),
        host=options.host,
        port=options.port,
        http="h11",
        ws="none",
        access_log=False,
        log_level="warning" if options.quiet else "info",
        proxy_headers=False,
        server_header=False,
        limit_concurrency=2 * options.max_waiting,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=30,
        h11_max_incomplete_event_size=2**14,
    )


def _application(options: Namespace) -> FastAPI:
    """Make the application that options of the command name."""
    index, embedder, read = served_by(options)
    how = {"precision": options.precision, "api_key": read_key(options), "batch": options.batch}
    if options.coarser is not None:
        own = index.index if isinstance(index, Guard) else index
        how["coarser"] = levels_of(own, options.coarser)
    limits = {"waiting": options.max_waiting, "max_body": int(options.max_body * 2**20)}
    return create_app(index, embedder, read=read, **how, **limits)


def read_key(options: Namespace) -> str | None:
    """Return the key that requests must have: of --api-key-file, else of the environment.

    Raises
    ------
    InputError
        For a file that cannot be read, and a key that no header can hold or that can be guessed.
    """
    key, name = os.environ.get("LAPLACE_METRIC_API_KEY"), "LAPLACE_METRIC_API_KEY"
    if options.api_key_file is not None:
        name = f"--api-key-file {options.api_key_file}"
        try:
            key = options.api_key_file.read_text(encoding="latin-1").strip()
        except OSError as error:
            raise InputError(f"{name}: {error.strerror}.") from error
    if key is not None and not re.fullmatch(r"[\x21-\x7e]{16,4096}", key):
        raise InputError(
            f"{name}: the key is one line of 16 to 4,096 visible ASCII characters. Make one with: "
            "openssl rand -hex 32"
        )
    return key


def require_address(host: str, port: int) -> None:
    """Check that this machine can listen at an address, before a model is loaded for it.

    Raises
    ------
    InputError
        If it has no such address, or the port is taken.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        family, kind, protocol, _, address = found
        with socket.socket(family, kind, protocol) as listener:
            if os.name == "posix":  # as uvicorn does: not the port of a server that has just ended
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "no such name"
        raise InputError(
            f"--host {host!r} --port {port}: {reason.lower()}. Give an address of this machine and "
            "a port that is free; --port 0 is any."
        ) from error


def is_loopback(host: str) -> bool:
    """Return True if only this machine reaches an address.

    Examples
    --------
    >>> is_loopback("127.0.0.1"), is_loopback("0.0.0.0"), is_loopback("::")
    (True, False, False)
    """
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
