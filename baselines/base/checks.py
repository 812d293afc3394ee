"""Settings that are checked before anything is read."""

from __future__ import annotations

from laplace_metric._utils import validation


def check_positive(method: object, *names: str) -> None:
    """Raise ``InputError`` unless each of these settings is a number above 0.

    Examples
    --------
    >>> class Method:
    ...     scale = -1
    >>> check_positive(Method(), "scale")
    Traceback (most recent call last):
    laplace_metric.errors.InputError: scale=-1: pass a finite number > 0.
    """
    for name in names:
        validation.check_positive(name, getattr(method, name))


def check_counts(method: object, *names: str) -> None:
    """Raise ``InputError`` unless each of these settings is a whole number above 0."""
    for name in names:
        validation.check_count(name, getattr(method, name))
