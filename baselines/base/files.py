"""A fitted method as a folder: its settings as JSON, what it learnt as safetensors."""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from baselines.base.appended import Appended
from baselines.base.fitted import Fitted, Sizes
from baselines.base.training import Training
from laplace_metric._utils import files
from laplace_metric._utils.precision import at_least_float32
from laplace_metric.errors import FileFormatError
from laplace_metric.models import device_of
from laplace_metric.models.heads import APPEND, LocatedHead, identity_head, named_head

if TYPE_CHECKING:
    from baselines.base.baseline import Baseline

KIND = files.FileKind("method", "a saved method", 1)

Method = TypeVar("Method", bound="Baseline")


def save(folder: Path, method: Baseline) -> None:
    """Write a fitted method."""
    fitted = method.fitted_
    content = {
        "method": type(method).__name__,
        "settings": settings(method),
        "sizes": asdict(fitted.sizes),
        "head": {"name": fitted.head.name, "normalized": fitted.head.normalized},
        "appended": isinstance(method.model, Appended),
        "network": None if method.saves_network else weights_hash(method.model),
    }
    tensors = {
        f"{part}.{name}": tensor
        for part, module in method.learnt()
        for name, tensor in module.state_dict().items()
    }
    files.write(folder, content, {"classes": fitted.classes, **tensors}, KIND)


def settings(method: Baseline) -> dict[str, Any]:
    """The fields that are plain values."""
    shown = {f.name: getattr(method, f.name) for f in fields(method) if f.metadata.get("saved", 1)}
    shown.pop("model")
    return {k: asdict(v) if isinstance(v, Training) else v for k, v in shown.items()}


def weights_hash(model: nn.Module) -> str:
    """sha256 of parameters and buffers, by name."""
    state = model.state_dict()
    return files.digest(f"{list(state)}", state.values())


def load(folder: Path, kind: type[Method], model: nn.Module, unsaved: dict[str, Any]) -> Method:
    """Read what ``save`` wrote and put it on ``model``."""
    content, tensors = files.read(folder, KIND)
    if content.get("method") != kind.__name__:
        raise FileFormatError(
            f"{folder} holds a {content.get('method')}, not a {kind.__name__}: load it as that."
        )
    try:
        return _restore(kind, model, content, tensors, unsaved)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise FileFormatError(f"{folder} does not fit this model: {error}") from error


def _restore(
    kind: type[Method],
    model: nn.Module,
    content: dict[str, Any],
    tensors: dict[str, Tensor],
    unsaved: dict[str, Any],
) -> Method:
    values = dict(content["settings"])
    if "training" in values:
        values["training"] = Training(**values["training"])
    method = kind(model, **values, **unsaved)
    sizes, device = Sizes(**content["sizes"]), device_of(model)
    if content["network"] not in (None, weights_hash(model)):
        raise ValueError("its weights differ from those of the network it was fitted with.")
    method.model = method.adopt(model)
    if content["appended"]:
        like = next(model.parameters(), torch.empty(0))
        method.model = Appended(method.model, identity_head(sizes.embedding, like))
    head = _head(method.model, content["head"], sizes)
    with torch.random.fork_rng():
        method.prepare(head)
        parts = nn.ModuleDict(method.build(sizes))
    if head.parts is None:
        parts["head"] = head.module
    parts.to(at_least_float32(next(head.module.parameters())))
    method._fitted = Fitted(head, sizes, tensors.pop("classes").to(device), parts)
    for part, module in method.learnt():
        own = {n[len(part) + 1 :]: t for n, t in tensors.items() if n.startswith(f"{part}.")}
        module.load_state_dict(own)
    method.head = APPEND if head.parts is None else head.module
    parts.eval()
    return method


def _head(model: nn.Module, described: dict[str, Any], sizes: Sizes) -> LocatedHead:
    name = described["name"]
    found = named_head(model, name)
    if found is not None:
        return LocatedHead(name, found[0], described["normalized"], found[1])
    if name != APPEND:
        raise ValueError(f"it has no layer {name!r}")
    like = next(model.parameters(), torch.empty(0))
    return LocatedHead(name, identity_head(sizes.embedding, like), normalized=False, parts=None)
