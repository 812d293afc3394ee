"""The code of the pages on export and on engines runs, in order, and says what an index says."""

from __future__ import annotations

import re
from contextlib import ExitStack, redirect_stdout, suppress
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.examples.engines import temporary_server
from laplace_metric import Guard
from laplace_metric.errors import MissingPackageError
from tests.pages import warnings_named

NEEDED = {
    "onnx": ("onnxruntime", "onnxscript"),
    "guard_qdrant": ("qdrant_client",),
    "guard_lancedb": ("lancedb", "pandas"),
    "guard_pgvector": ("psycopg", "pgvector"),
}
"""Packages of the blocks that are marked."""
DOCS = Path(__file__).parents[2] / "docs"
FRAMEWORKS = "## In your framework and your vector store"
"""Run by ``tests/adapters/test_integrations.py``."""


def installed(name: str) -> bool:
    return all(find_spec(package) for package in NEEDED[name])


def scopes(
    page: str, *, until: str | None = None, **given: Any
) -> tuple[dict[str, Any], list[tuple[str, dict[str, Any]]]]:
    """What the blocks define, and what each marked one defines; what they print is on the page.

    ``until`` is a heading from which on the blocks are run by another test.
    """
    text = (DOCS / page).read_text()
    if until is not None:
        text, _ = text.split(until)
    scope: dict[str, Any] = {**given}
    own = []
    printed = ""
    blocks = re.findall(r"(?:<!-- (\w+) -->\n)?```(python|text)\n(.*?)```", text, flags=re.S)
    for name, language, block in blocks:
        if language == "text":
            assert block == printed
            continue
        if name and not (installed(name) and (name != "guard_pgvector" or "address" in given)):
            continue
        within = dict(scope) if name else scope
        with redirect_stdout(StringIO()) as told, warnings_named(text):
            exec(compile(block, page, "exec"), within)
        printed = told.getvalue()
        if name:
            own.append((name, within))
    return scope, own


def test_the_code_of_the_exported_graph_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scope, own = scopes("serve.md")
    torch.testing.assert_close(scope["numbers"].mean, scope["mean"], rtol=1e-5, atol=1e-6)
    assert len(own) == installed("onnx")
    for _, block in own:
        np.testing.assert_allclose(block["mean"], scope["mean"], atol=1e-5)


def test_the_code_of_the_decisions_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scope, own = scopes("decisions.md", until=FRAMEWORKS)
    assert len(own) == installed("onnx")
    for _, block in own:
        asked = scope["distance"][800:].astype(np.float32)
        expected = scope["calibration"].probability(asked)
        np.testing.assert_allclose(block["p"], expected, rtol=0, atol=1e-6)
        near = abs(expected[:, 0] - scope["rule"].value) < 1e-9
        assert (near | (block["answered"] == scope["rule"](asked).answered)).all()
        assert block["answered"].any()


def test_the_code_of_the_engines_runs(tmp_path, monkeypatch):
    pytest.importorskip("faiss")
    monkeypatch.chdir(tmp_path)
    with ExitStack() as stack:
        given = {}
        if installed("guard_pgvector"):
            with suppress(MissingPackageError):
                given["address"] = stack.enter_context(temporary_server()).address
        scope, own = scopes("engines.md", **given)
        plain = Guard(scope["vectors"], scope["labels"], precision=0.95, distance="euclidean")
        wanted = plain.ask(scope["queries"])
        guarded = [block["guard"] for name, block in own if name.startswith("guard_")]
        for guard in guarded:
            assert guard.recall == 1
            assert guard.embedder.settings.distance == "euclidean"
            assert guard.ask(scope["queries"]).label.tolist() == wanted.label.tolist()
            alone = [guard.ask(query[None])[0].label for query in scope["queries"]]
            assert alone == wanted.label.tolist()
    hits, wanted = scope["hits"], scope["index"].search(scope["queries"], k=20)
    for number in ("match_probability", "label_probability"):
        expected = getattr(wanted, number)
        np.testing.assert_allclose(getattr(hits, number), expected, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(hits.label, wanted.label)
    assert len(own) == len(guarded) + installed("onnx")
    for name, block in own:
        if name == "onnx":
            assert len(block["answer"]) == 6
            for field, value in block["answer"].items():
                expected = np.asarray(getattr(hits, field))
                np.testing.assert_allclose(value, expected, atol=1e-6, err_msg=field)


def test_what_engines_return_becomes_our_distance():
    """Each row of the table, for two unit vectors: from what comes back to d."""
    rows = re.findall(r"^\| (.*) \| (.*) \| `(.*)` \|$", (DOCS / "engines.md").read_text(), re.M)
    assert len(rows) == 10
    cosine = 0.3
    distance = (2 - 2 * cosine) ** 0.5
    for engine, returned, passed_on in rows:
        r = eval(returned.replace("²", "**2"), {"d": distance, "c": cosine})
        known = {"r": r, "sqrt": np.sqrt, "maximum": np.maximum}
        assert eval(passed_on, known) == pytest.approx(distance, rel=1e-12), engine
