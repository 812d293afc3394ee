"""``LaplaceEmbedder``: the front door. A trained embedder in, distributions over embeddings out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from laplace_metric._utils.precision import at_least_float32, full_precision
from laplace_metric._utils.randomness import Seed, as_generator
from laplace_metric._utils.validation import as_path, check_count
from laplace_metric.curvature.structures import SpectralCurvature
from laplace_metric.distributions import Gaussian, ProjectedNormal
from laplace_metric.embedding import Draw, Embedding, ProbabilisticEmbedder
from laplace_metric.errors import InputError, NotFittedError, UnknownNameError
from laplace_metric.laplace import (
    Diagnosis,
    Distance,
    EmbeddingPairs,
    FitOptions,
    Fitted,
    Miner,
    Posterior,
    Settings,
    Uncertainties,
    covariance,
    diagnose,
    fit_posterior,
    squared_distance,
    traced,
    traces_of,
)
from laplace_metric.laplace import _files as serialization
from laplace_metric.laplace import _prior as prior
from laplace_metric.models import (
    Inputs,
    Precomputed,
    device_of,
    input_batches,
    labelled_batches,
    to_device,
    unwrapped,
)
from laplace_metric.models.heads import APPEND, HeadActivations, LocatedHead, capture

if TYPE_CHECKING:
    from laplace_metric.search import Index
    from laplace_metric.search.engines import EngineKind

Metric = Callable[[Embedding, Tensor], float]
"""(embeddings of N inputs, labels [N]) -> score, higher is better."""


class LaplaceEmbedder(ProbabilisticEmbedder):
    """A Laplace posterior over the last layer of a trained embedder (Warburg et al. 2023, LAM).

    Parameters
    ----------
    model : nn.Module
        Inputs -> [B, Z]; ``laplace_metric.models`` make that of what returns something else.
        Never changed: weights, modes, hooks and gradients stay as they are. Of a compiled or data
        parallel model the module inside is taken.
    head : module, dotted name, "append" or None
        What gets the posterior: any sub-module [B, D] -> [B, Z], or the last modules in a row
        (``model[-3:]``). None: the last ``nn.Linear`` that runs. "append": a new linear layer
        after the model, initialised with the identity.
    distance : "arccos" | "euclidean"
        With arccos (or a model that l2-normalises) embeddings are directions on the unit sphere.
    hessian : "fixed" | "positives" | "full"
        Which pairs and blocks of the Gauss-Newton matrix count.
    structure : "auto" | "diag" | "kron" | "full"
        How the curvature is stored: its diagonal; the nearest Kronecker product of each linear
        layer, in its own eigenbasis; every entry (small heads). "auto": Kronecker where layers
        have up to 2,048 inputs and outputs, else the diagonal; ``settings`` says which it was.
    margin : float or None
        Negative pairs farther apart than this do not count; None: every negative pair counts.
    prior_precision : float > 0
        Precision of the isotropic Gaussian prior over the head's parameters.
    n_effective : float > 0 or None
        Turns the curvature, an average over pairs, into a sum over data; None: fitted points.
    pairs : "all" | "batch" | miner
        All pairs of the data set (exact), all pairs of each loader batch, or the tuples that a
        pytorch-metric-learning miner picks from each batch.
    backend : "auto" | "analytic" | "torch.func" | "backpack" | "nnj"
        How the head is differentiated; "auto" takes closed forms where they exist.
    positivity : "absolute" | "clip"
        What becomes of the directions in which the loss curves down: the size of their curvature
        counts, or (Warburg et al. 2023) it is set to zero and the prior alone holds them.

    Raises
    ------
    UnknownNameError, InputError
        For names that do not exist and numbers out of range.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    >>> x, y = torch.randn(20, 4), torch.arange(20) % 2
    >>> embedder = LaplaceEmbedder(model).fit([(x, y)], progress=False)
    >>> embedder(x).variance.shape
    torch.Size([20, 2])
    """

    def __init__(
        self,
        model: nn.Module,
        head: nn.Module | str | None = None,
        distance: str = "arccos",
        hessian: str = "fixed",
        structure: str = "auto",
        margin: float | None = None,
        prior_precision: float = 1.0,
        n_effective: float | None = None,
        pairs: str | Miner = "all",
        backend: str = "auto",
        positivity: str = "absolute",
    ) -> None:
        self.model, self.head = unwrapped(model), head
        self.settings = Settings(
            distance,
            hessian,
            structure,
            margin,
            prior_precision,
            n_effective,
            pairs,
            backend,
            positivity,
        )
        self._fitted: Fitted | None = None

    @classmethod
    def from_embeddings(
        cls, embeddings: Any, labels: Any, *, progress: bool = False, **settings: Any
    ) -> LaplaceEmbedder:
        """Fit on embeddings that are there already: no model, arrays in.

        An identity-initialised linear layer over the embeddings gets the posterior; the result
        maps embeddings [B, D] to the same ``Embedding`` as with a model.

        Parameters
        ----------
        embeddings : array [N, D]
            NumPy, list or tensor: of an API, a vector database, any encoder.
        labels : array [N] of whole numbers
        **settings
            Those of ``LaplaceEmbedder`` but ``model`` and ``head``.

        Raises
        ------
        InputError, LabelError, NonFiniteError
            For arrays of other shapes, missing labels, NaN.

        Examples
        --------
        >>> embeddings, labels = torch.randn(20, 8), torch.arange(20) % 4
        >>> embedder = LaplaceEmbedder.from_embeddings(embeddings, labels)
        >>> embedder(embeddings[:3]).uncertainty.shape
        torch.Size([3])
        """
        tensor = Precomputed()(embeddings)
        embedder = cls(Precomputed(tensor.shape[1]), head=APPEND, **settings)
        return embedder.fit([(tensor, labels)], progress=progress)

    def fit(
        self,
        loader: Iterable[Any],
        *,
        progress: bool = True,
        reference: int | None = None,
        generator: Seed = None,
        memory_bytes: int = FitOptions.memory_bytes,
        checkpoint_dir: str | Path | None = None,
        distributed: bool = False,
        precision: torch.dtype | None = None,
    ) -> LaplaceEmbedder:
        """Fit the posterior from ``(inputs, labels)`` batches; the model runs over them once.

        Parameters
        ----------
        reference : int or None
            With a finite margin: estimate in-margin negatives from this many random points
            (``hessian_.standard_error`` says how well); None: exact, O(N^2).
        generator : torch.Generator, seed or None
            Picks the reference points (a CPU generator), by their place in the loader; of ranks,
            that of the first one counts, and shards stand one behind the other.
        memory_bytes : int
            Head inputs beyond this go to a temporary file that is removed at the end.
        checkpoint_dir : path or None
            Keep head inputs and sums in this folder while fitting. A fit that was killed goes on
            from there and ends with the same posterior, bit for bit on a CPU; the loader must
            yield the same batches again. The folder stays: delete it when the posterior is saved.
        distributed : bool
            Each process of the initialised ``torch.distributed`` group calls ``fit`` with the
            loader of its own shard (uneven or empty as it may be, but no point twice, as a
            ``DistributedSampler`` pads by default) and gets the same posterior. It does not depend
            on how points are split, except in which points ``reference`` picks.
        precision : torch.dtype or None
            Of the sums over points; None: that of the head's inputs, float64 if ``distributed``.

        Raises
        ------
        HeadError, DtypeError, LabelError, NonFiniteError, EmptyLoaderError
            Nothing changes if fitting fails or is interrupted.
        FileFormatError
            If ``checkpoint_dir`` holds another fit, or is damaged; it is left as it is.
        ShardError
            On every rank, if one of them fails; it names the rank and its error.
        """
        folder = None if checkpoint_dir is None else as_path("checkpoint_dir", checkpoint_dir)
        how = (progress, precision, distributed, folder)
        options = FitOptions(reference, as_generator(generator), memory_bytes, *how)
        fit = fit_posterior
        if options.needs_runtime:
            from laplace_metric.laplace.runtime import fit_with_runtime as fit
        self._fitted = fit(self.model, self.head, loader, self.settings, options)
        self.settings = replace(self.settings, structure=self._fitted.structure)
        return self

    @property
    def fitted_(self) -> Fitted:
        """Head, posterior and number of points; ``NotFittedError`` before ``fit``."""
        if self._fitted is None:
            raise NotFittedError("this LaplaceEmbedder is not fitted: call fit(loader) first.")
        return self._fitted

    @property
    def posterior_(self) -> Posterior:
        """The Gaussian over the head's parameters."""
        return self.fitted_.posterior

    @property
    def hessian_(self) -> SpectralCurvature:
        """The curvature after the positivity step, before n_effective and prior."""
        return self.posterior_.curvature

    @property
    def head_(self) -> LocatedHead:
        """The head that was found."""
        return self.fitted_.head

    def __call__(self, inputs: Inputs) -> Embedding:
        """Distributions over the embeddings of a batch, in closed form: one forward pass."""
        return self._embedding(self.activations(inputs), self.posterior_)

    def uncertainties(self, loader: Iterable[Any], *, progress: bool = True) -> Tensor:
        """``uncertainty`` [N] of everything a loader yields, without its distributions.

        One forward pass an input; besides the result, only one batch is in memory at a time.

        Parameters
        ----------
        loader : iterable of batches
            Inputs, or ``(inputs, labels)``: pairs whose second entry is one whole number per item.

        Raises
        ------
        NotFittedError, EmptyLoaderError, InputError

        Examples
        --------
        >>> x, y = torch.randn(20, 8), torch.arange(20) % 4
        >>> embedder = LaplaceEmbedder.from_embeddings(x, y)
        >>> embedder.uncertainties([x[:10], (x[10:], y[10:])], progress=False).shape
        torch.Size([20])
        """
        traces, spherical = traces_of(self.fitted_.jacobian, self.posterior_), self.spherical
        device, title = device_of(self.model), "Uncertainties"
        parts = []
        for inputs in input_batches(loader, device, progress=progress, description=title):
            activations = self.activations(inputs)
            with full_precision():
                parts.append(
                    traced(traces, activations.features, activations.raw, spherical=spherical)
                )
        return torch.cat(parts)

    def index(
        self,
        gallery: Any,
        labels: Any = None,
        ids: Any = None,
        *,
        engine: str | EngineKind = "flat",
        rank_by: str = "mean",
        progress: bool = True,
    ) -> Index:
        """Items to search among, with their uncertainty.

        Parameters
        ----------
        gallery : inputs (an array, a list of texts, a mapping) or a loader of batches
            A loader may yield ``(inputs, labels)``.
        labels, ids : [N] whole numbers or strings, or None
            ``Index.calibrate`` needs labels; without ids, items are numbered from 0.
        engine : "flat" | "ivf" | "hnsw", or ``search.Flat``, ``IVF``, ``HNSW`` with settings
            Exact, or approximate by FAISS.
        rank_by : "mean" | "expected" | "shared"
            Distance of the means; expected distance, as if errors were independent; expected
            distance under the weights that both share.

        Raises
        ------
        InputError, NonFiniteError, EmptyLoaderError, MissingPackageError

        Examples
        --------
        >>> x, y = torch.randn(40, 8), torch.arange(40) % 4
        >>> index = LaplaceEmbedder.from_embeddings(x, y).index(x, y, progress=False)
        >>> index.search(x[:2], k=3).ids[:, 0]
        array([0, 1])
        """
        from laplace_metric.search import Index

        how: dict[str, Any] = {"engine": engine, "rank_by": rank_by, "progress": progress}
        return Index.build(self, gallery, labels, ids, **how)

    def draw(self, n: int, generator: Seed = None) -> Draw:
        """n embedders from the posterior: a function from inputs to [n, B, Z]."""
        check_count("n", n)
        weights = self.posterior_.sample(n, generator)
        jacobian = self.fitted_.jacobian

        def embed(inputs: Inputs) -> Tensor:
            h = self.activations(inputs).features
            with full_precision():
                z = jacobian.forward_with(h, weights)
                return nn.functional.normalize(z, dim=-1) if self.spherical else z

        return embed

    @property
    def spherical(self) -> bool:
        """Whether embeddings are directions: arccos, or a model that l2-normalises."""
        return self.fitted_.spherical

    def distance(self, x: Inputs, y: Inputs, *, shared_weights: bool = True) -> Distance:
        """Mean and variance [B] of the squared distance between the rows of two batches.

        Both embeddings come from the same uncertain weights, so their errors are correlated.
        Exact for raw embeddings of a linear head, to second order on the sphere.

        Parameters
        ----------
        shared_weights : bool
            False treats the two embeddings as independent, as sampling each on its own does.

        Raises
        ------
        InputError
            If the batches have different lengths.
        """
        a, b = self.activations(x), self.activations(y)
        if len(a.raw) != len(b.raw):
            raise InputError(f"x has {len(a.raw)} rows and y {len(b.raw)}: pass pairs, row by row.")
        return self._distance(a, b, shared_weights)

    @full_precision()
    def _distance(self, a: HeadActivations, b: HeadActivations, shared_weights: bool) -> Distance:
        head, posterior = self.fitted_.jacobian, self.posterior_
        xx, yy = (covariance(head, posterior, s.features) for s in (a, b))
        both = (a.features, b.features)
        xy = covariance(head, posterior, *both) if shared_weights else None
        return squared_distance(EmbeddingPairs(a.raw, b.raw, xx, yy, xy), spherical=self.spherical)

    def diagnose(self, inputs: Inputs | None = None) -> Diagnosis:
        """Why the uncertainty is what it is, in numbers and words; with ``inputs``, of theirs too.

        Examples
        --------
        >>> embedder = LaplaceEmbedder.from_embeddings(torch.randn(20, 8), torch.arange(20) % 4)
        >>> embedder.diagnose().n_parameters
        64
        """
        vanishes = self.fitted_.loss.vanishes
        if inputs is None:
            return diagnose(self.posterior_, vanishes=vanishes)
        activations = self.activations(inputs)
        seen_as = Uncertainties.of(
            self._embedding(activations, self.posterior_).uncertainty, activations.raw
        )
        return diagnose(self.posterior_, vanishes=vanishes, uncertainties=seen_as)

    def activations(self, inputs: Inputs) -> HeadActivations:
        """One forward pass seen at the head: what enters it [B, D] and what leaves it [B, Z]."""
        activations = capture(self.model, self.head_, to_device(inputs, device_of(self.model)))
        return HeadActivations(
            at_least_float32(activations.features),
            at_least_float32(activations.raw),
            activations.output,
        )

    @full_precision()
    def _embedding(self, activations: HeadActivations, posterior: Posterior) -> Embedding:
        kind = ProjectedNormal if self.spherical else Gaussian
        spread = covariance(self.fitted_.jacobian, posterior, activations.features)
        return Embedding(kind(activations.raw, spread))

    def optimize_prior_precision(
        self,
        method: str = "marglik",
        *,
        loader: Iterable[Any] | None = None,
        metric: Metric | None = None,
        bounds: Sequence[float] = prior.BOUNDS,
        tune_n_effective: bool = False,
        progress: bool = True,
    ) -> float:
        """Tune the prior precision, adopt it and return it.

        Parameters
        ----------
        method : "marglik" | "validation"
            Log marginal likelihood (needs no data), or the best ``metric`` on ``loader``.
        metric : (Embedding, labels [N]) -> float, higher is better.
        tune_n_effective : bool
            With "validation": search n_effective too, from a thousandth to a thousand times the
            fitted points. (The evidence of a contrastive loss says nothing about its scale.)

        Raises
        ------
        UnknownNameError
            For another method.
        InputError
            For data that the method lacks or does not take.

        Warns
        -----
        PriorAtEdgeWarning
            If the result lies at an end of ``bounds``.
        """
        if method not in ("marglik", "validation"):
            raise UnknownNameError("method", method, ("marglik", "validation"))
        n_effective = self.posterior_.n_effective
        if method == "marglik":
            if tune_n_effective:
                raise InputError("tune_n_effective=True needs method='validation'.")
            tuned = prior.by_marginal_likelihood(self.posterior_, bounds)
        else:
            score = self._validation_score(loader, metric, progress)
            sizes = prior.sizes(self.fitted_.n_points) if tune_n_effective else [n_effective]
            tuned, n_effective = prior.by_validation(score, bounds, sizes)
        self._fitted = self.fitted_.with_precision(tuned, n_effective)
        kept = n_effective if tune_n_effective else self.settings.n_effective
        self.settings = replace(self.settings, prior_precision=tuned, n_effective=kept)
        return tuned

    def _validation_score(
        self, loader: Iterable[Any] | None, metric: Metric | None, progress: bool
    ) -> Callable[[float, float], float]:
        if loader is None or metric is None:
            raise InputError("method='validation' needs loader= and metric=.")
        device = device_of(self.model)
        batches = labelled_batches(loader, device, progress=progress, description="Validating")
        pairs = [(self.activations(inputs), labels) for inputs, labels in batches]
        activations, target = (
            HeadActivations.concatenate([s for s, _ in pairs]),
            torch.cat([y for _, y in pairs]),
        )

        def score(tau: float, n_effective: float) -> float:
            posterior = self.posterior_.with_precision(tau, n_effective)
            return float(metric(self._embedding(activations, posterior), target))

        return score

    def save(self, path: str | Path) -> None:
        """Write the posterior (not the model) to folder ``path``: safetensors + JSON, atomic."""
        serialization.save(as_path("path", path), self.settings, self.fitted_)

    @classmethod
    def load(cls, path: str | Path, model: nn.Module | None = None) -> LaplaceEmbedder:
        """Read a posterior and put it on ``model``, whose head must be the fitted one.

        Without a model: a posterior of ``from_embeddings``.

        Raises
        ------
        FileFormatError
            If the folder is not ours, damaged, newer, or its head is not that of ``model``.
        """
        network = Precomputed() if model is None else unwrapped(model)
        settings, fitted = serialization.load(as_path("path", path), network)
        if isinstance(network, Precomputed):
            network.size = fitted.head.n_outputs
        return cls.from_fitted(network, settings, fitted)

    @classmethod
    def from_fitted(cls, model: nn.Module, settings: Settings, fitted: Fitted) -> LaplaceEmbedder:
        """Around what was fitted elsewhere."""
        embedder = cls(model, head=APPEND if fitted.head.parts is None else fitted.head.module)
        embedder.settings, embedder._fitted = settings, fitted
        return embedder
