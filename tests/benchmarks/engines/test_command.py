"""``python -m benchmarks.examples.engines``: digits in every engine that installs."""

from __future__ import annotations

import pytest

from benchmarks.examples.engines import LanceTable, PgVector, Qdrant, QdrantEdge, __main__
from tests.benchmarks.engines.conftest import ENGINES

NAMES = {PgVector: "pgvector", LanceTable: "lancedb", Qdrant: "qdrant", QdrantEdge: "qdrant-edge"}


@pytest.mark.parametrize("opened", ENGINES[:4], indirect=True)
def test_digits(opened, capsys):
    engine = opened()
    engine.close()
    __main__.main([NAMES[type(engine)]])
    said = capsys.readouterr().out
    assert "100.0% of the 20 neighbours" in said
    assert "100.0% of the decisions" in said
    assert float(said.split("differ by ")[1].split()[0]) < 2e-6


@pytest.mark.parametrize("dialect", ENGINES[4:])
def test_requests(dialect, capsys):
    __main__.main([dialect])
    lines = capsys.readouterr().out.splitlines()
    assert lines[::2] == ["PUT /items", "POST /items/_bulk", "POST /items/_search"]
