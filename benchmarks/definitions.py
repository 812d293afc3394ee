"""Hashes of the code that a record depends on: whether its numbers are of the present definitions.

``definitions`` covers the modules of ``benchmarks`` and ``baselines`` that a piece imports,
directly or not; ``library`` those of ``laplace_metric``: a change of a module that a piece does not
import leaves its record. ``row`` covers one row of the table of methods and the baselines that it
names. All are of syntax trees without docstrings and comments, and without the places in the
library that names come from: where a function lives is no number. What only stores or shows
numbers has no part in them: ``records`` and the hashes themselves, the rooms ``report`` and
``plots``, modules and functions of tables and figures. The rows of the table of methods have no
part in the hash of the comparison: a method that is added leaves the measurements of the others.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable
from functools import cache
from typing import TypeGuard

from benchmarks.imports import BASELINES, BENCHMARKS, LIBRARY, imported, named, source

OWN = BENCHMARKS, BASELINES
WITHOUT_NUMBERS = (
    "benchmarks.report", "benchmarks.plots", "benchmarks.records", "benchmarks.definitions",
    "benchmarks.imports",
)  # fmt: skip
SHOWING_MODULES = ("tables", "figure", "figures")
SHOWING_FUNCTIONS = ("table", "figure", "page")
"""Last words of the names of what only shows numbers."""
METHODS_TABLE, ROW = "benchmarks.methods.table", "Entry"
COMPARISON = "benchmarks.protocols.runner"
"""Its hash leaves out the rows of methods: each of its measurements has the hash of its own."""
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def definitions(module: str) -> str:
    """Return the hash of a module and of all that it imports of the benchmarks and baselines."""
    return _digest(sorted(own_modules(module)), rows=module != COMPARISON)


@cache
def library(module: str) -> str:
    """Return the hash of all of the library that a module imports, directly or not."""
    return _digest(name for name in _all_modules(module) if _is_of(LIBRARY, name))


@cache
def training(module: str) -> str:
    """Return the hash of a module and of all that it imports, of the library, too."""
    return _digest(_all_modules(module))


@cache
def row(method: str) -> str:
    """Return the hash of a method's row, and of the baselines that it names.

    Rows that are made in a loop are part of ``definitions``; their hash is that of nothing.
    """
    table = ast.parse(source(METHODS_TABLE))
    names: dict[str, object] = {
        node.targets[0].id: node.value.value
        for node in table.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
    }
    whole = hashlib.sha256()
    for node in ast.walk(table):
        if _is_row(node) and _named(node.args[0], names) == method:
            whole.update(ast.unparse(node).encode())
            baselines = (name for name in named(node) if _is_of(BASELINES, name))
            modules = frozenset[str]().union(*map(own_modules, baselines))
            whole.update(_digest(sorted(modules)).encode())
    return whole.hexdigest()[:16]


def _is_row(node: ast.AST) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == ROW


def _named(node: ast.expr, names: dict[str, object]) -> object:
    if isinstance(node, ast.Name):
        return names.get(node.id)
    return node.value if isinstance(node, ast.Constant) else None


class _WithoutRows(ast.NodeTransformer):
    """Takes the rows out of the tuples that hold them."""

    def visit_Tuple(self, node: ast.Tuple) -> ast.Tuple:
        """Keep what is no row."""
        node.elts = [one for one in node.elts if not _is_row(one)]
        return node


@cache
def own_modules(module: str) -> frozenset[str]:
    """Return the modules that ``definitions`` covers, ``module`` among them."""
    rows = module != COMPARISON
    return imported(module, OWN, lambda name: _tree(name, rows=rows), _only_shows)


@cache
def _all_modules(module: str) -> tuple[str, ...]:
    found = imported(module, (*OWN, LIBRARY), lambda name: _tree(name, rows=True), _only_shows)
    return tuple(sorted(found))


def _only_shows(name: str) -> bool:
    shows = name.startswith(WITHOUT_NUMBERS) or _last_word(name) in SHOWING_MODULES
    return shows and not _is_of(LIBRARY, name)


def _is_of(package: str, module: str) -> bool:
    return module.partition(".")[0] == package


def _last_word(name: str) -> str:
    return name.rpartition(".")[2].rpartition("_")[2]


def _tree(module: str, *, rows: bool) -> ast.Module:
    tree = ast.parse(source(module))
    return tree if rows or module != METHODS_TABLE else _WithoutRows().visit(tree)


def _digest(modules: Iterable[str], *, rows: bool = True) -> str:
    whole = hashlib.sha256()
    for module in modules:
        code = plain_code(ast.unparse(_tree(module, rows=rows)))
        whole.update(f"{module}\n{code}\n".encode())
    return whole.hexdigest()[:16]


def plain_code(source: str) -> str:
    r"""Return the code without docstrings, comments and functions that only show numbers.

    Of what is imported from the library, the names stand in front.

    Examples
    --------
    >>> plain_code("def f(x):\n    '''Add.'''\n    return x + 1  # one\n\ndef table(): ...")
    'def f(x):\n    return x + 1'
    """
    tree = ast.parse(source)
    taken = [node for node in tree.body if _is_of_library(node)]
    names = sorted(ast.unparse(alias) for node in taken for alias in node.names)
    tree.body = [node for node in tree.body if not (_shows(node) or _is_of_library(node))]
    for node in ast.walk(tree):
        if isinstance(node, Documented):
            kept = [one for one in node.body if not _is_text(one)]
            node.body = kept or [ast.Pass()]
    return "\n".join([*names, ast.unparse(tree)])


def _is_of_library(node: ast.stmt) -> TypeGuard[ast.ImportFrom]:
    return isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == LIBRARY


def _shows(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef) and _last_word(node.name) in SHOWING_FUNCTIONS


def _is_text(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
