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
from contextlib import ExitStack
from importlib import import_module
from ipaddress import ip_address
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
    from laplace_metric.cli.serve._service import SearchService

PACKAGES = ("fastapi", "uvicorn", "python-multipart", "prometheus-client")
"""Packages of the extra; each has a module of its name."""
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

    Raises
    ------
    InputError
        For an index, a key or an address that cannot be served.
    """
    require_packages()
    from laplace_metric.cli.serve._guard import BODIES, Limits
    from laplace_metric.cli.serve._http import Liveness
    from laplace_metric.cli.serve._service import SearchService, ServedIndex

    reporter, key, body = Reporter(options.quiet), read_key(options), int(options.max_body * 2**20)
    limits = Limits(
        body=body,
        bodies=max(BODIES, 2 * body),
        pixels=options.max_pixels,
        waiting=options.max_waiting,
        connections=options.max_connections,
    )
    with warnings.catch_warnings(), ExitStack() as stack:
        for category in (LaplaceMetricWarning, Image.DecompressionBombWarning):
            warnings.simplefilter("ignore", category)
        with reporter.warnings():
            service = SearchService(
                lambda: ServedIndex(options, limits, reporter),
                limits,
                precision=options.precision,
                batch=options.batch,
            )
        listener = stack.enter_context(listening(options.host, options.port))
        host, port = listener.getsockname()[:2]
        url = f"http://[{host}]" if ":" in host else f"http://{host}"
        serving = f"serving {len(service.served.index):,} items at {url}:{port}"
        probed = options.health_port
        if probed is None:
            probed = port + 1 if options.port else 0
        try:
            liveness = Liveness(listening(options.host, probed, "--health-port"))
            stack.enter_context(liveness)
            serving += f" (liveness: {url}:{liveness.port}/healthz)"
        except InputError as error:
            if options.health_port is not None:
                raise
            reporter.note(f"{error} Liveness is answered by the server alone, at /healthz")
        _run(service, listener, reporter, serving, key)


def require_packages() -> None:
    """Check that the extra is installed.

    Raises
    ------
    MissingPackageError
        If it is not; the message names the extra.
    """
    for package in PACKAGES:
        try:
            import_module(package.replace("-", "_"))
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


def _run(
    service: SearchService,
    listener: socket.socket,
    reporter: Reporter,
    serving: str,
    key: bytes | None,
) -> None:
    """Print ``serving``, then answer until a signal stops the server."""
    import uvicorn

    from laplace_metric.cli.serve._http import application, connections_within

    config = uvicorn.Config(
        application(service, key),
        http=connections_within(service.limits),
        ws="none",
        log_level="error",
        access_log=False,
        lifespan="off",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE,
    )
    server = uvicorn.Server(config)

    def stop(*_: object) -> None:
        server.should_exit = True  # uvicorn, once all is answered, sends what stopped it again

    def load_again() -> None:
        try:
            reporter.note(f"loaded again: {service.reload():,} items")
        except (LaplaceMetricError, OSError) as error:
            reporter.note(f"the index could not be loaded, the old one goes on: {error}")

    def reload(*_: object) -> None:
        threading.Thread(target=load_again, daemon=True).start()

    handlers = {signal.SIGTERM: stop}
    if hasattr(signal, "SIGHUP"):
        handlers[signal.SIGHUP] = reload
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    print(serving, flush=True)  # who connects from now on waits in the backlog
    try:
        server.run(sockets=[listener])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        service.close()
