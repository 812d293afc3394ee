"""The library's logger: silent unless it is asked, and then of what a user waits for."""

from __future__ import annotations

import logging

import pytest

from laplace_metric import LaplaceEmbedder

pytestmark = pytest.mark.filterwarnings("ignore::laplace_metric.errors.LaplaceMetricWarning")
LOGGER = logging.getLogger("laplace_metric")


def test_it_is_silent_by_default():
    assert LOGGER.level == logging.NOTSET
    assert [type(handler) for handler in LOGGER.handlers] == [logging.NullHandler]


def test_it_says_what_a_user_waits_for(caplog, tmp_path, points, network):
    x, y = points
    with caplog.at_level("INFO", "laplace_metric"):
        embedder = LaplaceEmbedder(network).fit([(x[:100], y[:100])], progress=False)
        embedder.save(tmp_path)
        LaplaceEmbedder.load(tmp_path, network)
        index = embedder.index(x[100:200], y[100:200], progress=False)
        index.calibrate(x[200:300], y[200:300])
    said = [record.getMessage() for record in caplog.records]
    assert {record.levelname for record in caplog.records} == {"INFO"}
    for beginning, end in zip(
        ("fitted in", "saved to", "loaded from", "indexed in", "calibrated"),
        ("100 points", "100 points", "100 points", "100 items of 4 classes.", "50 queries"),
        strict=True,
    ):
        (line,) = (line for line in said if line.startswith(beginning))
        assert end in line
