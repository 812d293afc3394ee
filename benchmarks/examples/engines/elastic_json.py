"""What to send to Elasticsearch or OpenSearch, and what the answer says: JSON, no connection.

Both answer with a score that is larger for nearer vectors, rounded to float32:

                  Elasticsearch 8 and 9             OpenSearch 2.19 and newer
    euclidean     l2_norm      1 / (1 + d^2)        l2             1 / (1 + d^2)
    cosine        cosine       (1 + c) / 2          cosinesimil    (1 + c) / 2

("dense_vector field type" of the Elasticsearch reference; "Spaces" of OpenSearch's documentation,
where cosinesimil is (2 - d) / 2 of d = 1 - c; before 2.19 its engines differ.) Elasticsearch
compresses vectors unless the mapping says ``hnsw`` or ``flat``; it says one of them here, as scores
are of compressed vectors otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.examples.engines.distances import from_cosine_score, from_l2_score
from benchmarks.examples.engines.items import StoredItems
from benchmarks.examples.engines.protocol import METRICS, Hit
from laplace_metric._utils.validation import check_name
from laplace_metric.errors import InputError

Json = dict[str, Any]

DIALECTS = ("elasticsearch", "opensearch")
SPACES = {
    "elasticsearch": {"euclidean": "l2_norm", "cosine": "cosine"},
    "opensearch": {"euclidean": "l2", "cosine": "cosinesimil"},
}
DISTANCES = {"euclidean": from_l2_score, "cosine": from_cosine_score}
TOLD = ["label", "epistemic", "spread"]


def mapping(
    dialect: str,
    dimensions: int,
    *,
    metric: str = "euclidean",
    exact: bool = True,
    whole: bool = False,
) -> Json:
    """The body that makes an index.

    Parameters
    ----------
    dialect : "elasticsearch" | "opensearch"
    dimensions : int
    metric : "euclidean" | "cosine"
    exact : bool
        Without a graph.
    whole : bool
        Whether labels are whole numbers.

    Examples
    --------
    >>> body = mapping("elasticsearch", 3)
    >>> body["mappings"]["properties"]["vector"]["similarity"]
    'l2_norm'
    """
    space = SPACES[check_name("dialect", dialect, DIALECTS)][check_name("metric", metric, METRICS)]
    number = {"type": "double", "index": False}
    label = {"type": "long" if whole else "keyword"}
    fields: Json = {"label": label, "epistemic": number, "spread": number}
    if dialect == "elasticsearch":
        options = {"type": "flat" if exact else "hnsw"}
        vector: Json = {"type": "dense_vector", "dims": dimensions, "index": True}
        vector |= {"similarity": space, "index_options": options}
        return {"mappings": {"properties": {**fields, "vector": vector}}}
    vector = {"type": "knn_vector", "dimension": dimensions}
    if not exact:
        vector["method"] = {"name": "hnsw", "engine": "faiss", "space_type": space}
    settings = {"settings": {"index.knn": not exact}}
    return {**settings, "mappings": {"properties": {**fields, "vector": vector}}}


def documents(items: StoredItems) -> Iterable[Json]:
    """Lines of a bulk request: what to do, and the item."""
    for row, label, epistemic, spread, vector in items.rows():
        yield {"index": {"_id": str(row)}}
        told = {"label": label, "epistemic": epistemic, "spread": spread}
        yield {**told, "vector": vector.tolist()}


def question(
    dialect: str,
    vector: Sequence[float],
    k: int,
    *,
    metric: str = "euclidean",
    exact: bool = True,
    ef: int = 128,
) -> Json:
    """The body of a search for the k nearest items of one vector.

    Examples
    --------
    >>> question("elasticsearch", [1.0, 0.0], 2)["knn"]
    {'field': 'vector', 'query_vector': [1.0, 0.0], 'k': 2, 'num_candidates': 128}
    """
    body: Json = {"size": k, "_source": TOLD}
    if check_name("dialect", dialect, DIALECTS) == "elasticsearch":
        knn = {"field": "vector", "query_vector": list(vector), "k": k}
        return {**body, "knn": {**knn, "num_candidates": max(k, ef)}}
    if not exact:
        knn = {"vector": list(vector), "k": k, "method_parameters": {"ef_search": max(k, ef)}}
        return {**body, "query": {"knn": {"vector": knn}}}
    space = SPACES[dialect][check_name("metric", metric, METRICS)]
    parameters = {"field": "vector", "query_value": list(vector), "space_type": space}
    script = {"source": "knn_score", "lang": "knn", "params": parameters}
    return {**body, "query": {"script_score": {"query": {"match_all": {}}, "script": script}}}


def read_hits(answer: Json, *, metric: str = "euclidean", whole: bool = False) -> list[Hit]:
    """Neighbours of one search, nearest first.

    Parameters
    ----------
    whole : bool
        Whether labels are whole numbers.

    Raises
    ------
    InputError
        If the search failed, or has seen only some of the items.

    Examples
    --------
    >>> item = {"label": "cat", "epistemic": 0.1, "spread": 0.2}
    >>> hit = {"_index": "items", "_id": "7", "_score": 0.5, "_source": item}
    >>> read_hits({"timed_out": False, "_shards": {"failed": 0}, "hits": {"hits": [hit]}})
    [(7, 1.0, 'cat', 0.1, 0.2)]
    """
    if "error" in answer or answer["timed_out"] or answer["_shards"]["failed"]:
        told = answer.get("error", "it timed out, or a shard failed")
        raise InputError(f"the search has no complete answer: {told}.")
    hits = answer["hits"]["hits"]
    distances = DISTANCES[metric]([hit["_score"] for hit in hits]).tolist()
    label = int if whole else str
    rows = (
        (int(hit["_id"]), d, label(hit["_source"]["label"]), *(hit["_source"][n] for n in TOLD[1:]))
        for hit, d in zip(hits, distances, strict=True)
    )
    return sorted(rows, key=lambda row: row[1])
