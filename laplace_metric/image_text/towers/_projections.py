"""Projections of a CLIP or SigLIP that is there already, as heads: no layer norm, no training.

    z = W h + b     mu = z / |z|     s = a mu_image . mu_text (+ b')

with a ``softmax`` of s over the texts of an image and the images of a text (InfoNCE: CLIP, Radford
et al. 2021), or the ``sigmoid`` of each s (SigLIP, Zhai et al. 2023).
"""

from __future__ import annotations

import math
import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from laplace_metric._utils.validation import (
    as_points,
    as_tensor,
    as_vector,
    check_floating,
    check_name,
    check_positive,
    check_real,
)
from laplace_metric.errors import InputError, LogitScaleWarning, callers_line
from laplace_metric.image_text._head import GaussianHead
from laplace_metric.image_text.objectives._objectives import CLIP, Objective, SigLIP

LOSSES = ("softmax", "sigmoid")
LARGEST_LOGARITHM = 5.0
"""A scale up to here is likelier the logarithm of one: models have 10 to 120, and 2.3 to 4.8."""


class Projection(NamedTuple):
    """A linear map to the common space: weight W [D, F], and bias b [D] or None."""

    weight: Float[Tensor, "D F"]
    bias: Float[Tensor, " D"] | None

    @classmethod
    def of(cls, name: str, given: Any) -> Projection:
        """Read a layer or a matrix, at least in float32; an error names it.

        Raises
        ------
        InputError
            For anything but an ``nn.Linear`` or a floating matrix.
        NonFiniteError
            For NaN and infinity.
        """
        if isinstance(given, nn.Linear):
            weight, bias = given.weight, given.bias
        elif isinstance(given, (Tensor, np.ndarray)):
            weight, bias = as_tensor(name, given), None
        else:
            raise InputError(
                f"{name} is a {type(given).__name__}: pass its torch.nn.Linear, or its matrix "
                "[D, F], such as clip.visual.proj.T."
            )
        weight = as_points(name, check_floating(name, weight), "[D, F]")
        return cls(weight, None if bias is None else as_vector(f"{name}.bias", bias).to(weight))


def read_projections(image: Any, text: Any) -> tuple[Projection, Projection]:
    """Read both projections, in one type.

    Raises
    ------
    InputError
        For spaces of two dimensions, of one dimension, and what ``Projection.of`` refuses.
    """
    both = Projection.of("image_projection", image), Projection.of("text_projection", text)
    shapes = [list(projection.weight.shape) for projection in both]
    dims = [shape[0] for shape in shapes]
    if dims[0] != dims[1] or dims[0] < 2:
        raise InputError(
            f"image_projection has the shape {shapes[0]} and text_projection {shapes[1]}: pass "
            "[D, F] and [D, G] with the same D >= 2, as the weight of nn.Linear. A matrix that "
            "features are multiplied with from the right, as those of OpenAI's CLIP, is [F, D]: "
            "pass its .T."
        )
    dtype = torch.promote_types(both[0].weight.dtype, both[1].weight.dtype)
    image_dtype, text_dtype = (
        Projection(*(None if part is None else part.to(dtype) for part in projection))  # type: ignore[arg-type]
        for projection in both
    )
    return image_dtype, text_dtype


def objective_of(loss: str, logit_scale: Any, logit_bias: Any, like: Tensor) -> Objective:
    """Return the objective that the projections were trained with, in the type of ``like``.

    Raises
    ------
    UnknownNameError
        For another loss.
    InputError
        For a scale that is not positive, and a bias that is missing or not used.
    """
    check_name("loss", loss, LOSSES)
    scale = check_positive("logit_scale", _number(logit_scale))
    if scale <= LARGEST_LOGARITHM:
        warnings.warn(
            f"logit_scale={scale:g} is small for the factor of a cosine. Models store its "
            "logarithm: pass model.logit_scale.exp() if that is what it is.",
            LogitScaleWarning,
            stacklevel=callers_line(),
        )
    objective: Objective
    bias = 0.0
    if loss == "softmax":
        if logit_bias is not None:
            raise InputError(
                f"logit_bias={logit_bias!r}: a softmax has none. Pass loss='sigmoid' for SigLIP."
            )
        objective = CLIP(largest=max(100.0, scale))
    else:
        if logit_bias is None:
            raise InputError("loss='sigmoid' needs logit_bias=, such as float(model.logit_bias).")
        bias = check_real("logit_bias", _number(logit_bias))
        objective = SigLIP(first_b=bias)
    objective.to(like)
    nn.init.constant_(objective.log_a, math.log(scale))
    nn.init.constant_(objective.b, bias)
    return objective


def _number(value: Any) -> Any:
    """Return the number in an array or tensor of one."""
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.item()
    return value.item() if isinstance(value, np.ndarray) and value.size == 1 else value


@torch.no_grad()
def head_of(projection: Projection) -> GaussianHead:
    """Return a head without variances whose mean is the projection."""
    dim, size = projection.weight.shape
    bias = projection.bias is not None
    with torch.device("meta"):  # the first weights are replaced
        head = GaussianHead(size, dim, probabilistic=False, layer_norm=False, bias=bias)
    state = {f"mean.{k}": t.clone() for k, t in projection._asdict().items() if t is not None}
    head.load_state_dict(state, assign=True)
    return head.eval()
