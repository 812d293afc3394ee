"""``ImageTextEmbedder``: two encoders, a Gaussian head on each, fitted to pairs of any kind."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from laplace_metric import io as files
from laplace_metric._utils.randomness import Seed, as_generator, own_randomness
from laplace_metric._utils.validation import (
    as_path,
    check_count,
    check_function,
    check_name,
    check_positive,
    check_real,
)
from laplace_metric.embedding import Embedding
from laplace_metric.errors import InputError, NotFittedError
from laplace_metric.image_text._files import IMAGE_TEXT, fitted_of, heads_part
from laplace_metric.image_text._head import FIRST_TRACE, GaussianHead
from laplace_metric.image_text._inclusion_calibration import (
    Inclusion,
    InclusionCalibration,
    random_partners,
)
from laplace_metric.image_text._pairs import ImageTextPairs
from laplace_metric.image_text._training import MaskedInputs, PairRun
from laplace_metric.image_text.objectives._csd import similarities
from laplace_metric.image_text.objectives._inclusion import inclusion_score
from laplace_metric.image_text.objectives._objectives import OBJECTIVES, Objective, TwoHeads
from laplace_metric.image_text.towers._encoder_features import Encoder, check_towers, encode_checked
from laplace_metric.image_text.towers._projection_factors import ProjectionFactors
from laplace_metric.image_text.towers._projections import head_of, objective_of, read_projections
from laplace_metric.image_text.towers._towers import FittedHeads, Tower
from laplace_metric.inputs._batches import ModelInput
from laplace_metric.models import Precomputed
from laplace_metric.search import Index
from laplace_metric.search.engines._engine import EngineKind
from laplace_metric.training import train_mode


class Towers(NamedTuple):
    """Encoders of both towers.

    Parameters
    ----------
    image, text : nn.Module or function
        Encoder of images, and encoder of texts.
    """

    image: Encoder
    text: Encoder


@dataclass(eq=False, repr=False)
class ImageTextEmbedder:
    """Images and texts as Gaussians on one sphere, with two uncertainties that are kept apart.

    ``ambiguity`` of the embeddings is the trace of the variance that the head has learnt, which is
    their ``uncertainty``: how general or ambiguous an input is. ``weight_variance`` comes from a
    Laplace posterior over the projection of the means: how little the pairs determine where the
    input belongs.

    Parameters
    ----------
    image_encoder, text_encoder : nn.Module or function
        Encoders, inputs -> features [B, F], each with its own F; frozen and in evaluation mode
        unless ``train_encoders``. Use ``models.Precomputed()`` if the inputs are features already,
        ``models.Sentences`` for sentence-transformers.
    dim : int
        Dimension D of the embeddings, at least 2. Default: 64.
    objective : "prolip" | "prolip-regions" | "pcme++" | "siglip" | "clip", or an ``Objective``
        Loss of the pairs. Default: "prolip". "siglip" and "clip" learn no variance, and "clip" has
        no probability of a pair.
    dropout : float in [0, 1)
        Dropout of the features while the heads train. Default: 0.
    train_encoders : bool
        Train the encoders with the heads; both must be modules. Default: False.
    encoder_rate : float > 0
        Learning rate of encoders that train, as a multiple of ``learning_rate``. Default: 0.1.
    tokens : "head" | "uncertainty"
        Features that variances come from: "head", the default, those of the mean; "uncertainty" a
        second token, if both encoders return [B, 2, F], features of [CLS] and of [UNC].
    layer_norm : bool
        Normalise the features (layer norm) before the projections. Default: True.
    first_trace : float > 0
        Approximate ``tr S`` before training; too small a one has no gradient. Default: 0.35.
    prior_precision : float > 0
        Prior precision tau of the posterior. Default: 1; the larger, the less uncertain.
    n_effective : float > 0 or None
        Number of observations that turns the curvature, an average over all N M pairs, into a sum
        over data. None, the default: N M, the likelihood of the pairs as the loss has it, as if
        they were independent; of "clip" N + M, a softmax for each image and each text.

    Raises
    ------
    UnknownNameError, InputError
        For names that do not exist and numbers out of range.

    Examples
    --------
    >>> import torch
    >>> from laplace_metric.models import Precomputed
    >>> pixels, words = torch.randn(12, 8), torch.randn(4, 6)
    >>> links = torch.stack([torch.arange(12), torch.arange(12) % 4], 1)
    >>> pairs = ImageTextPairs(pixels, words, links)
    >>> embedder = ImageTextEmbedder(Precomputed(), Precomputed(), dim=4)
    >>> _ = embedder.fit(pairs, epochs=2, progress=False, seed=0)
    >>> image, text = embedder.embed_image(pixels), embedder.embed_text(words)
    >>> embedder.similarity(image, text).shape, text.uncertainty.shape, image.weight_variance.shape
    (torch.Size([12, 4]), torch.Size([4]), torch.Size([12]))

    Texts find images, and the other way round with ``index_texts``:

    >>> index = embedder.index_images(pixels, progress=False)
    >>> index.search(words, k=3).ids.shape
    (4, 3)
    """

    image_encoder: Encoder
    text_encoder: Encoder
    dim: int = 64
    _: KW_ONLY
    objective: Any = "prolip"
    dropout: float = 0.0
    train_encoders: bool = False
    encoder_rate: float = 0.1
    tokens: str = "head"
    layer_norm: bool = True
    first_trace: float = FIRST_TRACE
    prior_precision: float = 1.0
    n_effective: float | None = None
    _fitted: FittedHeads | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        check_count("dim", self.dim, 2)
        if not 0 <= check_real("dropout", self.dropout) < 1:
            raise InputError(f"dropout={self.dropout!r}: pass a number in [0, 1).")
        for name in ("train_encoders", "layer_norm"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"{name}={getattr(self, name)!r}: pass True or False.")
        check_name("tokens", self.tokens, ("head", "uncertainty"))
        for name in ("encoder_rate", "first_trace", "prior_precision"):
            check_positive(name, getattr(self, name))
        if self.n_effective is not None:
            check_positive("n_effective", self.n_effective)
        for name in ("image_encoder", "text_encoder"):
            check_function(name, getattr(self, name), "inputs")
            if self.train_encoders and not isinstance(getattr(self, name), nn.Module):
                raise InputError(f"train_encoders=True needs a torch.nn.Module as {name}.")
        if not isinstance(self.objective, Objective):
            self.objective = OBJECTIVES[check_name("objective", self.objective, OBJECTIVES)]()

    @property
    def towers(self) -> Towers:
        """Encoders of images and of texts."""
        return Towers(self.image_encoder, self.text_encoder)

    @property
    def settings(self) -> dict[str, Any]:
        """Settings but for encoders and objective, as plain values."""
        others = ("image_encoder", "text_encoder", "objective", "_fitted")
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in others}

    def fit(
        self,
        pairs: ImageTextPairs,
        *,
        epochs: int = 20,
        batch_size: int = 512,
        learning_rate: float = 1e-3,
        weight_decay: float = 0.05,
        masked: MaskedInputs | None = None,
        seed: Seed = None,
        progress: bool = False,
        checkpoint: str | Path | None = None,
    ) -> ImageTextEmbedder:
        """Train new heads on pairs, then fit the posterior; returns itself.

        Frozen encoders run once. An epoch sees every pair once; a batch's images and texts count
        as a match wherever ``pairs`` says so, not only where they were drawn together. ``fitted_``
        then holds the losses of the epochs and the spreads of both sides. Nothing changes if
        fitting fails or is interrupted, but for encoders that train.

        Parameters
        ----------
        pairs : ImageTextPairs
            Images and texts to train on, and which belong together.
        epochs : int
            Number of passes over the pairs, at least 1. Default: 20.
        batch_size : int
            Number of pairs of a batch, at least 2. Default: 512.
        learning_rate, weight_decay : float
            Settings of AdamW. The learning rate rises over 5 % of the steps, then falls as half a
            cosine. Default: 0.001 and 0.05.
        masked : (images, texts) or None
            Inputs for an objective with a weight for masked inputs: what is left of every image and
            text of ``pairs`` after masking, in their order, as the encoders take them; None for a
            side that has no such term. None, the default: the objective has no such weight.
        seed : torch.Generator, int or None
            CPU generator or seed of the initial weights, the order and dropout. None, the default:
            a new one, seeded from torch's global state.
        progress : bool
            Show a progress bar. Default: False.
        checkpoint : path or None
            Folder to which the run is written before the first step and after each epoch; a run
            that lies there goes on from its last epoch to the same result. None, the default: no
            checkpoint.

        Raises
        ------
        CollapseError
            If means or variances collapse or explode; it says which, and of which side.
        InputError
            If pairs are no ``ImageTextPairs``, a number is out of range, or the projections are
            those of ``from_projections``.
        DtypeError, NonFiniteError
            For features that cannot be trained on.
        FileFormatError
            If the checkpoint is damaged or of another run.
        """
        check_count("epochs", epochs)
        check_count("batch_size", batch_size, 2)
        check_positive("learning_rate", learning_rate)
        if check_real("weight_decay", weight_decay) < 0:
            raise InputError(f"weight_decay={weight_decay!r}: pass a number >= 0.")
        folder = None if checkpoint is None else as_path("checkpoint", checkpoint)
        if self._fitted is not None and self._fitted.given:
            raise InputError(
                "these projections were given and are not trained: call fit_posterior(pairs), or "
                "make an ImageTextEmbedder(...) to train new ones."
            )
        full = self._features(pairs, progress=progress)
        settings = {
            **self.settings,
            "epochs": epochs,
            "batch_size": batch_size,
            "learning_rate": learning_rate,
            "weight_decay": weight_decay,
        }
        with own_randomness(seed, full[0].device) as source:
            heads = self._new_heads([features.shape[-1] for features in full]).to(full[0])
            run = PairRun(self.towers, heads, pairs, full, masked, settings, source, folder)
            with train_mode([heads, run.encoders]):
                run.train(epochs, show=progress)
        heads.eval()
        if self.train_encoders:
            full = self._features(pairs, progress=progress)
        fitted = FittedHeads(heads, None, run.progress.losses, run.spreads)
        self._fitted = fitted.with_posteriors(full, self.n_effective, self.prior_precision)
        return self

    def _features(self, pairs: ImageTextPairs, *, progress: bool) -> tuple[Tensor, Tensor]:
        """Compute the features of all images and texts, in one type, with the tokens asked for."""
        if not isinstance(pairs, ImageTextPairs):
            raise InputError(f"pairs is a {type(pairs).__name__}: pass ImageTextPairs.")
        images = encode_checked(self.image_encoder, pairs.images, "images", progress=progress)
        texts = encode_checked(self.text_encoder, pairs.texts, "texts", progress=progress)
        check_towers(images, texts, self.tokens)
        return images, texts

    def _new_heads(self, sizes: Sequence[int], biases: Sequence[bool] = (True, True)) -> TwoHeads:
        """Return untrained heads, for features of two sizes, with a copy of the objective."""
        image, text = (
            GaussianHead(
                size,
                self.dim,
                self.dropout,
                tokens=self.tokens,
                probabilistic=self.objective.probabilistic,
                layer_norm=self.layer_norm,
                first_trace=self.first_trace,
                bias=bias,
            )
            for size, bias in zip(sizes, biases, strict=True)
        )
        return TwoHeads(image, text, deepcopy(self.objective))

    @classmethod
    def from_projections(
        cls,
        image_projection: Any,
        text_projection: Any,
        logit_scale: float,
        *,
        loss: str = "softmax",
        logit_bias: float | None = None,
        image_encoder: Encoder | None = None,
        text_encoder: Encoder | None = None,
        factors: ProjectionFactors | None = None,
        prior_precision: float = 1.0,
        n_effective: float | None = None,
    ) -> ImageTextEmbedder:
        """Return an embedder of a trained CLIP or SigLIP, whose projections stay as they are.

        Its means are those of the model, to rounding. Call ``fit_posterior(pairs)`` with pairs of
        your own, or pass published ``factors``, for ``weight_variance``; indexes and calibration
        are as of a trained embedder. Such a model has no variances, so that ``ambiguity`` is an
        error.

        Parameters
        ----------
        image_projection, text_projection : nn.Linear, or matrix [D, F] and [D, G]
            Last layers of both towers, which take the features. Of OpenAI's CLIP pass
            ``clip.visual.proj.T`` and ``clip.text_projection.T``; of Hugging Face's
            ``model.visual_projection`` and ``model.text_projection``. They are copied.
        logit_scale : float > 0
            Factor of the cosines, such as 100: ``model.logit_scale.exp()`` where a model stores its
            logarithm.
        loss : "softmax" | "sigmoid"
            Loss of the training: InfoNCE, as of CLIP, or the pairwise sigmoid, as of SigLIP.
            Default: "softmax".
        logit_bias : float or None
            Offset of the logit, needed for "sigmoid". None, the default: a softmax has none.
        image_encoder, text_encoder : nn.Module or function, or None
            Encoders that return the features before the projections. None, the default: inputs are
            such features (``models.Precomputed``).
        factors : ProjectionFactors or None
            Published factors of the curvature, with priors of their own. None, the default: no
            posterior before ``fit_posterior``.
        prior_precision, n_effective
            Settings of ``fit_posterior``, as of ``ImageTextEmbedder``. Default: 1 and None.

        Raises
        ------
        UnknownNameError
            For another loss.
        InputError
            For a scale that is not positive, a bias that is missing or not used, projections to
            spaces of two sizes, and factors of another size.
        NonFiniteError
            For NaN and infinity in a projection.

        Warns
        -----
        LogitScaleWarning
            For a scale that is as small as a logarithm of one.

        Examples
        --------
        >>> import torch
        >>> visual, textual = torch.nn.Linear(8, 4, bias=False), torch.nn.Linear(6, 4, bias=False)
        >>> clip = ImageTextEmbedder.from_projections(visual, textual, 100.0)
        >>> images, texts = torch.randn(12, 8), torch.randn(12, 6)
        >>> pairs = ImageTextPairs(images, texts, torch.arange(12)[:, None].expand(12, 2))
        >>> clip.fit_posterior(pairs).embed_image(images).weight_variance.shape
        torch.Size([12])
        >>> clip.index_images(images).search(texts, k=3).ids.shape
        (12, 3)
        """
        image, text = read_projections(image_projection, text_projection)
        objective = objective_of(loss, logit_scale, logit_bias, image.weight)
        if factors is not None and not isinstance(factors, ProjectionFactors):
            raise InputError(f"factors is a {type(factors).__name__}: pass ProjectionFactors.")
        embedder = cls(
            Precomputed() if image_encoder is None else image_encoder,
            Precomputed() if text_encoder is None else text_encoder,
            len(image.weight),
            objective=objective,
            layer_norm=False,
            prior_precision=prior_precision,
            n_effective=n_effective,
        )
        heads = TwoHeads(head_of(image), head_of(text), deepcopy(objective))
        posteriors = None if factors is None else factors.posteriors(heads)
        embedder._fitted = FittedHeads(heads, posteriors, given=True)
        return embedder

    def fit_posterior(self, pairs: ImageTextPairs, *, progress: bool = False) -> ImageTextEmbedder:
        """Fit the posterior of heads that are there: after ``from_projections``, ``load_prolip``.

        Parameters
        ----------
        pairs : ImageTextPairs
            Images and texts to fit, and which belong together.
        progress : bool
            Show a progress bar. Default: False.

        Raises
        ------
        NotFittedError
            Without heads.
        InputError
            If pairs are no ``ImageTextPairs``, for an objective of yours whose ``scale()`` is None,
            or for features of another size than the heads take.
        """
        fitted = self.fitted_
        if fitted.heads.objective.scale() is None:
            raise InputError("this objective gives no probability of a pair, so no posterior.")
        features = self._features(pairs, progress=progress)
        self._fitted = fitted.with_posteriors(features, self.n_effective, self.prior_precision)
        return self

    @property
    def fitted_(self) -> FittedHeads:
        """Heads, posteriors, losses and spreads; ``NotFittedError`` before ``fit``."""
        if self._fitted is None:
            raise NotFittedError("this ImageTextEmbedder is not fitted: call fit(pairs) first.")
        return self._fitted

    def embed_image(self, images: ModelInput, *, progress: bool = False) -> Embedding:
        """Return embeddings of any number of images, as the image encoder takes them.

        Parameters
        ----------
        images : inputs of N images
            Images to embed.
        progress : bool
            Show a progress bar. Default: False.

        Raises
        ------
        NotFittedError
            Before ``fit``.
        InputError, NonFiniteError
            For features of another size, NaN and infinity.
        """
        return self._tower(0).embed(images, progress=progress)

    def embed_text(self, texts: ModelInput, *, progress: bool = False) -> Embedding:
        """Return embeddings of any number of texts, as the text encoder takes them.

        Parameters
        ----------
        texts : inputs of N texts
            Texts to embed.
        progress : bool
            Show a progress bar. Default: False.

        Raises
        ------
        NotFittedError
            Before ``fit``.
        InputError, NonFiniteError
            For features of another size, NaN and infinity.
        """
        return self._tower(1).embed(texts, progress=progress)

    def _tower(self, side: int) -> Tower:
        return Tower(side, self.towers[side], self.fitted_)

    def similarity(self, a: Embedding, b: Embedding) -> Float[Tensor, "B C"]:
        """Return ``mu . mu - (tr S + tr S) / 2`` [B, C], the similarity by which CSD ranks.

        Parameters
        ----------
        a, b : Embedding [B], [C]
            Embeddings of images or texts. Without variances the result is the cosine.

        Examples
        --------
        >>> import torch
        >>> from laplace_metric.distributions import Gaussian
        >>> from laplace_metric.models import Precomputed
        >>> e = Embedding(Gaussian(torch.eye(2), torch.zeros(2, 2)))
        >>> ImageTextEmbedder(Precomputed(), Precomputed()).similarity(e, e)
        tensor([[1., 0.],
                [0., 1.]])
        """
        return similarities(a, b)

    def match_logit(self, a: Embedding, b: Embedding) -> Float[Tensor, "B C"]:
        """Return the logit ``a s + b`` [B, C] as it was trained: its sigmoid is not calibrated.

        Parameters
        ----------
        a, b : Embedding [B], [C]
            Embeddings of images or texts, with similarities s.

        Raises
        ------
        NotFittedError
            Before ``fit``, and with the objective "clip", which knows no probability of a pair.
        """
        objective = self.fitted_.heads.objective
        scale = None if objective.softmax else objective.scale()
        if scale is None:
            raise NotFittedError("this objective gives no probability of a pair.")
        return scale[0] * self.similarity(a, b) + scale[1]

    def calibrate_inclusion(
        self, pairs: ImageTextPairs, *, seed: Seed = None
    ) -> InclusionCalibration:
        """Calibrate ``inc`` on these pairs and as many random ones; stored for ``includes``.

        Take pairs that were not trained on. ``auroc`` of the result says how well ``inc`` tells
        the two apart.

        Parameters
        ----------
        pairs : ImageTextPairs
            Pairs that were not trained on.
        seed : torch.Generator, int or None
            Generator or seed of the random pairs. None, the default: torch's global generator.

        Raises
        ------
        NotFittedError
            Before ``fit``.
        InputError
            If there are no variances, or no random pair to compare with.
        """
        images, texts = self.embed_image(pairs.images), self.embed_text(pairs.texts)
        i, j = pairs.pairs.unbind(1)
        other = random_partners(pairs, as_generator(seed))
        own = inclusion_score(images[i], texts[j])
        random = inclusion_score(images[other[0]], texts[other[1]])
        self.fitted_.inclusion = InclusionCalibration.of(own, random)
        return self.fitted_.inclusion

    def includes(self, general: Embedding, specific: Embedding) -> Inclusion:
        """Assess whether each of ``general`` [B] includes the same row of ``specific`` [B].

        Parameters
        ----------
        general : Embedding [B]
            Embeddings that may include others, such as those of texts.
        specific : Embedding [B]
            Embeddings that may be included, such as those of images.

        Returns
        -------
        Inclusion
            Score, probability at even odds, and the share of random pairs that score as high.

        Raises
        ------
        NotFittedError
            Before ``calibrate_inclusion``.
        InputError
            For batches of different length.
        """
        calibration = self.fitted_.inclusion
        if calibration is None:
            raise NotFittedError(
                "inc is not calibrated: call calibrate_inclusion(pairs) with held-out pairs first."
            )
        return calibration(inclusion_score(specific, general))

    def index_images(
        self,
        images: ModelInput,
        ids: Any = None,
        *,
        engine: str | EngineKind = "flat",
        rank_by: str | None = None,
        progress: bool = False,
    ) -> Index:
        """Return an index of images to search among with texts.

        ``index.calibrate`` and ``index.evaluate`` take ``matches=``: for each text the ids of all
        its images (``ImageTextPairs.images_of_texts``). Give held-out texts: they are not kept as
        fingerprints, since keywords recur by design, so that nothing warns of those of the fit.

        Parameters
        ----------
        images : inputs of N images
            Images of the gallery, as the encoder takes them.
        ids : [N] whole numbers or strings, or None
            Name of each image. None, the default: images are numbered from 0.
        engine : "flat" | "ivf" | "hnsw", or ``search.Flat``, ``IVF``, ``HNSW`` with settings
            Search engine: exact, or approximate for large galleries. Default: "flat", exact.
        rank_by : "expected" | "mean" | None
            Distance by which items are ranked: the expected squared distance of both Gaussians
            (CSD, exactly), or the cosine of the means. None, the default: the first if there are
            variances.
        progress : bool
            Show a progress bar. Default: False.

        Raises
        ------
        NotFittedError
            Before ``fit``.
        UnknownNameError
            For another ranking, and for "expected" without variances.

        Examples
        --------
        >>> import torch
        >>> from laplace_metric.models import Precomputed
        >>> links = [[i, i % 3] for i in range(6)]
        >>> pairs = ImageTextPairs(torch.randn(6, 8), torch.randn(3, 5), links)
        >>> embedder = ImageTextEmbedder(Precomputed(), Precomputed(), dim=4)
        >>> index = embedder.fit(pairs, epochs=1, progress=False).index_images(pairs.images)
        >>> index.labelled_hits(pairs.texts, k=6, matches=pairs.images_of_texts()).match.sum(1)
        array([2, 2, 2])
        """
        return self._index(0, images, ids, engine=engine, rank_by=rank_by, progress=progress)

    def index_texts(
        self,
        texts: ModelInput,
        ids: Any = None,
        *,
        engine: str | EngineKind = "flat",
        rank_by: str | None = None,
        progress: bool = False,
    ) -> Index:
        """Return an index of texts to search among with images.

        Images that were in the fit are warned of (``FittedQueriesWarning``) where they calibrate or
        evaluate; a saved embedder knows them still.

        Parameters
        ----------
        texts : inputs of M texts
            Texts of the gallery, as the encoder takes them.
        ids : [M] whole numbers or strings, or None
            Name of each text. None, the default: texts are numbered from 0.
        engine : "flat" | "ivf" | "hnsw", or ``search.Flat``, ``IVF``, ``HNSW`` with settings
            Search engine: exact, or approximate for large galleries. Default: "flat", exact.
        rank_by : "expected" | "mean" | None
            Distance by which items are ranked, as for ``index_images``. None, the default:
            "expected" if there are variances.
        progress : bool
            Show a progress bar. Default: False.
        """
        return self._index(1, texts, ids, engine=engine, rank_by=rank_by, progress=progress)

    def _index(self, side: int, inputs: ModelInput, ids: Any, **options: Any) -> Index:
        items, queries = self.search_encoders()[side]
        options["rank_by"] = options["rank_by"] or items.rankings[-1]
        return Index.build(items, inputs, None, ids, query_encoder=queries, **options)

    def search_encoders(self) -> Sequence[tuple[Tower, Tower]]:
        """Return the encoders of items and queries: images with texts, texts with images."""
        images, texts = self._tower(0), self._tower(1)
        return (images, texts), (texts, images)

    def save(self, path: str | Path) -> None:
        """Write heads, posterior and history to one file, such as "heads.safetensors".

        The encoders are not in it: save them yourself if they were trained.

        Parameters
        ----------
        path : path
            Name of the file, which is replaced in one step.

        Raises
        ------
        NotFittedError
            Before ``fit``.
        WriteError
            If it cannot be written; an old file is kept.
        """
        files.write(as_path("path", path), self._part())

    def _part(self) -> files.Part:
        """Return heads, posterior and history as a part of a file."""
        return heads_part(self.settings, self.fitted_)

    @classmethod
    def load(
        cls,
        path: str | Path,
        image_encoder: Encoder,
        text_encoder: Encoder,
        *,
        objective: Objective | None = None,
    ) -> ImageTextEmbedder:
        """Read what ``save`` wrote; ``objective`` is needed where it was your own.

        Parameters
        ----------
        path : path
            File of ``save``.
        image_encoder, text_encoder : nn.Module or function
            Encoders that the heads were trained on.
        objective : Objective or None
            Objective of the training, if it was your own. None, the default: the named one of the
            file.

        Raises
        ------
        FileFormatError
            If the file is not ours, damaged or of another version.
        InputError
            If the objective is missing.
        """
        saved = files.SavedFile(as_path("path", path))
        return cls._of(saved, image_encoder, text_encoder, objective)

    @classmethod
    def _of(
        cls,
        saved: files.SavedFile,
        image_encoder: Encoder,
        text_encoder: Encoder,
        objective: Objective | None = None,
    ) -> ImageTextEmbedder:
        """Return the heads of an opened file on their encoders."""
        cls(image_encoder, text_encoder)  # what is wrong with these is not the fault of the file
        part = saved.part(IMAGE_TEXT)
        content, tensors = part.content, dict(part.arrays)
        if objective is None and content.get("objective") is None:
            raise InputError("these heads were trained with an objective of your own: pass it.")
        with saved.checked():
            if objective is None:
                objective = OBJECTIVES[content["objective"]](**content["objective_settings"])
            embedder = cls(image_encoder, text_encoder, objective=objective, **content["settings"])
            with torch.random.fork_rng(devices=[]):  # the first weights are replaced
                heads = embedder._new_heads(content["sizes"], content["biases"])
            embedder._fitted = fitted_of(content, tensors, heads)
        return embedder
