"""Uncertain embeddings in PostgreSQL: a table with a column of pgvector (extra ``recipes``).

    CREATE TABLE items (id bigint PRIMARY KEY, label ..., epistemic float8, spread float8,
                        embedding vector(d))
    SELECT id, label, epistemic, spread, embedding <-> query AS d FROM items ORDER BY d LIMIT k

``<->`` is the Euclidean distance itself, ``<=>`` is 1 - cosine. Without an index the search is an
exact scan. An HNSW index looks at ``hnsw.ef_search`` candidates (40 unless told) and never returns
more of them than that, so it is set to k or more.
"""

from __future__ import annotations

from typing import Any

from benchmarks.examples.engines.distances import from_cosine_distance
from benchmarks.examples.engines.items import Array, StoredItems
from benchmarks.examples.engines.packages import needed
from benchmarks.examples.engines.protocol import METRICS, Hit, Neighbours, OfOneWidth, checked
from laplace_metric._utils.validation import check_name
from laplace_metric.errors import InputError

OPERATORS = {"euclidean": ("<->", "vector_l2_ops"), "cosine": ("<=>", "vector_cosine_ops")}
COLUMNS = "id, label, epistemic, spread, embedding"


class PgVector(OfOneWidth):
    """A table of a PostgreSQL with pgvector 0.5 or newer.

    Parameters
    ----------
    address : str
        Of a database, as libpq reads it: ``"host=localhost dbname=postgres"``, or a URL.
    table : str
    metric : "euclidean" | "cosine"
    exact : bool
        Scan every row, also where there is an HNSW index.
    ef : int
        Candidates of a search in the HNSW index, at least.

    Raises
    ------
    MissingPackageError
        Without ``psycopg`` and ``pgvector``.
    """

    def __init__(
        self,
        address: str,
        table: str = "items",
        *,
        metric: str = "euclidean",
        exact: bool = True,
        ef: int = 128,
    ) -> None:
        self._psycopg = psycopg = needed("psycopg")
        self.metric, self.exact, self.ef = check_name("metric", metric, METRICS), exact, ef
        self.connection = psycopg.connect(address, autocommit=True)
        self.connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        needed("pgvector.psycopg").register_vector(self.connection)
        self.table = psycopg.sql.Identifier(table)
        self._name = table

    def store(self, items: StoredItems) -> None:
        """In one transaction: all of them, or none.

        Raises
        ------
        InputError
            For vectors of another width than those that are there.
        """
        kind = "text" if items.labels.dtype.kind == "U" else "bigint"
        width = items.vectors.shape[1]
        with self.connection.transaction():
            self._execute(
                "CREATE TABLE IF NOT EXISTS {table} (id bigint PRIMARY KEY, "
                f"label {kind} NOT NULL, epistemic float8 NOT NULL, spread float8 NOT NULL, "
                f"embedding vector({width}) NOT NULL)"
            )
            if self.dimensions != width:
                raise InputError(f"vectors are [N, {width}]: the table has {self.dimensions}.")
            self._execute("CREATE TEMP TABLE incoming (LIKE {table}) ON COMMIT DROP")
            self._copy(items, kind)
            self._execute(
                f"INSERT INTO {{table}} SELECT {COLUMNS} FROM incoming ON CONFLICT (id) DO UPDATE "
                "SET label = excluded.label, epistemic = excluded.epistemic, "
                "spread = excluded.spread, embedding = excluded.embedding"
            )
        self._execute("ANALYZE {table}")

    def build_hnsw(self, links: int = 16, ef: int = 64) -> None:
        """An HNSW index for this metric (pgvector's defaults); later items join it."""
        self._execute(
            f"CREATE INDEX ON {{table}} USING hnsw (embedding {OPERATORS[self.metric][1]}) "
            f"WITH (m = {int(links)}, ef_construction = {int(ef)})"
        )

    def search(self, vectors: Array, k: int) -> Neighbours:
        """The k nearest; a query each, sent together.

        Raises
        ------
        InputError
            Before there are items.
        """
        if (dimensions := self.dimensions) is None:
            raise InputError(f"there is no table {self._name}: store items first.")
        asked = checked(vectors, dimensions, k)
        order = "d, id" if self.exact else "d"  # an index gives an order by distance alone
        query = self._psycopg.sql.SQL(
            f"SELECT id, embedding {OPERATORS[self.metric][0]} %b AS d, label, epistemic, spread "
            f"FROM {{table}} ORDER BY {order} LIMIT {int(k)}"
        ).format(table=self.table)
        with self.connection.transaction():
            self._settings(k)
            with self.connection.pipeline():
                cursors = [self.connection.execute(query, [row], prepare=True) for row in asked]
            return Neighbours.of([self._hits(cursor.fetchall()) for cursor in cursors], k)

    def _hits(self, rows: list[tuple[Any, ...]]) -> list[Hit]:
        if self.metric == "euclidean":
            return rows
        distances = from_cosine_distance([row[1] for row in rows]).tolist()
        return [(row[0], d, *row[2:]) for row, d in zip(rows, distances, strict=True)]

    def _settings(self, k: int) -> None:
        if self.exact:  # the second key rules a graph out, and this does where it would not
            self.connection.execute("SET LOCAL enable_indexscan = off")
        else:
            self.connection.execute(f"SET LOCAL hnsw.ef_search = {max(int(k), self.ef)}")

    def _copy(self, items: StoredItems, kind: str) -> None:
        types = ["int8", "text" if kind == "text" else "int8", "float8", "float8", "vector"]
        copy = f"COPY incoming ({COLUMNS}) FROM STDIN WITH (FORMAT BINARY)"
        with self.connection.cursor() as cursor, cursor.copy(copy) as rows:
            rows.set_types(types)
            for row in items.rows():
                rows.write_row(row)

    def _execute(self, query: str) -> None:
        self.connection.execute(self._psycopg.sql.SQL(query).format(table=self.table))

    def _read_width(self) -> int | None:
        found = self.connection.execute(
            "SELECT atttypmod FROM pg_attribute WHERE attrelid = to_regclass(quote_ident(%s)) "
            "AND attname = 'embedding'",
            [self._name],
        ).fetchone()
        return None if found is None else int(found[0])

    def __len__(self) -> int:
        if self.dimensions is None:
            return 0
        count = self._psycopg.sql.SQL("SELECT count(*) FROM {table}").format(table=self.table)
        return int(self.connection.execute(count).fetchone()[0])

    def close(self) -> None:
        """End the connection."""
        self.connection.close()
