"""One connection of uvicorn: how long it may wait, how many there may be, of whom."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from laplace_metric.cli.serve._guard import Limits
from tests.serve.server import require_extra

require_extra()
import uvicorn  # noqa: E402

from laplace_metric.cli.serve._connection import ALL, connections_within  # noqa: E402

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
