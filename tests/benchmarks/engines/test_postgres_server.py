"""A PostgreSQL in a folder: what was stored survives a crash."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

from benchmarks.examples.engines import PgVector, PostgresServer
from tests.benchmarks.engines.conftest import K, collection

pytestmark = pytest.mark.skipif(
    find_spec("psycopg") is None or find_spec("pgvector") is None,
    reason="psycopg and pgvector are not installed: pip install 'laplace-metric[recipes]'",
)


def test_what_was_stored_survives_a_crash(postgres):
    of = collection()
    engine = PgVector(postgres.address, "crash")
    engine.store(of.stored())
    first = engine.search(of.vectors(), K)
    postgres.stop("immediate")  # no checkpoint, as after kill -9
    with pytest.raises(Exception, match="connection"):
        engine.search(of.vectors(), K)
    again = PostgresServer(postgres.folder)
    engine = PgVector(again.address, "crash")
    np.testing.assert_array_equal(engine.search(of.vectors(), K).ids, first.ids)
    engine.close()


def test_a_store_that_fails_leaves_everything_as_it_was(postgres, monkeypatch):
    of = collection()
    items, engine = of.stored(), PgVector(postgres.address, "whole")
    engine.store(next(items.batches(100)))

    def rows(self):
        yield from list(type(items).rows_(self))[:150]
        raise KeyboardInterrupt

    monkeypatch.setattr(type(items), "rows_", type(items).rows, raising=False)
    monkeypatch.setattr(type(items), "rows", rows)
    with pytest.raises(KeyboardInterrupt):
        engine.store(items)
    monkeypatch.undo()
    assert len(engine) == 100
    engine.store(items)
    assert len(engine) == 300
    engine.close()
