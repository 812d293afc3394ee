"""Uncertainty in a vector database as it is: ``python -m benchmarks.examples.vector_database``.

Qdrant in this process (extra ``recipes``) holds MiniLM embeddings of one-line summaries of SciPy's
functions, with the posterior of ``LaplaceEmbedder.from_embeddings`` behind them. With m = E z and
s^2 = E|z|^2 - |m|^2 (``laplace_metric.search.moments``) the expected squared distance of two
independent embeddings is |m_x - m_y|^2 + s_x^2 + s_y^2, so a database ranks by it in two ways,
neither of which changes it:

- s^2 goes into the payload, and the client re-scores what the engine found;
- the gallery has one coordinate more, [m_y, s_y], the queries a 0 there, and the engine's own
  Euclidean distance is the expected one (less s_x^2, which is the same for every item).

Both give the ranking that they promise, and both retrieve worse here than the means alone: two
embeddings of one posterior share its weights, so their errors are not independent. Rank by the
means, and keep s^2 beside an item to say how sure it is. (``Index`` with ``rank_by="shared"`` keeps
the correlation; it is printed too.)
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from benchmarks.encoders.pretrained import MiniLM
from benchmarks.encoders.texts import load_texts
from benchmarks.examples.summary import TEXTS, command
from benchmarks.examples.texts import known
from laplace_metric import Embedding, LaplaceEmbedder
from laplace_metric.errors import MissingPackageError
from laplace_metric.search import gallery_vectors, moments, query_vectors

MEANS, EXTENDED = "means", "extended"
SPHERE = {"spherical": True}

Texts = tuple[Tensor, Tensor]
"""Embeddings [N, D] of the encoder, labels [N]."""


class Database:
    """A gallery of directions in an unmodified Qdrant, in memory or in a folder.

    Parameters
    ----------
    gallery : Embedding
    labels : [N]
    folder : str
    """

    def __init__(self, gallery: Embedding, labels: Tensor, folder: str = ":memory:") -> None:
        self.models = _qdrant().models
        place = {"location": folder} if folder == ":memory:" else {"path": folder}
        self.client = _qdrant().QdrantClient(**place)
        means, s = moments(gallery.mean, gallery.uncertainty, **SPHERE)
        payload = [
            {"label": int(label), "spread": float(spread)}
            for label, spread in zip(labels, s.square(), strict=True)
        ]
        self._upsert(MEANS, means, payload)
        extended = gallery_vectors(gallery.mean, gallery.uncertainty, **SPHERE)
        self._upsert(EXTENDED, extended, payload)

    def _upsert(self, name: str, vectors: Tensor, payload: list[dict[str, Any]]) -> None:
        euclid = self.models.Distance.EUCLID
        how = self.models.VectorParams(size=vectors.shape[1], distance=euclid)
        self.client.create_collection(name, vectors_config=how)
        rows = zip(range(len(vectors)), vectors.tolist(), payload, strict=True)
        points = [self.models.PointStruct(id=i, vector=v, payload=p) for i, v, p in rows]
        self.client.upsert(name, points)

    def _found(self, name: str, vectors: Tensor, k: int) -> list[list[Any]]:
        """The engine's own answer: points with id, score (a distance) and payload."""
        ask = self.models.QueryRequest
        requests = [ask(query=vector, limit=k, with_payload=True) for vector in vectors.tolist()]
        return [one.points for one in self.client.query_batch_points(name, requests)]

    def by_mean(self, queries: Embedding, k: int) -> Tensor:
        """Rows [Q, k] by distance of the means, uncertainty without a say."""
        means, _ = moments(queries.mean, queries.uncertainty, **SPHERE)
        return _rows(self._found(MEANS, means, k))

    def rescored(self, queries: Embedding, k: int, candidates: int = 50) -> Tensor:
        """Rows [Q, k] by expected distance among the candidates that the engine found."""
        means, _ = moments(queries.mean, queries.uncertainty, **SPHERE)
        found = self._found(MEANS, means, max(k, candidates))
        return _rows([sorted(x, key=lambda p: p.score**2 + p.payload["spread"])[:k] for x in found])

    def by_expected_distance(self, queries: Embedding, k: int) -> tuple[Tensor, Tensor]:
        """Rows [Q, k] and E|x - y|^2 [Q, k] by the engine alone, with the one coordinate more."""
        _, s = moments(queries.mean, queries.uncertainty, **SPHERE)
        vectors = query_vectors(queries.mean, queries.uncertainty, **SPHERE)
        found = self._found(EXTENDED, vectors, k)
        squared = torch.tensor([[point.score**2 for point in one] for one in found])
        return _rows(found), squared + s.square()[:, None]


def _rows(found: list[list[Any]]) -> Tensor:
    return torch.tensor([[point.id for point in one] for one in found])


def _qdrant() -> Any:
    try:
        return import_module("qdrant_client")
    except ImportError as error:
        install = "pip install 'laplace-metric[recipes]'"
        raise MissingPackageError("qdrant-client", "the recipe", install) from error


@dataclass(frozen=True)
class Result:
    """Share of right first answers of each way, and how much the two ways of Qdrant agree."""

    items: int
    recalls: dict[str, float]
    agreement: float

    def __str__(self) -> str:
        rows = {f"recall@1, {name}": value for name, value in self.recalls.items()}
        rows["same first answer, re-scored and one coordinate more"] = self.agreement
        lines = [f"  {name:<54} {value:.3f}" for name, value in rows.items()]
        return "\n".join([f"{self.items:,} summaries in Qdrant", *lines])


def encoded(limit: int | None = None) -> tuple[Texts, Texts]:
    """Gallery and queries: the known texts of the recipe ``texts``, through the encoder once."""
    encoder = MiniLM()
    gallery, queries = (known(load_texts(x), yes=True, limit=limit) for x in ("train", "test"))
    return (encoder(gallery.texts), gallery.labels), (encoder(queries.texts), queries.labels)


def run(limit: int | None = None) -> Result:
    """Fill the database, ask it in three ways, and the package's own index in a fourth."""
    (x, labels), (asked, truth) = encoded(limit)
    embedder = LaplaceEmbedder.from_embeddings(x, labels, structure="kron")
    embedder.optimize_prior_precision()
    database, queries = Database(embedder(x), labels), embedder(asked)
    index = embedder.index(x, rank_by="shared", progress=False)
    found = {
        "Qdrant, by the means": database.by_mean(queries, 1),
        "Qdrant, re-scored on the client": database.rescored(queries, 1),
        "Qdrant, one coordinate more": database.by_expected_distance(queries, 1)[0],
        'Index, rank_by="shared"': index.search(asked, k=1).positions,
    }
    recalls = {n: float((labels[rows[:, 0]] == truth).double().mean()) for n, rows in found.items()}
    _, rescored, extended, _ = found.values()
    return Result(len(labels), recalls, float((rescored == extended).double().mean()))


if __name__ == "__main__":
    command(__doc__, run, limit=TEXTS)
