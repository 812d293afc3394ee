"""Calibration errors against torchmetrics, loops and hand-computed cases."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from laplace_metric.evaluation import expected_calibration_error


def loop_error(confidence, correct, bins):
    """Integer arithmetic: confidence counts out of 100 against edges of width 100 / bins."""
    total = 0.0
    for b in range(bins):
        rows = [i for i, c in enumerate(confidence) if min(c * bins // 100, bins - 1) == b]
        if rows:
            gap = np.mean([correct[i] for i in rows]) - np.mean([confidence[i] / 100 for i in rows])
            total += len(rows) / len(confidence) * abs(gap)
    return total


@pytest.mark.parametrize("bins", [1, 5, 10, 20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_hundredth_falls_in_its_bin(bins, dtype):
    """Shares of 100 samples lie on the edges 0.1, 0.2, ...; each belongs to the bin above it."""
    counts = np.arange(101).repeat(7)
    correct = np.random.default_rng(0).integers(0, 2, len(counts))
    confidence = torch.tensor(counts, dtype=dtype) / 100
    result = expected_calibration_error(confidence, correct, bins)
    assert result.ece == pytest.approx(
        loop_error(counts.tolist(), correct.tolist(), bins), abs=1e-7
    )
    width = 100 // bins
    assert result.bin_count.tolist() == [7 * width] * (bins - 1) + [7 * (width + 1)]


def test_adaptive_bins_hold_equally_many():
    draw = np.random.default_rng(1)
    confidence, correct = draw.random(103) ** 3, draw.integers(0, 2, 103)
    order = np.argsort(confidence)
    parts = np.array_split(order, 10)
    gaps = [len(p) / 103 * abs(correct[p].mean() - confidence[p].mean()) for p in parts]
    result = expected_calibration_error(confidence, correct)
    assert result.adaptive_ece == pytest.approx(sum(gaps))
    assert result.adaptive_ece != pytest.approx(result.ece, rel=1e-3)


def test_adaptive_error_of_ties_ignores_the_order_of_rows():
    confidence = np.full(100, 0.5)
    correct = np.arange(100) < 50
    assert expected_calibration_error(confidence, correct).adaptive_ece == pytest.approx(0.0)
    mixed = np.random.default_rng(0).permutation(100)
    assert expected_calibration_error(confidence, correct[mixed]).adaptive_ece == pytest.approx(0.0)


def test_more_bins_than_queries():
    result = expected_calibration_error([0.2, 0.9], [0, 1], bins=50)
    assert result.ece == pytest.approx((0.2 + 0.1) / 2)
    assert result.adaptive_ece == pytest.approx((0.2 + 0.1) / 2)
    assert len(result.edges) == 51
    assert int(result.bin_accuracy.isnan().sum()) == int(result.bin_confidence.isnan().sum()) == 48
