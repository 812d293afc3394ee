"""``laplace-metric serve``: an index behind HTTP, until it is told to stop.

FastAPI, uvicorn and the rest of the extra are imported once ``require_packages`` has found them.
"""

from __future__ import annotations

import re
import signal
import socket
import threading
import warnings
from argparse import Namespace
from collections.abc import Callable
from importlib import import_module
from ipaddress import ip_address
from types import FrameType
from typing import TYPE_CHECKING

from PIL import Image

from laplace_metric.cli._output import Reporter
from laplace_metric.errors import (
    InputError,
    LaplaceMetricError,
    LaplaceMetricWarning,
    MissingPackageError,
)

if TYPE_CHECKING:
    from laplace_metric.cli.serve._connection import Liveness
    from laplace_metric.cli.serve._service import SearchService

PACKAGES = {
    "fastapi": "fastapi",
    "uvicorn": "uvicorn",
    "python_multipart": "python-multipart",
    "prometheus_client": "prometheus-client",
}
"""Modules of the extra, and the packages that have them."""
BACKLOG = 2048
GRACE = 30
"""Seconds in which requests are answered after the server was told to stop."""
LEAST_KEY = 16
"""Characters of a key."""


def serve(options: Namespace) -> None:
    """Load, listen, answer; SIGHUP loads the index again, SIGTERM and Ctrl-C stop.

    Warnings of the first load become notes; later ones are those of single requests, and are not
    shown. Filters are of the whole process: they are set before there are threads, none of which
    could set its own.
    """
    require_packages()
    with warnings.catch_warnings():
        for category in (LaplaceMetricWarning, Image.DecompressionBombWarning):
            warnings.simplefilter("ignore", category)
        _serve(options, Reporter(options.quiet))


def _serve(options: Namespace, reporter: Reporter) -> None:
    from laplace_metric.cli.serve._guard import BODIES, Limits
    from laplace_metric.cli.serve._service import SearchService, load_served

    key = read_key(options)
    body = int(options.max_body * 2**20)
    limits = Limits(
        body=body,
        bodies=max(BODIES, 2 * body),
        pixels=options.max_pixels,
        waiting=options.max_waiting,
        connections=options.max_connections,
    )
    with reporter.warnings():
        service = SearchService(
            lambda: load_served(options, limits, reporter),
            limits,
            precision=options.precision,
            batch=options.batch,
        )
    listener = listening(options.host, options.port)
    liveness = _liveness(options, listener, reporter)
    try:
        _run(service, listener, reporter, lambda: _say_where(listener, service, liveness), key)
    finally:
        if liveness is not None:
            liveness.close()


def require_packages() -> None:
    """Check that the extra is installed.

    Raises
    ------
    MissingPackageError
        If it is not; the message names the extra.
    """
    for module, package in PACKAGES.items():
        try:
            import_module(module)
        except ImportError as error:
            install = "pip install 'laplace-metric[serve]'"
            raise MissingPackageError(package, "laplace-metric serve", install) from error


def read_key(options: Namespace) -> bytes | None:
    """Return the key that requests must hold; None without ``--api-key-file``.

    Raises
    ------
    InputError
        For a file without a key, a key that no header can hold or that can be guessed, and a host
        that others reach without a key, unless ``--insecure`` is given.
    """
    if options.api_key_file is None:
        if not (options.insecure or is_loopback(options.host)):
            raise InputError(
                f"--host {options.host}: anyone who reaches this address could search. Give "
                "--api-key-file, or --insecure if something else keeps others away."
            )
        return None
    try:
        key: bytes = options.api_key_file.read_bytes().strip()
    except OSError as error:
        raise InputError(f"--api-key-file {options.api_key_file}: {error.strerror}.") from error
    if not re.fullmatch(rb"[\x21-\x7e]{%d,4096}" % LEAST_KEY, key):
        raise InputError(
            f"--api-key-file {options.api_key_file}: the key is one line of {LEAST_KEY} to 4,096 "
            "visible ASCII characters. Make one with: openssl rand -hex 32"
        )
    return key


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


def listening(host: str, port: int, option: str = "--port") -> socket.socket:
    """Return a socket that listens.

    Its protocol is named, so that those it accepts send at once: asyncio sets TCP_NODELAY only
    where it is, and an answer would wait 40 ms for the client's delayed acknowledgement.

    Raises
    ------
    InputError
        If the address is not of this machine, or the port is taken.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except (OSError, OverflowError, UnicodeError) as error:
        raise InputError(f"--host {host} {option} {port}: {error}.") from error
    return listener


def _liveness(options: Namespace, listener: socket.socket, reporter: Reporter) -> Liveness | None:
    """Return the thread that answers at --health-port, by default the port behind --port."""
    from laplace_metric.cli.serve._connection import Liveness

    port, behind = options.health_port, listener.getsockname()[1] + 1 if options.port else 0
    try:
        return Liveness(listening(options.host, behind if port is None else port, "--health-port"))
    except InputError as error:
        if port is not None:
            raise
        reporter.note(f"{error} Liveness is answered by the server alone, at /healthz")
        return None


def _say_where(listener: socket.socket, service: SearchService, liveness: Liveness | None) -> None:
    address, port = listener.getsockname()[:2]
    shown = f"[{address}]" if ":" in address else address
    alive = "" if liveness is None else f" (liveness: http://{shown}:{liveness.port}/healthz)"
    print(
        f"serving {len(service.served.index):,} items at http://{shown}:{port}{alive}", flush=True
    )


def _run(
    service: SearchService,
    listener: socket.socket,
    reporter: Reporter,
    started: Callable[[], None],
    key: bytes | None,
) -> None:
    import uvicorn

    from laplace_metric.cli.serve._connection import connections_within
    from laplace_metric.cli.serve._http import application

    config = uvicorn.Config(
        application(service, started, key),
        http=connections_within(service.limits),
        ws="none",
        log_level="error",
        access_log=False,
        lifespan="on",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE,
    )
    server = uvicorn.Server(config)

    def stop(signum: int, frame: FrameType | None) -> None:
        server.should_exit = True  # uvicorn, once all is answered, sends what stopped it again

    def reload(signum: int, frame: FrameType | None) -> None:
        threading.Thread(target=_reload, args=(service, reporter), daemon=True).start()

    handlers = {signal.SIGTERM: stop}
    if hasattr(signal, "SIGHUP"):
        handlers[signal.SIGHUP] = reload
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        server.run(sockets=[listener])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        service.close()


def _reload(service: SearchService, reporter: Reporter) -> None:
    try:
        reporter.note(f"loaded again: {service.reload():,} items")
    except (LaplaceMetricError, OSError) as error:
        reporter.note(f"the index could not be loaded, the old one goes on: {error}")
