"""Where the features of inputs come from of which a part is hidden (Chun et al. 2025, eq 6)."""

from __future__ import annotations

from torch import Tensor

from laplace_metric.errors import InputError
from laplace_metric.image_text._encoding import Encoder, encode_all
from laplace_metric.image_text._pairs import ImageTextPairs, count_inputs
from laplace_metric.image_text._training import Features, computed, table
from laplace_metric.image_text.losses import Objective
from laplace_metric.models import Call, Inputs

MaskedInputs = tuple[Inputs | None, Inputs | None]
"""What is left of each image and of each text, in the order of the pairs; None: not used."""


def masked_features(
    encoders: tuple[Encoder, Encoder],
    pairs: ImageTextPairs,
    features: tuple[Tensor, Tensor],
    masked: MaskedInputs | None,
    objective: Objective,
    *,
    train: bool,
) -> tuple[Features | None, Features | None]:
    """Of images and texts, as the objective asks: inputs that are given, or masks drawn anew.

    Masks are drawn for every step where the encoder trains and has ``masked(inputs, share)``.

    Raises
    ------
    InputError
        If there is no way to mask, or no use for what is given.
    """
    if not objective.masked:
        if masked is not None:
            raise InputError(
                "masked= is given, and the objective gives it no weight: pass an objective that "
                "does, such as ProLIP(masked=1e-3)."
            )
        return None, None
    if not isinstance(masked, (tuple, type(None))) or (masked is not None and len(masked) != 2):
        raise InputError("masked= is no tuple (images, texts): pass both, or None for one of them.")
    sides: list[Features | None] = []
    for side, name in enumerate(("images", "texts")):
        full = (pairs.images, pairs.texts)[side]
        given = None if masked is None else masked[side]
        if given is not None:
            sides.append(_given(encoders[side], given, f"masked {name}", features[side], train))
        elif train and callable(getattr(encoders[side], "masked", None)):
            call = Call(encoders[side], "masked", share=objective.masked_share)  # type: ignore[arg-type]
            sides.append(computed(call, full, f"masked {name}"))
        elif masked is not None:
            sides.append(None)
        else:
            raise InputError(
                f"the objective has a weight for masked inputs, and the encoder of {name} cannot "
                "mask: pass masked=(images, texts), each what is left of the inputs in the order "
                "of the pairs, or train an encoder with a method masked(inputs, share)."
            )
    return sides[0], sides[1]


def _given(encoder: Encoder, inputs: Inputs, name: str, full: Tensor, train: bool) -> Features:
    if count_inputs(name, inputs) != len(full):
        n = count_inputs(name, inputs)
        raise InputError(f"{name} has {n} inputs for {len(full)}: pass one for each, in order.")
    if train:
        return computed(encoder, inputs, name)
    features = encode_all(encoder, inputs, name, progress=False)
    if features.shape != full.shape:
        raise InputError(
            f"features of {name} have shape {list(features.shape)}, those of the whole inputs "
            f"{list(full.shape)}: use the same encoder."
        )
    return table(features.to(full))
