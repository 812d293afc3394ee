"""Uncertain embeddings in Elasticsearch or OpenSearch, by their HTTP interface alone.

``send`` is any function of method, path and body, so that the client of your choice carries the
requests; ``http_sender`` is one of the standard library. The JSON is that of ``elastic_json``.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable

from benchmarks.examples.engines.elastic_json import (
    DIALECTS,
    Json,
    documents,
    mapping,
    question,
    read_hits,
)
from benchmarks.examples.engines.items import Array, StoredItems
from benchmarks.examples.engines.protocol import METRICS, Neighbours, checked
from laplace_metric._utils.validation import check_name
from laplace_metric.errors import InputError

Send = Callable[[str, str, str], tuple[int, Json]]
"""Method, path and body -> status and answer."""
BATCH = 500
"""Items of one request."""


class Elastic:
    """An index of Elasticsearch or OpenSearch.

    Parameters
    ----------
    send : function of method, path and body
        Such as ``http_sender("http://localhost:9200")``.
    dialect : "elasticsearch" | "opensearch"
    index : str
    metric : "euclidean" | "cosine"
    exact : bool
        Whether the index that ``store`` makes is without a graph.
    ef : int
        Candidates of a search in the graph, at least.
    """

    def __init__(
        self,
        send: Send,
        dialect: str = "elasticsearch",
        index: str = "items",
        *,
        metric: str = "euclidean",
        exact: bool = True,
        ef: int = 128,
    ) -> None:
        self.send, self.dialect = send, check_name("dialect", dialect, DIALECTS)
        self.index, self.metric = index, check_name("metric", metric, METRICS)
        self.exact, self.ef = exact, ef
        self._properties: Json | None = None

    @property
    def properties(self) -> Json | None:
        """The fields that are there; None before there is an index."""
        if self._properties is None:
            status, answer = self.send("GET", f"/{self.index}/_mapping", "")
            if status == 404:
                return None
            self._properties = _good(status, answer)[self.index]["mappings"]["properties"]
        return self._properties

    @property
    def dimensions(self) -> int | None:
        """Of the vectors that are there; None before there is an index."""
        if (properties := self.properties) is None:
            return None
        name = "dims" if self.dialect == "elasticsearch" else "dimension"
        return int(properties["vector"][name])

    def store(self, items: StoredItems) -> None:
        """In requests of 500; if it is interrupted, call it again.

        Raises
        ------
        InputError
            For vectors of another width than those that are there, and what the server refuses.
        """
        width = items.vectors.shape[1]
        if (there := self.dimensions) is None:
            whole = items.labels.dtype.kind != "U"
            body = mapping(self.dialect, width, metric=self.metric, exact=self.exact, whole=whole)
            _good(*self.send("PUT", f"/{self.index}", json.dumps(body)))
        elif there != width:
            raise InputError(f"vectors are [N, {width}]: the index has {there}.")
        for part in items.batches(BATCH):
            answer = _good(*self.send("POST", f"/{self.index}/_bulk", _lines(documents(part))))
            if answer["errors"]:
                raise InputError(f"the server refused items: {answer['items'][:1]}.")
        _good(*self.send("POST", f"/{self.index}/_refresh", ""))

    def search(self, vectors: Array, k: int) -> Neighbours:
        """The k nearest; a batch is one request.

        Raises
        ------
        InputError
            Before there are items.
        """
        if (dimensions := self.dimensions) is None or self.properties is None:
            raise InputError(f"there is no index {self.index}: store items first.")
        how: Json = {"metric": self.metric, "exact": self.exact, "ef": self.ef}
        lines: list[Json] = []
        for row in checked(vectors, dimensions, k).tolist():
            lines += [{"index": self.index}, question(self.dialect, row, k, **how)]
        answer = _good(*self.send("POST", "/_msearch", _lines(lines)))
        whole = self.properties["label"]["type"] == "long"
        found = [read_hits(one, metric=self.metric, whole=whole) for one in answer["responses"]]
        return Neighbours.of(found, k)

    def __len__(self) -> int:
        if self.properties is None:
            return 0
        return int(_good(*self.send("GET", f"/{self.index}/_count", ""))["count"])

    def close(self) -> None:
        """Nothing is held open."""


def http_sender(address: str, timeout: float = 60.0, **headers: str) -> Send:
    """Over HTTP; ``headers`` such as ``Authorization="ApiKey ..."``."""

    def send(method: str, path: str, body: str) -> tuple[int, Json]:
        told = {"Content-Type": "application/json", **headers}
        if path.endswith(("_bulk", "_msearch")):
            told["Content-Type"] = "application/x-ndjson"
        data = body.encode() if body else None
        request = urllib.request.Request(address.rstrip("/") + path, data, told, method=method)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read() or b"{}")

    return send


def _lines(bodies: Iterable[Json]) -> str:
    return "".join(json.dumps(body) + "\n" for body in bodies)


def _good(status: int, answer: Json) -> Json:
    if status >= 300:
        raise InputError(f"the server answered {status}: {json.dumps(answer)[:500]}.")
    return answer
