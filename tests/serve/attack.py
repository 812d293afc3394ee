"""Bounded attacks on a server of its own, at 127.0.0.1: what they do to memory and liveness.

``python -m tests.serve.attack flood --clients 200`` prints one line of JSON. Every loop ends after
``--seconds``; the server is stopped at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import multiprocessing
import socket
import struct
import tempfile
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from tests.serve.conftest import index_digits, index_vectors
from tests.serve.server import ServerProcess, serving

D = 64
Address = tuple[str, int]
VECTOR = json.dumps({"vector": [0.5] * D}).encode()


def head_of(length: int, kind: str = "application/json") -> bytes:
    return (
        f"POST /search HTTP/1.1\r\nHost: h\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {length}\r\n\r\n"
    ).encode()


def deep_png(side: int) -> bytes:
    """A PNG of 16-bit RGBA, ``side`` pixels a side, all of them zero."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    size = struct.pack(">IIBBBBB", side, side, 16, 6, 0, 0, 0)
    rows = zlib.compress(bytes((1 + 8 * side) * side), 9)
    parts = chunk(b"IHDR", size) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def eight_by_eight() -> bytes:
    """A grey PNG."""
    file = io.BytesIO()
    Image.new("L", (8, 8), 100).save(file, "PNG")
    return file.getvalue()


async def send(
    address: Address, here: str, content: bytes, until: float, statuses: Counter
) -> None:
    """One request after another, each on a connection of its own."""
    while time.monotonic() < until:
        status = "none"
        try:
            reader, writer = await asyncio.open_connection(*address, local_addr=(here, 0))
            try:
                for i in range(0, len(content), 65536):
                    writer.write(content[i : i + 65536])
                    await writer.drain()
                line = await asyncio.wait_for(reader.readline(), until - time.monotonic() + 5)
                status = line.split()[1].decode() if line.split() else "closed"
            finally:
                writer.close()
        except (OSError, asyncio.TimeoutError) as error:
            status = type(error).__name__
        statuses[status] += 1
        await asyncio.sleep(0.01)


async def hold(
    address: Address, here: str, content: bytes, until: float, statuses: Counter
) -> None:
    """A connection that sends one byte a second of what it began, and is opened again when cut."""
    while time.monotonic() < until:
        try:
            reader, writer = await asyncio.open_connection(*address, local_addr=(here, 0))
            writer.write(content)
            reading = asyncio.ensure_future(reader.read(100))
            while time.monotonic() < until and not reading.done():
                await asyncio.wait([reading], timeout=1)
                writer.write(b"x")
                await writer.drain()
            statuses["cut" if reading.done() else "held"] += 1
            reading.cancel()
            writer.close()
        except OSError as error:
            statuses[type(error).__name__] += 1
        await asyncio.sleep(0.05)


def besiege(
    attack: Callable, address: Address, content: bytes, clients: int, seconds: float, queue
) -> None:
    """Runs in a process of its own, so that its work is not that of the probe.

    Clients come from 127.0.0.2 and 127.0.0.3; the probe from 127.0.0.1.
    """
    statuses: Counter = Counter()

    async def all_of_them() -> None:
        until = time.monotonic() + seconds
        each = (
            attack(address, f"127.0.0.{2 + i % 2}", content, until, statuses)
            for i in range(clients)
        )
        await asyncio.gather(*each)

    asyncio.run(all_of_them())
    queue.put(dict(statuses))


def memory_of(pid: int) -> float:
    """MB in memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 1e6


def exchange(address: Address, request: bytes, timeout: float = 20) -> bytes:
    """The first bytes of an answer; empty where there is none."""
    try:
        with socket.create_connection(address, timeout=timeout) as connection:
            connection.sendall(request)
            return connection.recv(65536)
    except OSError:
        return b""


class Probe:
    """Asks every 50 ms and keeps how long each answer took; ``None`` for one that did not come."""

    def __init__(self, address: Address, request: bytes, pid: int) -> None:
        self.address, self.request, self.pid = address, request, pid
        self.seconds: list[float] = []
        self.failed, self.memory, self.going = 0, 0.0, True
        self.thread = threading.Thread(target=self._ask)
        self.thread.start()

    def _ask(self) -> None:
        while self.going:
            begin = time.perf_counter()
            if exchange(self.address, self.request).startswith(b"HTTP/1.1 200"):
                self.seconds.append(time.perf_counter() - begin)
            else:
                self.failed += 1
            self.memory = max(self.memory, memory_of(self.pid))
            time.sleep(0.05)

    def stop(self) -> dict[str, float]:
        self.going = False
        self.thread.join()
        if not self.seconds:
            return {"answered": 0, "failed": self.failed}
        p50, p95, worst = (1e3 * float(x) for x in np.quantile(self.seconds, [0.5, 0.95, 1]))
        found = {"p50_ms": round(p50, 1), "p95_ms": round(p95, 1), "worst_ms": round(worst, 1)}
        return {"answered": len(self.seconds), "failed": self.failed, **found}


IMAGE = eight_by_eight()
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"


def siege(
    server: ServerProcess, kind: str, attack, content: bytes, clients: int, seconds: float
) -> dict:
    """Memory, liveness and searches of another client while ``clients`` attack."""
    host, port = server.url.removeprefix("http://").split(":")
    address, pid = (host, int(port)), server.process.pid
    query = IMAGE if kind == "images" else VECTOR
    search = head_of(len(query), "image/png" if kind == "images" else "application/json") + query
    search = search.replace(b"Host: h", b"Host: h\r\nConnection: close", 1)
    idle = memory_of(pid)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    arguments = (attack, address, content, clients, seconds, queue)
    process = context.Process(target=besiege, args=arguments)
    process.start()
    time.sleep(0.5)
    alive = (host, int(server.alive.split(":")[2].split("/")[0])) if server.alive else address
    health, asked = Probe(alive, HEALTH, pid), Probe(address, search, pid)
    statuses = queue.get(timeout=seconds + 60)
    process.join()
    found = {"idle_mb": round(idle), "peak_mb": round(max(health.memory, asked.memory))}
    return {**found, "liveness": health.stop(), "search": asked.stop(), "statuses": statuses}


def flood() -> tuple[str, Callable, bytes]:
    body = b'{"vector": [' + b"1.5, " * (2 * 2**20 - 10) + b"1.5]}"
    return "vectors", send, head_of(len(body)) + body


def pictures() -> tuple[str, Callable, bytes]:
    body = deep_png(5600)
    return "images", send, head_of(len(body), "image/png") + body


def bodies() -> tuple[str, Callable, bytes]:
    return "vectors", hold, head_of(1000)


def heads() -> tuple[str, Callable, bytes]:
    return "vectors", hold, b"GET /healthz HTTP/1.1\r\nX: "


def refusals() -> tuple[str, Callable, bytes]:
    return "vectors", hold, head_of(10**9)


ATTACKS = {f.__name__: f for f in (flood, pictures, bodies, heads, refusals)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("attack", choices=ATTACKS)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("options", nargs="*", help="of laplace-metric serve")
    options = parser.parse_args()
    kind, attack, content = ATTACKS[options.attack]()
    with tempfile.TemporaryDirectory() as name:
        (index_vectors if kind == "vectors" else index_digits)(Path(name))
        with serving(Path(name), "--quiet", *options.options) as server:
            found = siege(server, kind, attack, content, options.clients, options.seconds)
            lines = len(server.notes)
    print(json.dumps({"attack": options.attack, "clients": options.clients, **found, "log": lines}))


if __name__ == "__main__":
    main()
