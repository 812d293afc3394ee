"""``Precomputed``: embeddings that are arrays already."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from laplace_metric._utils.validation import check_count
from laplace_metric.inputs import read_vectors


class Precomputed(nn.Module):
    """Arrays [N, D] (NumPy, lists, tensors) as a float tensor.

    One row [D] of a known size is a batch of one.

    Parameters
    ----------
    size : int or None
        Numbers of a row, D. None, the default: any size.

    Raises
    ------
    InputError
        For a size that is no whole number above 0.

    Examples
    --------
    >>> Precomputed()([[0.5, 1.0]]).dtype
    torch.float64
    """

    takes_rows = True
    """Of a list, each entry is a row, not an argument."""

    def __init__(self, size: int | None = None) -> None:
        super().__init__()
        self.size = None if size is None else check_count("size", size)

    def forward(self, embeddings: Any) -> Float[Tensor, "N D"]:
        """Return the embeddings as float32 or float64.

        Raises
        ------
        InputError
            For no numbers, another shape or another size.
        NonFiniteError
            For NaN or infinity.
        """
        return read_vectors("embeddings", embeddings, self.size)
