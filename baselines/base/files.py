"""A fitted method as one file: plain values as JSON, what it learnt as arrays."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from baselines.base.parts import Sizes, identity_layer
from baselines.base.settings import Training
from laplace_metric import io as files
from laplace_metric.errors import FileFormatError
from laplace_metric.heads._identity import named_head
from laplace_metric.heads._located import APPEND, LocatedHead

KIND = files.Kind("method", "a saved method", 2)

Modules = Iterable[tuple[str, nn.Module]]
"""Modules by name."""


def write_method(path: Path, content: dict[str, Any], classes: Tensor, learnt: Modules) -> None:
    """Write plain values, class labels [C] and the states of modules."""
    tensors = {
        f"{part}.{name}": tensor
        for part, module in learnt
        for name, tensor in module.state_dict().items()
    }
    files.write(path, files.Part(KIND, content, {"classes": classes, **tensors}))


def read_method(path: Path, name: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the plain values and the tensors of a method with this class name.

    Raises
    ------
    FileFormatError
        If the file is not ours, damaged, or of another method.
    """
    content, tensors = files.read(path, KIND)
    if content.get("method") != name:
        raise FileFormatError(
            f"{path} holds a {content.get('method')}, not a {name}: load it as that."
        )
    return content, tensors


def load_states(learnt: Modules, tensors: dict[str, Tensor]) -> None:
    """Put the states of modules back."""
    for part, module in learnt:
        prefix = f"{part}."
        state = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
        module.load_state_dict(state)


def weights_hash(model: nn.Module) -> str:
    """Return sha256 of parameters and buffers, by name."""
    state = model.state_dict()
    return files.digest(f"{list(state)}", list(state.values()))


def saved_settings(method: Any) -> dict[str, Any]:
    """Return the fields of a method that are plain values, for JSON."""
    names = [f.name for f in fields(method) if f.name != "model" and f.metadata.get("saved", True)]
    values = {name: getattr(method, name) for name in names}
    return {k: asdict(v) if isinstance(v, Training) else v for k, v in values.items()}


def loaded_settings(saved: dict[str, Any]) -> dict[str, Any]:
    """Read the result of ``saved_settings``."""
    return {k: Training(**v) if k == "training" else v for k, v in saved.items()}


def saved_head(head: LocatedHead) -> dict[str, Any]:
    """Return a head as plain values."""
    return {"name": head.name, "normalized": head.normalized}


def loaded_head(model: nn.Module, saved: dict[str, Any], sizes: Sizes) -> LocatedHead:
    """Read the result of ``saved_head``, on a model.

    Raises
    ------
    ValueError
        If the model has no such layer.
    """
    name = saved["name"]
    module = named_head(model, name)
    if module is not None:
        return LocatedHead(name, module[0], saved["normalized"], module[1], sizes.embedding)
    if name != APPEND:
        raise ValueError(f"it has no layer {name!r}")
    layer = identity_layer(model, sizes.embedding)
    return LocatedHead(name, layer, False, None, sizes.embedding)
