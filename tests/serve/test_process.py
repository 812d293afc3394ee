"""The server as a process: the command, uvicorn, what a socket may send, how it stops."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from laplace_metric.cli import main
from tests.serve.conftest import gallery_of, pixels_of
from tests.serve.server import ROOT, ServerProcess, exchange, memory_of, require_extra, serving
from tests.serve.test_answers import assert_is_row

require_extra()
httpx = pytest.importorskip("httpx")
CLIENTS = 32
VECTOR = json.dumps({"vectors": [[0.5] * 64], "k": 1}).encode()


@pytest.fixture(scope="module")
def server(vectors) -> Iterator[ServerProcess]:
    with serving(vectors) as running:
        yield running


def asked(*headers: str, body: bytes = b"", version: str = "1.1") -> bytes:
    lines = [f"POST /search HTTP/{version}", "Host: h", "Content-Type: application/json", *headers]
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode() + body


LENGTH = f"Content-Length: {len(VECTOR)}"
CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(VECTOR), VECTOR)
CHUNKED = "Transfer-Encoding: chunked"
REQUESTS = {
    "a length": (asked(LENGTH, body=VECTOR), 200),
    "chunks": (asked(CHUNKED, body=CHUNKS), 200),
    "both": (asked(LENGTH, CHUNKED, body=CHUNKS), 400),
    "both, the other way round": (asked(CHUNKED, LENGTH, body=CHUNKS), 400),
    "both, a length of chunks": (
        asked(f"Content-Length: {len(CHUNKS)}", CHUNKED, body=CHUNKS),
        400,
    ),
    "both, in capitals": (asked(LENGTH, "TRANSFER-ENCODING: CHUNKED", body=CHUNKS), 400),
    "chunks of HTTP/1.0": (asked(CHUNKED, body=CHUNKS, version="1.0"), 400),
    "two lengths": (asked(LENGTH, "Content-Length: 3", body=VECTOR), 400),
    "two lengths in one": (asked(f"{LENGTH}, 3", body=VECTOR), 400),
    "a signed length": (asked(f"Content-Length: +{len(VECTOR)}", body=VECTOR), 400),
    "a space in front of a colon": (asked(LENGTH, "Transfer-Encoding : chunked", body=CHUNKS), 400),
    "chunks in two ways": (asked("Transfer-Encoding: chunked, identity", body=CHUNKS), 400),
    "chunks in an unknown way": (asked("Transfer-Encoding: xchunked", body=CHUNKS), 400),
    "a number of bytes that is none": (asked(CHUNKED, body=b"-5\r\nhello\r\n0\r\n\r\n"), 400),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_has_one_length(server, name):
    """What a proxy could read as another request is refused, and its connection is closed."""
    request, status = REQUESTS[name]
    hidden = b"GET /healthz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
    behind = request.replace(b"Connection: close\r\n", b"")
    for sent in (request, behind + hidden):
        answer = exchange(server.address, sent)
        assert answer.startswith(b"HTTP/1.1 %d" % status), answer[:200]
        if status != 200:
            assert answer.count(b"HTTP/1.1 ") == 1  # the second request was not read


def test_32_clients_lose_nothing_and_get_their_own_answers(shop, query_files):
    index = gallery_of(shop).index
    python = [index.search(torch.from_numpy(pixels_of(path)), 5) for path in query_files]
    contents = [path.read_bytes() for path in query_files]
    with serving(shop) as server:

        def ask(number: int) -> list[tuple[int, dict]]:
            rows = [(number + 7 * i) % len(contents) for i in range(6)]
            with httpx.Client(base_url=server.url, timeout=60) as client:
                found = [
                    client.post(
                        "/search", content=contents[row], headers={"Content-Type": "image/*"}
                    )
                    for row in rows
                ]
            assert {response.status_code for response in found} == {200}
            return [(row, one.json()[0]) for row, one in zip(rows, found, strict=True)]

        with ThreadPoolExecutor(CLIENTS) as pool:
            answers = [one for some in pool.map(ask, range(CLIENTS)) for one in some]
        assert len(answers) == CLIENTS * 6
        for row, answer in answers:
            assert_is_row(answer, python[row], 0, tolerance=2e-5, step=0.03)
        lines = httpx.get(server.url + "/metrics").text.splitlines()
        (calls,) = [line for line in lines if line.startswith("laplace_metric_model_calls_total")]
        assert float(calls.split()[1]) < CLIENTS * 6  # some went in together


def uvicorn_of_the_page() -> tuple[dict[str, str], list[str]]:
    """The variables and the words with which the page runs the application."""
    page = (ROOT / "docs" / "serve.md").read_text(encoding="utf-8")
    block = page.partition("```console\nexport ")[2].partition("```")[0]
    export, _, command = block.partition("\n")
    name, _, value = export.partition("=")
    return {name: value.strip("'")}, command.replace("\\\n", " ").split()


def test_uvicorn_runs_the_same_application_as_the_page_says(vectors):
    variables, words = uvicorn_of_the_page()
    assert words[:3] == ["uvicorn", "--factory", "laplace_metric.serve:create_app"]
    assert variables["LAPLACE_METRIC_SERVE"].startswith("index ")
    command = ("-m", *words, "--port", "0")
    key = "0123456789abcdef0123456789abcdef"
    environment = {"LAPLACE_METRIC_SERVE": "index --quiet", "LAPLACE_METRIC_API_KEY": key}
    with serving(vectors, words=command, **environment) as server:
        with httpx.Client(base_url=server.url) as client:
            assert client.post("/search", content=VECTOR).status_code == 401
            client.headers["Authorization"] = f"Bearer {key}"
            assert client.post("/search", content=VECTOR).status_code == 200
        request, status = REQUESTS["both"]
        assert exchange(server.address, request).startswith(b"HTTP/1.1 %d" % status)


def test_the_page_and_the_command_set_the_same_limits(vectors, monkeypatch):
    import uvicorn

    from laplace_metric import serve

    found: dict = {}
    monkeypatch.setattr(serve.uvicorn, "run", lambda app, **how: found.update(how))
    assert main(["serve", str(vectors / "index"), "--port", "0", "--quiet"]) == 0
    _, words = uvicorn_of_the_page()
    parsed = uvicorn.main.make_context("uvicorn", words[1:]).params
    names = ("http", "limit_concurrency", "timeout_keep_alive", "h11_max_incomplete_event_size")
    assert {name: found[name] for name in names} == {name: parsed[name] for name in names}
    assert found["proxy_headers"] is parsed["proxy_headers"] is False


def test_a_gigabyte_is_not_kept(server):
    """A client that sends what is above the limit costs no memory."""
    before = memory_of(server.process.pid)
    part = b"F4240\r\n" + bytes(1_000_000) + b"\r\n"
    with socket.create_connection(server.address, timeout=60) as connection:
        connection.sendall(asked(CHUNKED))
        with pytest.raises((BrokenPipeError, ConnectionResetError)):  # the server closes it
            connection.sendall(part * 200)
    assert memory_of(server.process.pid) - before < 100


def test_headers_without_an_end_are_refused(server):
    with socket.create_connection(server.address, timeout=60) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 40_000)
        assert connection.recv(100).startswith(b"HTTP/1.1 400")


def test_more_connections_than_the_limit_get_503(vectors):
    with serving(vectors, "--max-waiting", "4") as server:
        held = [socket.create_connection(server.address) for _ in range(8)]
        try:
            time.sleep(0.5)
            request = b"GET /healthz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
            assert exchange(server.address, request).startswith(b"HTTP/1.1 503")
        finally:
            for one in held:
                one.close()
        time.sleep(0.5)
        assert exchange(server.address, request).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_answers_what_was_asked(library, number):
    body = json.dumps({"texts": ["ship"], "k": 1}).encode()
    request = asked(f"Content-Length: {len(body)}", body=body)
    with (
        serving(library, LETTERS_SECONDS="0.4") as server,
        ThreadPoolExecutor(8) as pool,
    ):
        answers = [pool.submit(exchange, server.address, request) for _ in range(8)]
        time.sleep(1)  # some are answered, one is with the model, the others wait
        server.process.send_signal(number)
        assert sum(one.done() for one in answers) < 8
        assert all(one.result().startswith(b"HTTP/1.1 200") for one in answers)
        server.process.wait(60)


def run_command(folder: Path, *words: str, path: str = "") -> subprocess.CompletedProcess[str]:
    """The command, which ends by itself."""
    return subprocess.run(
        [sys.executable, "-m", "laplace_metric", "serve", "index", "--quiet", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{path}{os.pathsep}{ROOT}".lstrip(os.pathsep)},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_taken_port_is_told(vectors, server):
    port = str(server.address[1])
    found = run_command(vectors, "--port", port)
    assert found.returncode == 2
    assert "address already in use" in found.stderr
    assert f"--port {port}" in found.stderr
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize("package", ["fastapi", "uvicorn", "prometheus_client"])
def test_without_the_extra_one_line_says_what_to_install(vectors, tmp_path, package):
    (tmp_path / f"{package}.py").write_text(f"raise ModuleNotFoundError(name={package!r})")
    found = run_command(vectors, path=str(tmp_path))
    assert found.returncode == 2
    (line,) = found.stderr.strip().splitlines()
    assert package in line
    assert "pip install 'laplace-metric[serve]'" in line
