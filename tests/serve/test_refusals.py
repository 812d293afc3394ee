"""What is refused, with which status and words: fields, bodies, images, the key, too many."""

from __future__ import annotations

import io
import json
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from laplace_metric import LaplaceEmbedder
from laplace_metric.cli import main
from laplace_metric.cli._options import parser_of
from laplace_metric.errors import InputError
from tests.serve.fuzz import fuzz
from tests.serve.server import require_extra

require_extra()
from starlette.testclient import TestClient  # noqa: E402

from laplace_metric import serve as serving  # noqa: E402
from laplace_metric.cli import _served as served  # noqa: E402
from laplace_metric.serve import create_app  # noqa: E402

JSON = {"Content-Type": "application/json"}
IMAGE = {"Content-Type": "image/png"}
GOOD = [0.5] * 64


@pytest.mark.parametrize(
    ("content", "status", "said"),
    [
        (b"", 400, "no JSON"),
        (b"[" * 9000, 400, "no JSON"),
        (b"[1]", 400, "no JSON object"),
        (b'{"vectors": [[NaN]]}', 400, "no JSON"),
        (b'{"vectors": [[1e999]]}', 422, r"vectors[0][0]: Input should be a finite number"),
        ({}, 422, "send vectors"),
        ({"texts": []}, 422, "send vectors"),
        ({"vectors": [], "texts": []}, 422, "and nothing else"),
        ({"vectors": [], "k": 0}, 422, "k: Input should be greater"),
        ({"vectors": [], "precision": 0.9}, 422, "not calibrated"),
        ({"vectors": [[]]}, 422, "vectors[0]: List should have at least 1 item"),
        ({"vectors": [GOOD] * 65}, 422, "vectors: List should have at most 64 items"),
        ({"vectors": [[0.5] * 70_000]}, 422, "vectors[0]: List should have at most 65536"),
        ({"vectors": [GOOD, [1, "two"]]}, 422, "vectors[1][1]"),
        ({"vectors": [GOOD, GOOD[:63]]}, 422, "vectors[1] has 63 numbers, vectors[0] 64"),
        ({"vectors": [GOOD[:63]]}, 422, "63"),
        ({"vectors": [[1e200] * 64]}, 422, "infinity"),
        ({"vectors": GOOD}, 422, "vectors[0]"),
        ({"texts": ["a"]}, 422, "this index has vectors"),
        ({"vectors": [GOOD], "texts": ["a"]}, 422, "and nothing else"),
        ({"vectors": [GOOD], "limit": 3}, 422, "limit: Extra inputs"),
        ({"vectors": [GOOD], "k": 0}, 422, "k: Input should be greater"),
        ({"vectors": [GOOD], "k": 2.5}, 422, "k: "),
        ({"vectors": [GOOD], "k": 1001}, 422, "k: "),
        ({"vectors": [GOOD], "k": 301}, 422, "k=301"),
        ({"vectors": [GOOD], "precision": 1}, 422, "precision: "),
        ({"vectors": [GOOD], "precision": float("nan")}, 400, "no JSON"),
    ],
)
def test_queries_that_cannot_be_answered_are_refused_in_words(
    vectors, start, content, status, said
):
    client = start(vectors)
    content = content if isinstance(content, bytes) else json.dumps(content).encode()
    response = client.post("/search", content=content, headers=JSON)
    assert response.status_code == status, response.text
    assert said in response.json()["error"]


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ([" "], "texts[0]"),
        (["a", "x" * 20_001], "texts[1]"),
        (["\ud800"], "JSON"),
        ([3], "texts[0]"),
    ],
)
def test_texts_that_cannot_be_read_are_refused(library, start, texts, said):
    response = start(library).post(
        "/search", content=json.dumps({"texts": texts}).encode(), headers=JSON
    )
    assert response.status_code in (400, 422)
    assert said in response.json()["error"]


def png(width: int, height: int, mode: str = "L") -> bytes:
    file = io.BytesIO()
    Image.new(mode, (width, height)).save(file, "PNG")
    return file.getvalue()


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"


