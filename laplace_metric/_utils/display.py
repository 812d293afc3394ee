"""Display of values at a prompt and in a notebook: one sentence, then shapes and settings.

At most ten lines, and no tensor's numbers: a result of a million rows is shown as fast as one of
three.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from laplace_metric._utils.validation import is_tensor

if TYPE_CHECKING:
    from torch import Tensor


Rows = list[tuple[str, str]]
LINES = 10
"""Most lines of a representation."""
SOME = 5
"""Number of entries that are shown of a long list."""
WIDTH = 88
"""Most characters of a value."""


class Shown:
    """Base of classes whose values describe themselves.

    A subclass may have its own ``_sentence`` and ``_shown_rows``; a dataclass needs
    ``repr=False``.

    Examples
    --------
    >>> import dataclasses
    >>> import torch
    >>> @dataclasses.dataclass(repr=False)
    ... class Curve(Shown):
    ...     '''A curve and its area.'''
    ...
    ...     values: torch.Tensor
    ...     area: float
    >>> Curve(torch.zeros(100), 0.51234)
    Curve: a curve and its area.
      values  [100] float32
      area    0.5123
    """

    def _sentence(self) -> str:
        """Describe the value in one sentence."""
        summary = (type(self).__doc__ or "").strip().split("\n")[0]
        return summary[:1].lower() + summary[1:]

    def _shown_rows(self) -> Rows:
        """Return names and values; for a dataclass, its fields."""
        names = getattr(self, "__dataclass_fields__", {})
        return in_rows((name, getattr(self, name)) for name in names)

    def _lines(self) -> tuple[str, Rows]:
        """Return the sentence, and as many rows as there is room for."""
        rows = [(name, shortened(value)) for name, value in self._shown_rows()]
        most = LINES - 1
        if len(rows) > most:
            rest = ", ".join(name for name, _ in rows[most - 1 :])
            rows = [*rows[: most - 1], ("and", shortened(rest))]
        return self._sentence(), rows

    def __repr__(self) -> str:
        sentence, rows = self._lines()
        width = max((len(name) for name, _ in rows), default=0)
        lines = [f"  {name:<{width}}  {value}" for name, value in rows]
        return "\n".join([f"{type(self).__name__}: {sentence}", *lines])

    def _repr_html_(self) -> str:
        sentence, rows = self._lines()
        return html_table(type(self).__name__, sentence, rows)


def in_rows(values: Iterable[tuple[str, Any]]) -> Rows:
    """Describe each value in words, without those that are None."""
    return [(name, in_words(value)) for name, value in values if value is not None]


def in_words(value: Any) -> str:
    """Describe a value in a few words, without the numbers of arrays.

    Examples
    --------
    >>> in_words(np.zeros((3, 2))), in_words(0.123456), in_words({"a": 0.5, "b": np.zeros(3)})
    ('[3, 2] float64', '0.1235', 'a 0.5, b [3] float64')
    """
    if is_tensor(value) or isinstance(value, np.ndarray):
        return shape_of(value)
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (str, bool, int, np.generic)):
        return shortened(str(value))
    if isinstance(value, Mapping):
        return shortened(", ".join(f"{k} {in_words(v)}" for k, v in value.items()))
    if isinstance(value, Sequence):
        return f"{len(value)} of {type(value[0]).__name__}" if value else "none"
    return type(value).__name__


def shape_of(array: Tensor | np.ndarray[Any, Any]) -> str:
    """Describe shape, dtype and, unless it is the CPU, device.

    Examples
    --------
    >>> shape_of(np.array(["a", "b"], dtype=object))
    '[2] strings'
    """
    kind = str(array.dtype).removeprefix("torch.")
    if isinstance(array, np.ndarray) and array.dtype.kind in "OU":
        words = array.dtype.kind == "U" or all(isinstance(x, str) for x in array.flat)
        kind = "strings" if words else "objects"
    on = f" on {array.device}" if is_tensor(array) and array.device.type != "cpu" else ""
    return f"{list(array.shape)} {kind}{on}"


def shortened(text: str) -> str:
    """Shorten a text to one line of at most ``WIDTH`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 3]}..."


def html_table(title: str, sentence: str, rows: Rows) -> str:
    """Return rows as an HTML table, in the colours of the page, light or dark.

    Examples
    --------
    >>> html_table("Index", "2 items.", [("k", "a < b")]).count("a &lt; b")
    1
    """
    cell = 'style="text-align:left;padding:1px 12px 1px 0;border:0;background:none"'
    body = "".join(
        f'<tr style="background:none"><th scope="row" {cell}>{escape(name)}</th>'
        f"<td {cell}>{escape(value)}</td></tr>"
        for name, value in rows
    )
    return (
        f"<div><b>{escape(title)}</b>: {escape(sentence)}"
        f'<table style="border-collapse:collapse;margin:4px 0 0 0">{body}</table></div>'
    )


def as_percent(share: float, digits: int = 1) -> str:
    """Return a share in per cent; 100 % and 0 % only if it is exactly that.

    Examples
    --------
    >>> [as_percent(share) for share in (0.973, 0.99996, 1.0, 1e-6)]
    ['97.3%', '> 99.9%', '100.0%', '< 0.1%']
    """
    text, least = f"{share:.{digits}%}", 10.0 ** (-2 - digits)
    if share < 1 and text == f"{1:.{digits}%}":
        return f"> {1 - least:.{digits}%}"
    return f"< {least:.{digits}%}" if share > 0 and text == f"{0:.{digits}%}" else text
