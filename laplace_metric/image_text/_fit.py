"""From encoders and pairs to trained heads with their posteriors."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor, nn

from laplace_metric._utils.randomness import Seed, own_randomness
from laplace_metric.image_text._heads import GaussianHead, HeadSettings, TokenHead, TrainingOptions
from laplace_metric.image_text._includes import InclusionCalibration
from laplace_metric.image_text._objectives import Objective
from laplace_metric.image_text._pairs import (
    BLOCK,
    Encoder,
    ImageTextPairs,
    PairBatches,
    check_towers,
    encode_all,
)
from laplace_metric.image_text._posterior import TowerPosterior, fit_tower
from laplace_metric.image_text._training import (
    MaskedInputs,
    PairRun,
    Spread,
    TwoHeads,
    computed,
    masked_features,
    optimizer_of,
    table,
)
from laplace_metric.models._store import Fingerprints, row_fingerprints, sorted_fingerprints
from laplace_metric.online._checkpoint import Checkpointer
from laplace_metric.training import train_epochs
from laplace_metric.training._loop import train_mode


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


def fit_heads(
    towers: Towers,
    pairs: ImageTextPairs,
    objective: Objective,
    settings: HeadSettings,
    options: TrainingOptions,
    generator: Seed,
    masked: MaskedInputs | None = None,
) -> FittedHeads:
    """Train new heads and fit their posteriors."""
    features = towers.features(pairs, settings.tokens, progress=options.progress)
    hidden = masked_features(
        (towers.image, towers.text),
        pairs,
        features,
        masked,
        objective,
        train=settings.train_encoders,
    )
    with own_randomness(generator, features[0].device) as source:
        sizes = features[0].shape[-1], features[1].shape[-1]
        heads = new_heads(sizes, objective, settings).to(features[0])
        run = _run(towers, pairs, features, heads, settings, options, source)
        run.masked = hidden
        checkpointer = Checkpointer(run, source, options.folder)
        checkpointer.begin(options.epochs)
        with train_mode([heads, run.encoders]):
            train_epochs(
                run.step,
                run.loader,
                run.device,
                epochs=options.epochs,
                show=options.progress,
                progress=run.progress,
                callback=checkpointer,
            )
    heads.eval()
    if settings.train_encoders:
        features = towers.features(pairs, settings.tokens, progress=options.progress)
    posteriors = fit_posteriors(heads, *features, settings)
    spreads = {"images": run.image_spread.history, "texts": run.text_spread.history}
    known = image_fingerprints(heads, features[0])
    return FittedHeads(heads, posteriors, run.progress.losses, spreads, fingerprints=known)


def new_heads(sizes: tuple[int, int], objective: Objective, settings: HeadSettings) -> TwoHeads:
    """Untrained, for features of two sizes, with a copy of the objective."""
    head = GaussianHead if settings.tokens == "head" else TokenHead
    image, text = (
        head(
            size,
            settings.dim,
            settings.hidden,
            settings.dropout,
            probabilistic=objective.probabilistic,
            layer_norm=settings.layer_norm,
            first_trace=settings.first_trace,
        )
        for size in sizes
    )
    return TwoHeads(image, text, deepcopy(objective))


def _run(
    towers: Towers,
    pairs: ImageTextPairs,
    features: tuple[Tensor, Tensor],
    heads: TwoHeads,
    settings: HeadSettings,
    options: TrainingOptions,
    source: torch.Generator,
) -> PairRun:
    encoders = nn.ModuleList()
    images, texts = table(features[0]), table(features[1])
    if settings.train_encoders:
        encoders = towers.modules
        images = computed(towers.image, pairs.images, "images")
        texts = computed(towers.text, pairs.texts, "texts")
    optimizer = optimizer_of(
        heads, encoders, options.learning_rate, options.weight_decay, settings.encoder_rate
    )
    identity = {**settings.to_json(), **options.to_json()}
    loader, device = PairBatches(pairs, options.batch_size, source), features[0].device
    return PairRun(heads, encoders, optimizer, pairs, images, texts, loader, device, identity)


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
    n = settings.n_effective or n_terms
    structure, prior = settings.structure, settings.prior_precision
    return (
        fit_tower(heads.image, image, text, scale, structure, n, prior),
        fit_tower(heads.text, text, image, scale, structure, n, prior),
    )
