"""The library writes nothing by itself: only the command line prints."""

from __future__ import annotations

import ast
from pathlib import Path

import laplace_metric
from laplace_metric import LaplaceEmbedder

PACKAGE = Path(laplace_metric.__file__).parent


def test_only_the_command_line_prints():
    found = []
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE)
        if name.parts[0] in ("cli", "__main__.py"):
            continue
        calls = [
            node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)
        ]
        found += [name for c in calls if isinstance(c.func, ast.Name) and c.func.id == "print"]
    assert not found


def test_without_a_bar_nothing_is_written(capfd, points, names):
    x, y = points
    embedder = LaplaceEmbedder.from_embeddings(x[:100], y[:100])
    index = embedder.index(x[100:200], names[100:200], progress=False)
    index.calibrate(x[200:300], names[200:300])
    index.evaluate(x[300:], names[300:])
    assert capfd.readouterr() == ("", "")
