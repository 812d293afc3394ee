"""Answers as Elasticsearch or OpenSearch does, with scores by the documented formulas.

Written from the reference and not from the recipe: it reads the mapping that it was given, refuses
what the reference does not have, and rounds scores to float32 as Lucene does. No process and no
socket.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

SCORES = {
    "l2_norm": lambda x, y: 1 / (1 + ((x - y) ** 2).sum(-1)),
    "cosine": lambda x, y: (1 + _cosine(x, y)) / 2,
    "l2": lambda x, y: 1 / (1 + ((x - y) ** 2).sum(-1)),
    "cosinesimil": lambda x, y: (2 - (1 - _cosine(x, y))) / 2,
}


def _cosine(x: Any, y: Any) -> Any:
    return (x * y).sum(-1) / np.linalg.norm(x, axis=-1) / np.linalg.norm(y, axis=-1)


class SearchServer:
    def __init__(self, dialect: str) -> None:
        self.dialect = dialect
        self.indices: dict[str, dict[str, Any]] = {}
        self.documents: dict[str, dict[str, Any]] = {}
        self.asked: list[dict[str, Any]] = []

    def send(self, method: str, path: str, body: str) -> tuple[int, Any]:
        *_, index, action = ("", *path.strip("/").split("/"))
        if method == "POST" and path == "/_msearch":
            lines = [json.loads(line) for line in body.splitlines()]
            pairs = zip(lines[::2], lines[1::2], strict=True)
            responses = [self.found(head["index"], asked) for head, asked in pairs]
            return 200, {"took": 1, "responses": responses}
        if method == "PUT" and not index:
            self.indices[action], self.documents[action] = json.loads(body), {}
            return 200, {"acknowledged": True, "shards_acknowledged": True, "index": action}
        if index not in self.indices:
            return 404, {"error": {"type": "index_not_found_exception"}, "status": 404}
        if (method, action) == ("GET", "_mapping"):
            return 200, {index: {"mappings": self.indices[index]["mappings"]}}
        if (method, action) == ("GET", "_count"):
            return 200, {"count": len(self.documents[index]), "_shards": {"failed": 0}}
        if (method, action) == ("POST", "_refresh"):
            return 200, {"_shards": {"total": 2, "successful": 1, "failed": 0}}
        assert (method, action) == ("POST", "_bulk")
        assert body.endswith("\n")
        return 200, self.indexed(index, [json.loads(line) for line in body.splitlines()])

    def indexed(self, index: str, lines: list[Any]) -> dict[str, Any]:
        properties = self.indices[index]["mappings"]["properties"]
        width = properties["vector"].get("dims", properties["vector"].get("dimension"))
        failed = False
        for action, document in zip(lines[::2], lines[1::2], strict=True):
            assert set(document) <= set(properties)
            failed |= len(document["vector"]) != width
            self.documents[index][action["index"]["_id"]] = document
        return {"took": 1, "errors": failed, "items": [{"index": {"status": 201}}]}

    def found(self, index: str, asked: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(asked)
        space, vector, limit = getattr(self, self.dialect)(index, asked)
        names = list(self.documents[index])
        items = np.array([self.documents[index][n]["vector"] for n in names], np.float32)
        x = np.asarray(vector, np.float32)
        score = SCORES[space](x.astype(float), items.astype(float)).astype(np.float32)
        best = np.argsort(-score, kind="stable")[:limit]
        hits = [self.hit(index, names[row], float(score[row]), asked["_source"]) for row in best]
        total = {"value": len(hits), "relation": "eq"}
        return {
            "took": 3,
            "timed_out": False,
            "_shards": {"total": 1, "successful": 1, "skipped": 0, "failed": 0},
            "hits": {"total": total, "max_score": hits[0]["_score"], "hits": hits},
            "status": 200,
        }

    def hit(self, index: str, name: str, score: float, told: list[str]) -> dict[str, Any]:
        source = {field: self.documents[index][name][field] for field in told}
        return {"_index": index, "_id": name, "_score": score, "_source": source}

    def elasticsearch(self, index: str, asked: dict[str, Any]) -> tuple[str, Any, int]:
        assert set(asked) == {"size", "_source", "knn"}
        knn = asked["knn"]
        assert set(knn) == {"field", "query_vector", "k", "num_candidates"}
        assert knn["num_candidates"] >= knn["k"]
        field = self.indices[index]["mappings"]["properties"][knn["field"]]
        assert field["type"] == "dense_vector"
        assert field["index_options"]["type"] in ("flat", "hnsw")  # others compress
        return field["similarity"], knn["query_vector"], min(knn["k"], asked["size"])

    def opensearch(self, index: str, asked: dict[str, Any]) -> tuple[str, Any, int]:
        field = self.indices[index]["mappings"]["properties"]["vector"]
        assert field["type"] == "knn_vector"
        if "knn" in asked["query"]:
            assert self.indices[index]["settings"]["index.knn"]
            knn = asked["query"]["knn"]["vector"]
            return field["method"]["space_type"], knn["vector"], min(knn["k"], asked["size"])
        script = asked["query"]["script_score"]["script"]
        assert (script["source"], script["lang"]) == ("knn_score", "knn")
        given = script["params"]
        assert given["field"] == "vector"
        return given["space_type"], given["query_value"], asked["size"]
