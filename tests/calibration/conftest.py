"""The embeddings and the index of the search tests; calibrations in an order that torch draws."""

from __future__ import annotations

from typing import Any

import torch

from laplace_metric.calibration import Calibration, _calibrated
from laplace_metric.calibration._hits import LabelledHits
from tests.search.conftest import embedder, points

__all__ = ["calibrated", "embedder", "points"]


def calibrated(
    labelled: LabelledHits, k: int, n_items: int, generator: torch.Generator, **options: Any
) -> Calibration:
    """By halves, which most tests are about."""
    order = torch.randperm(len(labelled), generator=generator).numpy()
    options = {"cross_fit": 0} | options
    return _calibrated.calibrated(labelled, k, n_items, order, **options)
