"""The public names, and what importing them brings along."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import FrozenInstanceError

import pytest

from laplace_metric import evaluation


def test_all_names_exist():
    constants_first = sorted(evaluation.__all__, key=lambda name: (not name.isupper(), name))
    assert constants_first == evaluation.__all__
    assert all(hasattr(evaluation, name) for name in evaluation.__all__)


def test_import_brings_neither_matplotlib_nor_faiss():
    code = (
        "import sys, laplace_metric.evaluation; "
        "sys.exit(any(name in sys.modules for name in ('matplotlib', 'faiss')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_results_are_frozen():
    result = evaluation.recall_at_k([[0.0], [1.0]], [0, 0])
    with pytest.raises(FrozenInstanceError):
        result.value = 0.0
