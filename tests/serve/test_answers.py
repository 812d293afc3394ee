"""Answers over HTTP are those of Python, for every kind of index."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from laplace_metric import Guard, LaplaceEmbedder
from laplace_metric.errors import InputError, NotFittedError
from laplace_metric.search import IVF
from tests.serve.conftest import gallery_of, pixels_of
from tests.serve.server import require_extra

require_extra()
from starlette.testclient import TestClient  # noqa: E402

from laplace_metric.serve import create_app  # noqa: E402

IMAGE = {"Content-Type": "image/png"}


def assert_is_row(answer, result, row, tolerance=0.0, step=0.0):
    """An answer is a row of a ``SearchResult``; to the last bit, unless a tolerance is given.

    A p-value counts held-out queries, so that the last bits of ties move it, at most by ``step``.
    """
    close = {"rtol": tolerance, "atol": tolerance}
    near = answer["neighbours"]
    assert [n["id"] for n in near] == result.ids[row].tolist()
    assert [n["label"] for n in near] == result.labels[row].tolist()
    for name in ("distance", "distance_sd", "match_probability"):
        if getattr(result, name) is not None:
            told = [n[name] for n in near]
            np.testing.assert_allclose(told, getattr(result, name)[row].numpy(), **close)
    for name in ("epistemic", "ambiguity"):
        np.testing.assert_allclose(answer[name], float(getattr(result, name)[row]), **close)
    if result.label is not None:
        assert answer["label"] == result.label[row]
        told = float(result.label_probability[row])
        np.testing.assert_allclose(answer["probability"], told, **close)
        np.testing.assert_allclose(answer["p_value"], float(result.p_value[row]), rtol=0, atol=step)


def test_images_are_answered_as_in_python(shop, start, query_files):
    client, index = start(shop), gallery_of(shop).index
    rule = index.calibration.guarantee(precision=0.7, of="label")
    reasons = set()
    for path in query_files:
        result = index.search(torch.from_numpy(pixels_of(path)), 4)
        response = client.post(
            "/search", content=path.read_bytes(), headers=IMAGE, params={"k": 4, "precision": 0.7}
        )
        assert response.status_code == 200, response.text
        (answer,) = response.json()
        assert_is_row(answer, result, 0)
        sure = float(result.label_probability[0]) >= rule.value
        unknown = float(result.p_value[0]) <= rule.alpha
        assert answer["answered"] == (sure and not unknown)
        expected = "unfamiliar" if unknown else "" if sure else "uncertain"
        assert answer["reason"] == expected
        reasons.add(expected)
    assert len(reasons) > 1  # the queries show more than one outcome
    (plain,) = client.post("/search", content=path.read_bytes(), headers=IMAGE).json()
    assert plain["answered"] is plain["reason"] is None
    assert len(plain["neighbours"]) == 5


def test_vectors_are_answered_as_in_python_also_without_a_calibration(vectors, start):
    client, gallery = start(vectors), gallery_of(vectors)
    queries = np.load(vectors / "queries.npy")[:7]
    result = gallery.index.search(queries, 3)
    response = client.post("/search", json={"vectors": queries.tolist(), "k": 3})
    answers = response.json()
    assert len(answers) == 7
    for row, answer in enumerate(answers):
        assert_is_row(answer, result, row)
        assert answer["label"] is answer["probability"] is answer["answered"] is None
    refused = client.post("/search", json={"vectors": queries.tolist(), "precision": 0.9})
    assert refused.status_code == 422
    assert "not calibrated" in refused.json()["error"]


def test_texts_are_answered_as_in_python(library, start):
    client, index = start(library), gallery_of(library).index
    texts = ["ship wave harbour", "thunder star", "Anchor & <b>salt</b> ü"]
    result = index.search(texts, 2)
    for row, answer in enumerate(client.post("/search", json={"texts": texts, "k": 2}).json()):
        assert_is_row(answer, result, row)


def test_embeddings_are_those_of_python(shop, start, query_files):
    client, embedder = start(shop), gallery_of(shop).posterior.embedder
    expected = embedder(torch.from_numpy(pixels_of(query_files[0])))
    found = client.post("/embed", content=query_files[0].read_bytes(), headers=IMAGE)
    (answer,) = found.json()
    assert answer["mean"] == expected.mean[0].tolist()
    assert answer["variance"] == expected.variance[0].tolist()
    assert answer["epistemic"] == float(expected.epistemic[0])
    assert answer["ambiguity"] == float(expected.ambiguity[0])


@pytest.fixture(scope="module")
def digits():
    x, y = load_digits(return_X_y=True)
    return x.astype(np.float32), y


def test_a_guard_answers_as_it_does_in_python(digits, tmp_path, start):
    x, y = digits
    guard = Guard(x[:900], y[:900], precision=0.95)
    queries = np.concatenate([x[900:960], 16 - x[900:904]])
    expected = guard.ask(queries)
    guard.save(tmp_path / "index")
    # 64 queries at once; and the same guard from its folder
    for client in (TestClient(create_app(guard)), start(tmp_path)):
        answers = client.post("/search", json={"vectors": queries.tolist(), "k": 1}).json()
        assert [a["reason"] for a in answers] == expected.reason.tolist()
        told = [a["label"] if a["answered"] else None for a in answers]
        assert told == expected.label.tolist()
        np.testing.assert_allclose(
            [a["probability"] for a in answers], expected.probability, rtol=1e-5
        )


def test_an_empty_batch_has_empty_answers(digits, vectors, library, start):
    x, y = digits
    client = TestClient(create_app(Guard(x[:900], y[:900], precision=0.95)))
    for path in ("/search", "/embed"):
        assert client.post(path, json={"vectors": []}).json() == []
    assert client.post("/search", json={"vectors": [], "precision": 0.9}).json() == []
    assert start(vectors).post("/search", json={"vectors": []}).json() == []
    assert start(library).post("/search", json={"texts": []}).json() == []


def test_a_new_calibration_brings_its_own_rules(digits):
    x, y = digits
    guard = Guard(x[:900], y[:900], precision=0.95)
    client = TestClient(create_app(guard))

    def answered(**how):
        found = client.post("/search", json={"vectors": x[900:964].tolist(), "k": 1, **how}).json()
        return [(one["answered"], one["reason"]) for one in found]

    before = answered(), answered(precision=0.9)
    noise = np.random.default_rng(0).normal(0, 12, (600, 64)).astype(np.float32)
    guard.index.calibrate(x[900:1500] + noise, y[900:1500])
    refused = client.post("/search", json={"vectors": x[900:901].tolist()})
    assert refused.status_code == 422  # with these it cannot be guaranteed any more
    assert "0.95 cannot be guaranteed" in refused.json()["error"]
    guard.index.calibrate(x[900:1500] + 0.4 * noise, y[900:1500])
    found = guard.index.search(x[900:964], 1)
    after = []
    for precision in (0.95, 0.9):
        answers = guard.index.guarantee(precision=precision)(found)
        after.append(list(zip(answers.answered.tolist(), answers.reason.tolist(), strict=True)))
    assert (answered(), answered(precision=0.9)) == tuple(after)
    assert tuple(after) != before


def test_an_index_whose_matches_calibrated_it_decides_about_the_nearest_item(digits):
    x, y = digits
    embedder = LaplaceEmbedder.from_embeddings(x[:300], y[:300])
    index = embedder.index(x[:600])
    index.calibrate(x[600:1200], matches=[np.flatnonzero(y[:600] == one) for one in y[600:1200]])
    client = TestClient(create_app(index, embedder, precision=0.8))
    result = index.search(x[1200:1230], 2)
    rule = index.calibration.guarantee(precision=0.8, of="match")
    answers = client.post("/search", json={"vectors": x[1200:1230].tolist(), "k": 2}).json()
    assert [a["answered"] for a in answers] == rule(result).answered.tolist()
    assert [a["label"] for a in answers] == [None] * 30
    expected = result.match_probability[:, 0].numpy()
    np.testing.assert_allclose([a["probability"] for a in answers], expected)


def test_an_index_alone_has_no_embeddings(digits):
    x, y = digits
    index = LaplaceEmbedder.from_embeddings(x[:300], y[:300]).index(x[:300], y[:300])
    client = TestClient(create_app(index))
    assert client.post("/embed", json={"vectors": x[:1].tolist()}).status_code == 404
    assert client.get("/healthz").json() == {
        "items": 300,
        "queries": "vectors",
        "calibrated": False,
    }
    with pytest.raises(NotFittedError, match="not calibrated"):
        create_app(index, precision=0.9)


def test_an_image_is_read_by_the_function_that_python_gives(digits, query_files):
    x, y = digits
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 16))
    images = torch.from_numpy(x[:300]).reshape(-1, 1, 8, 8) / 16
    batches = [(images[i : i + 50], torch.from_numpy(y[i : i + 50])) for i in range(0, 300, 50)]
    embedder = LaplaceEmbedder(model).fit(batches, progress=False)

    def read(image):
        return torch.from_numpy(np.asarray(image.convert("L"), dtype=np.float32) / 255)[None]

    client = TestClient(create_app(embedder.index(images, y[:300]), embedder, read=read))
    path = query_files[0]
    (answer,) = client.post("/embed", content=path.read_bytes(), headers=IMAGE).json()
    expected = embedder(torch.from_numpy(pixels_of(path)))
    assert answer["mean"] == expected.mean[0].tolist()


def test_a_guarantee_that_cannot_hold_is_refused_at_the_start(shop, start):
    with pytest.raises(InputError, match="cannot be guaranteed"):
        start(shop, "--precision", "0.9999")


def test_the_environment_must_name_an_index(monkeypatch):
    monkeypatch.delenv("LAPLACE_METRIC_SERVE", raising=False)
    with pytest.raises(InputError, match="LAPLACE_METRIC_SERVE"):
        create_app()


def test_the_schema_names_every_path_and_every_field(shop, start):
    schema = start(shop).get("/openapi.json").json()
    assert set(schema["paths"]) == {"/search", "/embed", "/metrics", "/healthz"}
    text = json.dumps(schema)
    for name in ("vectors", "texts", "precision", "neighbours", "reason", "HTTPBearer"):
        assert f'"{name}"' in text
    content = schema["paths"]["/search"]["post"]["responses"]["200"]["content"]
    assert content["application/json"]["schema"]["items"]["$ref"].endswith("/SearchAnswer")


def test_metrics_count_requests_decisions_and_calls(shop, start, query_files):
    client = start(shop, "--precision", "0.7")
    answers = [
        client.post("/search", content=path.read_bytes(), headers=IMAGE).json()[0]
        for path in query_files[:20]
    ]
    client.post("/search", content=b"no image", headers=IMAGE)
    client.get("/a/path/that/a/client/made/up")
    lines = client.get("/metrics").text.splitlines()
    decided = [answer["reason"] or "answered" for answer in answers]
    for word in set(decided):
        count = f"{float(decided.count(word))}"
        assert f'laplace_metric_answers_total{{reason="{word}"}} {count}' in lines
    assert 'laplace_metric_requests_total{path="/search",status="200"} 20.0' in lines
    assert 'laplace_metric_requests_total{path="/search",status="415"} 1.0' in lines
    assert 'laplace_metric_requests_total{path="other",status="404"} 1.0' in lines
    assert "laplace_metric_model_calls_total 20.0" in lines
    assert "laplace_metric_model_queries_total 20.0" in lines
    assert f"laplace_metric_index_items {len(gallery_of(shop).index)}.0" in lines
    assert 'laplace_metric_request_seconds_count{path="/search"} 21.0' in lines


def test_an_approximate_engine_that_finds_fewer_gives_fewer_neighbours(digits):
    pytest.importorskip("faiss")
    x, y = digits
    embedder = LaplaceEmbedder.from_embeddings(x[:300], y[:300])
    index = embedder.index(x[:300], y[:300], engine=IVF(lists=30, probes=1))
    result = index.search(x[900:910], 40)
    found = (result.positions >= 0).sum(1).tolist()
    assert min(found) < 40
    answers = TestClient(create_app(index)).post(
        "/search", json={"vectors": x[900:910].tolist(), "k": 40}
    )
    assert [len(answer["neighbours"]) for answer in answers.json()] == found


def test_answers_among_some_items():
    x, y = load_digits(return_X_y=True)
    x = x.astype(np.float32)
    guard = Guard(x[:300], y[:300], precision=0.8)
    client = TestClient(create_app(guard))
    few = np.flatnonzero(y[:300] == 4)
    body = {"vectors": x[300:330].tolist(), "k": 40, "among": few.tolist()}
    answers = client.post("/search", json=body).json()
    result = guard.index.search(x[300:330], 40, among=few)
    for row, answer in enumerate(answers):
        assert [near["id"] for near in answer["neighbours"]] == result.ids[row, : len(few)].tolist()
        assert answer["label"] == 4
        assert answer["probability"] == pytest.approx(float(result.label_probability[row]))
    assert {answer["reason"] for answer in answers} > {""}
    for among, told in (
        ([3, 900], "among [900] are not in the index"),
        (["3"], "whose ids are numbers"),
        ([], "among leaves none of the 300 items"),
        ([1.5], "among[0]"),
        ([True], "among[0]"),
    ):
        refused = client.post("/search", json={**body, "among": among})
        assert refused.status_code == 422
        assert told in refused.json()["error"]


def test_a_guard_with_coarser_answers_says_the_level(digits, tmp_path, start):
    x, y = digits
    x = (x + np.random.default_rng(0).normal(0, 6, x.shape)).astype(np.float32)
    looks = {digit: "one" if digit in (1, 4, 7) else "other" for digit in range(10)}
    guard = Guard(x[:600], y[:600], precision=0.9, coarser=looks)
    expected = guard.ask(x[600:660])
    assert {0, 1} <= set(expected.level)
    likeliest = guard.index.search(x[600:660], 1).label
    guard.save(tmp_path / "index")
    (tmp_path / "looks.csv").write_text(
        "\n".join(["label,looks", *(f"{digit},{name}" for digit, name in looks.items())])
    )
    alone = guard.at(0.9, coarser=False)
    for client in (
        TestClient(create_app(guard)),
        TestClient(create_app(alone, coarser=looks)),
        start(tmp_path, "--coarser", "looks.csv"),
    ):
        answers = client.post("/search", json={"vectors": x[600:660].tolist()})
        for row, answer in enumerate(answers.json()):
            assert answer["level"] == expected.level[row]
            given = expected.answered[row]
            assert answer["label"] == (expected.label[row] if given else likeliest[row])
            if given:
                assert answer["probability"] == pytest.approx(expected.probability[row])
    answers = TestClient(create_app(alone)).post("/search", json={"vectors": x[600:601].tolist()})
    assert answers.json()[0]["level"] is None
    with pytest.raises(InputError, match="no group.*9 labels"):
        create_app(guard, coarser={0: "round"})
    with pytest.raises(InputError, match="by_class=True.*coarser="):
        create_app(alone.at(0.5, by_class=True), coarser=looks)
