"""The limits before the application, without a socket: what is read, refused, thrown away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable

import pytest

from laplace_metric.cli.serve import _guard as guards
from laplace_metric.cli.serve._guard import PART, Gate, Limits
from laplace_metric.cli.serve._metrics import ServerMetrics


async def echo(scope, receive, send) -> None:
    body, more = b"", True
    while more:
        message = await receive()
        assert len(message["body"]) <= PART
        body, more = body + message["body"], message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


async def asked(guard: Gate, parts: Iterable, path="/search", headers=()) -> tuple[list, int]:
    """What was sent, and how many parts of the request were read; after them, nothing comes."""
    waiting, sent, taken, last = iter(parts), [], 0, object()
    following = next(waiting, last)

    async def receive():
        nonlocal taken, following
        if following is last:
            await asyncio.sleep(60)
        taken, part, following = taken + 1, following, next(waiting, last)
        if part is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": part, "more_body": following is not last}

    async def send(message) -> None:
        sent.append(message)

    await guard({"type": "http", "path": path, "headers": list(headers)}, receive, send)
    return sent, taken


def ask(guard: Gate, parts: Iterable, path="/search", headers=()) -> tuple[int, bytes, int]:
    """Status, body, and how many parts of the request were read."""
    sent, taken = asyncio.run(asked(guard, parts, path, headers))
    if not sent:
        return 0, b"", taken
    return sent[0]["status"], b"".join(m.get("body", b"") for m in sent[1:]), taken


def guard_of(application=echo, **limits) -> Gate:
    made, paths = Limits(**limits), frozenset({"/search", "/healthz"})
    return Gate(application, made, ServerMetrics(), paths, lambda _: made.body)


def test_a_body_comes_whole_and_not_above_its_limit():
    body = bytes(range(256)) * 1000
    assert ask(guard_of(body=len(body)), [body[:9], b"", body[9:]])[:2] == (200, body)
    status, said, taken = ask(guard_of(body=6), [b"ab", b"cdefg", b"more"])
    assert status == 413
    assert "at most 6 bytes" in json.loads(said)["error"]
    assert taken == 3  # what came after the refusal was thrown away


def test_a_declared_length_is_refused_before_a_byte_is_read(monkeypatch):
    monkeypatch.setattr(guards, "LINGER", 0.05)
    assert ask(guard_of(body=6), [], headers=[(b"content-length", b"7")])[::2] == (413, 0)
    status, said, _ = ask(guard_of(seconds=0.05), [])
    assert status == 408
    assert b"0.05 seconds" in said


def test_a_client_that_goes_away_reaches_no_application():
    guard = guard_of()
    assert ask(guard, [b"ab", None])[0] == 0
    assert (guard.running, guard.held) == (0, 0)
    assert 'status="499"' in guard.metrics.text(1, None)


@pytest.mark.parametrize(("path", "status"), [("/search", 503), ("/healthz", 200)])
def test_more_than_may_wait_are_sent_away(path, status):
    guard = guard_of(waiting=2)
    guard.running = 2
    assert ask(guard, [b"x"], path)[0] == status
    assert guard.running == 2


def test_paths_that_clients_make_up_have_one_name():
    guard = guard_of()
    for path in ("/search", "/a", "/b"):
        ask(guard, [b""], path)
    text = guard.metrics.text(1, None)
    assert 'requests_total{path="other",status="200"} 2.0' in text
    assert '"/a"' not in text


def test_an_application_that_fails_is_logged_once(caplog):
    async def fails(scope, receive, send):
        raise RuntimeError

    guard = guard_of(fails)
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
    assert guard.held == 3


def test_a_body_on_its_way_keeps_nobody_out():
    """Neither slow bodies nor refusals that are read to their end count as running."""
    guard = guard_of(waiting=1, seconds=0.3)

    async def all_at_once() -> list[int]:
        slow = [asyncio.ensure_future(asked(guard, [])) for _ in range(3)]
        large = [(b"content-length", b"99999999999")]
        slow.append(asyncio.ensure_future(asked(guard, [], headers=large)))
        await asyncio.sleep(0.05)
        assert (guard.running, guard.refused) == (0, 1)
        answers = [await asked(guard, [b"x"]), *await asyncio.gather(*slow)]
        return [sent[0]["status"] for sent, _ in answers]

    assert asyncio.run(all_at_once()) == [200, 408, 408, 408, 413]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([(b"x-api-key", b"")], 401),
        ([(b"authorization", b"Basic secret")], 401),
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

    def parts():
        yield b"first "
        guard.running = 1  # the body of another request has arrived meanwhile
        yield b"last"

    sent, _ = asyncio.run(asked(guard, parts()))
    assert sent[0]["status"] == 503
    assert b"retry-after" in dict(sent[0]["headers"])
    assert guard.held == 0
