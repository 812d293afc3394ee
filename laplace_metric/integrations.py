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
    faiss                  similarity    METRIC_INNER_PRODUCT; METRIC_L2: squared distance

``fused_hits`` merges the lists of several searches by their ranks (reciprocal rank fusion), as
hybrid searches do; Qdrant's own fusion is read with ``metric="rrf"``. A fused score is one like any
other where the same fusion answers later: precision, recall and the share of open-set queries that
are answered can be guaranteed. It is refused for what it does not say: a false match rate, since a
pair alone has no rank; and where the first hits of all queries have one score, as in the ranks of a
single list and in scores that each query divides by its largest.

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
from laplace_metric._utils.validation import as_array, check_count, check_name, refuse_reloaded
from laplace_metric.calibration import Rule, ScoreCalibration
from laplace_metric.calibration._padding import is_no_id, is_padding
from laplace_metric.calibration.scores._scored_queries import FUSED, ScoredQueries
from laplace_metric.errors import InputError, MissingPackageError, NonFiniteError

__all__ = [
    "StoreHits",
    "fused_hits",
    "haystack_component",
    "langchain_retriever",
    "llama_index_postprocessor",
    "passed_on",
    "read_hits",
]
Pairs = list[tuple[Any, float]]
"""Id and score of each hit of a query."""
SIMILARITY, DISTANCE = "similarity", "distance"
FAISS_METRICS = ("inner_product", "l2")
"""Names of ``faiss.METRIC_INNER_PRODUCT``, 0, and ``faiss.METRIC_L2``, 1."""
RANK_CONSTANT = 60
"""Constant of reciprocal rank fusion (Cormack, Clarke & Buettcher 2009)."""


