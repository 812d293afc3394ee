"""What is sent to Elasticsearch and OpenSearch, and what recorded answers say."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import numpy as np
import pytest

from benchmarks.examples.engines import Elastic, elastic_json, http_sender
from laplace_metric.errors import InputError
from tests.benchmarks.engines.conftest import K, collection
from tests.benchmarks.engines.search_server import SearchServer

ITEM = {"label": "7", "epistemic": 0.25, "spread": 0.5}


def answer(*scores: float, **changed: object) -> dict[str, object]:
    """In the form of the reference's kNN search examples."""
    hits = [
        {"_index": "items", "_id": str(i), "_score": score, "_source": ITEM}
        for i, score in enumerate(scores)
    ]
    total = {"value": len(hits), "relation": "eq"}
    whole = {
        "took": 5,
        "timed_out": False,
        "_shards": {"total": 1, "successful": 1, "skipped": 0, "failed": 0},
        "hits": {"total": total, "max_score": max(scores), "hits": hits},
    }
    return {**whole, **changed}


@pytest.mark.parametrize(
    "changed",
    [{"timed_out": True}, {"_shards": {"failed": 1}}, {"error": {"type": "search_phase"}}],
)
def test_an_answer_that_is_not_complete_is_none(changed):
    with pytest.raises(InputError, match="no complete answer"):
        elastic_json.read_hits(answer(0.5, **changed))


def test_what_the_server_refuses_is_an_error():
    of = collection()
    refused = [
        (("PUT",), (400, {"error": {"reason": "mapper_parsing_exception"}}), "answered 400"),
        (("POST",), (200, {"errors": True, "items": [{"status": 429}]}), "refused items"),
    ]
    for methods, told, message in refused:
        server = SearchServer("elasticsearch")

        def send(method, path, body, server=server, methods=methods, told=told):
            return told if method in methods else server.send(method, path, body)

        with pytest.raises(InputError, match=message):
            Elastic(send).store(of.stored())


def test_over_http():
    """Through a socket: paths, content types, statuses that are no success."""
    of, server, seen = collection(names=True), SearchServer("opensearch"), []

    class Handler(BaseHTTPRequestHandler):
        def _answer(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
            kinds = self.headers.get("Content-Type"), self.headers.get("Authorization")
            seen.append((self.path, *kinds))
            status, content = server.send(self.command, self.path, body)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(content).encode())

        do_GET = do_PUT = do_POST = _answer

        def log_message(self, *words):
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=listening.serve_forever, daemon=True).start()
    send = http_sender(f"http://127.0.0.1:{listening.server_port}/", Authorization="ApiKey abc")
    engine = Elastic(send, "opensearch")
    assert len(engine) == 0  # 404
    engine.store(of.stored())
    assert len(engine) == 300
    wanted = of.index.search(of.asked, k=K)
    np.testing.assert_array_equal(engine.search(of.vectors(), K).labels, wanted.labels)
    listening.shutdown()
    kinds = {path: kind for path, kind, _ in seen}
    assert kinds["/items/_bulk"] == kinds["/_msearch"] == "application/x-ndjson"
    assert kinds["/items"] == "application/json"
    assert {key for *_, key in seen} == {"ApiKey abc"}
