"""Uncertain embeddings in Qdrant: a collection, numbers in the payload (extra ``recipes``).

The client speaks to a server, or is a small database of its own in memory or in a folder, which
scans every item in Python. The score of ``Euclid`` is the distance itself; ``Cosine`` is the
cosine, larger is nearer, and its vectors are normalised when they are stored.
"""

from __future__ import annotations

from typing import Any

from benchmarks.examples.engines.distances import from_cosine
from benchmarks.examples.engines.items import Array, StoredItems
from benchmarks.examples.engines.packages import needed
from benchmarks.examples.engines.protocol import METRICS, Hit, Neighbours, OfOneWidth, checked
from laplace_metric._utils.validation import check_name
from laplace_metric.errors import InputError

MEMORY = ":memory:"
BATCH = 1_000
"""Points of one request."""
PAYLOAD = ("label", "epistemic", "spread")


class Qdrant(OfOneWidth):
    """A collection.

    Parameters
    ----------
    place : str or QdrantClient
        ``":memory:"``, a folder, or the address of a server, ``"http://..."``.
    collection : str
    metric : "euclidean" | "cosine"
    exact : bool
        Scan every item, also where the server has an HNSW index.
    ef : int
        Candidates of a search in the HNSW index, at least.

    Raises
    ------
    MissingPackageError
        Without ``qdrant-client``.
    """

    def __init__(
        self,
        place: Any = MEMORY,
        collection: str = "items",
        *,
        metric: str = "euclidean",
        exact: bool = True,
        ef: int = 128,
    ) -> None:
        self.metric, self.exact, self.ef = check_name("metric", metric, METRICS), exact, ef
        self.models = needed("qdrant_client").models
        self.client, self.collection = _client(place), collection
        options = self.client.init_options
        self._local = bool(options["path"]) or options["location"] == MEMORY

    def store(self, items: StoredItems) -> None:
        """In requests of 1,000; if it is interrupted, call it again.

        Raises
        ------
        InputError
            For vectors of another width than those that are there.
        """
        width = items.vectors.shape[1]
        if (there := self.dimensions) is None:
            name = {"euclidean": "EUCLID", "cosine": "COSINE"}[self.metric]
            how = self.models.VectorParams(size=width, distance=self.models.Distance[name])
            self.client.create_collection(self.collection, vectors_config=how)
        elif there != width:
            raise InputError(f"vectors are [N, {width}]: the collection has {there}.")
        for part in items.batches(BATCH):
            points = [
                self.models.PointStruct(
                    id=row, vector=vector.tolist(), payload=dict(zip(PAYLOAD, told, strict=True))
                )
                for row, *told, vector in part.rows()
            ]
            self.client.upsert(self.collection, points)

    def search(self, vectors: Array, k: int) -> Neighbours:
        """The k nearest; a batch is one request.

        Raises
        ------
        InputError
            Before there are items.
        """
        if (dimensions := self.dimensions) is None:
            raise InputError(f"there is no collection {self.collection}: store items first.")
        how = None
        if not self._local:
            how = self.models.SearchParams(exact=self.exact, hnsw_ef=max(self.ef, k))
        requests = [
            self.models.QueryRequest(query=row, limit=k, with_payload=True, params=how)
            for row in checked(vectors, dimensions, k).tolist()
        ]
        answers = self.client.query_batch_points(self.collection, requests)
        return Neighbours.of([hits_of(answer.points, self.metric) for answer in answers], k)

    def _read_width(self) -> int | None:
        if not self.client.collection_exists(self.collection):
            return None
        return int(self.client.get_collection(self.collection).config.params.vectors.size)

    def __len__(self) -> int:
        return 0 if self.dimensions is None else int(self.client.count(self.collection).count)

    def close(self) -> None:
        """End the connection, and give a folder free."""
        self.client.close()


def hits_of(points: list[Any], metric: str) -> list[Hit]:
    """Of points with ``id``, ``score`` and ``payload``."""
    scores = [point.score for point in points]
    distances = scores if metric == "euclidean" else from_cosine(scores).tolist()
    return [
        (point.id, distance, *(point.payload[name] for name in PAYLOAD))
        for point, distance in zip(points, distances, strict=True)
    ]


def _client(place: Any) -> Any:
    if not isinstance(place, str):
        return place
    if place == MEMORY:
        return needed("qdrant_client").QdrantClient(location=place)
    kind = "url" if place.startswith(("http://", "https://")) else "path"
    return needed("qdrant_client").QdrantClient(**{kind: place})
