"""What every library's test asks of a fit and a call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from laplace_metric import LaplaceEmbedder


def traces(model: nn.Module) -> dict[str, Any]:
    """Everything that a fit could leave on a model."""
    found: dict[str, Any] = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for name, module in model.named_modules():
        hooks = len(module._forward_hooks), len(module._forward_pre_hooks)
        found[f"{name} (module)"] = (module.training, *hooks)
    for name, parameter in model.named_parameters():
        found[f"{name} (parameter)"] = (parameter.requires_grad, parameter.grad)
    return found


def fitted(embedder: LaplaceEmbedder, inputs: Any, labels: Tensor) -> LaplaceEmbedder:
    """Fit and call with the model in training mode but for one part; no trace is left."""
    model = embedder.model.train()
    parts = list(model.modules())
    parts[-1].eval()
    next(model.parameters()).requires_grad_(False)
    before = traces(model)
    embedder.fit([(inputs, labels)], progress=False)
    embedding = embedder(inputs)
    after = traces(model)
    assert before.keys() == after.keys()
    for name, value in before.items():
        same = torch.equal(value, after[name]) if isinstance(value, Tensor) else None
        assert same or value == after[name], name
    assert bool((embedding.variance > 0).all())
    assert embedding.uncertainty.shape == (len(labels),)
    return embedder


def unit(x: Tensor) -> Tensor:
    """Rows of length 1."""
    return nn.functional.normalize(x.detach().float(), dim=-1)
