"""The server without HTTP: its answers are those of ``Index.search``, and it refuses the rest."""

from __future__ import annotations

import io
import json
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image

from laplace_metric.cli.serve import _service
from laplace_metric.cli.serve._guard import Limits, RequestRefused
from laplace_metric.cli.serve._query import TEXT, MemoryGate, Question
from laplace_metric.cli.serve._service import Job, Worker
from laplace_metric.errors import InputError, LaplaceMetricError, NotFittedError
from tests.serve.conftest import pixels_of

NUMBERS = ("label_probability", "epistemic", "ambiguity")


def assert_is_row(answer, result, row, tolerance=0.0, step=0.0):
    """An answer is a row of a ``SearchResult``; to the last bit, unless a tolerance is given.

    A p-value counts held-out queries, so that the last bits of ties move it, at most by ``step``.
    """
    close = {"rtol": tolerance, "atol": tolerance}
    near = answer.neighbours
    assert [n.id for n in near] == result.ids[row].tolist()
    assert [n.label for n in near] == result.labels[row].tolist()
    assert [n.rank for n in near] == list(range(1, len(near) + 1))
    for name in ("distance", "distance_sd", "match_probability"):
        told = [getattr(n, name) for n in near]
        np.testing.assert_allclose(told, getattr(result, name)[row].numpy(), **close)
    np.testing.assert_allclose(answer.p_value, float(result.p_value[row]), rtol=0, atol=step)
    for name in NUMBERS:
        np.testing.assert_allclose(
            getattr(answer, name), float(getattr(result, name)[row]), **close
        )
    assert answer.label == result.label[row]
    assert answer.unknown == bool(result.unknown[row])


def test_an_answer_is_what_python_gives(shop, start, query_files):
    service = start(shop, batch=1)
    index = service.served.gallery.index
    threshold = index.calibration.threshold_for(precision=0.7, of="label", alpha=0.1)
    decided = set()
    for path in query_files:
        result = index.search(torch.from_numpy(pixels_of(path)), 4, alpha=0.1)
        asked = {"image": path.read_bytes(), "k": 4, "alpha": 0.1, "precision": 0.7}
        answer = service.ask(asked).result()
        assert_is_row(answer, result, 0)
        assert answer.threshold == threshold.value
        assert answer.precision == 0.7
        sure = float(result.label_probability[0]) >= threshold.value
        assert answer.accepted == (sure and float(result.p_value[0]) > 0.1)
        assert answer.accepted == (index.classify(pixels_of(path), threshold).labels[0] is not None)
        assert answer.decision.startswith("Answer" if answer.accepted else "Abstain")
        assert repr(answer.label) in answer.decision  # the nearest item may have another
        # an unknown query is not compared with the threshold: no words that say so
        assert ("at least 70 %" in answer.decision) == (answer.accepted or not answer.unknown)
        decided.add(answer.accepted)
    assert decided == {True, False}  # the queries show both


def test_no_thread_of_a_request_sets_the_filters_of_warnings(shop, start, query_files, monkeypatch):
    """They are of the whole process: what one thread sets, another would undo."""
    service, plain = start(shop), warnings.catch_warnings.__enter__

    def entered(self):
        caller = sys._getframe(1).f_globals["__name__"]  # not what checks the arrays of a test
        assert not caller.startswith("laplace_metric"), caller
        return plain(self)

    monkeypatch.setattr(warnings.catch_warnings, "__enter__", entered)
    content, before = query_files[0].read_bytes(), list(warnings.filters)
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(ask, {"image": content}) for ask in (service.ask, service.embed)]
        assert all(one.result().result().epistemic is not None for one in asked)
    assert warnings.filters == before


@pytest.mark.parametrize(
    ("option", "values", "read"),
    [
        ("k", (2, 3), lambda answer: len(answer.neighbours)),
        ("alpha", (1e-6, 0.999), lambda answer: 0.999 if answer.unknown else 1e-6),
        ("threshold", (0.25, 0.75), lambda answer: answer.threshold),
        ("precision", (0.5, 0.7), lambda answer: answer.precision),
    ],
    ids=["k", "alpha", "threshold", "precision"],
)
def test_clients_of_one_batch_window_keep_their_own_options(
    shop, start, query_files, monkeypatch, option, values, read
):
    """Three queries wait for the model together; the second asks for another value."""
    monkeypatch.setattr(_service, "BUDGET", 1e9)  # whatever waits goes in together
    service, gate, content = start(shop), threading.Event(), query_files[0].read_bytes()
    service._worker.submit(Job("wait", ["x"], lambda texts: [gate.wait()]))
    asked = [values[0], values[1], values[0]]
    answers = [service.ask({"image": content, option: value}) for value in asked]
    gate.set()
    assert [read(answer.result(timeout=30)) for answer in answers] == asked
    assert "\nlaplace_metric_model_calls_total 2.0\n" in service.metrics_text()


