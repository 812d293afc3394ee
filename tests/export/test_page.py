"""The code of the page on production runs, in order."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

NEEDED = {"onnx": ("onnxruntime", "onnxscript"), "qdrant": ("qdrant_client",)}
"""Packages of the blocks that are marked."""
PAGE = Path(__file__).parents[2] / "docs" / "production.md"


def same(name: str, own: dict, scope: dict) -> None:
    if name == "onnx":
        np.testing.assert_allclose(own["mean"], scope["mean"], atol=1e-5)
        for field, value in own.get("answer", {}).items():
            expected = np.asarray(getattr(scope["verdict"], field))
            np.testing.assert_allclose(value, expected, atol=1e-6, err_msg=field)
    else:  # no p-values: these queries were held out, and tie with themselves but for rounding
        wanted = scope["index"].search(scope["queries"], k=20)
        for number in ("match_probability", "label_probability"):
            told, expected = getattr(own["told"], number), getattr(wanted, number)
            np.testing.assert_allclose(told, expected, rtol=0, atol=2e-6, err_msg=number)
        np.testing.assert_array_equal(own["told"].label, wanted.label)


def test_the_code_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = re.findall(r"(?:<!-- (\w+) -->\n)?```python\n(.*?)```", PAGE.read_text(), flags=re.S)
    scope: dict[str, object] = {}
    fields = []
    for name, block in found:
        if not name:
            exec(compile(block, str(PAGE), "exec"), scope)
        elif all(find_spec(package) for package in NEEDED[name]):
            own = dict(scope)
            exec(compile(block, str(PAGE), "exec"), own)
            same(name, own, scope)
            fields.append(len(own.get("answer", {})))
    assert not all(find_spec(package) for package in NEEDED["onnx"]) or 6 in fields
    queries, verdict = scope["queries"], scope["verdict"]
    expected = scope["index"].search(queries, k=20)
    np.testing.assert_allclose(
        verdict.match_probability, expected.match_probability, rtol=1e-4, atol=1e-6
    )
    assert list(verdict.label) == list(expected.label)
    torch.testing.assert_close(scope["numbers"].mean, scope["mean"], rtol=1e-5, atol=1e-6)
