"""Values of a saved file, each checked as it is read: its type, its range, its shape."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

from laplace_metric.errors import FileFormatError

INF = math.inf
LARGEST = 2**63 - 1
UNIT = 1.001
"""Largest coordinate of a unit vector, or share, of any floating-point type: 1 and its rounding."""
WHOLE = 2.0**53
"""Largest whole number up to which float64 holds every one."""
POSITIVE = sys.float_info.min
"""Smallest number that counts as above 0."""
BELOW_ONE = math.nextafter(1.0, 0.0)
"""Largest number below 1."""


class Fields:
    """JSON object of a saved file.

    Every method raises ``FileFormatError`` for a value that is missing, of another type, or out of
    its range. NaN and infinity are out of every range.

    Parameters
    ----------
    content : Any
        Value that should be the object.
    where : str
        Name of the object in messages. Default: "", the object is the whole content.

    Examples
    --------
    >>> fields = Fields({"k": 3, "share": None}, "rule")
    >>> fields.whole("k", least=1)
    3
    >>> fields.number("share", least=0, most=1)
    Traceback (most recent call last):
    ...
    laplace_metric.errors.FileFormatError: rule.share is None, not a number from 0 to 1
    """

    def __init__(self, content: Any, where: str = "") -> None:
        self.where = where
        if not isinstance(content, dict):
            raise FileFormatError(f"{where or 'the content'} is {content!r:.60}, not an object")
        self.content: dict[str, Any] = content

    def __contains__(self, name: str) -> bool:
        """Return whether there is a value other than null."""
        return self.content.get(name) is not None

    def number(
        self, name: str, *, least: float = -INF, most: float = INF, infinite: bool = False
    ) -> float:
        """Return a number, as a float.

        Parameters
        ----------
        name : str
            Name of the value.
        least, most : float
            Range of the number. Default: any number.
        infinite : bool
            Allow infinities, too. Default: False.
        """
        value: Any = self.content.get(name)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        finite = is_number and abs(value) <= sys.float_info.max
        if (finite or (infinite and value in (-INF, INF))) and least <= value <= most:
            return float(value)
        raise self._error(name, f"a number{_between(least, most)}")

    def share(self, name: str) -> float:
        """Return a number above 0 and below 1."""
        value = self.number(name, least=0.0, most=1.0)
        if value in (0.0, 1.0):
            raise self._error(name, "a number between 0 and 1")
        return value

    def whole(self, name: str, *, least: int = 0, most: int = LARGEST) -> int:
        """Return a whole number.

        Parameters
        ----------
        name : str
            Name of the value.
        least, most : int
            Range of the number. Default: from 0 on.
        """
        value = self.content.get(name)
        if type(value) is not int or not least <= value <= most:
            raise self._error(name, f"a whole number{_between(least, most)}")
        return value

    def flag(self, name: str) -> bool:
        """Return true or false."""
        value = self.content.get(name)
        if type(value) is not bool:
            raise self._error(name, "true or false")
        return value

    def text(self, name: str, among: Sequence[str] = ()) -> str:
        """Return a text.

        Parameters
        ----------
        name : str
            Name of the value.
        among : sequence of str
            Texts that are allowed. Default: any.
        """
        value = self.content.get(name)
        if not isinstance(value, str) or (among and value not in among):
            raise self._error(name, f"one of {', '.join(among)}" if among else "a text")
        return value

    def items(self, name: str, kind: type = str) -> list[Any]:
        """Return a list whose entries all have one type; a bool is no int.

        Parameters
        ----------
        name : str
            Name of the value.
        kind : type
            Type of every entry. Default: str.
        """
        value = self.content.get(name)
        if not isinstance(value, list) or not all(type(one) is kind for one in value):
            raise self._error(name, f"a list of {kind.__name__}")
        return value

    def entries(self, name: str) -> Fields:
        """Return the entries of a list as an object; their names are their places."""
        value = self.content.get(name)
        if not isinstance(value, list):
            raise self._error(name, "a list")
        return Fields({str(i): one for i, one in enumerate(value)}, self._named(name))

    def inner(self, name: str) -> Fields:
        """Return an object inside this one."""
        return Fields(self.content.get(name), self._named(name))

    def _named(self, name: str) -> str:
        return f"{self.where}.{name}" if self.where else name

    def _error(self, name: str, wanted: str) -> FileFormatError:
        value = self.content.get(name)
        given = f"is {value!r:.60}" if name in self.content else "is missing"
        return FileFormatError(f"{self._named(name)} {given}, not {wanted}")


def _between(least: float, most: float) -> str:
    if least > -INF and most in (INF, LARGEST):
        return f" of at least {least:g}"
    return f" from {least:g} to {most:g}" if most < INF else ""


def checked_array(
    name: str,
    array: Any,
    shape: Sequence[int | None],
    *,
    dtype: str | None = None,
    least: float = -INF,
    most: float = INF,
    infinite: bool = False,
    values: bool = True,
) -> Any:
    """Return an array of a saved file, as it is.

    Parameters
    ----------
    name : str
        Name of the array in messages.
    array : torch.Tensor, numpy.ndarray or None
        Array to check; None if it is missing.
    shape : sequence of int or None
        Length of each axis; None for any length.
    dtype : str or None
        Name of its type, such as "float64". None, the default: any floating-point type.
    least, most : float
        Smallest and largest value allowed. Default: minus infinity and infinity; NaN is never
        allowed.
    infinite : bool
        Allow infinities, too. Default: False.
    values : bool
        Check the values, not only type and shape. Default: True; False for large arrays that stay
        on disk.

    Raises
    ------
    FileFormatError
        For anything else.

    Examples
    --------
    >>> import numpy as np
    >>> checked_array("p", np.array([0.2, 1.5]), [None], most=1.0)
    Traceback (most recent call last):
    ...
    laplace_metric.errors.FileFormatError: p holds 1.5, which is not from -inf to 1
    """
    if array is None:
        raise FileFormatError(f"{name} is missing")
    kind = str(array.dtype).removeprefix("torch.")
    if kind != dtype if dtype is not None else "float" not in kind:
        raise FileFormatError(f"{name} is {kind}, not {dtype or 'floating-point'}")
    fits = len(array.shape) == len(shape)
    fits = fits and all(n in (None, m) for n, m in zip(shape, array.shape, strict=True))
    if not fits:
        wanted = ["any" if n is None else n for n in shape]
        raise FileFormatError(f"{name} has shape {list(array.shape)}, not {wanted}")
    if values and math.prod(array.shape) and not kind.startswith(("bool", "uint")):
        low, high = float(array.min()), float(array.max())
        for value in (low, high):
            finite = abs(value) < INF or (infinite and not math.isnan(value))
            if not finite or not least <= value <= most:
                raise FileFormatError(f"{name} holds {value:g}, which is not{_range(least, most)}")
    return array


def _range(least: float, most: float) -> str:
    return " finite" if (least, most) == (-INF, INF) else f" from {least:g} to {most:g}"
