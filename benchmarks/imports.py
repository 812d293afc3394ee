"""Modules that a module imports, directly or not: the code that its numbers can depend on.

A module counts whole, and so do the files of the packages around it, but those that only say which
module defines which name: ``baselines`` itself, and every package of the library. Of a name that is
taken from one of them, the module counts that defines it. An import under another name would hide
that, and stands nowhere.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
BENCHMARKS, BASELINES, LIBRARY = "benchmarks", "baselines", "laplace_metric"
NAMING = (BASELINES, LIBRARY)
"""Packages of which a name counts where it is defined."""


def imported(
    module: str,
    packages: Collection[str],
    tree_of: Callable[[str], ast.Module],
    left_out: Callable[[str], bool],
) -> frozenset[str]:
    """Return the names of all modules that ``module`` imports, itself among them.

    Parameters
    ----------
    module : str
    packages : names
        Packages whose modules count.
    tree_of : function
        Reads the syntax tree of a module.
    left_out : function
        True for modules that do not count, nor what only they import.
    """
    found, todo = set[str](), [module]
    while todo:
        name = todo.pop()
        if name in found or name in NAMING or left_out(name):
            continue
        found.add(name)
        todo += (one for one in named(tree_of(name)) if _package(one) in packages)
        if _package(name) != LIBRARY:
            todo += (".".join(name.split(".")[:n]) for n in range(1, name.count(".") + 1))
    return frozenset(found)


def named(tree: ast.AST) -> Iterator[str]:
    """Yield the modules of this repository that a piece of code imports or reads by their names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names if path_of(one.name))
        elif isinstance(node, ast.ImportFrom) and path_of(node.module or ""):
            yield from (home(node.module or "", one.name) for one in node.names)
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) in NAMING:
            yield home(ast.unparse(node.value), node.attr)


@cache
def home(module: str, name: str) -> str:
    """Return the module that defines a name which is imported from ``module``."""
    if path_of(f"{module}.{name}"):
        return f"{module}.{name}"
    path = path_of(module)
    names = module in NAMING or _package(module) == LIBRARY
    if path is None or path.name != "__init__.py" or not names:
        return module
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and path_of(node.module or ""):
            for one in node.names:
                if (one.asname or one.name) == name:
                    return home(node.module or "", one.name)
    return module


def path_of(module: str) -> Path | None:
    """Return the file of a module of this repository."""
    if _package(module) not in (BENCHMARKS, *NAMING):
        return None
    base = ROOT.joinpath(*module.split("."))
    places = base.with_suffix(".py"), base / "__init__.py"
    return next((path for path in places if path.is_file()), None)


def source(module: str) -> str:
    """Return the text of a module of this repository."""
    path = path_of(module)
    assert path is not None, module
    return path.read_text()


def _package(module: str) -> str:
    return module.partition(".")[0]