def test_vectors_without_a_calibration(vectors, start):
    service = start(vectors)
    queries = np.load(vectors / "queries.npy")
    result = service.served.gallery.index.search(queries[:1], 2)
    answer = service.ask({"vector": queries[0].tolist(), "k": "2"}).result()
    assert [n.distance for n in answer.neighbours] == result.distance[0].tolist()
    assert answer.neighbours[0].match_probability is answer.accepted is answer.unknown is None
    assert "not calibrated" in answer.decision
    assert service.served.drift is None
    for asked in ({"threshold": 0.5}, {"precision": 0.5}):
        with pytest.raises(NotFittedError, match=next(iter(asked))):
            service.ask({"vector": queries[0].tolist(), **asked})
    with pytest.raises(InputError, match="63"):
        service.ask({"vector": [0.5] * 63}).result()
    with pytest.raises(InputError, match="infinity"):
        service.ask({"vector": [1e200] * 64}).result()


def png(width: int, height: int, mode: str = "L") -> bytes:
    file = io.BytesIO()
    Image.new(mode, (width, height)).save(file, "PNG")
    return file.getvalue()


def test_images_that_are_refused(shop, start, query_files):
    service = start(shop, limits=Limits(pixels=2500))
    good = query_files[0].read_bytes()
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"
    for content, status in [
        (b"no image at all", 415),
        (good[:60], 415),
        (png(8, 8, "I;16"), 415),
        (eps, 415),
        (png(51, 50), 413),
        (png(40, 26, "RGBA"), 413),
    ]:
        with pytest.raises(RequestRefused) as refusal:
            service.ask({"image": content})
        assert refusal.value.status == status
    for largest in (png(50, 50), png(40, 25, "RGBA")):
        assert service.ask({"image": largest}).result().neighbours
    n = len(service.served.index)
    with pytest.raises(RequestRefused, match=f"has {n} items"):
        service.ask({"image": good, "k": n + 1})
    with pytest.raises(RequestRefused, match="send 'image'") as refusal:
        service.ask({"text": "a coat"})
    assert refusal.value.status == 415


def test_decoders_wait_for_memory():
    gate, held = MemoryGate(10), []

    def decodes(size: int) -> None:
        with gate.holding(size):
            held.append(gate.free)

    with gate.holding(7):
        waiting = threading.Thread(target=decodes, args=(4,))
        waiting.start()
        decodes(3)
        assert held == [0]
    waiting.join(timeout=10)
    decodes(99)  # alone, it may have all
    assert (held, gate.free) == ([0, 6, 0], 10)


def test_json_has_no_room_for_more_than_a_query(vectors, shop, start):
    service = start(vectors)
    most = service.served.reader.most_bytes("application/json")
    longest = json.dumps({"text": "\U0001f600" * TEXT, "k": 1000, "precision": 0.95})
    assert len(longest) < most < 300_000
    assert service.served.reader.most_bytes("image/png") == most  # not of this index
    photos = start(shop).served.reader
    assert photos.most_bytes("application/json") < 300_000
    assert photos.most_bytes("image/png") == Limits.body
    with pytest.raises(RequestRefused, match="has 63 numbers"):
        service.ask({"vector": [0.5] * 63})


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"image": b"", "k": 3}, "^0 queries"),
        ({"text": "a", "vector": [1]}, "2 queries"),
        ({"text": "a", "kk": 3}, "kk=3: the field is not known"),
        ({"text": b"\xff"}, "text=.*unicode"),
        ({"text": "\ud800"}, "text="),
        ({"text": "a", "vector": "\ud800"}, "vector="),
        ({"text": "a", "k": "\ud800"}, "k="),
        ({"text": "a", "alpha": "\ud800"}, "alpha="),
        ({"text": " "}, "blank"),
        ({"text": "x" * 30_000}, "at most 20000 characters"),
        ({"vector": "{}"}, "valid list"),
        ({"vector": [1, "two", None]}, r"vector\[1\]='two': give finite numbers"),
        ({"vector": [1e308]}, "finite"),
        ({"vector": [10**400]}, "finite"),
        ({"text": "a", "k": 0}, "k=0"),
        ({"text": "a", "k": 2.5}, "k=2.5"),
        ({"text": "a", "k": "many"}, "k='many'"),
        ({"text": "a", "threshold": "nan"}, "threshold"),
        ({"text": "a", "precision": 1}, "precision"),
        ({"text": "a", "alpha": 0.05, "threshold": 0.5, "precision": 0.5}, "one of them"),
    ],
)
def test_questions_that_are_refused(fields, said):
    with pytest.raises(InputError, match=said):
        Question.of(fields)