def _faiss_rows(answers: Any, _: str) -> list[Pairs]:
    """Return the pairs in FAISS's arrays, scores or distances D and ids I."""
    if not isinstance(answers, (tuple, list)) or len(answers) != 2:
        raise InputError("answers are not those of faiss: pass (D, I), as index.search returns.")
    scores, ids = (np.asarray(as_array("answers", part)) for part in answers)
    if scores.ndim != 2 or scores.shape != ids.shape:
        raise InputError(
            f"answers are D {list(scores.shape)} and I {list(ids.shape)}: pass (D, I), both [Q, k]."
        )
    # Hamming distances of binary indexes are int32; ids are int64
    if ids.dtype.kind not in "iu" or not (scores.dtype.kind == "f" or scores.dtype == np.int32):
        raise InputError(
            f"answers are D of {scores.dtype} and I of {ids.dtype}: pass (D, I), scores as floats, "
            "then ids as whole numbers."
        )
    if (rows := np.isnan(scores).any(1)).any():
        raise NonFiniteError(
            f"answers: D holds NaN in row {rows.argmax()} ({rows.sum():,} rows): check those "
            "queries."
        )
    return [
        [*zip(own, row, strict=True)]
        for own, row in zip(ids.tolist(), scores.tolist(), strict=True)
    ]


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
    "faiss": _faiss_rows,
}
KINDS = {
    "sentence-transformers": {"cosine": SIMILARITY, "dot": SIMILARITY},
    "qdrant": {
        "cosine": SIMILARITY,
        "dot": SIMILARITY,
        "euclid": DISTANCE,
        "manhattan": DISTANCE,
        "rrf": FUSED,
    },
    "chroma": {"l2": DISTANCE, "cosine": DISTANCE, "ip": DISTANCE},
    "lancedb": {"l2": DISTANCE, "cosine": DISTANCE, "dot": DISTANCE},
    "milvus": {"cosine": SIMILARITY, "ip": SIMILARITY, "l2": DISTANCE},
    "pgvector": {"<->": DISTANCE, "<=>": DISTANCE, "<#>": DISTANCE, "<+>": DISTANCE},
    "faiss": dict(zip(FAISS_METRICS, (SIMILARITY, DISTANCE), strict=True)),
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
    kind : "similarity" | "distance" | "fused"
        Meaning of the scores, which ``calibrate_scores`` needs.
    """

    scores: npt.NDArray[np.float64]
    items: dict[int, list[Any]]
    kind: str

    def _shown_rows(self) -> Rows:
        ids = f"ids of {sum(map(len, self.items.values())):,} hits"
        return in_rows({"scores": self.scores, "items": ids, "kind": self.kind}.items())


def read_hits(
    store: str, answers: Any, *, metric: str | int, k: int | None = None, key: str = "id"
) -> StoreHits:
    """Return the scores and ids in the answers of a vector store to Q queries.

    Parameters
    ----------
    store : str
        Name of the store: "sentence-transformers", "qdrant", "chroma", "lancedb", "milvus",
        "pgvector" or "faiss".
    answers : as the store returns them
        Result of ``semantic_search`` (sentence-transformers), ``query_batch_points`` (qdrant),
        ``query`` (chroma) or ``search`` (milvus). For lancedb a list with the ``to_list`` of each
        query; for pgvector a list for each query, of rows that begin with id and distance; for
        FAISS the arrays ``(D, I)`` of ``index.search``, in which an id of -1 is no hit.
    metric : str or int
        Metric by which the store ranks, as it names it, such as "cosine" or "<->". For FAISS
        "inner_product" or "l2", whose distances are squared (of a binary index: Hamming's), or
        ``index.metric_type``. For
        Qdrant's reciprocal rank fusion "rrf".
    k : int or None
        Number of hits of each query. Pass that of a rule, which was fitted to as many. None, the
        default: the largest number that any query has.
    key : str
        Name of the field of the id, for lancedb and milvus. Default: "id".

    Raises
    ------
    InputError
        For other stores and metrics, answers of another form, scores of FAISS in the order of the
        other metric, and more hits than ``k``.

    Examples
    --------
    >>> answers = [[{"corpus_id": 7, "score": 0.9}, {"corpus_id": 2, "score": 0.4}]]
    >>> hits = read_hits("sentence-transformers", answers, metric="cosine")
    >>> hits.scores, hits.items, hits.kind
    (array([[0.9, 0.4]]), {0: [7, 2]}, 'similarity')
    >>> found = np.array([[0.9, -3.4e38]], np.float32), np.array([[7, -1]])
    >>> read_hits("faiss", found, metric="inner_product").items
    {0: [7]}
    """
    check_name("store", store, KINDS)
    if store == "faiss" and metric in (0, 1):
        metric = FAISS_METRICS[int(metric)]
    kind = KINDS[store][check_name("metric", str(metric).lower(), KINDS[store])]
    try:
        rows = READERS[store](answers, key)
    except InputError:
        raise
    except (TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
        raise InputError(f"answers are not those of {store}: {error!r}.") from error
    rows = [
        [(item, _score(store, q, score)) for item, score in row if not is_no_id(item)]
        for q, row in enumerate(rows)
    ]
    rows = [[pair for pair in row if not is_padding(pair[1])] for row in rows]
    most = max(map(len, rows), default=0)
    if k is not None and most > k:
        raise InputError(f"answers hold {most} hits of a query: search for {k}.")
    if store == "faiss":
        _check_order(rows, kind)
    return _hits_of(rows, kind, k or most)


def fused_hits(
    answers: Sequence[StoreHits], *, k: int | None = None, constant: int = RANK_CONSTANT
) -> StoreHits:
    """Merge the lists of several searches by reciprocal rank fusion.

    The fused score of an item is the sum over the lists that hold it of ``1 / (constant + rank)``,
    with ranks from 1. Of equal scores the item of the earlier list comes first. Fuse the same
    searches in the same way, as deep, for calibration and for later queries.

    Parameters
    ----------
    answers : sequence of StoreHits
        Hits of two or more searches for the same queries, such as of words and of vectors. Their
        scores are not used, only their order.
    k : int or None
        Number of hits of each query that are kept. Pass that of a rule. None, the default: the
        largest number that any query has.
    constant : int
        Constant that is added to each rank, 0 or more. Default: 60.

    Raises
    ------
    InputError
        For fewer than two searches, or searches of other numbers of queries.

    Examples
    --------
    >>> words = StoreHits(np.array([[3.0, 2.0]]), {0: ["a", "b"]}, "similarity")
    >>> vectors = StoreHits(np.array([[0.9, 0.8]]), {0: ["b", "c"]}, "similarity")
    >>> hits = fused_hits([words, vectors])
    >>> hits.items[0], hits.scores.round(4)
    (['b', 'a', 'c'], array([[0.0325, 0.0164, 0.0161]]))
    """
    lists = list(answers)
    if not all(isinstance(own, StoreHits) for own in lists):
        raise InputError("answers: pass the StoreHits of each search, as read_hits returns them.")
    if len(lists) < 2:
        raise InputError(
            f"answers are of {len(lists)} searches: fuse two or more. Ranks of one list are the "
            "same for every query, so that no rule can tell queries apart."
        )
    if len({len(own.items) for own in lists}) > 1:
        raise InputError(
            f"answers are of {[len(own.items) for own in lists]} queries: pass those of the same."
        )
    least, fused = check_count("constant", constant, 0), list[Pairs]()
    for queries in zip(*(own.items.values() for own in lists), strict=True):
        score: dict[Any, float] = {}
        for ids in queries:
            for rank, item in enumerate(ids, 1):
                score[item] = score.get(item, 0.0) + 1 / (least + rank)
        fused.append(sorted(score.items(), key=lambda pair: -pair[1]))
    most = max(map(len, fused), default=0) if k is None else check_count("k", k)
    return _hits_of([row[:most] for row in fused], FUSED, most)


def _hits_of(rows: list[Pairs], kind: str, k: int) -> StoreHits:
    scores = [_padded([score for _, score in row], kind, k) for row in rows]
    return StoreHits(np.array(scores), {q: [i for i, _ in row] for q, row in enumerate(rows)}, kind)


def _check_order(rows: list[Pairs], kind: str) -> None:
    """Refuse lists that are sorted as the other metric of FAISS sorts them."""
    steps = [row[-1][1] - row[0][1] for row in rows if row]
    wrong = sum(step < 0 if kind == DISTANCE else step > 0 for step in steps)
    if wrong > len(steps) / 2:
        now, other = FAISS_METRICS[::-1] if kind == DISTANCE else FAISS_METRICS
        how = "falls" if kind == DISTANCE else "rises"
        raise InputError(
            f"answers: D {how} from hit to hit in {wrong:,} of {len(steps):,} queries, as "
            f"metric={other!r} does, and not {now!r}: pass metric=index.metric_type."
        )


def _score(store: str, query: int, score: Any) -> float:
    """Return the score of a hit as a number."""
    try:
        return float(score)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"answers of {store}: a hit of query {query} has the score {score!r:.40}: search with "
            "scores."
        ) from error


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
    refuse_reloaded("rule", rule)
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
