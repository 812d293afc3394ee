"""Uncertain embeddings in LanceDB: a table in a folder or an object store (extra ``recipes``).

Columns: ``id``, ``label``, ``epistemic``, ``spread``, ``vector``. ``_distance`` is the *squared*
Euclidean distance for the metric "l2", 1 - cosine for "cosine". Without an index the search is an
exact scan. Of its indices IVF_HNSW_FLAT keeps the vectors as they are; SQ and PQ return distances
of compressed vectors, unless ``refine_factor`` computes them again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.examples.engines.distances import from_cosine_distance, from_squared
from benchmarks.examples.engines.items import Array, StoredItems
from benchmarks.examples.engines.packages import needed
from benchmarks.examples.engines.protocol import METRICS, Hit, Neighbours, OfOneWidth, checked
from laplace_metric._utils.validation import check_name
from laplace_metric.errors import InputError

TABLE = "items"
DISTANCE = {"euclidean": ("l2", from_squared), "cosine": ("cosine", from_cosine_distance)}
TOLD = ["id", "_distance", "label", "epistemic", "spread"]


class LanceTable(OfOneWidth):
    """The table ``items`` of a LanceDB.

    Parameters
    ----------
    folder : str or Path
        Or the address of an object store, ``"s3://..."``.
    metric : "euclidean" | "cosine"
    exact : bool
        Scan every row, also where there is an index.
    ef : int
        Candidates of a search in the HNSW index, at least.

    Raises
    ------
    MissingPackageError
        Without ``lancedb``.
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
        self._arrow = needed("pyarrow")
        self.database = needed("lancedb").connect(str(folder))
        there = TABLE in self.database.list_tables().tables
        self.table = self.database.open_table(TABLE) if there else None

    def store(self, items: StoredItems) -> None:
        """As one new version of the table: all of them, or none.

        Raises
        ------
        InputError
            For vectors of another width than those that are there.
        """
        rows = self._rows(items)
        if self.table is None:
            self.table = self.database.create_table(TABLE, schema=rows.schema, exist_ok=True)
        if self.dimensions != items.vectors.shape[1]:
            width = items.vectors.shape[1]
            raise InputError(f"vectors are [N, {width}]: the table has {self.dimensions}.")
        merge = self.table.merge_insert("id")
        merge.when_matched_update_all().when_not_matched_insert_all().execute(rows)

    def build_hnsw(self, links: int = 20, ef: int = 300) -> None:
        """One partition of IVF_HNSW_FLAT (LanceDB's defaults for the graph)."""
        config = needed("lancedb.index").HnswFlat(
            distance_type=DISTANCE[self.metric][0], num_partitions=1, m=links, ef_construction=ef
        )
        self._there().create_index("vector", config=config)

    def search(self, vectors: Array, k: int) -> Neighbours:
        """The k nearest; a batch is one call.

        Raises
        ------
        InputError
            Before there are items.
        """
        table = self._there()
        assert self.dimensions is not None
        asked = checked(vectors, self.dimensions, k)
        name, euclidean = DISTANCE[self.metric]
        query = table.search(list(asked), vector_column_name="vector").distance_type(name)
        query = query.bypass_vector_index() if self.exact else query.ef(max(self.ef, k))
        answer = query.limit(k).select(TOLD).to_arrow()
        columns = [answer.column(name).to_pylist() for name in TOLD]
        columns[1] = euclidean(columns[1]).tolist()
        of = [0] * len(answer)
        if len(asked) > 1:
            of = answer.column("query_index").to_pylist()
        found: list[list[Hit]] = [[] for _ in asked]
        for row, hit in zip(of, zip(*columns, strict=True), strict=True):
            found[row].append(hit)
        return Neighbours.of([sorted(hits, key=lambda hit: hit[1]) for hits in found], k)

    def _rows(self, items: StoredItems) -> Any:
        arrow = self._arrow
        flat = arrow.array(items.vectors.ravel(), arrow.float32())
        vectors = arrow.FixedSizeListArray.from_arrays(flat, items.vectors.shape[1])
        text = items.labels.dtype.kind == "U"
        labels = arrow.array(items.labels.tolist(), arrow.string() if text else arrow.int64())
        numbers = {"epistemic": items.epistemic, "spread": items.spread}
        return arrow.table({"id": items.ids, "label": labels, **numbers, "vector": vectors})

    def _there(self) -> Any:
        if self.table is None:
            raise InputError("there is no table yet: store items first.")
        return self.table

    def _read_width(self) -> int | None:
        if self.table is None:
            return None
        return int(self.table.schema.field("vector").type.list_size)

    def __len__(self) -> int:
        return 0 if self.table is None else int(self.table.count_rows())

    def close(self) -> None:
        """Forget the table; nothing is held open."""
        self.table = None
