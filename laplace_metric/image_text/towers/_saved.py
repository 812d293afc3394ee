"""Encoders of this package as a JSON description and their weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from laplace_metric.image_text.towers._images import ImageTransformer
from laplace_metric.image_text.towers._texts import TextTransformer

OWN: dict[str, type[ImageTransformer] | type[TextTransformer]] = {
    "image transformer": ImageTransformer,
    "text transformer": TextTransformer,
}


def described(encoder: Any) -> dict[str, Any] | None:
    """Kind and settings; None for an encoder of the user's own, subclasses among them."""
    for kind, cls in OWN.items():
        if type(encoder) is cls:
            return {"kind": kind, **encoder.settings}
    return None


def rebuilt(description: dict[str, Any], weights: dict[str, Tensor]) -> nn.Module:
    """What ``described`` has seen, with its weights, in evaluation mode."""
    settings = dict(description)
    encoder = OWN[settings.pop("kind")](**settings)
    with torch.no_grad():
        encoder.to(weights["positions"].dtype).load_state_dict(weights)
    return encoder.eval()
