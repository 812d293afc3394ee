"""Passes over the points: which points they accept, and how much they hold at once."""

from __future__ import annotations

import pytest
import torch

from laplace_metric.curvature import ContrastiveLoss, _layered_term
from laplace_metric.curvature._layer_sums import Diagonal
from laplace_metric.curvature._layered_term import LayeredTerm
from laplace_metric.curvature._passes import ClassSumsPass, check_same_points
from laplace_metric.curvature.by_class import ClassSums, view_points
from laplace_metric.errors import InputError
from laplace_metric.heads._linear import LinearJacobian
from laplace_metric.models._blocks import Block, Derived, Kept


def test_points_that_changed_their_class_between_passes_are_named():
    """Classes of equal sizes: the counts alone agree."""
    first, read = (ClassSums.of(torch.tensor([0, 0, c, c])) for c in (1, 2))
    with pytest.raises(InputError, match=r"class 1 -2"):
        check_same_points(read, first)
    check_same_points(first, first)


@pytest.mark.parametrize("budget", [1, 1_000, 4_000])
def test_pieces_of_a_block_hold_no_more_than_their_budget(budget, monkeypatch):
    monkeypatch.setattr(_layered_term, "PROJECTED_BYTES", budget)
    head = LinearJacobian(torch.randn(3, 5, dtype=torch.float64))
    h = torch.randn(40, 5, dtype=torch.float64)
    points = view_points(h, head.forward(h), spherical=True)
    term = LayeredTerm(head, True, [Diagonal()])
    pieces = [(part, sides[0][0]) for part, sides in term._chunks(points)]
    assert [part.start for part, _ in pieces[1:]] == [part.stop for part, _ in pieces[:-1]]
    assert (pieces[0][0].start, pieces[-1][0].stop) == (0, 40)
    assert all(left.nbytes <= budget or len(left) == 1 for _, left in pieces)


@pytest.mark.parametrize("rows", [0, 1, 2, 5])
def test_directions_are_kept_within_their_budget(rows):
    """Z numbers and a length of each point are kept, or nothing of a block."""
    head = LinearJacobian(torch.randn(3, 5, dtype=torch.float64))
    geometry = ContrastiveLoss.of("arccos", "fixed", normalized=False).geometry
    needed = 8 * 2 * (3 + 1)
    derived = Derived(needed * rows, Kept((), 0))
    for start in range(0, 8, 2):
        block = Block(start, torch.randn(2, 5).double(), torch.zeros(2).long(), derived)
        ClassSumsPass(head, geometry).points(block)
    kept = derived.kept
    assert sum(t.nbytes for pair in kept.tensors.values() for t in pair) == needed * min(rows, 4)
    assert kept.bytes_left == needed * max(rows - 4, 0)
