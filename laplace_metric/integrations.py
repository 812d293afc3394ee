"""A decision rule inside retrieval frameworks, and the hits of vector stores as scores.

Frameworks: ``langchain_retriever``, ``llama_index_postprocessor`` and ``haystack_component`` pass a
query's hits on if the rule accepts it, each with its ``match_probability``, and else none.

Stores: ``read_hits`` returns scores, ids and the ``kind`` that calibrates them. The stores name
their scores and distances differently:

    sentence-transformers  similarity    ``util.semantic_search``: cosine, or the dot product
    qdrant                 similarity    Cosine and Dot; Euclid and Manhattan: distance
    chroma                 distance      l2: squared; cosine: 1 - cosine; ip: 1 - dot product
    lancedb                distance      l2: squared; cosine: 1 - cosine; dot: 1 - dot product
    milvus                 similarity    COSINE and IP, although called "distance"; L2: squared
    pgvector               distance      <-> L2, <=> 1 - cosine, <#> minus the dot product, <+> L1

A rule is valid for the scale that calibrated it: calibrate on hits of the store to be asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from laplace_metric._utils.display import Rows, Shown, in_rows
from laplace_metric._utils.validation import check_name
from laplace_metric.calibration import Rule, ScoreCalibration
from laplace_metric.calibration._padding import is_no_id, is_padding
from laplace_metric.calibration._scored_queries import ScoredQueries
from laplace_metric.errors import InputError, MissingPackageError

__all__ = [
    "StoreHits",
    "haystack_component",
    "langchain_retriever",
    "llama_index_postprocessor",
    "passed_on",
    "read_hits",
]
Pairs = list[tuple[Any, float]]
"""Id and score of each hit of a query."""
SIMILARITY, DISTANCE = "similarity", "distance"
READERS: dict[str, Callable[[Any, str], list[Pairs]]] = {
    "sentence-transformers": lambda answers, _: [
        [(hit["corpus_id"], hit["score"]) for hit in answer] for answer in answers
    ],
    "qdrant": lambda answers, _: [
        [(point.id, point.score) for point in answer.points] for answer in answers
    ],
    "chroma": lambda answers, _: [
        list(zip(*answer, strict=True))
        for answer in zip(answers["ids"], answers["distances"], strict=True)
    ],
    "lancedb": lambda answers, key: [
        [(row[key], row["_distance"]) for row in answer] for answer in answers
    ],
    "milvus": lambda answers, key: [
        [(hit[key], hit["distance"]) for hit in answer] for answer in answers
    ],
    "pgvector": lambda answers, _: [[(row[0], row[1]) for row in answer] for answer in answers],
}
KINDS = {
    "sentence-transformers": {"cosine": SIMILARITY, "dot": SIMILARITY},
    "qdrant": {"cosine": SIMILARITY, "dot": SIMILARITY, "euclid": DISTANCE, "manhattan": DISTANCE},
    "chroma": {"l2": DISTANCE, "cosine": DISTANCE, "ip": DISTANCE},
    "lancedb": {"l2": DISTANCE, "cosine": DISTANCE, "dot": DISTANCE},
    "milvus": {"cosine": SIMILARITY, "ip": SIMILARITY, "l2": DISTANCE},
    "pgvector": {"<->": DISTANCE, "<=>": DISTANCE, "<#>": DISTANCE, "<+>": DISTANCE},
}


@dataclass(frozen=True, repr=False)
class StoreHits(Shown):
    """Hits of Q queries, as ``calibrate_scores`` takes them.

    Parameters
    ----------
    scores : [Q, k]
        Scores of the hits, infinite behind the last hit of a query.
    items : dict of 0, ..., Q - 1 to ids
        Ids of the hits. Values with which a store fills short lists (the score 3.4028235e38, or the
        id -1 or None) are no hits, and are left out.
    kind : "similarity" | "distance"
        Meaning of the scores, which ``calibrate_scores`` needs.
    """

    scores: npt.NDArray[np.float64]
    items: dict[int, list[Any]]
    kind: str

    def _shown_rows(self) -> Rows:
        ids = f"ids of {sum(map(len, self.items.values())):,} hits"
        return in_rows({"scores": self.scores, "items": ids, "kind": self.kind}.items())


def read_hits(
    store: str, answers: Any, *, metric: str, k: int | None = None, key: str = "id"
) -> StoreHits:
    """Return the scores and ids in the answers of a vector store to Q queries.

    Parameters
    ----------
    store : str
        Name of the store: "sentence-transformers", "qdrant", "chroma", "lancedb", "milvus" or
        "pgvector".
    answers : as the store returns them
        Result of ``semantic_search`` (sentence-transformers), ``query_batch_points`` (qdrant),
        ``query`` (chroma) or ``search`` (milvus). For lancedb a list with the ``to_list`` of each
        query; for pgvector a list for each query, of rows that begin with id and distance.
    metric : str
        Metric by which the store ranks, as it names it, such as "cosine" or "<->".
    k : int or None
        Number of hits of each query. Pass that of a rule, which was fitted to as many. None, the
        default: the largest number that any query has.
    key : str
        Name of the field of the id, for lancedb and milvus. Default: "id".

    Raises
    ------
    InputError
        For other stores and metrics, answers of another form, and more hits than ``k``.

    Examples
    --------
    >>> answers = [[{"corpus_id": 7, "score": 0.9}, {"corpus_id": 2, "score": 0.4}]]
    >>> hits = read_hits("sentence-transformers", answers, metric="cosine")
    >>> hits.scores, hits.items, hits.kind
    (array([[0.9, 0.4]]), {0: [7, 2]}, 'similarity')
    """
    check_name("store", store, KINDS)
    kind = KINDS[store][check_name("metric", str(metric).lower(), KINDS[store])]
    try:
        rows = READERS[store](answers, key)
    except (TypeError, KeyError, AttributeError, IndexError) as error:
        raise InputError(f"answers are not those of {store}: {error!r}.") from error
    rows = [[(item, score) for item, score in row if not _no_hit(item, score)] for row in rows]
    most = max(map(len, rows), default=0)
    if k is not None and most > k:
        raise InputError(f"answers hold {most} hits of a query: search for {k}.")
    scores = [_padded([score for _, score in row], kind, k or most) for row in rows]
    return StoreHits(np.array(scores), {q: [i for i, _ in row] for q, row in enumerate(rows)}, kind)


def _no_hit(item: Any, score: Any) -> bool:
    """Return whether a store filled this place without a hit, as FAISS does."""
    return is_no_id(item) or (score is not None and bool(is_padding(float(score))))


def _padded(scores: Sequence[float], kind: str, k: int) -> list[float]:
    """Return the scores of a query, infinite behind the last."""
    behind = np.inf if kind == DISTANCE else -np.inf
    return [*scores, *[behind] * (k - len(scores))]


def passed_on(rule: Rule, scores: Sequence[float], miss: float | None = None) -> list[float]:
    """Return match probabilities of the first hits of one query, which are to be passed on.

    They are none if the rule abstains.

    Parameters
    ----------
    rule : Rule
        Rule of one scorer, without further evidence.
    scores : [n]
        Scores of the hits, the first hit first; at most as many as calibrated the rule.
    miss : float in (0, 1) or None
        Largest expected share of relevant items that is left out, by which
        ``ScoreCalibration.keep_relevant`` shortens the list. None, the default: all hits.

    Raises
    ------
    InputError
        As ``Rule``, and for hits without a score.
    """
    calibration = _scores_of(rule)
    if any(score is None for score in scores):
        raise InputError("a hit has no score: retrieve with scores.")
    if not len(scores):
        return []
    row = [_padded(scores, calibration.kinds[0], calibration.k)]
    if not rule(row).answered[0]:
        return []
    kept = int((~is_padding(np.array(row[0], float))).sum())
    if miss is not None:
        kept = int(calibration.keep_relevant(row, miss)[0])
    return calibration.probability(row)[0, :kept].tolist()


# Frameworks. The classes are made when they are asked for: no framework is imported before.


def langchain_retriever(rule: Rule, store: Any, miss: float | None = None) -> Any:
    """Return a LangChain retriever over a vector store; see ``passed_on``.

    Parameters
    ----------
    rule : Rule
        Rule that was calibrated with the scores that ``store.similarity_search_with_score``
        returns.
    store : langchain_core.vectorstores.VectorStore
        Store that is searched, for as many hits as calibrated the rule.
    miss : float in (0, 1) or None
        Largest expected share of relevant items that is left out. None, the default: all hits are
        passed on.

    Raises
    ------
    InputError
        If ``rule`` is not a rule.
    MissingPackageError
        Without langchain-core.
    """
    k = _scores_of(rule).k
    base: Any = _needed("langchain_core.retrievers", "langchain-core").BaseRetriever

    class DecidedRetriever(base):  # type: ignore[misc]
        def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Any]:
            hits = store.similarity_search_with_score(query, k=k)
            p = passed_on(rule, [score for _, score in hits], miss)
            return [
                document.model_copy(update={"metadata": _with_probability(document.metadata, each)})
                for (document, _), each in zip(hits, p, strict=False)
            ]

    return DecidedRetriever()


def llama_index_postprocessor(rule: Rule, miss: float | None = None) -> Any:
    """Return a LlamaIndex node postprocessor; see ``passed_on``.

    Parameters
    ----------
    rule : Rule
        Rule that was calibrated with the scores of the retriever's nodes.
    miss : float in (0, 1) or None
        Largest expected share of relevant items that is left out. None, the default: all nodes are
        passed on.

    Raises
    ------
    InputError
        If ``rule`` is not a rule.
    MissingPackageError
        Without llama-index-core.
    """
    _scores_of(rule)
    package = _needed("llama_index.core.postprocessor.types", "llama-index-core")
    base: Any = package.BaseNodePostprocessor

    class DecidedNodes(base):  # type: ignore[misc]
        def _postprocess_nodes(self, nodes: list[Any], query_bundle: Any = None) -> list[Any]:
            p = passed_on(rule, [node.score for node in nodes], miss)
            found = []
            for node, each in zip(nodes, p, strict=False):
                metadata = _with_probability(node.node.metadata, each)
                inner = node.node.model_copy(update={"metadata": metadata})
                found.append(node.model_copy(update={"node": inner}))
            return found

    return DecidedNodes()


def haystack_component(rule: Rule, miss: float | None = None) -> Any:
    """Return a Haystack component, documents -> documents; see ``passed_on``.

    Parameters
    ----------
    rule : Rule
        Rule that was calibrated with the scores of the retriever's documents.
    miss : float in (0, 1) or None
        Largest expected share of relevant items that is left out. None, the default: all documents
        are passed on.

    Raises
    ------
    InputError
        If ``rule`` is not a rule.
    MissingPackageError
        Without haystack-ai.
    """
    _scores_of(rule)
    haystack = _needed("haystack", "haystack-ai")

    class DecidedDocuments:
        @haystack.component.output_types(documents=list[haystack.Document])  # type: ignore
        def run(self, documents: list[Any]) -> dict[str, list[Any]]:
            p = passed_on(rule, [document.score for document in documents], miss)
            pairs = zip(documents, p, strict=False)
            return {
                "documents": [replace(x, meta=_with_probability(x.meta, each)) for x, each in pairs]
            }

    return haystack.component(DecidedDocuments)()


def _scores_of(rule: Any) -> ScoredQueries:
    """Return what turns scores into probabilities, of a rule of scores."""
    if isinstance(rule, Rule) and rule.scores is not None:
        return rule.scores
    how = "of calibrate_scores(...).guarantee(precision=0.9), or Rule.load(...)"
    if isinstance(rule, ScoreCalibration):
        how = "of calibration.guarantee(precision=0.9), or another rate"
    given = "rule of an index" if isinstance(rule, Rule) else type(rule).__name__
    raise InputError(f"rule is a {given}: pass a rule of scores, {how}.")


def _with_probability(metadata: dict[str, Any], p: float) -> dict[str, Any]:
    """Return a copy with the match probability."""
    return {**metadata, "match_probability": p}


def _needed(module: str, package: str) -> Any:
    """Import a module of an optional package.

    Raises
    ------
    MissingPackageError
        If it is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingPackageError(package, "this adapter", f"pip install {package}") from error
