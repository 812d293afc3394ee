"""Errors of arguments that a function does not have, with the one that was meant."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import wraps
from inspect import Parameter, signature
from numbers import Number
from typing import Any, ParamSpec, TypeVar

from laplace_metric.errors import CallError

P = ParamSpec("P")
R = TypeVar("R")


def check_keywords(
    function: str,
    given: Iterable[str],
    known: Iterable[str],
    meant: Mapping[str, str] | None = None,
) -> None:
    """Raise ``TypeError`` for the first keyword that is not known.

    Parameters
    ----------
    function : str
        Name of the function that was called, as its caller writes it.
    given : names
        Keywords of the call.
    known : names
        Keywords that the function has.
    meant : dict of str to str, or None
        Advice for keywords of other libraries. None, the default: there is none.

    Raises
    ------
    TypeError
        For a keyword that is not known; the message names the one that was meant, or the nearest
        one, if one is near.
    """
    known = list(known)
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, 1)
            advice = f"; did you mean {near[0]!r}?" if near else ""
            if meant is not None and name in meant:
                advice = f": {meant[name]}"
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{advice}")


def named_keywords(method: Callable[P, R]) -> Callable[P, R]:
    """Make the ``TypeError`` of a wrong call name the function and the argument to use.

    Python itself names the class that defines the method, which may be one that no user meets. A
    class may have advice for keywords of other libraries, ``_keywords_meant``.

    Parameters
    ----------
    method : function
        Method, of an object or a class, or function, without a ``**`` parameter.

    Examples
    --------
    >>> class Box:
    ...     @named_keywords
    ...     def __init__(self, *, colour="red"): ...
    >>> Box(color="blue")
    Traceback (most recent call last):
    TypeError: Box() got an unexpected keyword argument 'color'; did you mean 'colour'?
    >>> Box("blue")
    Traceback (most recent call last):
    laplace_metric.errors.CallError: Box('blue'): name the argument, such as colour='blue'.
    """
    known = [*signature(method).parameters][_has_owner(method) :]
    named = [each.name for each in _parameters(method) if each.kind is Parameter.KEYWORD_ONLY]
    advice = f"name the argument, such as {named[0]}={{}}." if named else ""

    @wraps(method)
    def checked(*args: P.args, **keywords: P.kwargs) -> R:
        if not keywords.keys() <= set(known):
            meant = getattr(args[0], "_keywords_meant", None) if _has_owner(method) else None
            check_keywords(_called(method, args), keywords, known, meant)
        return method(*args, **keywords)

    return positional(advice)(checked) if advice else checked


def positional(
    advice: str, of_data: str | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make the error of an argument too many in a call of a method say what to do with it.

    Parameters
    ----------
    advice : str
        End of the message; ``{}`` stands for the argument.
    of_data : str or None
        End of the message for anything but a number, such as an array. None, the default: the same.

    Examples
    --------
    >>> class Door:
    ...     @positional("call door.at({}).open().")
    ...     def open(self, *, slowly=False): ...
    >>> Door().open(0.5)
    Traceback (most recent call last):
    laplace_metric.errors.CallError: Door.open(0.5): call door.at(0.5).open().
    """

    def decorator(method: Callable[P, R]) -> Callable[P, R]:
        taken = [p for p in _parameters(method) if p.kind is Parameter.POSITIONAL_OR_KEYWORD]
        most = len(taken)

        @wraps(method)
        def checked(*args: P.args, **keywords: P.kwargs) -> R:
            if len(args) > most:
                dots, value = "..., " * (most > _has_owner(method)), f"{args[most]!r:.40}"
                name, end = _called(method, args), advice.format(value)
                if shape := getattr(args[most], "shape", ()):
                    value = f"{type(args[most]).__name__} {[*shape]}"
                    end = advice.format("...")
                if of_data is not None and not isinstance(args[most], Number):
                    end = of_data
                raise CallError(f"{name}({dots}{value}): {end}")
            return method(*args, **keywords)

        return checked

    return decorator


def made_otherwise(advice: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make the error of a constructor with wrong arguments say how an object is made.

    Parameters
    ----------
    advice : str
        End of the message: the call that makes an object.

    Examples
    --------
    >>> class Room:
    ...     @made_otherwise("call house.room(name).")
    ...     def __init__(self, walls): ...
    >>> Room()
    Traceback (most recent call last):
    laplace_metric.errors.CallError: Room(): call house.room(name).
    """

    def decorator(method: Callable[P, R]) -> Callable[P, R]:
        own = signature(method)

        @wraps(method)
        def checked(*args: P.args, **keywords: P.kwargs) -> R:
            try:
                own.bind(*args, **keywords)
            except TypeError as error:
                given = [type(value).__name__ for value in args[1:]]
                given += [f"{name}=" for name in keywords]
                call = f"{_called(method, args)}({', '.join(given)})"
                raise CallError(f"{call}: {advice}") from error
            return method(*args, **keywords)

        return checked

    return decorator


def _parameters(method: Callable[..., Any]) -> list[Parameter]:
    return list(signature(method).parameters.values())


def _has_owner(function: Callable[..., Any]) -> bool:
    """Return whether a function is a method, of an object or of a class."""
    return [*signature(function).parameters][:1] in (["self"], ["cls"])


def _called(method: Callable[..., Any], args: tuple[Any, ...]) -> str:
    """Return the name of a function as a caller writes it: of a method, with the class."""
    name = method.__name__
    if not _has_owner(method):
        return name
    kind = (args[0] if isinstance(args[0], type) else type(args[0])).__name__
    return kind if name == "__init__" else f"{kind}.{name}"
