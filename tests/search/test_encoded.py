"""Batches of embeddings are joined in the memory of all of them once."""

from __future__ import annotations

import pytest
import torch

from laplace_metric.search._encoded import Encoded, joined


@pytest.mark.parametrize("count", [None, 7, 12, 20])
def test_batches_are_joined_whatever_number_was_expected(count):
    x = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    given = Encoded(x, x[:, 0], x[:, 1], x[:, :2])
    found = joined((given.take(slice(i, i + 5)) for i in range(0, 12, 5)), count)
    for name, column in vars(given).items():
        if column is None:
            continue
        assert torch.equal(getattr(found, name), column)
        assert getattr(found, name).untyped_storage().nbytes() == 4 * column.numel()
    assert joined(iter([]), count) is None


def test_a_batch_that_is_joined_alone_is_a_copy():
    x = torch.zeros(2, 3)
    found = joined([Encoded(x, x[:, 0], x[:, 0], x)])
    x += 1
    assert float(found.mean.abs().max()) == float(found.basis_inputs.abs().max()) == 0
