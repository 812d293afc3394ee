"""Settings that are checked before anything is read."""

from __future__ import annotations

import math

from laplace_metric._utils.validation import check_count
from laplace_metric.errors import InputError


def check_positive(method: object, *names: str) -> None:
    """Raise ``InputError`` unless each of these settings is a number above 0.

    Examples
    --------
    >>> class Method:
    ...     scale = -1
    >>> check_positive(Method(), "scale")
    Traceback (most recent call last):
    laplace_metric.errors.InputError: scale=-1: pass a number > 0.
    """
    for name in names:
        value = getattr(method, name)
        if not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise InputError(f"{name}={value!r}: pass a number > 0.")


def check_counts(method: object, *names: str) -> None:
    """Raise ``InputError`` unless each of these settings is a whole number above 0."""
    for name in names:
        check_count(name, getattr(method, name))
