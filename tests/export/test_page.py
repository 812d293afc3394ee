"""The code of the page on production runs, in order."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

PAGE = Path(__file__).parents[2] / "docs" / "production.md"


def test_the_code_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = re.findall(r"(?:<!-- (\w+) -->\n)?```python\n(.*?)```", PAGE.read_text(), flags=re.S)
    has_onnx = find_spec("onnxruntime") and find_spec("onnxscript")
    scope: dict[str, object] = {}
    for name, block in found:
        if name != "onnx":
            exec(compile(block, str(PAGE), "exec"), scope)
        elif has_onnx:
            own = dict(scope)
            exec(compile(block, str(PAGE), "exec"), own)
            np.testing.assert_allclose(own["mean"], scope["mean"], atol=1e-5)
            for field, value in own.get("answer", {}).items():
                expected = np.asarray(getattr(scope["verdict"], field))
                np.testing.assert_allclose(value, expected, atol=1e-6, err_msg=field)
    assert not has_onnx or len(own["answer"]) == 6
    queries, verdict = scope["queries"], scope["verdict"]
    expected = scope["index"].search(queries, k=20)
    np.testing.assert_allclose(
        verdict.match_probability, expected.match_probability, rtol=1e-4, atol=1e-6
    )
    assert list(verdict.label) == list(expected.label)
    torch.testing.assert_close(scope["numbers"].mean, scope["mean"], rtol=1e-5, atol=1e-6)
