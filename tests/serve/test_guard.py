"""The limits before the application, without a socket: what is read, refused, thrown away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable

import pytest

from laplace_metric.cli.serve import _guard as guards
from laplace_metric.cli.serve._guard import Guard, Limits
from laplace_metric.cli.serve._metrics import ServerMetrics

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
    made = Limits(**limits)
    return Guard(echo, made, ServerMetrics(), PATHS, lambda _: made.body)


def test_a_body_in_parts_comes_whole():
    assert ask(guard_of(body=6), [b"ab", b"", b"cdef"])[:2] == (200, b"abcdef")


def test_one_byte_more_than_the_limit_is_refused():
    status, body, taken = ask(guard_of(body=6), [b"ab", b"cdefg", b"more"])
    assert status == 413
    assert "at most 6 bytes" in json.loads(body)["error"]
    assert taken == 3  # what came after the refusal was thrown away


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


def test_an_application_that_fails_is_logged_once(caplog):
    async def fails(scope, receive, send):
        raise RuntimeError

    guard = Guard(fails, Limits(), ServerMetrics(), PATHS, lambda _: 10)
    with caplog.at_level("ERROR"):
        for _ in range(3):
            ask(guard, [b"abc"])
    assert (guard.running, guard.held) == (0, 0)
    assert [record.exc_info[0] for record in caplog.records] == [RuntimeError]  # once, not thrice


def test_bodies_that_are_held_have_a_bound():
    guard = guard_of(body=6, bodies=8)
    guard.held = 3
    assert ask(guard, [b"abc", b"de"])[0] == 200
    status, body, _ = ask(guard, [b"abc", b"def"])
    assert status == 503
    assert "ask again" in json.loads(body)["error"]
    assert ask(guard, [], headers=[(b"content-length", b"6")])[0] == 503  # before a byte is read
    assert guard.held == 3
    assert ask(guard, [b"x"], "/healthz")[0] == 200


def test_a_body_on_its_way_keeps_nobody_out():
    """Neither slow bodies nor refusals that are read to their end count as running."""
    guard = guard_of(waiting=1, seconds=0.3)

    async def all_at_once() -> list[int]:
        async def send(message) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        async def never():
            await asyncio.sleep(60)

        async def one(receive, headers=()) -> None:
            scope = {"type": "http", "path": "/search", "headers": list(headers)}
            await guard(scope, receive, send)

        statuses: list[int] = []
        slow = [asyncio.ensure_future(one(never)) for _ in range(3)]
        slow.append(asyncio.ensure_future(one(never, [(b"content-length", b"99999999999")])))
        await asyncio.sleep(0.05)
        assert (guard.running, guard.refused) == (0, 1)
        whole = iter([{"type": "http.request", "body": b"x"}])

        async def at_once():
            return next(whole)

        await one(at_once)
        await asyncio.gather(*slow)
        return statuses

    assert asyncio.run(all_at_once()) == [413, 200, 408, 408, 408]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([], 401),
        ([(b"x-api-key", b"wrong")], 401),
        ([(b"x-api-key", b"")], 401),
        ([(b"authorization", b"Basic secret")], 401),
        ([(b"authorization", b"Bearer secret2")], 401),
        ([(b"authorization", b"Bearer \xff")], 401),
        ([(b"authorization", b"bearer secret")], 200),
        ([(b"x-api-key", b"secret")], 200),
    ],
)
def test_a_key_is_asked_for_but_not_for_liveness(headers, status):
    guard = guard_of()
    guard.key = b"secret"
    assert ask(guard, [b""], headers=headers)[0] == status
    assert ask(guard, [b""], "/healthz", headers)[0] == 200


def test_the_type_of_a_body_bounds_it():
    guard = guard_of(body=6)
    guard.most_bytes = {"application/json": 2, "": 6}.__getitem__
    headers = [(b"content-type", b"Application/JSON; charset=utf-8")]
    assert ask(guard, [b"abc"], headers=headers)[0] == 413
    assert ask(guard, [b"abc"])[0] == 200


def test_places_that_others_took_while_a_body_came_are_taken():
    guard = guard_of(waiting=1)

    waiting, sent = [b"first ", b"last"], []

    async def receive():
        part = waiting.pop(0)
        guard.running = 1  # the body of another request has arrived meanwhile
        return {"type": "http.request", "body": part, "more_body": bool(waiting)}

    async def send(message) -> None:
        sent.append(message)

    asyncio.run(guard({"type": "http", "path": "/search", "headers": []}, receive, send))
    assert sent[0]["status"] == 503
    assert b"retry-after" in dict(sent[0]["headers"])
    assert guard.held == 0
