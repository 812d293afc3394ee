"""Errors that name the argument; imports that stay light."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from laplace_metric import evaluation as ev
from laplace_metric.errors import InputError, LabelError, NonFiniteError
from laplace_metric.evaluation._share_interval import share_interval
from laplace_metric.plots import answering_plot

X, Y = torch.randn(4, 2, generator=torch.Generator().manual_seed(0)), [0, 1, 0, 1]
DRAWS = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(1))
OF = [0, 1, 0, 1, 0]
ece, sparse, nearest = ev.expected_calibration_error, ev.sparsification, ev.nearest_neighbours
votes = ev.retrieval_calibration

REFUSED = [
    (lambda: ece([0.1, 1.5], [0, 1]), InputError, r"confidence lies in \[0.1, 1.5\]"),
    (lambda: ece([0.1, 0.5], [0]), InputError, "correct has length 1 but confidence has 2"),
    (lambda: ece([0.1, np.nan], [0, 1]), NonFiniteError, "confidence holds 1 NaN"),
    (lambda: ece([0.1], [0], bins=0), InputError, "bins=0"),
    (lambda: ev.auroc([0.1], []), InputError, "out_scores is empty"),
    (lambda: ev.auprc([0.1, np.nan], [0.2]), NonFiniteError, "in_scores holds 1 NaN"),
    (lambda: ev.fpr_at_tpr([[0.1, 0.2]], [0.2]), InputError, r"in_scores has shape \(1, 2\)"),
    (lambda: ev.auroc(torch.ones(2, dtype=torch.complex64), [0.2]), InputError, "complex"),
    (lambda: ev.fpr_at_tpr([0.1], [0.2], tpr=95), InputError, "tpr=95"),
    (lambda: ev.r_auroc([0.1, 0.2], [0.5, 1.0]), InputError, "values between 0 and 1"),
    (lambda: ev.r_auroc([0.1, 0.2], [np.nan, 1.0]), NonFiniteError, "correct holds 1 NaN"),
    (lambda: sparse([0.1, 0.2], [0, 2]), InputError, r"correct lies in \[0, 2\]"),
    (lambda: sparse([0.1, 0.2], [np.nan, 1.0]), NonFiniteError, "retrieval metric excluded"),
    (lambda: ev.abstention([], []), InputError, "uncertainty is empty"),
    (lambda: ev.bootstrap_interval(np.mean), InputError, "arrays is empty"),
    (lambda: ev.bootstrap_interval(np.mean, []), InputError, r"arrays\[0\] is empty"),
    (lambda: ev.bootstrap_interval(np.mean, [1.0], level=95), InputError, "level=95"),
    (lambda: share_interval(3, 2), InputError, "0 <= successes <= trials"),
    (lambda: share_interval(0.5, 2), InputError, "whole numbers"),
    (lambda: share_interval([1, 2], 2), InputError, "of one shape"),
    (lambda: nearest(X, k=4), InputError, r"k=4.*3 items besides the excluded"),
    (lambda: nearest(X, X, k=5), InputError, r"k=5.*4 items\."),
    (lambda: nearest(X[0]), InputError, r"queries.*\[Q, Z\]"),
    (lambda: nearest(X, torch.randn(4, 3)), InputError, "gallery has dimension 3"),
    (lambda: nearest(X, exclude=torch.arange(4)), InputError, "exclude was given without gallery"),
    (lambda: nearest(X, X, exclude=torch.arange(1, 5)), InputError, "indices outside"),
    (lambda: nearest(X, X, exclude=torch.arange(3)), InputError, "exclude has shape"),
    (lambda: nearest(X / 0), NonFiniteError, "queries holds"),
    (lambda: nearest(torch.tensor([[-3e38], [3e38]])), NonFiniteError, "overflow"),
    (lambda: ev.recall_at_k(X, Y[1:]), LabelError, r"labels has shape \(3,\).*4 rows"),
    (lambda: ev.recall_at_k(X, X[:, 0]), LabelError, "integer labels"),
    (lambda: ev.recall_at_k(X, ["cat"] * 4), LabelError, r"numpy\.unique"),
    (lambda: ev.recall_at_k(X, Y, gallery=X), LabelError, "gallery_labels is missing"),
    (lambda: ev.map_at_k(X, Y, gallery_labels=Y), InputError, "without gallery"),
    (lambda: votes(DRAWS[0], OF), InputError, r"samples has shape \(5, 3\).*\[S, Q, Z\]"),
    (lambda: votes(DRAWS, OF, gallery=DRAWS[:3], gallery_labels=OF), InputError, "as many draws"),
    (lambda: votes(DRAWS, OF, exclude=torch.arange(5)), InputError, "without gallery"),
    (lambda: votes(DRAWS[:, :1], [0]), InputError, "single query"),
    (lambda: answering_plot({"p": [0.1, 0.2]}, [0.5, 1]), InputError, "booleans"),
    (lambda: answering_plot({}, []), InputError, "series"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), REFUSED)
def test_errors_name_the_argument(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_import_brings_neither_matplotlib_nor_faiss():
    code = (
        "import sys, laplace_metric.evaluation; "
        "sys.exit(any(name in sys.modules for name in ('matplotlib', 'faiss')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
