"""Packages that only a recipe needs."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from laplace_metric.errors import MissingPackageError

INSTALL = "pip install 'laplace-metric[recipes]'"


def needed(module: str) -> Any:
    """The module.

    Raises
    ------
    MissingPackageError
        If it is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        name = module.split(".")[0].replace("_", "-")
        raise MissingPackageError(name, "the recipe", INSTALL) from error
