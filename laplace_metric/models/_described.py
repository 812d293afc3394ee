"""What a network, a loss or a miner is apart from its weights: plain values, to compare runs."""

from __future__ import annotations

import inspect
import math
from typing import Any

import numpy as np
from torch import nn

PLAIN = (str, int, float, bool, type(None))


def described(value: Any) -> dict[str, Any]:
    """Return the class and the settings of an object, and of each module in it, by their paths.

    Settings are attributes of the name of an argument of the constructor: what else a class holds,
    such as counters, statistics and caches, changes while it is used. There is no ``repr`` in it,
    as that of a function or of an own class may hold its address.

    Examples
    --------
    >>> described(nn.Sequential(nn.Dropout(0.1)))
    {'': ['Sequential', {}], '0': ['Dropout', {'p': 0.1, 'inplace': False}]}
    """
    modules = value.named_modules() if isinstance(value, nn.Module) else [("", value)]
    return {path: [_name(module), settings_of(module)] for path, module in modules}


def settings_of(value: Any) -> dict[str, Any]:
    """Return the plain attributes of an object that its constructor takes, by name."""
    attributes, found = getattr(value, "__dict__", {}), dict[str, Any]()
    for name in _arguments(type(value)):
        if name not in attributes:
            continue
        held = attributes[name]
        held = held.item() if isinstance(held, np.generic) else held
        several = isinstance(held, (tuple, list))
        if all(isinstance(x, PLAIN) for x in (held if several else [held])):
            found[name] = [_comparable(x) for x in held] if several else _comparable(held)
    return found


def _comparable(value: Any) -> Any:
    """Return a plain value; a NaN, which equals nothing, as a text."""
    return str(value) if isinstance(value, float) and math.isnan(value) else value


def _name(value: Any) -> str:
    """Return the name of a function, or of the class of anything else."""
    return str(getattr(value, "__name__", type(value).__name__))


def _arguments(kind: type) -> dict[str, None]:
    """Return names of arguments of a constructor and of those of its base classes, each once."""
    names: dict[str, None] = {}
    for base in kind.__mro__:
        if inspect.isfunction(init := vars(base).get("__init__")):
            names |= dict.fromkeys(inspect.signature(init).parameters)
    return names
