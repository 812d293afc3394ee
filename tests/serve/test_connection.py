"""Connections: how long they may wait, how many there may be, of whom; and liveness."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from laplace_metric.cli.serve._guard import Limits
from tests.serve.server import require_extra

require_extra()
import uvicorn  # noqa: E402

from laplace_metric.cli.serve import _http  # noqa: E402
from laplace_metric.cli.serve._http import (  # noqa: E402
    ALL,
    MOST,
    Liveness,
    connections_within,
)

WHOLE = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
LARGE = 64 * 2**20


async def application(scope, receive, send) -> None:
    """Answers "crowded" or "free", after half a second at /slow, with 64 MiB at /large."""
    await asyncio.sleep(0.5 if scope["path"] == "/slow" else 0)
    body = b"crowded" if scope["state"].get("crowded") else b"free"
    body = bytes(LARGE) if scope["path"] == "/large" else body
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def connecting(limits: Limits) -> AsyncIterator:
    """Opens connections to a server within ``limits``, from any address of this machine."""
    config = uvicorn.Config(application, http=connections_within(limits), ws="none",
                            log_level="error", lifespan="off", port=0)  # fmt: skip
    server, writers = uvicorn.Server(config), []
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    port = server.servers[0].sockets[0].getsockname()[1]

    async def connect(host: str = "127.0.0.1"):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0))
        writers.append(writer)
        return reader, writer

    try:
        yield connect
    finally:
        for writer in writers:
            writer.close()
        await server.shutdown()


@pytest.mark.parametrize("begun", [b"", b"GET / HT", WHOLE + b"GET / HTTP/1.1\r\nA: b"])
def test_headers_that_do_not_come_are_given_up(begun):
    async def slow() -> tuple[bytes, float]:
        async with connecting(Limits(head_seconds=0.2, seconds=60)) as connect:
            reader, writer = await connect()
            begin = time.perf_counter()
            writer.write(begun)
            answered = await asyncio.wait_for(reader.read(), 20)
            return answered, time.perf_counter() - begin

    answered, seconds = asyncio.run(slow())
    assert answered.count(b"200 OK") == (WHOLE in begun)
    assert seconds > 0.15


def test_a_slow_answer_is_not_one_of_headers():
    async def slow() -> bytes:
        async with connecting(Limits(head_seconds=0.2)) as connect:
            reader, writer = await connect()
            writer.write(WHOLE.replace(b"/", b"/slow", 1))
            return await asyncio.wait_for(reader.readline(), 20)

    assert asyncio.run(slow()).startswith(b"HTTP/1.1 200")


def test_an_answer_that_is_not_read_is_given_up():
    async def unread() -> int:
        async with connecting(Limits(seconds=0.2)) as connect:
            reader, writer = await connect()
            writer.write(WHOLE.replace(b"/", b"/large", 1))
            await reader.readline()
            await asyncio.sleep(1)
            with suppress(ConnectionResetError):
                return len(await asyncio.wait_for(reader.read(), 20))
            return 0

    assert asyncio.run(unread()) < LARGE


def test_connections_of_an_address_and_of_all_have_limits():
    most = 2

    async def many() -> dict[str, list[bytes]]:
        found: dict[str, list[bytes]] = {}

        async def ask(host: str) -> None:
            reader, writer = await connect(host)
            writer.write(WHOLE)
            answer = b""
            with suppress(ConnectionResetError, asyncio.IncompleteReadError):
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
                answer = await reader.readexactly(7 if b"length: 7" in head else 4)
            found.setdefault(host, []).append(answer)

        async with connecting(Limits(connections=most)) as connect:
            for host, count in (("127.0.0.1", 5), ("127.0.0.2", 2), ("127.0.0.3", 3)):
                for _ in range(count):
                    await ask(host)
        return found

    found = asyncio.run(many())
    assert found["127.0.0.1"] == [b"free"] * 2 + [b"crowded"] * 2 + [b""]
    assert found["127.0.0.2"] == [b"free"] * 2
    assert found["127.0.0.3"] == [b"free"] * 2 + [b""]  # the ninth of all that are open
    assert sum(map(len, found.values())) - 2 == ALL * most


# Liveness has a thread and a port of its own.


@pytest.fixture
def liveness():
    listener = socket.create_server(("127.0.0.1", 0))
    thread = Liveness(listener)
    with thread:
        yield thread


def asked(port, request=b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n"):
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(request)
        parts = []
        while part := connection.recv(4096):
            parts.append(part)
    return b"".join(parts)


def test_the_two_paths_are_alive_and_others_are_not_there(liveness):
    for path in (b"/healthz", b"/health"):
        answer = asked(liveness.port, b"GET " + path + b" HTTP/1.1\r\nHost: h\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert answer.endswith(b'\r\n\r\n{"status":"alive"}')
    for request in (b"GET / HTTP/1.1\r\n\r\n", b"POST /healthz HTTP/1.1\r\n\r\n", b"x\r\n\r\n"):
        assert asked(liveness.port, request).startswith(b"HTTP/1.1 404")


def test_unfinished_heads_keep_nobody_out(liveness):
    held = [socket.create_connection(("127.0.0.1", liveness.port)) for _ in range(2 * MOST)]
    for connection in held:
        connection.sendall(b"GET /healthz HT")
    begin = time.perf_counter()
    assert asked(liveness.port).startswith(b"HTTP/1.1 200")
    assert time.perf_counter() - begin < _http.SECONDS / 2
    for connection in held:
        connection.close()


def test_the_oldest_makes_room(liveness, monkeypatch):
    monkeypatch.setattr(_http, "MOST", 2)
    held = [socket.create_connection(("127.0.0.1", liveness.port), timeout=1) for _ in range(3)]
    for connection in held:
        connection.sendall(b"GET /healthz HT")
    with suppress(ConnectionResetError):
        assert held[0].recv(1) == b""
    for connection in held[1:]:
        connection.sendall(b"TP/1.1\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 200")


def test_an_unfinished_head_is_cut_in_time_and_a_long_one_at_once(liveness, monkeypatch):
    monkeypatch.setattr(_http, "SECONDS", 0.2)
    with socket.create_connection(("127.0.0.1", liveness.port), timeout=10) as connection:
        connection.sendall(b"GET /healthz HT")
        assert connection.recv(100) == b""
    with suppress(OSError):  # reset: it was not read to its end
        assert asked(liveness.port, b"x" * 100_000) == b""


def test_it_ends_with_the_server():
    thread = Liveness(socket.create_server(("127.0.0.1", 0)))
    with thread:
        assert asked(thread.port).startswith(b"HTTP/1.1 200")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", thread.port), timeout=1)