def test_numbers_may_be_texts_and_empty_ones_are_left_out():
    asked = Question.of({"vector": "[1, 2.5]", "k": "7", "precision": "", "threshold": ".25"})
    assert (asked.vector, asked.k, asked.precision, asked.threshold) == ([1.0, 2.5], 7, None, 0.25)


def test_a_guarantee_that_cannot_hold_is_refused_at_the_start(shop, start):
    with pytest.raises(InputError, match="cannot be guaranteed"):
        start(shop, precision=0.9999)


def test_a_bad_query_fails_for_itself():
    def halves(x: torch.Tensor) -> list[float]:
        if bool((x < 0).any()):
            raise ValueError("negative")
        return (x[:, 0] / 2).tolist()

    worker, gate = Worker(batch=8), threading.Event()
    first = worker.submit(Job("wait", ["x"], lambda texts: [gate.wait()]))
    waiting = [worker.submit(Job("half", torch.tensor([[x]]), halves)) for x in (2.0, -1.0, 6.0)]
    threading.Timer(0.1, gate.set).start()
    worker.close()  # answers what waits
    assert first.result()
    assert [waiting[0].result(), waiting[2].result()] == [1.0, 3.0]
    with pytest.raises(ValueError, match="negative"):
        waiting[1].result()
    with pytest.raises(RequestRefused, match="stopping"):
        worker.submit(Job("half", torch.ones(1, 1), halves))


def test_what_waits_goes_in_together_and_no_more_than_a_batch():
    sizes, worker, gate = [], Worker(batch=4), threading.Event()

    def run(texts: list[str]) -> list[str]:
        sizes.append(len(texts))
        return texts

    worker.submit(Job("wait", ["x"], lambda texts: [gate.wait()]))
    results = [worker.submit(Job("k", [str(i)], run)) for i in range(10)]
    gate.set()
    assert [result.result() for result in results] == [str(i) for i in range(10)]
    worker.close()
    assert sum(sizes) == 10
    assert max(sizes) <= 4
    assert len(sizes) <= 4


def test_a_slow_model_gets_its_queries_one_by_one(monkeypatch):
    monkeypatch.setattr(_service, "BUDGET", 0.01)
    sizes, worker = [], Worker(batch=8)

    def run(texts: list[str]) -> list[str]:
        sizes.append(len(texts))
        time.sleep(0.02 * len(texts))
        return texts

    results = [worker.submit(Job("k", [str(i)], run)) for i in range(10)]
    assert [result.result() for result in results] == [str(i) for i in range(10)]
    worker.close()
    assert sizes == [1] * 10


def test_a_reload_swaps_the_index_and_a_bad_one_leaves_the_old(shop, start, query_files):
    service = start(shop)
    before, asked = service.served, {"image": query_files[0].read_bytes()}
    answer = service.ask(asked).result()
    assert service.reload() == len(before.gallery.index)
    assert service.served is not before
    assert service.ask(asked).result() == answer
    manifest = shop / "index" / "gallery.json"
    content = manifest.read_text()
    manifest.write_text(content.replace('"seed"', '"dees"'))
    kept = service.served
    try:
        with pytest.raises(LaplaceMetricError, match="damaged"):
            service.reload()
    finally:
        manifest.write_text(content)
    assert service.served is kept
    assert service.ask(asked).result() == answer
    text = service.metrics_text()
    assert 'reloads_total{result="loaded"} 1.0' in text
    assert 'reloads_total{result="failed"} 1.0' in text
