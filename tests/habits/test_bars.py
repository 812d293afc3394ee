"""Progress bars count what the user gave: items where their number is known, else batches."""

from __future__ import annotations

import numpy as np
import pytest
from torch.utils.data import DataLoader, TensorDataset

from laplace_metric import LaplaceEmbedder
from laplace_metric.cli import main


def one_by_one(x, y):
    """Nobody knows how many batches there are."""
    yield from ((x[start : start + 100], y[start : start + 100]) for start in (0, 100))


GIVEN = {
    "rows": (lambda x, y: (x, y), "200/200", "items"),
    "a loader": (lambda x, y: (DataLoader(TensorDataset(x, y), 30), None), "200/200", "items"),
    "a loader that drops": (
        lambda x, y: (DataLoader(TensorDataset(x, y), 30, drop_last=True), None),
        *("180/180", "items"),
    ),
    "batches": (lambda x, y: ([(x[:80], y[:80]), (x[80:], y[80:])], None), "2/2", "batches"),
    "a generator": (lambda x, y: (one_by_one(x, y), None), "2", "batches"),
}


def last_line(capsys, title):
    lines = capsys.readouterr().err.replace("\r", "\n").splitlines()
    return [line for line in lines if title in line][-1]


@pytest.mark.parametrize("given", GIVEN)
def test_a_fit_counts_what_was_given(given, points, network, capsys):
    make, count, unit = GIVEN[given]
    data, labels = make(points[0][:200], points[1][:200])
    LaplaceEmbedder(network).fit(data, labels)
    line = last_line(capsys, "Fitting")
    assert f" {count} " in line
    assert f" {unit}" in line.rsplit(",", 1)[1]


def test_the_command_line_counts_items_too(points, tmp_path, capsys):
    x, y = (values.numpy()[:240] for values in points)
    np.savez(tmp_path / "items.npz", embeddings=x, labels=y)
    items, posterior, index = (str(tmp_path / name) for name in ("items.npz", "p", "i"))
    assert main(["fit", items, "--output", posterior, "--holdout", "0.4"]) == 0
    assert " 144/144 " in last_line(capsys, "Fitting")
    assert main(["index", items, "--posterior", posterior, "--output", index]) == 0
    said = capsys.readouterr().err
    assert " 144/144 " in said
    assert " 48/48 " in said
