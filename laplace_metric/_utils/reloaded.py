"""Recognise objects of a class that was loaded twice: ``importlib.reload``, ``%autoreload``."""

from __future__ import annotations

from typing import Any

from laplace_metric.errors import InputError


def is_instance(name: str, value: Any, *kinds: type) -> bool:
    """Return ``isinstance(value, kinds)``, and refuse objects that are older than their class.

    Parameters
    ----------
    name : str
        Name of the argument, for the error.
    value : anything
        Value of the argument.
    *kinds : type
        Classes of this package.

    Raises
    ------
    InputError
        If the class of the value has the name and the module of one of the kinds, but is another
        one: the module was loaded again after the object was made.

    Examples
    --------
    >>> is_instance("x", 3, int, float), is_instance("x", "three", int, float)
    (True, False)
    """
    if isinstance(value, kinds):
        return True
    named = {(kind.__module__, kind.__qualname__) for kind in kinds}
    for kind in type(value).__mro__:
        if (kind.__module__, kind.__qualname__) in named:
            raise InputError(
                f"{name} is a {kind.__qualname__} of before its module {kind.__module__} was "
                "loaded again (importlib.reload, %autoreload), so that it is of another class than "
                f"{kind.__qualname__} now: build it again, or restart Python."
            )
    return False
