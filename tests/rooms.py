"""Names of a whole package of the code under test, exported or not, in one place for the tests."""

from __future__ import annotations

import importlib
import pkgutil
from types import SimpleNamespace


def room(*packages: str) -> SimpleNamespace:
    """Return all names of the modules of these packages; those of a door win."""
    found = SimpleNamespace()
    for package in reversed(packages):
        door = importlib.import_module(package)
        for module in pkgutil.iter_modules(door.__path__, f"{package}."):
            if not module.ispkg:
                vars(found).update(_own(importlib.import_module(module.name)))
        vars(found).update(_own(door))
    return found


def _own(module: object) -> dict[str, object]:
    return {name: value for name, value in vars(module).items() if not name.startswith("_")}
