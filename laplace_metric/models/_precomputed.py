"""``Precomputed``: embeddings that are arrays already."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from laplace_metric._utils.validation import as_tensor, check_count, check_dense
from laplace_metric.errors import InputError, NonFiniteError
from laplace_metric.inputs._rows import bad_rows


class Precomputed(nn.Module):
    """Arrays [N, D] (NumPy, lists, tensors) as a float tensor; the size is fixed at first use.

    One row [D] of a known size is a batch of one.

    Parameters
    ----------
    size : int or None
        D; None accepts any.

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
        """The embeddings as float32 or float64.

        Raises
        ------
        InputError
            For no numbers, another shape or another size.
        NonFiniteError
            For NaN or infinity.
        """
        if isinstance(embeddings, Tensor):
            tensor = check_dense("embeddings", embeddings)  # through which gradients still flow
        else:
            tensor = as_tensor("embeddings", embeddings)
        size, shape = self.size, tuple(tensor.shape)
        if shape == (size,):
            tensor = tensor[None]
        elif len(shape) != 2 and (size is None or len(shape) != 1):
            raise InputError(f"embeddings have shape {shape}: pass [N, {size or 'D'}].")
        elif size not in (None, shape[-1]):
            raise InputError(
                f"these embeddings have {shape[-1]} numbers each, and {size} were fitted, so an "
                f"index holds {size} too: pass [N, {size}], from the same encoder."
            )
        values = tensor if tensor.dtype == torch.float64 else tensor.float()
        if not bool(torch.isfinite(values).all()):
            named = bad_rows((~torch.isfinite(values)).any(1))
            raise NonFiniteError(
                f"embeddings hold NaN or infinity in {named}: leave these rows out."
            )
        return values
