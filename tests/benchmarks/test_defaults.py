"""The sweep over defaults: one fit seen under many priors."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.records import read_record
from benchmarks.variants.defaults import PRIORS, TASKS, VARIANTS, with_prior
from laplace_metric import LaplaceEmbedder


def test_another_prior_is_another_fit():
    torch.manual_seed(0)
    x, y, model = torch.randn(30, 4), torch.arange(30) % 3, nn.Linear(4, 3)
    once = LaplaceEmbedder(model).fit([(x, y)], progress=False)
    again = LaplaceEmbedder(model, prior_precision=7.0).fit([(x, y)], progress=False)
    torch.testing.assert_close(with_prior(once, 7.0)(x).uncertainty, again(x).uncertainty)
    assert once.settings.prior_precision == 1


def test_the_record_is_whole():
    rows = read_record("defaults")["rows"]
    assert len(rows) == 3 * len(TASKS) * len(VARIANTS) * len(PRIORS)
    mild = [r["negative_fraction"] for r in rows if r["variant"] == "kronecker, absolute"]
    assert 0 < max(mild) < 0.02
