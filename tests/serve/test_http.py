"""Over a socket: every kind of body, what is refused and how, what runs at once, how it stops."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from laplace_metric.cli.serve._query import SearchAnswer
from tests.serve.conftest import options_of, pixels_of
from tests.serve.server import ServerProcess, require_extra, serving
from tests.serve.test_service import assert_is_row

require_extra()
httpx = pytest.importorskip("httpx")
CLIENTS = 32


@pytest.fixture(scope="module")
def server(shop) -> Iterator[ServerProcess]:
    with serving(shop, "--quiet", "--data", "photos") as running:
        yield running


@pytest.fixture(scope="module")
def client(server) -> Iterator:
    with httpx.Client(base_url=server.url, timeout=60) as made:
        yield made


@pytest.fixture(scope="module")
def python(shop, query_files):
    """What Python says of every query, each searched alone."""
    from laplace_metric.cli._gallery import load_gallery
    from laplace_metric.cli._output import Reporter
    from tests.serve.conftest import inside

    with inside(shop):
        index = load_gallery(shop / "index", options_of(shop), Reporter(quiet=True)).index
    return [index.search(torch.from_numpy(pixels_of(path)), 5) for path in query_files]


IMAGE = {"Content-Type": "image/png"}


def test_every_kind_of_body_gives_what_python_gives(client, query_files, python):
    content = query_files[0].read_bytes()
    asked = [
        {"content": content, "headers": IMAGE, "params": {"precision": 0.7}},
        {"content": content, "params": {"precision": 0.7}},
        {"files": {"image": ("x.png", content)}, "data": {"precision": "0.7", "k": ""}},
        {"files": {"image": ("x.png", content)}, "params": {"precision": 0.7}},
    ]
    for request in asked:
        response = client.post("/search", **request)
        assert response.status_code == 200, response.text
        answer = SearchAnswer.model_validate(response.json())
        assert_is_row(answer, python[0], 0)
        assert answer.precision == 0.7
    assert client.post("/search", content=content, params={"k": 2}).json()["accepted"] is None
    embedding = client.post("/embed", content=content).json()
    assert embedding["epistemic"] == pytest.approx(float(python[0].epistemic[0]), rel=1e-5)


def ask_by_32_clients(server, query_files) -> list[tuple[int, dict]]:
    """Rows of queries and their answers, of 12 requests of each client."""
    contents = [path.read_bytes() for path in query_files]
    begin = threading.Barrier(CLIENTS)

    def asks(number: int) -> list[tuple[int, dict]]:
        rows = [(number + 7 * i) % len(contents) for i in range(12)]
        with httpx.Client(base_url=server.url, timeout=60) as client:
            begin.wait()
            found = [client.post("/search", content=contents[row]) for row in rows]
        assert {response.status_code for response in found} == {200}
        return [(row, response.json()) for row, response in zip(rows, found, strict=True)]

    with ThreadPoolExecutor(CLIENTS) as pool:
        answers = [one for some in pool.map(asks, range(CLIENTS)) for one in some]
    assert len(answers) == CLIENTS * 12
    return answers


def test_32_clients_lose_nothing_and_get_their_own_answers(server, query_files, python):
    for row, content in ask_by_32_clients(server, query_files):
        assert_is_row(
            SearchAnswer.model_validate(content), python[row], 0, tolerance=2e-5, step=0.03
        )


JSON = {"Content-Type": "application/json"}
REFUSED = [
    ({"content": b"no image", "headers": IMAGE}, 415, "cannot be read"),
    ({"json": {"vector": [1, 2]}}, 415, "send 'image'"),
    ({"content": b'{"vector": [NaN]}', "headers": JSON}, 400, "finite"),
    ({"content": b"[" * 9000, "headers": JSON}, 400, "not JSON"),
    ({"content": b"[1]", "headers": JSON}, 400, "no JSON object"),
    ({"json": {"text": "a", "limit": 3}}, 400, "limit=3: the field is not known"),
    ({"data": {"x": "1"}}, 415, "form-urlencoded"),
    ({"content": b"x", "headers": {"Content-Type": "multipart/form-data"}}, 400, "boundary"),
    ({"content": b"x", "params": [("k", 1), ("k", 2)]}, 400, "twice"),
    ({"files": {"image": b"x"}, "data": {"k": "1"}, "params": {"k": 1}}, 400, "twice"),
    ({"files": [("image", b"x"), ("image", b"y")]}, 400, "Too many files"),
]


@pytest.mark.parametrize(("request_", "status", "said"), REFUSED)
def test_bad_bodies_are_refused_in_words(client, request_, status, said):
    response = client.post("/search", **request_)
    assert response.status_code == status, response.text
    assert said in response.json()["error"]


def address(server: ServerProcess) -> tuple[str, int]:
    host, port = server.url.removeprefix("http://").split(":")
    return host, int(port)


@pytest.mark.parametrize("chunked", [False, True], ids=["declared", "chunked"])
def test_a_gigabyte_is_refused_before_it_is_read(server, chunked):
    """A client that sends 200 MB of it before it reads gets the answer, and memory stays."""
    head = "POST /search HTTP/1.1\r\nHost: here\r\nContent-Type: image/png\r\n"
    head += (
        "Transfer-Encoding: chunked\r\n\r\n" if chunked else "Content-Length: 1000000000\r\n\r\n"
    )
    part = bytes(1_000_000)
    part = b"F4240\r\n" + part + b"\r\n" if chunked else part
    memory = resident(server)
    with socket.create_connection(address(server), timeout=60) as connection:
        connection.sendall(head.encode())
        try:
            for _ in range(200):
                connection.sendall(part)
        except (BrokenPipeError, ConnectionResetError):
            pytest.fail("the connection was cut before the client could read")
        answer = connection.makefile("rb").readline()
    assert answer.split()[1] == b"413"
    assert resident(server) - memory < 100e6


def resident(server: ServerProcess) -> float:
    """Bytes in memory of its process."""
    with open(f"/proc/{server.process.pid}/statm") as file:
        return int(file.read().split()[1]) * 4096.0


def test_too_many_at_once_are_sent_away_and_health_is_not(shop, query_files):
    content, most = query_files[0].read_bytes(), "4"
    with serving(shop, "--quiet", "--max-waiting", "1", "--max-connections", most) as server:
        waiting = []
        for _ in range(int(most)):  # whose bodies do not come
            waiting.append(socket.create_connection(address(server)))
            waiting[-1].sendall(b"POST /search HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n")
        wait_for(lambda: httpx.post(f"{server.url}/search", content=content).status_code == 503)
        busy = httpx.post(f"{server.url}/search", content=content)
        assert busy.headers["retry-after"] == "1"
        assert f"{most} connections" in busy.json()["error"]
        for path in ("healthz", "health"):
            assert httpx.get(f"{server.url}/{path}").json()["status"] == "ok"
        waiting[0].close()
        wait_for(lambda: httpx.post(f"{server.url}/search", content=content).status_code == 200)
        for _ in range(2 * int(most)):  # in all more than twice as many
            waiting.append(socket.create_connection(address(server)))
        wait_for(lambda: any(cut(connection) for connection in waiting[1:]))
        for connection in waiting:
            connection.close()


def cut(connection: socket.socket) -> bool:
    """Whether the server has closed it without an answer."""
    connection.settimeout(0.02)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionResetError:
        return True


def test_reload_is_for_this_machine_alone(client):
    for headers in (
        {"Origin": "http://elsewhere.example"},
        {"Host": "elsewhere.example"},
        {"X-Forwarded-For": "10.0.0.1"},
        {"X-Forwarded-Host": "here"},
        {"X-Real-IP": "127.0.0.1"},
        {"Via": "1.1 proxy"},
        {"Host": "["},
    ):
        response = client.post("/reload", headers=headers)
        assert response.status_code == 403
        assert "SIGHUP" in response.json()["error"]
    assert client.post("/reload").json()["items"] > 0


def test_a_reload_drops_no_request(shop, query_files):
    """By POST and by SIGHUP, while clients go on asking on connections that stay open."""
    content, going, statuses = query_files[0].read_bytes(), threading.Event(), []
    with serving(shop) as server:

        def asks() -> None:
            with httpx.Client(base_url=server.url, timeout=60) as client:
                while not going.is_set():
                    statuses.append(client.post("/search", content=content).status_code)

        threads = [threading.Thread(target=asks) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(2):
            assert httpx.post(f"{server.url}/reload", timeout=60).status_code == 200
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: any("loaded again" in line for line in server.notes))
        broken = shop / "index" / "gallery.json"
        text = broken.read_text()
        broken.write_text("{")
        refused = httpx.post(f"{server.url}/reload", timeout=60)
        broken.write_text(text)
        assert refused.status_code == 500
        assert "the old one goes on" in refused.json()["error"]
        wait_for(lambda: len(statuses) > 20)
        going.set()
        for thread in threads:
            thread.join()
        metrics = httpx.get(f"{server.url}/metrics").text
    assert set(statuses) == {200}
    assert 'reloads_total{result="loaded"} 3.0' in metrics
    assert 'reloads_total{result="failed"} 1.0' in metrics


def wait_for(condition, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_stop_resets_no_connection_that_stays_open(shop, query_files):
    """Eight clients ask again and again on connections of theirs; all get whole answers."""
    content, count = query_files[0].read_bytes(), [0] * 8

    def asks(number: int) -> tuple[str, list[int]]:
        statuses, last = [], ""
        connection = http.client.HTTPConnection(*address(server), timeout=30)
        for _ in range(2000):
            try:
                connection.request("POST", "/search", content, IMAGE)
            except ConnectionRefusedError:
                return last, statuses
            response = connection.getresponse()
            response.read()
            statuses.append(response.status)
            last = response.headers.get("connection", "")
            count[number] += 1
        return "never", statuses

    with serving(shop, "--quiet") as server, ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(asks, number) for number in range(8)]
        wait_for(lambda: min(count) > 3)
        server.process.send_signal(signal.SIGTERM)
        found = [one.result() for one in asked]
        assert server.process.wait(60) == 0
    assert {status for _, statuses in found for status in statuses} == {200}
    assert [last for last, _ in found] == ["close"] * 8


def test_a_key_opens_everything_but_liveness(shop, query_files, tmp_path):
    content, key = query_files[0].read_bytes(), "k" * 32
    (tmp_path / "key").write_text(f"{key}\n")
    options = "--host", "0.0.0.0", "--api-key-file", str(tmp_path / "key")
    with serving(shop, "--quiet", *options) as server:
        url = server.url.replace("0.0.0.0", "127.0.0.1")
        assert httpx.get(f"{url}/health").status_code == 200
        for path in ("/", "/metrics", "/docs", "/openapi.json"):
            assert httpx.get(url + path).status_code == 401
        refused = httpx.post(f"{url}/reload")
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        held = {"X-API-Key": key, "Via": "1.1 proxy", "Host": "elsewhere.example"}
        assert httpx.post(f"{url}/search", content=content, headers=held).status_code == 200
        assert httpx.post(f"{url}/reload", headers=held, timeout=60).json()["items"] > 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_stop_answers_what_was_asked(shop, query_files, number, code):
    """Of a request whose body is still on its way when the server is told to stop."""
    content = query_files[0].read_bytes()
    with serving(shop, "--quiet") as server:
        with socket.create_connection(address(server), timeout=30) as connection:
            head = f"POST /search HTTP/1.1\r\nHost: h\r\nContent-Length: {len(content)}\r\n\r\n"
            connection.sendall(head.encode() + content[:10])
            time.sleep(0.5)
            server.process.send_signal(number)
            time.sleep(0.5)
            connection.sendall(content[10:])
            received = b"".join(iter(lambda: connection.recv(65536), b""))
        assert received.startswith(b"HTTP/1.1 200")
        body = json.loads(received.split(b"\r\n\r\n", 1)[1])
        assert len(body["neighbours"]) == 5
        assert server.process.wait(60) == code


def test_drift_is_seen_on_metrics_and_page(shop):
    import io

    from PIL import Image

    generator = np.random.default_rng(0)
    with (
        serving(shop, "--quiet") as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        assert "No drift" in client.get("/").text
        for _ in range(150):  # noise, which the index has never seen
            file = io.BytesIO()
            noise = generator.integers(0, 256, (28, 28), dtype=np.uint8)
            Image.fromarray(noise).save(file, "PNG")
            client.post("/search", content=file.getvalue())
        metrics, page = client.get("/metrics").text, client.get("/").text
    assert 'laplace_metric_monitor_alarm{signal="epistemic"} 1.0' in metrics
    found = re.search(r'id="drift" class="decision no">([^<]*)', page)
    assert found is not None
    assert "ALARM at query" in found[1]


def test_the_schema_names_every_path_and_says_what_answers_hold(client):
    schema = client.get("/openapi.json").json()
    paths = {"/search", "/embed", "/healthz", "/metrics", "/reload", "/items/{row}"}
    assert set(schema["paths"]) == paths
    answer = schema["components"]["schemas"]["SearchAnswer"]["properties"]
    assert set(answer) == set(SearchAnswer.model_fields)
    page = client.get("/docs")
    assert page.status_code == 200
    for path in paths:
        assert path in page.text
    assert "//" not in re.sub(r"http://127\.0\.0\.1:8000", "", page.text)


def text_of(page: str, name: str) -> str:
    found = re.search(rf'id="{name}"[^>]*>([^<]*)', page)
    assert found is not None, page
    return found[1]


def test_the_form_works_without_a_script(client, query_files):
    empty = client.get("/").text
    assert "<form" in empty
    assert "//" not in empty  # nothing from outside
    content = query_files[0].read_bytes()
    files = {"image": ("x.png", content, "image/png")}
    answered = client.post("/", files=files, data={"k": "3", "precision": "0.7"})
    json = client.post("/search", files=files, data={"k": "3", "precision": "0.7"}).json()
    assert answered.status_code == 200
    assert text_of(answered.text, "decision").split(":")[0].split()[0] in ("Answer", "Abstain")
    for near in json["neighbours"]:
        assert near["id"] in answered.text
        assert f"match {100 * near['match_probability']:.1f} %" in answered.text
        picture = client.get(f"/items/{near['row']}")
        assert picture.content.startswith(b"\x89PNG")
    assert answered.text.count("<li>") == 3
    wrong = client.post("/", files={"image": ("x.png", b"<script>alert(1)</script>")})
    assert wrong.status_code == 415
    assert "cannot be read" in text_of(wrong.text, "error")
    unsafe = client.post("/", files=files, data={"k": "<script>alert(1)</script>"})
    assert unsafe.status_code == 400
    assert "<script>alert" not in unsafe.text
    assert "default-src 'none'" in answered.headers["content-security-policy"]


def test_items_are_images_of_the_index_alone(client):
    for row in ("-1", "99999", "x", "1.0", "\u0661"):
        response = client.get(f"/items/{row}")
        assert response.status_code == 404
        assert "no item" in response.json()["error"]
