"""Embeddings that are there already, as a model: arrays in, the same arrays out."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from laplace_metric.errors import InputError, NonFiniteError


class Precomputed(nn.Module):
    """Arrays [N, D] (NumPy, lists, tensors) as a float tensor; the size is fixed at first use.

    Parameters
    ----------
    size : int or None
        D; None accepts any.

    Examples
    --------
    >>> Precomputed()(np.ones((2, 3))).dtype
    torch.float64
    """

    def __init__(self, size: int | None = None) -> None:
        super().__init__()
        self.size = size

    def forward(self, embeddings: Any) -> Tensor:
        """[N, D] as float32 or float64.

        Raises
        ------
        InputError, NonFiniteError
            For another shape, another size, NaN or infinity.
        """
        try:
            array = embeddings if isinstance(embeddings, Tensor) else np.asarray(embeddings)
            tensor = torch.as_tensor(array)
        except (TypeError, ValueError) as error:
            raise InputError(f"embeddings cannot be read as numbers: {error}.") from error
        if tensor.ndim != 2 or (self.size is not None and tensor.shape[1] != self.size):
            wanted = "D" if self.size is None else self.size
            raise InputError(f"embeddings have shape {tuple(tensor.shape)}: pass [N, {wanted}].")
        values = tensor if tensor.dtype == torch.float64 else tensor.float()
        if not bool(torch.isfinite(values).all()):
            bad = int((~torch.isfinite(values)).any(1).sum())
            raise NonFiniteError(f"embeddings hold NaN or infinity in {bad} of {len(values)} rows.")
        return values
