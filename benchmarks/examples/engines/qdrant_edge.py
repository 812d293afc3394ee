"""Qdrant's own engine in this process, on files: the package ``qdrant-edge-py``.

The same segments, HNSW index and distances as those of a Qdrant server, without one; what the
client does in Python (``qdrant``) is done here in Rust.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.examples.engines.items import Array, StoredItems
from benchmarks.examples.engines.packages import needed
from benchmarks.examples.engines.protocol import METRICS, Neighbours, OfOneWidth, checked
from benchmarks.examples.engines.qdrant import BATCH, PAYLOAD, hits_of
from laplace_metric._utils.validation import check_name
from laplace_metric.errors import InputError

ALWAYS = 1
"""Kilobytes of vectors from which a segment is indexed, and its index is searched."""
NEVER = 2**40
LINKS, BUILD_EF = 16, 100
"""Qdrant's defaults for its HNSW graph."""


class QdrantEdge(OfOneWidth):
    """A shard in a folder.

    Parameters
    ----------
    folder : str or Path
    metric : "euclidean" | "cosine"
    exact : bool
        Scan every item, also where there is an HNSW index.
    ef : int
        Candidates of a search in the HNSW index, at least.

    Raises
    ------
    MissingPackageError
        Without ``qdrant-edge-py``.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        metric: str = "euclidean",
        exact: bool = True,
        ef: int = 128,
    ) -> None:
        self.metric, self.exact, self.ef = check_name("metric", metric, METRICS), exact, ef
        self.edge, self.folder = needed("qdrant_edge"), Path(folder)
        there = self.folder.is_dir() and any(self.folder.iterdir())
        self.shard = self.edge.EdgeShard.load(str(self.folder)) if there else None

    def store(self, items: StoredItems) -> None:
        """In updates of 1,000; if it is interrupted, call it again.

        Raises
        ------
        InputError
            For vectors of another width than those that are there.
        """
        width = items.vectors.shape[1]
        if self.shard is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.shard = self.edge.EdgeShard.create(str(self.folder), self._config(width, NEVER))
        if (there := self.dimensions) not in (None, width):
            raise InputError(f"vectors are [N, {width}]: the shard has {there}.")
        for part in items.batches(BATCH):
            points = [
                self.edge.Point(row, vector.tolist(), dict(zip(PAYLOAD, told, strict=True)))
                for row, *told, vector in part.rows()
            ]
            self.shard.update(self.edge.UpdateOperation.upsert_points(points))
        self.shard.flush()

    def build_hnsw(self, links: int = LINKS, ef: int = BUILD_EF) -> None:
        """An HNSW index, on one thread.

        Raises
        ------
        InputError
            Before there are items.
        """
        if (width := self.dimensions) is None:
            raise InputError("there is no shard yet: store items first.")
        assert self.shard is not None
        self.shard.close()
        config = self._config(width, ALWAYS, links, ef)
        self.shard = self.edge.EdgeShard.load(str(self.folder), config)
        self.shard.optimize()

    def search(self, vectors: Array, k: int) -> Neighbours:
        """The k nearest; a batch is one call.

        Raises
        ------
        InputError
            Before there are items.
        """
        if (dimensions := self.dimensions) is None:
            raise InputError("there is no shard yet: store items first.")
        assert self.shard is not None
        edge = self.edge
        how = edge.SearchParams(exact=self.exact, hnsw_ef=max(self.ef, k))
        queries = [
            edge.QueryRequest(limit=k, query=edge.Query.Nearest(row), with_payload=True, params=how)
            for row in checked(vectors, dimensions, k).tolist()
        ]
        answers = self.shard.query_batch(edge.QueryBatchRequest(queries))
        return Neighbours.of([hits_of(answer, self.metric) for answer in answers], k)

    def _read_width(self) -> int | None:
        if self.shard is None:
            return None
        points, _ = self.shard.scroll(self.edge.ScrollRequest(limit=1, with_vector=True))
        return len(points[0].vector) if points else None

    def __len__(self) -> int:
        if self.shard is None:
            return 0
        return int(self.shard.count(self.edge.CountRequest(exact=True)))

    def close(self) -> None:
        """Write what is not written yet, and let go of the folder."""
        if self.shard is not None:
            self.shard.close()
            self.shard = None

    def _config(self, width: int, indexed: int, links: int = LINKS, ef: int = BUILD_EF) -> Any:
        edge = self.edge
        distance = {"euclidean": edge.Distance.Euclid, "cosine": edge.Distance.Cosine}[self.metric]
        return edge.EdgeConfig(
            vectors=edge.EdgeVectorParams(size=width, distance=distance),
            hnsw_config=edge.HnswIndexConfig(links, ef, ALWAYS, max_indexing_threads=1),
            optimizers=edge.EdgeOptimizersConfig(
                indexing_threshold=indexed, default_segment_number=1
            ),
            max_search_threads=1,
        )