def test_images_that_cannot_be_read_or_are_too_large_are_refused(
    shop, start, query_files, monkeypatch
):
    monkeypatch.setattr(served, "IMAGE_BYTES", 20_000)
    client, good = start(shop), query_files[0].read_bytes()
    cases = [
        (b"no image at all", 415),
        (good[:60], 415),
        (png(8, 8, "I;16"), 415),
        (EPS, 415),
        (png(51, 50), 413),
        (png(40, 26, "RGBA"), 413),
        (png(50, 50), 200),
        (png(40, 25, "RGBA"), 200),
    ]
    for content, status in cases:
        response = client.post("/search", content=content, headers=IMAGE)
        assert response.status_code == status, response.text
        assert "0x" not in response.text  # an address in memory
    for refused in ({"k": 0}, {"q": "1"}):
        response = client.post("/search", content=good, headers=IMAGE, params=refused)
        assert response.status_code == 422
    assert client.post("/search", json={"vectors": [GOOD]}).status_code == 415


def test_a_body_is_refused_by_its_length_and_while_it_arrives(vectors, start):
    client = start(vectors, "--max-body", "0.01")
    most = int(0.01 * 2**20)
    body = b'{"vectors": [[' + b"1.5, " * 4000 + b"1.5]]}"
    taken = []

    def parts():
        for place in range(0, len(body), 1000):
            taken.append(place)
            yield body[place : place + 1000]

    for content in (body, parts()):  # the second one is sent in chunks, without a length
        response = client.post("/search", content=content, headers=JSON)
        assert response.status_code == 413, response.text
        assert f"{most:,}" in response.json()["error"]
    fits = json.dumps({"vectors": [GOOD]}).encode()
    assert len(fits) < most
    assert client.post("/search", content=fits, headers=JSON).status_code == 200


def test_a_key_opens_everything_but_liveness_and_the_schema(vectors, start, monkeypatch, tmp_path):
    (tmp_path / "key").write_text("0123456789abcdef\n")
    client = start(vectors, "--api-key-file", str(tmp_path / "key"))
    asked = {"vectors": [GOOD]}
    for given in ({}, {"Authorization": "Bearer 0123456789abcdeF"}, {"Authorization": "Bearer "},
                  {"Authorization": "Basic 0123456789abcdef"}, {"X-API-Key": "0123456789abcdef"},
                  {"Authorization": b"Bearer \xff\xfe"}):  # fmt: skip
        for method, path in (("POST", "/search"), ("POST", "/embed"), ("GET", "/metrics")):
            response = client.request(method, path, json=asked, headers=given)
            assert response.status_code == 401, (given, path)
            assert response.headers["www-authenticate"] == "Bearer"
    right = {"Authorization": "Bearer 0123456789abcdef"}
    assert client.post("/search", json=asked, headers=right).status_code == 200
    assert client.get("/metrics", headers=right).status_code == 200
    assert client.get("/healthz").status_code == 200
    assert client.get("/openapi.json").status_code == 200
    monkeypatch.setenv("LAPLACE_METRIC_API_KEY", "fedcba9876543210")
    other = {"Authorization": "Bearer fedcba9876543210"}
    assert start(vectors).post("/search", json=asked).status_code == 401
    assert start(vectors).post("/search", json=asked, headers=other).status_code == 200


def test_the_key_is_compared_in_constant_time(vectors, start, monkeypatch):
    compared = []

    def compare(one, two):
        compared.append((one, two))
        return one == two

    monkeypatch.setattr(serving.secrets, "compare_digest", compare)
    monkeypatch.setenv("LAPLACE_METRIC_API_KEY", "fedcba9876543210")
    headers = {"Authorization": "Bearer x"}
    assert start(vectors).post("/search", json={}, headers=headers).status_code == 401
    assert compared == [(b"x", b"fedcba9876543210")]


@pytest.mark.parametrize("text", ["short", "two words of a key", "ä" * 20])
def test_a_key_that_cannot_be_used_is_refused(text, tmp_path, monkeypatch):
    path = tmp_path / "key"
    path.write_text(text)
    options = parser_of("serve").parse(["index", "--api-key-file", str(path)])
    with pytest.raises(InputError, match="16 to 4,096"):
        serving.read_key(options)
    path.unlink()
    with pytest.raises(InputError, match="No such file"):
        serving.read_key(options)
    monkeypatch.setenv("LAPLACE_METRIC_API_KEY", text)
    with pytest.raises(InputError, match="LAPLACE_METRIC_API_KEY"):
        serving.read_key(parser_of("serve").parse(["index"]))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "box", "192.0.2.1"])
