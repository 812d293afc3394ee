"""What a search says of its first hits does not depend on how many hits are asked for."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from laplace_metric import LaplaceEmbedder, Rule

ASKED = (1, 5, 20, 50)
ROUNDING = {"rtol": 1e-5, "atol": 1e-6}
"""Of distances in float32; answers that depended on k differed by .1 and more."""


@settings(
    max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    ranked=st.sampled_from(["mean", "expected", "shared"]),
    distance=st.sampled_from(["arccos", "euclidean"]),
    labelled=st.booleans(),
    n_items=st.integers(80, 120),
    width=st.integers(2, 5),
    n_classes=st.integers(4, 9),
    depth=st.sampled_from([20, 50]),
    seed=st.integers(0, 2**20),
)
@example("expected", "euclidean", True, 100, 4, 5, 50, 0)
@example("expected", "euclidean", False, 100, 4, 5, 20, 0)
@example("shared", "arccos", True, 100, 4, 5, 50, 0)
def test_answers_do_not_depend_on_how_many_hits_are_asked_for(
    quick, ranked, distance, labelled, n_items, width, n_classes, depth, seed
):
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(n_items + 120) % n_classes
    x = 2 * torch.randn(n_classes, width, generator=g)[y]
    x = (x + 2 * torch.randn(len(y), width, generator=g)) * (
        0.2 + torch.rand(len(y), 1, generator=g)
    )
    items, of_items, queries, of = x[:n_items], y[:n_items], x[n_items:], y[n_items:]
    embedder = LaplaceEmbedder(
        torch.nn.Linear(width, width), distance=distance, prior_precision=9.0
    )
    embedder.fit([(items, of_items)], progress=False)
    index = embedder.index(items, of_items, rank_by=ranked, progress=False)
    matches = [(of_items == label).nonzero()[:, 0].tolist() for label in of]
    truth = {"labels": of} if labelled else {"matches": matches}
    index.calibrate(queries, **truth, depth=depth, k=5)
    few, *more = (index.search(queries, k=k) for k in ASKED if ranked != "shared" or k <= depth)
    for result in more:
        assert torch.equal(result.p_value, few.p_value)
        assert torch.equal(result.unknown, few.unknown)
        rule = Rule.at(0.5, "match")
        assert np.array_equal(rule(result).answered, rule(few).answered)
        assert (result.ids[:, 0] == few.ids[:, 0]).all()
        first = result.match_probability[:, :1]
        torch.testing.assert_close(first, few.match_probability, **ROUNDING)
        if labelled:
            assert (result.label == few.label).all()
            said = result.label_probability
            torch.testing.assert_close(said, few.label_probability, **ROUNDING)
