"""Networks that more than one piece needs: the first that asks trains, the others read its file.

A file is of the code that trained it, and outlives changes of the package that no training reads.
"""

from __future__ import annotations

import ast
import hashlib
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from safetensors.torch import load_model, save_model
from torch import nn

from benchmarks.definitions import LIBRARY, OWN, ROOT, WITHOUT_NUMBERS, plain_code
from benchmarks.records import NETWORKS, plain, write_whole
from laplace_metric.errors import WriteError
from laplace_metric.io._lock import locked


def trained_once(
    network: nn.Module, train: Callable[[], Any], name: str, module: str, cache: Path
) -> bool:
    """Give a network the weights that ``train`` finds, from the cache if they are there.

    Parameters
    ----------
    network : nn.Module
        New weights; those of the training afterwards.
    train : function
        Trains ``network``.
    name : str
        What distinguishes this network from the others of ``module``: its data, loss, size, seed.
    module : str
        Module that trains; another state of its code, or of what it needs, trains again.
    cache : Path
        Folder of finished work.

    Returns
    -------
    bool
        True if it was trained here.
    """
    path = cache / NETWORKS / f"{plain(module, name)}-{training(module)}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    trained = False
    while not path.is_file():
        try:
            with locked(path.with_suffix(".lock")):
                if not path.is_file():
                    train()
                    write_whole(path, lambda part: save_model(network, str(part)))
                    trained = True
        except WriteError:  # another process trains it
            time.sleep(1)
    load_model(network, path)
    return trained


@cache
def training(module: str) -> str:
    """Return the hash of a module, and of all modules here and of the package that it imports.

    The package itself, which imports everything, is left out: import from its modules.
    """
    found, todo = dict[str, str](), [module]
    while todo:
        name = todo.pop()
        if name in found or name == LIBRARY or name.startswith(WITHOUT_NUMBERS):
            continue
        found[name] = _source(name)
        todo += _imported(found[name])
    whole = hashlib.sha256()
    for name in sorted(found):
        whole.update(f"{name}\n{plain_code(found[name])}\n".encode())
    return whole.hexdigest()[:16]


def _imported(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [one if _file(one) else node.module for one in inner]
            yield from (one for one in names if one.split(".")[0] in (*OWN, LIBRARY) and _file(one))


def _source(module: str) -> str:
    path = _file(module)
    assert path is not None, module
    return path.read_text()


def _file(module: str) -> Path | None:
    base = ROOT.joinpath(*module.split("."))
    places = base.with_suffix(".py"), base / "__init__.py"
    return next((path for path in places if path.is_file()), None)