def test_a_host_that_others_reach_needs_a_key(host, vectors, capsys):
    assert main(["serve", str(vectors / "index"), "--host", host, "--quiet"]) == 2
    assert "--insecure" in capsys.readouterr().err


def test_a_recipe_that_is_not_trusted_runs_nothing(shop, capsys):
    assert main(["serve", str(shop / "index"), "--quiet"]) == 2
    assert "--trust-recipe" in capsys.readouterr().err


def test_a_posterior_of_python_does_not_say_what_its_inputs_are(shop, tmp_path, start):
    from tests.serve.conftest import gallery_of, inside

    gallery = gallery_of(shop)
    gallery.index.save(tmp_path / "index")
    gallery.posterior.embedder.save(tmp_path / "posterior")
    with inside(shop), pytest.raises(InputError, match=r"create_app\(index, read=\.\.\.\)"):
        serving._application(
            parser_of("serve").parse([
                str(tmp_path / "index"), "--posterior", str(tmp_path / "posterior"),
                "--model", "served_model:embedder", "--quiet",
            ])
        )  # fmt: skip


def embedder_of_digits(model: torch.nn.Module):
    x, y = load_digits(return_X_y=True)
    x, y = torch.from_numpy(x[:300]).float() / 16, torch.from_numpy(y[:300])
    batches = [(x[i : i + 50], y[i : i + 50]) for i in range(0, 300, 50)]
    return LaplaceEmbedder(model).fit(batches, progress=False), x, y


class Fails(torch.nn.Module):
    """Fails as told where the first number of an input is negative."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.head, self.error = torch.nn.Linear(64, 8), error

    def forward(self, x):
        if bool((x[:, 0] < 0).any()):
            raise self.error
        return self.head(x)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RuntimeError("secret: weights.pt of me"), 422),
        (KeyError("secret: weights.pt of me"), 500),
        (torch.cuda.OutOfMemoryError("secret: weights.pt of me"), 500),
    ],
)
def test_exceptions_of_the_model_tell_a_client_nothing_of_the_machine(error, status, caplog):
    embedder, x, y = embedder_of_digits(Fails(error))
    app = create_app(embedder.index(x, y), embedder)
    client = TestClient(app, raise_server_exceptions=False)
    asked = {"vectors": [[-1.0] * 64]}
    with caplog.at_level(logging.WARNING):
        response = client.post("/search", json=asked)
    assert response.status_code == status
    assert "secret" not in response.text
    assert "log has the reason" in response.json()["error"]
    assert client.post("/search", json={"vectors": x[:1].tolist()}).status_code == 200


class Waits(torch.nn.Module):
    """Waits for ``gate`` where it is closed, and counts the rows of each call."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.gate, self.rows = torch.nn.Linear(64, 8), threading.Event(), []
        self.gate.set()

    def forward(self, x):
        self.rows.append(len(x))
        self.gate.wait(60)
        return self.head(x)


def test_more_requests_than_may_wait_get_503_and_the_others_their_answers():
    model = Waits()
    embedder, x, y = embedder_of_digits(model)
    client = TestClient(create_app(embedder.index(x, y), embedder, waiting=3))
    model.gate.clear()
    model.rows.clear()
    done = threading.Semaphore(0)

    def ask(row: int):
        response = client.post("/search", json={"vectors": x[row : row + 1].tolist(), "k": 1})
        done.release()
        return row, response

    with ThreadPoolExecutor(12) as pool:
        asked = [pool.submit(ask, 0)]
        deadline = time.monotonic() + 30
        while not model.rows:  # until the model has it
            assert time.monotonic() < deadline
            time.sleep(0.01)
        asked += [pool.submit(ask, row) for row in range(1, 12)]
        for _ in range(8):  # one is with the model, three wait
            assert done.acquire(timeout=30)
        assert client.get("/healthz").status_code == 200
        model.gate.set()
        answers = dict(one.result() for one in asked)
    refused = [one for one in answers.values() if one.status_code == 503]
    assert len(refused) == 8
    assert {one.headers["retry-after"] for one in refused} == {"1"}
    for row, response in answers.items():
        if response.status_code == 200:
            assert response.json()[0]["neighbours"][0]["id"] == row


