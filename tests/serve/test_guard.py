"""The limits before the application, without a socket: what is read, refused, thrown away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable

import pytest

from laplace_metric.cli.serve import Limits, ServerMetrics
from laplace_metric.cli.serve import _guard as guards
from laplace_metric.cli.serve._guard import Guard

PATHS = frozenset({"/search", "/healthz"})


async def echo(scope, receive, send) -> None:
    message = await receive()
    assert not message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": message["body"]})


def ask(guard: Guard, parts: Iterable, path: str = "/search", headers=()) -> tuple[int, bytes, int]:
    """Status, body, and how many parts of the request were read."""
    waiting, sent, taken = list(parts), [], 0

    async def receive():
        nonlocal taken
        if not waiting:
            await asyncio.sleep(60)
        taken += 1
        part = waiting.pop(0)
        if part is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": part, "more_body": bool(waiting)}

    async def send(message) -> None:
        sent.append(message)

    asyncio.run(guard({"type": "http", "path": path, "headers": list(headers)}, receive, send))
    if not sent:
        return 0, b"", taken
    return sent[0]["status"], b"".join(m.get("body", b"") for m in sent[1:]), taken


def guard_of(**limits) -> Guard:
    return Guard(echo, Limits(**limits), ServerMetrics(), PATHS)


def test_a_body_in_parts_comes_whole():
    assert ask(guard_of(body=6), [b"ab", b"", b"cdef"])[:2] == (200, b"abcdef")


def test_one_byte_more_than_the_limit_is_refused():
    status, body, taken = ask(guard_of(body=6), [b"ab", b"cdefg", b"more", b"and more"])
    assert status == 413
    assert "at most 6 bytes" in json.loads(body)["error"]
    assert taken == 4  # what came after the refusal was thrown away


def test_a_declared_length_is_refused_before_a_byte_is_read(monkeypatch):
    monkeypatch.setattr(guards, "LINGER", 0.05)
    status, body, taken = ask(guard_of(body=6), [], headers=[(b"content-length", b"7")])
    assert (status, taken) == (413, 0)
    assert json.loads(body)["error"]


def test_a_body_that_does_not_come_is_given_up(monkeypatch):
    monkeypatch.setattr(guards, "LINGER", 0.05)

    async def slow(guard: Guard) -> list:
        sent = []

        async def receive():
            await asyncio.sleep(60)

        async def send(message) -> None:
            sent.append(message)

        await guard({"type": "http", "path": "/search", "headers": []}, receive, send)
        return sent

    sent = asyncio.run(slow(guard_of(seconds=0.05)))
    assert sent[0]["status"] == 408
    assert b"0.05 seconds" in sent[1]["body"]


def test_a_client_that_goes_away_reaches_no_application():
    guard = guard_of()
    assert ask(guard, [b"ab", None])[0] == 0
    assert guard.running == 0
    assert 'status="499"' in guard.metrics.text(1, None)


@pytest.mark.parametrize(("path", "status"), [("/search", 503), ("/healthz", 200)])
def test_more_than_may_wait_are_sent_away(path, status):
    guard = guard_of(waiting=2)
    guard.running = 2
    assert ask(guard, [b"x"], path)[0] == status
    assert guard.running == 2
    guard.running = 1
    assert ask(guard, [b"x"], path)[0] == 200


def test_paths_that_clients_make_up_have_one_name():
    guard = guard_of()
    for path in ("/search", "/a", "/b"):
        ask(guard, [b""], path)
    text = guard.metrics.text(1, None)
    assert 'requests_total{path="other",status="200"} 2.0' in text
    assert 'requests_total{path="/search",status="200"} 1.0' in text
    assert '"/a"' not in text


def test_an_application_that_fails_is_counted():
    async def fails(scope, receive, send):
        raise RuntimeError

    guard = Guard(fails, Limits(), ServerMetrics(), PATHS)
    with pytest.raises(RuntimeError):
        ask(guard, [b""])
    assert guard.running == 0
