"""A figure that a notebook shows."""

from __future__ import annotations

import io

from matplotlib.figure import Figure

# A figure that a notebook shows.


class ShownFigure(Figure):
    """A matplotlib figure that draws itself as the last value of a notebook's cell.

    Without ``%matplotlib inline`` a notebook knows figures of pyplot alone, and says of others
    ``<Figure size 420x320 with 1 Axes>``.

    Examples
    --------
    >>> ShownFigure(figsize=(1, 1))._repr_png_()[1:4]
    b'PNG'
    """

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", metadata={"Software": None})
        return buffer.getvalue()
