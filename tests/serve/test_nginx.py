"""The nginx file of the page "Serve", run in front of the server: 200 slow clients.

nginx is the one on the PATH, else that of Debian's package, which is unpacked into a folder.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.serve.server import ROOT, ServerProcess, memory_of, require_extra, serving

require_extra()
SLOW, SECONDS = 200, 25
VECTOR = json.dumps({"vectors": [[0.5] * 64], "k": 1}).encode()
HERE = """
  access_log off;
  client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi;
  uwsgi_temp_path uwsgi; scgi_temp_path scgi;
"""
"""Folders of nginx below the test's own: it may run as any user. Nothing of it limits a client."""


def found_nginx(folder: Path) -> str:
    """The program, or skip."""
    on_path = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if on_path is not None:
        return on_path
    if shutil.which("apt-get") and shutil.which("dpkg"):
        subprocess.run(["apt-get", "download", "nginx"], cwd=folder, capture_output=True)
        for package in folder.glob("nginx_*.deb"):
            subprocess.run(["dpkg", "-x", package, folder / "unpacked"], check=True)
    unpacked = folder / "unpacked" / "usr" / "sbin" / "nginx"
    if not unpacked.exists() or subprocess.run([unpacked, "-v"], capture_output=True).returncode:
        pytest.skip("nginx is not on the PATH, and Debian's package cannot be fetched")
    return str(unpacked)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def file_of_the_page() -> str:
    page = (ROOT / "docs" / "serve.md").read_text(encoding="utf-8")
    return page.partition("```nginx\n")[2].partition("```")[0]


class Proxy:
    """nginx with the file of the page, at ports of this machine."""

    def __init__(self, folder: Path, upstream: int) -> None:
        program, self.port = found_nginx(folder), free_port()
        if shutil.which("openssl") is None:
            pytest.skip("openssl, which makes the certificate, is not on the PATH")
        made = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
        made += " -keyout server.key -out server.crt"
        subprocess.run(made.split(), cwd=folder, check=True, capture_output=True)
        content = file_of_the_page().replace("127.0.0.1:8000", f"127.0.0.1:{upstream}")
        content = content.replace("listen 8443", f"listen 127.0.0.1:{self.port}")
        assert f":{upstream}" in content
        assert f":{self.port}" in content
        (folder / "nginx.conf").write_text(content.replace("http {", "http {" + HERE, 1))
        alone = f"daemon off; master_process off; pid {folder}/pid; error_log {folder}/log;"
        command = [program, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-g", alone]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE)
        for _ in range(100):
            time.sleep(0.1)
            with socket.socket() as connection:
                if connection.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
        self.process.kill()
        raise AssertionError(self.process.communicate()[1])

    def connect(self, here: str = "127.0.0.1") -> ssl.SSLSocket:
        """A TLS connection from an address of this machine."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        plain = socket.create_connection(("127.0.0.1", self.port), 30, (here, 0))
        return context.wrap_socket(plain)

    def ask(self, request: bytes) -> bytes:
        with self.connect() as connection:
            connection.sendall(request)
            return connection.recv(65536)


@pytest.fixture(scope="module")
def server(vectors) -> Iterator[ServerProcess]:
    with serving(vectors) as running:
        yield running


@pytest.fixture(scope="module")
def proxy(server, tmp_path_factory) -> Iterator[Proxy]:
    made = Proxy(tmp_path_factory.mktemp("nginx"), server.address[1])
    yield made
    made.process.kill()
    made.process.wait()


def asked(*headers: str, body: bytes = b"") -> bytes:
    lines = ["POST /search HTTP/1.1", "Host: h", "Content-Type: application/json", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


SEARCH = asked(f"Content-Length: {len(VECTOR)}", "Connection: close", body=VECTOR)


@contextmanager
def slow_clients(proxy: Proxy, begun: bytes, seconds: float, told: Counter) -> Iterator[None]:
    """Clients of ten addresses who send a byte a second of what they began, and come again."""
    until = time.monotonic() + seconds

    def drag(number: int) -> None:
        while time.monotonic() < until:
            try:
                with proxy.connect(f"127.0.0.{2 + number % 10}") as connection:
                    connection.sendall(begun)
                    connection.settimeout(1)
                    while time.monotonic() < until:
                        try:
                            answer = connection.recv(100)
                            told[answer[9:12].decode() or "closed"] += 1
                            break
                        except TimeoutError:
                            connection.sendall(b"x")
                    else:
                        told["held"] += 1
            except OSError as error:
                told[type(error).__name__] += 1
                time.sleep(0.2)

    threads = [threading.Thread(target=drag, args=(number,)) for number in range(SLOW)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.join()


@pytest.mark.parametrize(
    "begun",
    [asked("Content-Length: 1000000"), b"POST /search HTTP/1.1\r\nHost: h\r\nX: "],
    ids=["bodies", "headers"],
)
def test_searches_are_answered_while_200_clients_are_slow(proxy, server, begun, record_property):
    proxy.ask(SEARCH)
    pids, told, seconds, statuses = (
        (server.process.pid, proxy.process.pid),
        Counter(),
        [],
        Counter(),
    )
    before = [memory_of(pid) for pid in pids]
    most = list(before)
    with slow_clients(proxy, begun, SECONDS, told):
        time.sleep(5)  # all of them are there
        until = time.monotonic() + SECONDS - 8
        while time.monotonic() < until:
            begin = time.perf_counter()
            statuses[proxy.ask(SEARCH)[9:12]] += 1
            seconds.append(time.perf_counter() - begin)
            most = [max(old, memory_of(pid)) for old, pid in zip(most, pids, strict=True)]
            time.sleep(0.05)
    p50, p95 = np.quantile(seconds, [0.5, 0.95])
    found = {"answers": dict(statuses), "p50": p50, "p95": p95, "worst": max(seconds),
             "MB before": before, "MB most": most, "slow clients": dict(told)}  # fmt: skip
    record_property("found", str(found))
    print(found)
    assert set(statuses) == {b"200"}
    assert len(seconds) > 20
    assert max(seconds) < 10
    assert most[0] - before[0] < 10
    assert most[1] - before[1] < 30


def test_an_address_has_as_many_requests_as_the_file_says(proxy):
    """The 33rd is sent away; another address is not."""
    begun = asked("Content-Length: 1000000")
    held = [proxy.connect("127.0.0.20") for _ in range(32)]
    try:
        for one in held:
            one.sendall(begun)
        time.sleep(0.5)
        with proxy.connect("127.0.0.20") as more:
            more.sendall(begun)
            assert more.recv(100).startswith(b"HTTP/1.1 503")
        assert proxy.ask(SEARCH).startswith(b"HTTP/1.1 200")
        time.sleep(10)
        assert all(one.recv(100)[:12] in (b"HTTP/1.1 408", b"") for one in held)  # cut in time
    finally:
        for one in held:
            one.close()


def test_nginx_passes_no_request_with_two_lengths_and_none_that_is_too_long(proxy):
    chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(VECTOR), VECTOR)
    both = asked(f"Content-Length: {len(VECTOR)}", "Transfer-Encoding: chunked", body=chunks)
    assert proxy.ask(both).startswith(b"HTTP/1.1 400")
    assert proxy.ask(asked("Content-Length: 99999999")).startswith(b"HTTP/1.1 413")
    assert proxy.ask(asked("Transfer-Encoding: chunked", body=chunks)).startswith(b"HTTP/1.1 200")