def test_what_waits_goes_in_together_and_clients_keep_their_own_options(monkeypatch):
    from laplace_metric._utils import batching

    monkeypatch.setattr(batching, "BUDGET", 1e9)  # whatever waits goes in together
    model = Waits()
    embedder, x, y = embedder_of_digits(model)
    app = create_app(embedder.index(x, y), embedder)
    client = TestClient(app)
    first = {"vectors": x[:1].tolist(), "k": 1}
    assert client.post("/search", json=first).status_code == 200  # now it knows that it is quick
    model.gate.clear()
    model.rows.clear()
    asked = [(1, 2), (2, 3), (3, 2), (4, 2)]  # rows of x, and k
    with ThreadPoolExecutor(5) as pool:
        waits = pool.submit(client.post, "/search", json=first)
        while not model.rows:
            pass
        answers = [
            pool.submit(client.post, "/search", json={"vectors": x[row : row + 1].tolist(), "k": k})
            for row, k in asked
        ]
        threading.Event().wait(0.5)  # all of them are queued
        model.gate.set()
        found = [one.result().json()[0]["neighbours"] for one in answers]
        assert waits.result().status_code == 200
    for (row, k), near in zip(asked, found, strict=True):
        assert len(near) == k
        assert near[0]["id"] == row
    assert model.rows[0] == 1
    assert sorted(model.rows[1:]) == [1, 3]  # those of k=2 in one call


def test_what_cannot_be_served_is_refused_before_any_request():
    x, y = load_digits(return_X_y=True)
    embedder = LaplaceEmbedder.from_embeddings(x[:200], y[:200])
    index = embedder.index(x[:200], y[:200])
    for given, named in [
        ("guard.safetensors", "is 'guard.safetensors'"),
        (Path("guard.safetensors"), "is 'guard.safetensors'"),
        (torch.ones(3), "is a Tensor"),
        (embedder, "is a LaplaceEmbedder"),
    ]:
        with pytest.raises(InputError, match=rf"index {named}.*a Guard.*Guard\.load\(path\)"):
            create_app(given)
    with pytest.raises(InputError, match=r"embedder is 'p'.*LaplaceEmbedder\.load\(path"):
        create_app(index, "p")


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"read": "vector"}, "read='vector'"),
        ({"read": None}, "read=None"),
        ({"precision": 1.5}, "precision=1.5"),
        ({"batch": 0}, "batch=0"),
        ({"waiting": -1}, "waiting=-1"),
        ({"max_body": 2.5}, "max_body=2.5"),
    ],
)
def test_settings_that_cannot_be_are_named(how, said):
    x, y = load_digits(return_X_y=True)
    index = LaplaceEmbedder.from_embeddings(x[:50], y[:50]).index(x[:50], y[:50])
    with pytest.raises(InputError, match=said):
        create_app(index, **how)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--port", "99999"], "'99999' is not a whole number from 0 to 65,535"),
        (["--port", "-1"], "'-1' is not a whole number from 0 to 65,535"),
        (["--host", "no.such.host.invalid", "--insecure"], "--host 'no.such.host.invalid'"),
        (["--host", "203.0.113.7", "--insecure"], "--host '203.0.113.7'"),
        (["--host", "a..b", "--insecure"], "--host 'a..b'"),
        (["--host", "", "--insecure"], "--host '' is empty"),
        (["--port", "0", "--coarser", "no.csv"], "no.csv is no table"),
    ],
)
def test_an_option_that_cannot_be_is_told_before_anything_is_loaded(words, said, capsys):
    assert main(["serve", "no index", *words]) == 2
    shown = capsys.readouterr().err.splitlines()
    assert len(shown) == 1
    assert said in shown[0]


def test_words_of_the_environment_with_an_open_quote_are_refused(monkeypatch):
    monkeypatch.setenv("LAPLACE_METRIC_SERVE", "'my index --precision 0.9")
    with pytest.raises(InputError, match="LAPLACE_METRIC_SERVE=.*no closing quotation"):
        create_app()


@pytest.mark.parametrize(
    ("kind", "statuses"),
    [("vectors", {400, 404, 405, 413, 422}), ("shop", {200, 404, 405, 413, 415, 422})],
)
def test_every_request_gets_an_answer_or_a_refusal(
    kind, statuses, request, start, query_files, caplog
):
    """No request of a seeded generator gets a 500 or a traceback."""
    app = start(request.getfixturevalue(kind)).app
    found = fuzz(app, query_files[0].read_bytes(), seed=1, count=400)
    assert {status for _, status in found} >= statuses
    assert sum(found.values()) == 400
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR]
