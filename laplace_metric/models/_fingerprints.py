"""Recognise inputs: a number of 64 bits for each row, up to rounding."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

FINGERPRINTS = 5_000_000
"""Rows beyond which a store keeps no fingerprints."""
FINGERPRINT_STEP = 2.0**-13
"""s of ``row_fingerprints``: far above rounding, far below the distance of neighbours."""
Fingerprints = npt.NDArray[np.uint64]
"""[N], sorted, each once."""


def row_fingerprints(features: Float[Tensor, "n D"]) -> Fingerprints:
    """Return a number of 64 bits for each row h, unsorted: one byte each of eight coordinates.

    ``b_k = floor(p_k / s) mod 256`` with ``p_0 = ln |h|`` and ``p_k = w_k . h / |h|``, k = 1 to 7,
    and w_k [D] fixed random numbers of unit variance (random projections: Achlioptas 2003). While
    no p_k moves by more than s, no byte changes by more than 1, modulo 256; those of different
    rows are as close by chance, with probability 3 / 256 each. So rounding, which differs between
    batch sizes and devices, does not hide a row, as it would from a hash of its bytes; and rows
    are of one kind whatever the inputs are: images, texts, padded tokens, embeddings.

    Examples
    --------
    >>> h = torch.randn(2, 64, generator=torch.Generator().manual_seed(0))
    >>> a, b = (row_fingerprints(rows).view(np.uint8).reshape(2, 8) for rows in (h, h + 1e-6))
    >>> bool(((a - b + 1).astype(np.uint8) <= 2).all())
    True
    """
    steps = row_projections(features).div_(FINGERPRINT_STEP)  # [n, 8]
    codes = steps.floor_().to(torch.int32).bitwise_and_(255).to(torch.uint8)
    return codes.cpu().numpy().view("<u8").astype(np.uint64).reshape(-1)


def row_projections(features: Float[Tensor, "n D"]) -> Float[Tensor, "n 8"]:
    """Return ``p_k`` of each row h: ``ln |h|``, and the direction in seven fixed random ones.

    Examples
    --------
    >>> h = torch.randn(2, 64, generator=torch.Generator().manual_seed(0))
    >>> change = row_projections(3 * h) - row_projections(h)
    >>> [round(float(x), 3) for x in change[0].abs()]
    [1.099, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    """
    with torch.autocast(features.device.type, enabled=False):
        length = torch.linalg.vector_norm(features, dim=1, keepdim=True)
        length = length.clamp(min=torch.finfo(length.dtype).tiny)
        weights = projection_weights(features.shape[1]).to(features)  # [7, D]
        return torch.cat([length.log(), nn.functional.linear(features, weights) / length], 1)


def sorted_fingerprints(parts: Sequence[Fingerprints]) -> Fingerprints:
    """Return all of them, sorted, each once."""
    joined = np.concatenate(parts)
    joined.sort()
    return joined[np.append(True, joined[1:] != joined[:-1])]


def projection_weights(width: int) -> Float[Tensor, "7 D"]:
    """Return random numbers of unit variance, the same on every machine and version of torch."""
    drawn = hashlib.shake_128(b"laplace_metric").digest(2 * 7 * width)
    uniform = np.frombuffer(drawn, "<u2").reshape(7, width).astype(np.float64) / 2**15 - 1
    return torch.from_numpy(uniform * 3**0.5)


NEAR = [(a, b) for a in (-1, 0, 1) for b in (-1, 0, 1)]
"""Differences of the two highest bytes of fingerprints that may be of one row."""
COMPARED_AT_ONCE = 4096
"""Rows that are compared at once."""


def in_fit(known: Fingerprints, rows: Fingerprints) -> Bool[np.ndarray, " Q"]:
    """Return whether each of ``rows`` is one of the sorted ``known``, up to rounding.

    That is, whether all eight bytes differ by at most 1, modulo 256 (``row_fingerprints``).

    Examples
    --------
    >>> known = np.array([5, 0x0102030405060708], np.uint64)
    >>> in_fit(known, np.array([0x0203040504050607, 0x0002030405060706, 0xFF00000000000004], "u8"))
    array([ True, False,  True])
    """
    top, found = (known >> np.uint64(48)).astype(np.int64), np.zeros(len(rows), bool)
    for start in range(0, len(rows), COMPARED_AT_ONCE):
        part = rows[start : start + COMPARED_AT_ONCE]
        first, second = np.divmod((part >> np.uint64(48)).astype(np.int64), 256)
        highest = np.stack([(first + a) % 256 << 8 | (second + b) % 256 for a, b in NEAR], 1)
        begin = np.searchsorted(top, highest.ravel())
        size = np.searchsorted(top, highest.ravel(), "right") - begin
        query = np.repeat(np.arange(size.size) // len(NEAR), size)
        near = np.arange(len(query)) + np.repeat(begin - size.cumsum() + size, size)
        apart = _bytes(known[near]) - _bytes(part[query]) + np.uint8(1)  # modulo 256
        found[start + query[(apart <= 2).all(1)]] = True
    return found


def _bytes(rows: Fingerprints) -> np.ndarray:
    return rows.astype("<u8").view(np.uint8).reshape(-1, 8)
