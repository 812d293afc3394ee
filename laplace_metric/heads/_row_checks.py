"""Check at each call that every embedding is finite and, on the sphere, has a direction."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric.errors import InputError, NonFiniteError
from laplace_metric.inputs._rows_in_errors import bad_rows

SHORTEST = 1e-12
"""Length below which ``nn.functional.normalize`` gives no unit vector."""


def check_rows(raw: Float[Tensor, "B Z"], *results: Tensor, spherical: bool) -> None:
    """Check that the raw embeddings z [B, Z] and what was computed from them, [B] each, are finite.

    Raises
    ------
    NonFiniteError
        If a row holds NaN or infinity; the message counts and names such rows.
    InputError
        If ``spherical`` and an embedding has no direction.
    """
    sizes = raw.square().sum(1) if spherical else raw.abs().amax(1)
    fine = sizes < torch.inf  # not of NaN
    if spherical:
        fine &= sizes >= SHORTEST**2
    for result in results:
        fine &= result.isfinite()
    if not bool(fine.all()):
        _refuse(raw, ~fine, spherical)


def _refuse(raw: Tensor, bad: Tensor, spherical: bool) -> None:
    n, broken = len(raw), (~raw.isfinite()).any(1)
    if bool(broken.any()):
        raise NonFiniteError(
            f"{int(broken.sum())} of {n} embeddings of a batch hold NaN or infinity: check those "
            f"inputs, {bad_rows(broken)}."
        )
    lengths = raw.double().norm(dim=1)
    zero, short = lengths == 0, lengths < SHORTEST
    if spherical and bool(zero.any()):
        raise InputError(
            f"{int(zero.sum())} of {n} embeddings of a batch are all zeros, and what is exactly "
            f"zero has no direction: leave those inputs out, {bad_rows(zero)}."
        )
    if spherical and bool(short.any()):
        raise InputError(
            f"{int(short.sum())} of {n} embeddings of a batch are shorter than {SHORTEST:g}, the "
            f"shortest {float(lengths.min()):.2g}: their direction is rounding. Scale the inputs "
            f"up, or leave them out: {bad_rows(short)}."
        )
    raise NonFiniteError(
        f"uncertainties of a batch of {n} overflow {raw.dtype}: embeddings are up to "
        f"{float(lengths.max()):.2g} long. Scale the inputs down, or use float64: {bad_rows(bad)}."
    )
