"""Uncertainty in a vector database as it is: ``python -m benchmarks.examples.vector_database``.

Qdrant in this process (extra ``recipes``) holds MiniLM embeddings of one-line summaries of SciPy's
functions, with the posterior of ``LaplaceEmbedder.from_embeddings`` behind them. With m = E z and
s^2 = E|z|^2 - |m|^2 (``laplace_metric.search._expected_vectors``) the expected squared distance of
two independent embeddings is |m_x - m_y|^2 + s_x^2 + s_y^2, so a database ranks by it in two ways,
neither of which changes it:

- s goes into the payload, and the client re-scores what the engine found;
- the gallery has one coordinate more, [m_y, s_y], the queries a 0 there, and the engine's own
  Euclidean distance is the expected one (less s_x^2, which is the same for every item).

Both give the ranking that they promise, and both retrieve worse here than the means alone: two
embeddings of one posterior share its weights, so their errors are not independent. Rank by the
means, and keep s beside an item to say how sure it is. (``Index`` with ``rank_by="shared"`` keeps
the correlation; it is printed too.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.encoders.pretrained import MiniLM
from benchmarks.encoders.texts import load_texts
from benchmarks.examples.engines import Neighbours, Qdrant, StoredItems, vectors_of
from benchmarks.examples.engines.distances import expected_squared
from benchmarks.examples.summary import TEXTS, command
from benchmarks.examples.texts import known
from laplace_metric import Embedding, LaplaceEmbedder
from laplace_metric.search._expected_vectors import moments

MEANS, EXTENDED = "means", "extended"

Texts = tuple[Tensor, Tensor]
"""Embeddings [N, D] of the encoder, labels [N]."""


class Database:
    """A gallery of directions in two collections of an unmodified Qdrant.

    Parameters
    ----------
    gallery : Embedding
    labels : [N]
    place : str
        ``":memory:"``, a folder, or the address of a server.
    """

    def __init__(self, gallery: Embedding, labels: Tensor, place: str = ":memory:") -> None:
        self.means = Qdrant(place, MEANS)
        self.extended = Qdrant(self.means.client, EXTENDED)
        self.means.store(StoredItems.of(gallery, labels, spherical=True))
        self.extended.store(StoredItems.of(gallery, labels, spherical=True, rank_by="expected"))

    def by_mean(self, queries: Embedding, k: int) -> Tensor:
        """Rows [Q, k] by distance of the means, uncertainty without a say."""
        return torch.from_numpy(self._near(queries, k).ids)

    def rescored(self, queries: Embedding, k: int, candidates: int = 50) -> Tensor:
        """Rows [Q, k] by expected distance among the candidates that the engine found."""
        found = self._near(queries, max(k, candidates))
        order = _expected(queries, found.distances, found.spread).argsort(1)[:, :k]
        return torch.from_numpy(found.ids).gather(1, order)

    def by_expected_distance(self, queries: Embedding, k: int) -> tuple[Tensor, Tensor]:
        """Rows [Q, k] and E|x - y|^2 [Q, k] by the engine alone, with the one coordinate more."""
        vectors = vectors_of(queries, spherical=True, rank_by="expected")
        found = self.extended.search(vectors, k)
        squared = torch.from_numpy(found.distances).square()
        return torch.from_numpy(found.ids), squared + _spread(queries).square()[:, None]

    def _near(self, queries: Embedding, k: int) -> Neighbours:
        return self.means.search(vectors_of(queries, spherical=True), k)


def _spread(queries: Embedding) -> Tensor:
    return moments(queries.mean, queries.uncertainty, spherical=True)[1].detach().double()


def _expected(queries: Embedding, distances: Any, spread: Any) -> Tensor:
    s = _spread(queries).numpy()
    return torch.from_numpy(expected_squared(distances, spread, s, spherical=True))


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
    embedder = LaplaceEmbedder.from_embeddings(x, labels, structure="kron", distance="arccos")
    embedder.tune_prior()
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
