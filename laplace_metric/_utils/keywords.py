"""Errors of keyword arguments that a function does not have, with the one that was meant."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import wraps
from inspect import signature
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def check_keywords(function: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise ``TypeError`` for the first keyword that is not known.

    Parameters
    ----------
    function : str
        Name of the function that was called, as its caller writes it.
    given : names
        Keywords of the call.
    known : names
        Keywords that the function has.

    Raises
    ------
    TypeError
        For a keyword that is not known; the message names the nearest one, if one is near.
    """
    known = list(known)
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, 1)
            meant = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{meant}")


def named_keywords(method: Callable[P, R]) -> Callable[P, R]:
    """Make the ``TypeError`` of an unknown keyword name the caller's class and the nearest keyword.

    Python itself names the class that defines the method, which may be one that no user meets.

    Parameters
    ----------
    method : function
        Method without a ``**`` parameter.

    Examples
    --------
    >>> class Box:
    ...     @named_keywords
    ...     def __init__(self, colour="red"): ...
    >>> Box(color="blue")
    Traceback (most recent call last):
    TypeError: Box() got an unexpected keyword argument 'color'; did you mean 'colour'?
    """
    known = [*signature(method).parameters][1:]

    @wraps(method)
    def checked(*args: P.args, **keywords: P.kwargs) -> R:
        if not keywords.keys() <= set(known):
            kind, name = type(args[0]).__name__, method.__name__
            check_keywords(kind if name == "__init__" else f"{kind}.{name}", keywords, known)
        return method(*args, **keywords)

    return checked
