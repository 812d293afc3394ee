"""A tile: some rows and columns of the class sums G_c of one layer.

Class sums are collected tile by tile, so a larger head takes more passes, not more memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Tile:
    """Some entries of every G_c.

    Parameters
    ----------
    number : int
        Number of the layer, from 0.
    rows, columns : slice
        Rows z and columns o of the layer's factor L that the tile covers.
    shape : tuple of int
        Shape of the tile of one class.
    upper : bool
        True if L is symmetric and the tile begins at the diagonal. Default: False.
    """

    number: int
    rows: slice
    columns: slice
    shape: tuple[int, ...]
    upper: bool = False

    @property
    def n_bytes(self) -> int:
        """Bytes of one class in float64."""
        return 8 * math.prod(self.shape)
