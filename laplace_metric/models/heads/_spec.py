"""A head in words: enough to find it again in a model and to tell whether it is the same."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from laplace_metric._utils.files import digest
from laplace_metric.errors import FileFormatError
from laplace_metric.models.heads._capture import LocatedHead
from laplace_metric.models.heads._locate import APPEND, identity_head, named_head

Description = dict[str, Any]
"""JSON values."""


def describe(head: LocatedHead, n_outputs: int) -> Description:
    """Name, shapes and a fingerprint of the weights."""
    parameters = list(head.module.parameters())
    return {
        "name": head.name,
        "normalized": head.normalized,
        "n_outputs": n_outputs,
        "shapes": [list(p.shape) for p in parameters],
        "dtype": str(parameters[0].dtype),
        "sha256": digest("", parameters),
    }


def described_head(expected: Description, model: nn.Module) -> LocatedHead:
    """The head of ``model`` that ``describe`` described.

    Raises
    ------
    FileFormatError
        If the model lacks it, or its head differs.
    """
    name = expected["name"]
    found = _find(name, expected, model)
    if found is None:
        raise FileFormatError(f"the posterior is for a head {name!r}, which model lacks.")
    head = LocatedHead(name, found[0], expected["normalized"], found[1])
    described = describe(head, expected["n_outputs"])
    for key, value in expected.items():
        if described[key] != value:
            hint = " (the weights differ: fit again)" if key == "sha256" else ""
            raise FileFormatError(
                f"head {name!r} has {key} {described[key]!r}, the posterior was fitted for "
                f"{value!r}{hint}."
            )
    return head


def _find(
    name: str, expected: Description, model: nn.Module
) -> tuple[nn.Module, tuple[nn.Module, nn.Module] | None] | None:
    found = named_head(model, name)
    if found is None and name == APPEND:
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        dtype = getattr(torch, expected["dtype"].removeprefix("torch."))
        like = torch.empty(0, dtype=dtype, device=device)
        return identity_head(expected["n_outputs"], like), None
    has_parameters = found is not None and next(found[0].parameters(), None) is not None
    return found if has_parameters else None
