"""Products of a triangle: the whole product's numbers, whatever the strips."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from laplace_metric.curvature import by_class
from laplace_metric.curvature._ggn import mirrored
from laplace_metric.curvature.by_class import upper_gram
from laplace_metric.familiarity import _class_gaussians
from laplace_metric.familiarity._class_gaussians import times_upper


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@settings(max_examples=50, deadline=None)
@given(n=st.integers(0, 9), width=st.integers(1, 40), strip=st.integers(1, 41))
def test_any_width_and_strip(n, width, strip):
    with pytest.MonkeyPatch.context() as patch:
        for room in (by_class, _class_gaussians):
            patch.setattr(room, "STRIP", strip)
        x, q = numbers(n, width), numbers(n, 1, seed=1)
        torch.testing.assert_close(mirrored(upper_gram(q * x, x)), x.mT @ (q * x))
        upper = numbers(width, width, seed=2).triu()
        torch.testing.assert_close(times_upper(x, upper), x @ upper)


def test_below_the_strips_nothing_is_multiplied(monkeypatch):
    for room in (by_class, _class_gaussians):
        monkeypatch.setattr(room, "STRIP", 2)
    gram = upper_gram(torch.ones(3, 5), torch.ones(3, 5))
    assert gram[2:, :2].abs().sum() == gram[4:, 2:4].abs().sum() == 0
    assert times_upper(torch.ones(1, 4), torch.ones(4, 4)).tolist() == [[2, 2, 4, 4]]


def test_gradients_pass(monkeypatch):
    for room in (by_class, _class_gaussians):
        monkeypatch.setattr(room, "STRIP", 2)
    x, upper = numbers(3, 5).requires_grad_(), numbers(5, 5, seed=1).triu()
    assert torch.autograd.gradcheck(lambda x: times_upper(x, upper), x)
    assert torch.autograd.gradcheck(lambda x: mirrored(upper_gram(x, x)), x)
