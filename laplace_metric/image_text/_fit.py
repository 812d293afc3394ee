"""From encoders and pairs to trained heads with their posteriors."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor, nn

from laplace_metric.errors import InputError
from laplace_metric.image_text._heads import GaussianHead, HeadSettings
from laplace_metric.image_text._includes import InclusionCalibration
from laplace_metric.image_text._objectives import Objective
from laplace_metric.image_text._pairs import (
    BLOCK,
    Encoder,
    ImageTextPairs,
    check_towers,
    count_inputs,
    encode,
    encode_all,
    take_inputs,
)
from laplace_metric.image_text._posterior import TowerPosterior, fit_tower
from laplace_metric.image_text._training import Features, Spread, TwoHeads
from laplace_metric.models._calling import Inputs
from laplace_metric.models._store import Fingerprints, row_fingerprints, sorted_fingerprints

MaskedInputs = tuple[Inputs | None, Inputs | None]
"""What is left of each image and of each text, in the order of the pairs; None: not used."""


@dataclass(frozen=True)
class Towers:
    """Both encoders."""

    image: Encoder
    text: Encoder

    def features(
        self, pairs: ImageTextPairs, tokens: str, *, progress: bool
    ) -> tuple[Tensor, Tensor]:
        """Compute the features of all images [N, F] and texts [M, F'], or of two tokens each."""
        images = encode_all(self.image, pairs.images, "images", progress=progress)
        texts = encode_all(self.text, pairs.texts, "texts", progress=progress)
        check_towers(images, texts, tokens)
        return images, texts

    @property
    def modules(self) -> nn.ModuleList:
        """Encoders that are modules."""
        return nn.ModuleList(e for e in (self.image, self.text) if isinstance(e, nn.Module))


@dataclass
class FittedHeads:
    """Result of ``fit``.

    Parameters
    ----------
    heads : TwoHeads
    posteriors : of the image and of the text tower, or None
    losses : list of float
        Mean of each epoch.
    spreads : dict
        Of "images" and "texts", one a epoch.
    inclusion : InclusionCalibration or None
    fingerprints : uint64 [N] or None
        Of the images, sorted; None in files that have none.
    """

    heads: TwoHeads
    posteriors: tuple[TowerPosterior, TowerPosterior] | None = None
    losses: list[float] = field(default_factory=list)
    spreads: dict[str, list[Spread]] = field(default_factory=dict)
    inclusion: InclusionCalibration | None = None
    fingerprints: Fingerprints | None = None


def new_heads(sizes: tuple[int, int], objective: Objective, settings: HeadSettings) -> TwoHeads:
    """Untrained heads, for features of two sizes, with a copy of the objective."""
    image, text = (
        GaussianHead(
            size,
            settings.dim,
            settings.dropout,
            tokens=settings.tokens,
            probabilistic=objective.probabilistic,
            layer_norm=settings.layer_norm,
            first_trace=settings.first_trace,
        )
        for size in sizes
    )
    return TwoHeads(image, text, deepcopy(objective))


def table(features: Tensor) -> Features:
    """Features of a frozen encoder: computed once, looked up by row."""
    return lambda rows: features[rows.to(features.device)]


def computed(encoder: Encoder, inputs: Inputs, name: str) -> Features:
    """Features of an encoder that trains."""
    return lambda rows: encode(encoder, take_inputs(inputs, rows), name, grad=True)


def masked_features(
    towers: Towers,
    full: tuple[Tensor, Tensor],
    masked: MaskedInputs | None,
    objective: Objective,
    *,
    train: bool,
) -> tuple[Features | None, Features | None]:
    """Return the features of what is left of images and texts after masking (eq 6 of ProLIP).

    Raises
    ------
    InputError
        If masked inputs are missing, not used, or not those of the pairs.
    """
    if bool(objective.masked) is not (masked is not None):
        raise InputError(
            "masked= goes with an objective that gives it a weight, such as ProLIP(masked=1e-3): "
            "pass both or neither."
        )
    if masked is None:
        return None, None
    if not isinstance(masked, tuple) or len(masked) != 2:
        raise InputError("masked= is no tuple (images, texts): pass both, or None for one of them.")
    images = _masked_side(towers.image, masked[0], "masked images", full[0], train=train)
    return images, _masked_side(towers.text, masked[1], "masked texts", full[1], train=train)


def _masked_side(
    encoder: Encoder, inputs: Inputs | None, name: str, full: Tensor, *, train: bool
) -> Features | None:
    if inputs is None:
        return None
    if (n := count_inputs(name, inputs)) != len(full):
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


@torch.no_grad()
def image_fingerprints(heads: TwoHeads, images: Float[Tensor, "N ..."]) -> Fingerprints:
    """Compute fingerprints of the inputs of the projections, to recognise such queries."""
    blocks = images.split(BLOCK)
    return sorted_fingerprints([row_fingerprints(heads.image(x).inputs) for x in blocks])


@torch.no_grad()
def fit_posteriors(
    heads: TwoHeads, images: Tensor, texts: Tensor, settings: HeadSettings
) -> tuple[TowerPosterior, TowerPosterior] | None:
    """Fit both towers from all N M pairs; None for an objective of neither sigmoid nor softmax."""
    pair, softmax = heads.objective.logit_scale(), heads.objective.softmax_scale()
    scale: tuple[float, float] | float | None = softmax if pair is None else pair
    if scale is None:
        return None
    image, text = heads.image(images), heads.text(texts)
    n_terms = len(images) * len(texts) if pair is not None else len(images) + len(texts)
    n, prior = settings.n_effective or n_terms, settings.prior_precision
    return (
        fit_tower(heads.image, image, text, scale, n, prior),
        fit_tower(heads.text, text, image, scale, n, prior),
    )
