"""What identifies a head: enough to find it again in a model and to tell whether it is the same."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from laplace_metric._utils.files import digest
from laplace_metric.errors import FileFormatError
from laplace_metric.models.heads._activations import LocatedHead
from laplace_metric.models.heads._locate import APPEND, Ends, identity_head, sub_module

HeadSpec = dict[str, Any]
"""JSON values."""


def head_spec(head: LocatedHead) -> HeadSpec:
    """Name, shapes and a fingerprint of the weights."""
    parameters = list(head.module.parameters())
    return {
        "name": head.name,
        "normalized": head.normalized,
        "n_outputs": head.n_outputs,
        "shapes": [list(p.shape) for p in parameters],
        "dtype": str(parameters[0].dtype),
        "sha256": digest("", parameters),
    }


def head_from_spec(spec: HeadSpec, model: nn.Module) -> LocatedHead:
    """The head of ``model`` that ``head_spec`` described.

    Raises
    ------
    FileFormatError
        If the model lacks it, or its head differs.
    """
    name = spec["name"]
    module_and_parts = _named_or_appended(name, spec, model)
    if module_and_parts is None:
        raise FileFormatError(f"the posterior is for a head {name!r}, which model lacks.")
    module, parts = module_and_parts
    head = LocatedHead(name, module, spec["normalized"], parts, spec["n_outputs"])
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


def _named_or_appended(
    name: str, spec: HeadSpec, model: nn.Module
) -> tuple[nn.Module, tuple[nn.Module, nn.Module] | None] | None:
    named = named_head(model, name)
    if named is None and name == APPEND:
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        dtype = getattr(torch, spec["dtype"].removeprefix("torch."))
        like = torch.empty(0, dtype=dtype, device=device)
        return identity_head(spec["n_outputs"], like), None
    has_parameters = named is not None and next(named[0].parameters(), None) is not None
    return named if has_parameters else None


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
