"""The load test counts what is lost and what is other than Python says."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from benchmarks.costs.serve import compared, latencies
from laplace_metric import LaplaceEmbedder


@pytest.fixture(scope="module")
def alone():
    g = torch.Generator().manual_seed(0)
    y = torch.arange(300) % 6
    x = torch.nn.functional.one_hot(y, 8) + 0.4 * torch.randn(300, 8, generator=g)
    embedder = LaplaceEmbedder.from_embeddings(x[:100], y[:100])
    index = embedder.index(x[100:200], y[100:200], progress=False)
    index.calibrate(x[200:290], y[200:290])
    return [index.search(x[row : row + 1], 3) for row in range(290, 294)]


def answer(result) -> dict:
    rows = zip(
        result.ids[0].tolist(),
        result.distance[0].tolist(),
        result.match_probability[0].tolist(),
        strict=True,
    )
    return {"neighbours": [dict(zip(("id", "distance", "match_probability"), row, strict=True))
                           for row in rows]}  # fmt: skip


def test_what_is_compared(alone):
    answers = [(row, 200, 0.1, answer(result)) for row, result in enumerate(alone)]
    assert compared(answers, alone) == {"lost": 0, "other_neighbours": 0, "largest_gap": 0.0}
    moved = copy.deepcopy(answers)
    moved[1][3]["neighbours"][2]["distance"] += 0.25
    moved[2][3]["neighbours"][0]["match_probability"] -= 0.125
    moved[3][3]["neighbours"].reverse()
    moved.append((0, 503, 0.1, {"error": "busy"}))
    found = compared(moved, alone)
    assert (found["lost"], found["other_neighbours"]) == (1, 1)
    assert found["largest_gap"] >= 0.25
    assert compared(moved[:3], alone)["largest_gap"] == pytest.approx(0.25)
    assert compared([moved[2]], alone)["largest_gap"] == pytest.approx(0.125)


def test_latencies_are_quantiles():
    seconds = np.arange(101) / 100
    assert latencies(seconds) == {"p50": 0.5, "p99": pytest.approx(0.99)}
