"""Hashes of the code that a record depends on: whether its numbers are of the present definitions.

``definitions`` covers the modules of ``benchmarks`` and ``baselines`` that a piece imports,
directly or not; ``library`` covers ``laplace_metric``; ``row`` covers one row of the table of
methods and the baselines that it names. All are of syntax trees without docstrings and comments,
and without the places in the library that names come from: where a function lives is no number.
What only stores or shows numbers has no part in them: ``records``, the rooms ``report`` and
``plots``, modules and functions of tables and figures. The rows of the table of methods have no
part in the hash of the comparison: a method that is added leaves the measurements of the others.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TypeGuard

ROOT = Path(__file__).parent.parent
OWN, LIBRARY = ("benchmarks", "baselines"), "laplace_metric"
WITHOUT_NUMBERS = ("benchmarks.report", "benchmarks.plots", "benchmarks.records")
SHOWING_MODULES = ("tables", "figure", "figures")
SHOWING_FUNCTIONS = ("table", "figure", "page")
"""Last words of the names of what only shows numbers."""
METHODS_TABLE, ROW = "benchmarks.methods.table", "Entry"
REEXPORTING = "baselines"
"""Package whose own file only names what its modules define."""
COMPARISON = "benchmarks.protocols.runner"
"""Its hash leaves out the rows of methods: each of its measurements has the hash of its own."""
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def definitions(module: str) -> str:
    """Return the hash of a module and of all that it imports of the benchmarks and baselines."""
    return _digest(sorted(imported(module)), rows=module != COMPARISON)


@cache
def library() -> str:
    """Return the hash of the package."""
    paths = sorted((ROOT / LIBRARY).rglob("*.py"))
    return _digest(".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths)


@cache
def row(method: str) -> str:
    """Return the hash of a method's row, and of the baselines that it names.

    Rows that are made in a loop are part of ``definitions``; their hash is that of nothing.
    """
    table = ast.parse(_source(METHODS_TABLE))
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
            modules = frozenset[str]().union(*map(imported, _used(node)))
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
def imported(module: str) -> frozenset[str]:
    """Return the names of the modules that the hash of ``module`` covers, itself among them."""
    found, todo = set[str](), [module]
    while todo:
        name = todo.pop()
        if name in found or _only_shows(name) or name == REEXPORTING:
            continue
        found.add(name)
        todo += _imports(_tree(name, rows=module != COMPARISON))
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


def _source(module: str) -> str:
    path = _path(module)
    assert path is not None, module
    return path.read_text()


def _tree(module: str, *, rows: bool) -> ast.Module:
    tree = ast.parse(_source(module))
    return tree if rows or module != METHODS_TABLE else _WithoutRows().visit(tree)


@cache
def _homes() -> dict[str, str]:
    """Name -> the module of ``baselines`` that defines it."""
    return {
        alias.name: node.module
        for node in ast.parse(_source(REEXPORTING)).body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }


def _used(node: ast.AST) -> Iterator[str]:
    """Yield the modules of ``baselines`` whose names are read as its attributes."""
    for one in ast.walk(node):
        if isinstance(one, ast.Attribute) and ast.unparse(one.value) == REEXPORTING:
            yield _homes()[one.attr]


def _imports(tree: ast.Module) -> Iterator[str]:
    yield from _used(tree)
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            home = node.module
            inner = [alias.name for alias in node.names]
            names = [f"{home}.{one}" if _path(f"{home}.{one}") else home for one in inner]
            if home == REEXPORTING:
                names = [_homes().get(one, f"{home}.{one}") for one in inner]
        yield from (name for name in names if name.split(".")[0] in OWN and _path(name))


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
