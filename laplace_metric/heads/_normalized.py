"""Find out by comparing numbers whether a model normalises the output of its head.

A normalisation layer and a functional ``F.normalize`` inside ``forward`` are recognised alike.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from laplace_metric._utils.precision import at_least_float32
from laplace_metric.errors import HeadError, NonFiniteError
from laplace_metric.inputs._rows_in_errors import bad_rows


def is_normalized(raw: Tensor, output: Tensor, name: str) -> bool:
    """Return whether the output f [B, Z] is ``z / |z|``, not the raw embedding z.

    Parameters
    ----------
    raw : Tensor [B, Z]
        Raw embeddings z, which leave the head.
    output : Tensor [B, Z]
        Outputs f of the model.
    name : str
        Name of the head, for the error.

    Raises
    ------
    HeadError
        If it is neither; the message says what was seen.
    NonFiniteError
        If the output holds NaN or infinity.

    Examples
    --------
    >>> z = torch.tensor([[3.0, 4.0]])
    >>> is_normalized(z, z / 5, "fc"), is_normalized(z, z, "fc")
    (True, False)
    """
    z, f = raw, output
    broken = (~f.isfinite()).any(1)
    if bool(broken.any()):
        of_all = bool(broken.all())
        where = f"all {len(f)} rows" if of_all else bad_rows(broken)
        what = "its weights, and its inputs" if of_all else "these inputs"
        raise NonFiniteError(
            f"the model gives NaN or infinite embeddings on the first batch, in {where}: check "
            f"{what}."
        )
    unit = nn.functional.normalize(z.double(), dim=-1)
    eps = max(torch.finfo(z.dtype).eps, torch.finfo(f.dtype).eps)
    tolerance = min(50 * eps, max(4 * eps, 1e-5))  # half precision has no room for 50
    gaps = [_relative_gap(f, z), _relative_gap(f, unit)]
    if gaps[0] <= tolerance:
        return False
    if gaps[1] <= tolerance:
        return True
    raise HeadError(
        f"the model's output is neither the output z of head {name!r} nor z / |z|: relative "
        f"differences {gaps[0]:.2g} and {gaps[1]:.2g} on the first batch{_likely_cause(z, f)}. "
        f"{_remedy(name)}"
    )


LATER = 1e-3
"""Relative difference that is passed over after the first batch, if its type does not round more.

A normalisation of short rows, with a small number added to their length, may differ by this much.
"""


def check_follows(raw: Tensor, output: Tensor, name: str, *, normalized: bool) -> None:
    """Check on any batch that the model does after its head what it did on the first one.

    Rows with NaN or infinity are left to ``check_rows``.

    Parameters
    ----------
    raw : Tensor [B, Z]
        Raw embeddings z, which leave the head.
    output : Tensor [B, Z]
        Outputs f of the model.
    name : str
        Name of the head, for the error.
    normalized : bool
        True if f was ``z / |z|`` on the first batch, False if it was z.

    Raises
    ------
    HeadError
        If it is something else; the message names the rows.

    Examples
    --------
    >>> z = torch.tensor([[3.0, 4.0]])
    >>> check_follows(z, z / 5, "fc", normalized=True)
    >>> check_follows(z, z, "fc", normalized=False)
    """
    if not normalized and raw.dtype == output.dtype and torch.equal(raw, output):
        return
    z, f = at_least_float32(raw), at_least_float32(output)
    expected = nn.functional.normalize(z, dim=-1) if normalized else z
    gaps, sizes = (f - expected).abs().amax(1), expected.abs().amax(1)
    known = gaps.isfinite() & sizes.isfinite()
    tolerance = max(LATER, 4 * torch.finfo(raw.dtype).eps, 4 * torch.finfo(output.dtype).eps)
    bad = known & (gaps > tolerance * sizes.masked_fill(~known, 0).amax())
    if bool(bad.any()):
        does = "z / |z|" if normalized else "z"
        raise HeadError(
            f"the model's output is {does} of head {name!r} on the first batch, and not in "
            f"{bad_rows(bad)} of a later one{_likely_cause(z[bad], f[bad])}. {_remedy(name)}"
        )


def _remedy(name: str) -> str:
    """Return what to do about a model that does something else after its head."""
    return (
        f"{_layer_around(name)} with head=..., drop what follows it, or pass head='append' for a "
        "new linear layer after the model."
    )


ADAPTERS = ("lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B", "base_layer")
"""Modules of low-rank adapters inside the layer that they change."""


def _layer_around(name: str) -> str:
    """Return the module to name in an error: of an adapter, the layer that it changes."""
    parts = name.split(".")
    inside = [i for i, part in enumerate(parts) if part in ADAPTERS]
    if not inside or not inside[0]:
        return "Name the layer that produces the embedding"
    return (
        "It belongs to an adapter (LoRA): merge the adapter (merge_and_unload()), or name the "
        f"whole layer, head={'.'.join(parts[: inside[0]])!r}. Otherwise name another layer"
    )


def _relative_gap(seen: Tensor, expected: Tensor) -> float:
    scale = expected.double().abs().max().clamp_min(torch.finfo(torch.float64).tiny)
    return float((seen.double() - expected.double()).abs().max() / scale)


def _likely_cause(z: Tensor, f: Tensor) -> str:
    z, f = z.double(), f.double()
    if torch.equal(f, z.clamp_min(0)):
        return " (it looks like relu(z))"
    for expected, words in ((z, "z"), (nn.functional.normalize(z, dim=-1), "z / |z|")):
        factor = (f * expected).sum() / (expected * expected).sum()
        if torch.allclose(f, factor * expected, rtol=1e-3, atol=1e-6):
            return f" (it looks like {float(factor):.4g} times {words})"
    return ""
