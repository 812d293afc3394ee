"""Requests from a seeded generator: each gets a status below 500, or 503 with Retry-After."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import numpy as np

PATHS = (*["/search"] * 8, *["/embed"] * 4, "/", "/search/", "/\ud800", "/..%2f..", "/healthz",
         "/metrics", "/openapi.json", "/docs", "//")  # fmt: skip
METHODS = (*["POST"] * 12, "GET", "HEAD", "OPTIONS", "PUT")
HOSTS = (b"h", b"[", b"[::1", b"", b"\xff", b"a:b:c", b"localhost:99999999", b"http://x")
WORDS = ("\ud800", "\ud83d\ude00", "\x00", "1" * 5000, "-1", "1e999", "nan", "", " ", "{}", "[1]",
         "[" * 3000, "<b>", "%s{}", "\u202e", "9" * 400, "0x10", "\n\r", "1_0", "٣")  # fmt: skip
BIG = (10**400, -(10**400), 2**63, 1e308, -0.0, 5e-324)
FIELDS = ("vectors", "texts", "image", "k", "alpha", "precision", "limit", "\ud800", "")
TYPES = (*["application/json"] * 6, "text/plain", *["image/png"] * 3, "", "text/html",
         "multipart/form-data", "application/json; charset=\xff")  # fmt: skip

Request = tuple[str, str, str, list[tuple[bytes, bytes]], bytes]
"""Method, path, what stands behind it, headers, body."""


def any_value(draw: np.random.Generator, depth: int = 0) -> Any:
    kind = int(draw.integers(9 if depth < 2 else 6))
    if kind < 2:
        return WORDS[draw.integers(len(WORDS))]
    if kind == 2:
        return BIG[draw.integers(len(BIG))]
    if kind == 3:
        return (None, True, False, 0, 5, 0.5)[draw.integers(6)]
    if kind < 6:
        return draw.standard_normal(int(draw.choice([1, 63, 64, 65]))).tolist()
    if kind == 6:
        return [any_value(draw, depth + 1) for _ in range(draw.integers(4))]
    if kind == 7:
        return {str(draw.integers(9)): any_value(draw, depth + 1)}
    values = [0.5] * 64
    values[int(draw.integers(64))] = any_value(draw, depth + 1)
    return values


def any_fields(draw: np.random.Generator) -> dict[str, Any]:
    names = draw.choice(FIELDS, int(draw.integers(1, 4)))
    fields = {str(name): any_value(draw) for name in names}
    if draw.random() < 0.5:
        fields["vectors"] = [[0.5] * 64]
    return fields


def any_body(draw: np.random.Generator, content_type: str, png: bytes) -> bytes:
    if content_type.startswith("application/json"):
        body = json.dumps(any_fields(draw)).encode()
        return body.replace(b'"1111', b"1111").replace(b'1111"', b"1111")  # 5,000 digits
    if draw.random() < 0.5:
        return bytes(draw.integers(0, 256, int(draw.integers(200)), dtype=np.uint8))
    return mutated(draw, png)


def mutated(draw: np.random.Generator, content: bytes) -> bytes:
    array = bytearray(content)
    for _ in range(int(draw.integers(4))):
        array[int(draw.integers(len(array)))] = int(draw.integers(256))
    return bytes(array[: int(draw.integers(1, len(array) + 1))] if draw.random() < 0.2 else array)


def requests(seed: int, count: int, png: bytes) -> Iterator[Request]:
    draw = np.random.default_rng(seed)
    for _ in range(count):
        content_type = TYPES[draw.integers(len(TYPES))]
        body = any_body(draw, content_type, png)
        if draw.random() < 0.1:
            body = mutated(draw, body or b"x")
        headers = [(b"content-type", content_type.encode("latin-1"))]
        headers += [(b"host", HOSTS[draw.integers(len(HOSTS))])] * (draw.random() < 0.8)
        headers += [(b"content-length", b"9" * int(draw.integers(1, 30)))] * (draw.random() < 0.02)
        behind = ""
        if draw.random() < 0.3:
            pairs = [(FIELDS[draw.integers(9)], WORDS[draw.integers(len(WORDS))]) for _ in range(2)]
            behind = "&".join(
                quote(name, errors="surrogatepass") + "=" + quote(word, errors="surrogatepass")
                for name, word in pairs
            )
        method, path = METHODS[draw.integers(len(METHODS))], PATHS[draw.integers(len(PATHS))]
        yield method, path, behind, headers, body


async def statuses(application: Any, asked: Iterator[Request]) -> Counter[tuple[str, int]]:
    """How often each path gave each status.

    Raises
    ------
    AssertionError
        For a request that gets another 5xx, or none; it holds the request.
    """
    found: Counter[tuple[str, int]] = Counter()
    for method, path, behind, headers, body in asked:
        scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1",
                 "scheme": "http", "method": method, "path": path, "raw_path": b"/",
                 "root_path": "", "headers": headers,
                 "query_string": behind.encode(), "client": ("127.0.0.1", 1),
                 "server": ("127.0.0.1", 80)}  # fmt: skip
        parts, sent = [body[: len(body) // 2], body[len(body) // 2 :]], []

        async def receive(parts=parts):
            if not parts:
                return {"type": "http.disconnect"}
            part = parts.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(parts)}

        async def send(message, sent=sent) -> None:
            sent.append(message)

        await application(scope, receive, send)
        status = sent[0]["status"] if sent else 0
        again = any(name == b"retry-after" for name, _ in sent[0]["headers"]) if sent else False
        good = 200 <= status < 500 or (status == 503 and again)
        assert good, f"{status}: {method} {path}?{behind[:200]} {headers} {body[:300]!r}"
        found[path, status] += 1
    return found


def fuzz(application: Any, png: bytes, seed: int, count: int) -> Counter[tuple[str, int]]:
    """How often each path gave each status, of so many requests."""
    return asyncio.run(statuses(application, requests(seed, count, png)))
