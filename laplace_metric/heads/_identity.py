"""Identity of a head: enough to find it again in a model and to recognise it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from laplace_metric.errors import FileFormatError
from laplace_metric.heads._computed import written_out
from laplace_metric.heads._locate import Ends, identity_head, sub_module
from laplace_metric.heads._located import APPEND, LocatedHead
from laplace_metric.io import digest

HeadSpec = dict[str, Any]
"""Name, shapes and fingerprint of a head, as JSON values."""


def head_spec(head: LocatedHead) -> HeadSpec:
    """Return the name, the shapes and a fingerprint of the weights of a head."""
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
    """Return the head of ``model`` that ``head_spec`` described.

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
    """Return the module and its ends of a name that ``locate_head`` gave; None if it is missing."""
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
