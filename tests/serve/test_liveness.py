"""Liveness is answered whatever the server does: by a thread and a port of its own."""

from __future__ import annotations

import socket
import time
from contextlib import suppress

import pytest

from laplace_metric.cli.serve import _connection
from laplace_metric.cli.serve._connection import MOST, Liveness


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
    assert time.perf_counter() - begin < _connection.SECONDS / 2
    for connection in held:
        connection.close()


def test_the_oldest_makes_room(liveness, monkeypatch):
    monkeypatch.setattr(_connection, "MOST", 2)
    held = [socket.create_connection(("127.0.0.1", liveness.port), timeout=1) for _ in range(3)]
    for connection in held:
        connection.sendall(b"GET /healthz HT")
    with suppress(ConnectionResetError):
        assert held[0].recv(1) == b""
    for connection in held[1:]:
        connection.sendall(b"TP/1.1\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 200")


def test_an_unfinished_head_is_cut_in_time_and_a_long_one_at_once(liveness, monkeypatch):
    monkeypatch.setattr(_connection, "SECONDS", 0.2)
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
