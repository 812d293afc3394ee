"""Identity of a head: enough to find it again in a model and to recognise it.

And what has to hold at each call: every row is a number.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from laplace_metric.errors import FileFormatError, InputError, NonFiniteError
from laplace_metric.heads._computed import written_out
from laplace_metric.heads._locate import APPEND, Ends, LocatedHead, identity_head, sub_module
from laplace_metric.io import digest

HeadSpec = dict[str, Any]
"""JSON values."""


def head_spec(head: LocatedHead) -> HeadSpec:
    """Name, shapes and a fingerprint of the weights."""
    parameters = list(head.module.parameters())
    # what is computed may differ by rounding on another machine: its sources are compared
    source = head.source
    own = parameters if source is None else [*source.parameters(), *source.buffers()]
    return {
        "name": head.name,
        "normalized": head.normalized,
        "n_outputs": head.n_outputs,
        "shapes": [list(p.shape) for p in parameters],
        "dtype": str(parameters[0].dtype),
        "sha256": digest("", own),
    }


def head_from_spec(spec: HeadSpec, model: nn.Module) -> LocatedHead:
    """The head of ``model`` that ``head_spec`` described.

    Raises
    ------
    FileFormatError
        If the model lacks it, or its head differs.
    """
    name = spec["name"]
    module, parts = named_head(model, name) or (None, None)
    if module is None and name == APPEND:
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        dtype = getattr(torch, spec["dtype"].removeprefix("torch."))
        like = torch.empty(0, dtype=dtype, device=device)
        module = identity_head(spec["n_outputs"], like)
    if module is None or next(module.parameters(), None) is None:
        raise FileFormatError(f"the posterior is for a head {name!r}, which model lacks.")
    copied = None if parts is None else written_out(name, module)
    own, source = (module, None) if copied is None else (copied, module)
    head = LocatedHead(name, own, spec["normalized"], parts, spec["n_outputs"], source)
    actual = head_spec(head)
    for key, value in spec.items():
        if actual[key] != value:
            hint = (
                " (the weights differ: load the trained ones into the model, or fit again)"
                if key == "sha256"
                else ""
            )
            raise FileFormatError(
                f"head {name!r} has {key} {actual[key]!r}, the posterior was fitted for "
                f"{value!r}{hint}."
            )
    return head


def named_head(model: nn.Module, name: str) -> Ends | None:
    """(module, its ends) of a name that ``locate_head`` gave; None without such a head."""
    modules = dict(model.named_modules())
    names = name.split("..")
    if len(names) == 1:
        return sub_module(modules[name]) if name in modules else None
    order = [n for n, m in modules.items() if not any(m.children())]
    if not set(names) <= set(order):
        return None
    row = order[order.index(names[0]) : order.index(names[1]) + 1]
    chain = nn.Sequential(*(modules[n] for n in row))
    return chain, (modules[row[0]], modules[row[-1]])


# What has to hold at each call: every row is a number.

SHORTEST = 1e-12
"""Length below which ``nn.functional.normalize`` gives no unit vector."""


def check_rows(raw: Float[Tensor, "B Z"], *results: Tensor, spherical: bool) -> None:
    """Check that the raw embeddings z [B, Z] and what was computed from them, [B] each, are finite.

    Raises
    ------
    NonFiniteError
        For NaN or infinity; it counts the rows.
    InputError
        On the sphere, for embeddings without a direction.
    """
    sizes = raw.square().sum(1) if spherical else raw.abs().amax(1)
    fine = sizes < torch.inf  # not of NaN
    if spherical:
        fine &= sizes >= SHORTEST**2
    for result in results:
        fine &= result.isfinite()
    if not bool(fine.all()):
        _refuse(raw, spherical)


def _refuse(raw: Tensor, spherical: bool) -> None:
    n, broken = len(raw), int((~raw.isfinite()).any(1).sum())
    if broken:
        raise NonFiniteError(
            f"{broken} of {n} embeddings of a batch hold NaN or infinity: check those inputs."
        )
    lengths = raw.double().norm(dim=1)
    zero, short = int((lengths == 0).sum()), int((lengths < SHORTEST).sum())
    if spherical and zero:
        raise InputError(
            f"{zero} of {n} embeddings of a batch are all zeros, and what is exactly zero has "
            "no direction: leave those inputs out."
        )
    if spherical and short:
        raise InputError(
            f"{short} of {n} embeddings of a batch are shorter than {SHORTEST:g}, the shortest "
            f"{float(lengths.min()):.2g}: their direction is rounding. Scale the inputs up."
        )
    raise NonFiniteError(
        f"uncertainties of a batch of {n} overflow {raw.dtype}: embeddings are up to "
        f"{float(lengths.max()):.2g} long. Scale the inputs down, or use float64."
    )
