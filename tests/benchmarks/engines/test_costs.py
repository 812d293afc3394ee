"""The benchmark of the engines counts what an engine misses."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks.costs import engine_kinds, engines
from benchmarks.costs.engine_items import EngineProblem, engine_problems
from benchmarks.examples.engines import judged
from laplace_metric.errors import InputError, MissingPackageError
from laplace_metric.search._engines import HNSW, Flat
from tests.benchmarks.engines.conftest import K, collection


@pytest.mark.parametrize("kind", [engine_kinds.OwnEngine, engine_kinds.PlainFaiss])
@pytest.mark.parametrize("graph", [False, True])
def test_engines_in_this_process(kind, graph):
    pytest.importorskip("faiss")
    of = collection(names=True)
    engine = kind(HNSW(links=16, ef=300) if graph else Flat())
    engine.store(of.stored())
    assert len(engine) == 300
    found, wanted = engine.search(of.vectors(), K), of.index.search(of.asked, K)
    np.testing.assert_array_equal(found.ids, wanted.ids)
    np.testing.assert_array_equal(found.labels, wanted.labels)
    np.testing.assert_allclose(found.distances, wanted.distance, rtol=1e-4, atol=1e-5)
    engine.close()


def test_what_is_compared():
    of = collection()
    engine = engine_kinds.OwnEngine(Flat())
    engine.store(of.stored())
    found, wanted = engine.search(of.vectors(), K), of.index.search(of.asked, K)
    verdict = judged(of.index.calibration, found, of.queries, **of.how)
    numbers = engines.agreement(found, verdict, wanted, 0.5)
    assert numbers["recall"] == numbers["same_decisions"] == 1
    assert numbers["largest_difference"] < 1e-6
    ids = found.ids.copy()
    ids[:, 9] = -1  # the last that recall looks at
    ids[:, 10] = -1  # and one that it does not
    assert engines.agreement(replace(found, ids=ids), verdict, wanted, 0.5)["recall"] == 0.9
    moved = verdict.match_probability.copy()
    moved[3, 0] = 1 - round(float(moved[3, 0]))
    flipped = engines.agreement(found, replace(verdict, match_probability=moved), wanted, 0.5)
    assert flipped["same_decisions"] == 0.99
    assert flipped["largest_difference"] > 0.4
    far = found.distances.copy()
    far[5, 19] += 0.25
    assert engines.agreement(replace(found, distances=far), verdict, wanted, 0.5)[
        "distance_difference"] == pytest.approx(0.25, abs=1e-6)  # fmt: skip
    swapped = {name: value[:, ::-1] for name, value in vars(found).items()}
    backwards = replace(verdict, match_probability=verdict.match_probability[:, ::-1])
    by_id = engines.agreement(replace(found, **swapped), backwards, wanted, 0.5)
    assert by_id["largest_difference"] < 1e-6
    assert by_id["distance_difference"] < 1e-6
    labels, unknown = verdict.label.copy(), ~verdict.unknown
    labels[:2] += 1
    other = engines.agreement(found, replace(verdict, label=labels), wanted, 0.5)
    assert other["same_decisions"] == 0.98
    assert engines.agreement(found, replace(verdict, unknown=unknown), wanted, 0.5)[
        "same_decisions"] == 0  # fmt: skip


def problem() -> EngineProblem:
    of = collection()
    g = torch.Generator().manual_seed(0)
    y = torch.arange(700) % 12
    x = 2 * torch.randn(12, 6, generator=g)[y] + 1.2 * torch.randn(700, 6, generator=g)
    parts = [(x[rows], y[rows]) for rows in (slice(300), slice(300, 600), slice(600, 700))]
    return EngineProblem("points", of.embedder, *parts)


def test_a_row_an_engine(monkeypatch):
    kinds = dict(engine_kinds.engines())
    missing = {"not here": lambda _: (_ for _ in ()).throw(MissingPackageError("x", "y", "z"))}
    chosen = {name: kinds[name] for name in ("our index, flat", "our index, HNSW")} | missing
    monkeypatch.setattr(engines, "engines", lambda: chosen)
    monkeypatch.setattr(engines, "SINGLE", 3)
    monkeypatch.setattr(engines, "TOGETHER", 30)
    rows = list(engines.measured(problem(), 200))
    assert [row["engine"] for row in rows] == ["our index, flat", "our index, HNSW"]
    for row in rows:
        assert row["width"] == 6
        assert 0 < row["p50"] <= row["p99"]
        assert row["recall"] == row["same_decisions"] == 1
        assert row["largest_difference"] < 1e-5


def test_some_items_are_different_ones():
    whole = problem()
    x, y = whole.some(100)
    assert len({row.tobytes() for row in x.numpy()}) == len(y) == 100
    twice = torch.cat([whole.items[0], whole.items[0][:5]])
    assert replace(whole, items=(twice, twice[:, 0])).distinct(305) == 300


def test_what_the_command_needs(monkeypatch):
    monkeypatch.delenv("LAPLACE_METRIC_DATA", raising=False)
    with pytest.raises(InputError, match="--data is not given"):
        next(engine_problems(SimpleNamespace(data=None, problems=None)))
    with pytest.raises(InputError, match="--problems birds is not known"):
        next(engine_problems(SimpleNamespace(data="here", problems=["birds"])))
