"""Hashes of the code that a record depends on: whether its numbers are of the present definitions.

``definitions`` covers the modules of ``benchmarks`` and ``baselines`` that a piece imports,
directly or not; ``library`` covers ``laplace_metric``. Both are of syntax trees without docstrings
and comments. What only stores or shows numbers has no part in them: ``records``, the rooms
``report`` and ``plots``, modules and functions of tables and figures.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
OWN, LIBRARY = ("benchmarks", "baselines"), "laplace_metric"
WITHOUT_NUMBERS = ("benchmarks.report", "benchmarks.plots", "benchmarks.records")
SHOWING_MODULES = ("tables", "figure", "figures")
SHOWING_FUNCTIONS = ("table", "figure", "page")
"""Last words of the names of what only shows numbers."""
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def definitions(module: str) -> str:
    """Return the hash of a module and of all that it imports of the benchmarks and baselines."""
    return _digest(sorted(imported(module)))


@cache
def library() -> str:
    """Return the hash of the package."""
    paths = sorted((ROOT / LIBRARY).rglob("*.py"))
    return _digest(".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths)


@cache
def imported(module: str) -> frozenset[str]:
    """Return the names of the modules that the hash of ``module`` covers, itself among them."""
    found, todo = set[str](), [module]
    while todo:
        name = todo.pop()
        if name in found or _only_shows(name):
            continue
        found.add(name)
        todo += _imports(name)
        todo += [".".join(name.split(".")[:n]) for n in range(1, name.count(".") + 1)]
    return frozenset(found)


def _only_shows(name: str) -> bool:
    return name.startswith(WITHOUT_NUMBERS) or _last_word(name) in SHOWING_MODULES


def _last_word(name: str) -> str:
    return name.rpartition(".")[2].rpartition("_")[2]


def _path(module: str) -> Path | None:
    base = ROOT.joinpath(*module.split("."))
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return path
    return None


def _imports(module: str) -> Iterator[str]:
    path = _path(module)
    assert path is not None, module
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if _path(name) else node.module for name in inner]
        yield from (name for name in names if name.split(".")[0] in OWN and _path(name))


def _digest(modules: Iterable[str]) -> str:
    whole = hashlib.sha256()
    for module in modules:
        path = _path(module)
        assert path is not None, module
        whole.update(f"{module}\n{plain_code(path.read_text())}\n".encode())
    return whole.hexdigest()[:16]


def plain_code(source: str) -> str:
    r"""Return the code without docstrings, comments and functions that only show numbers.

    Examples
    --------
    >>> plain_code("def f(x):\n    '''Add.'''\n    return x + 1  # one\n\ndef table(): ...")
    'def f(x):\n    return x + 1'
    """
    tree = ast.parse(source)
    tree.body = [node for node in tree.body if not _shows(node)]
    for node in ast.walk(tree):
        if isinstance(node, Documented):
            kept = [one for one in node.body if not _is_text(one)]
            node.body = kept or [ast.Pass()]
    return ast.unparse(tree)


def _shows(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef) and _last_word(node.name) in SHOWING_FUNCTIONS


def _is_text(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
