"""``LaplaceEmbedder``, the main class: a trained embedder in, distributions over embeddings out."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from laplace_metric._utils.display import Rows, Shown, in_rows
from laplace_metric._utils.keywords import named_keywords
from laplace_metric._utils.precision import full_precision
from laplace_metric._utils.randomness import Seed
from laplace_metric._utils.validation import as_path, check_count, check_name, check_positive
from laplace_metric.curvature._spectral_curvature import SpectralCurvature
from laplace_metric.embedding import Embedding, warn_if_wide
from laplace_metric.errors import (
    EmptyLoaderError,
    ExportError,
    InputError,
    LabelError,
    NotFittedError,
    UncheckedModelWarning,
    callers_line,
)
from laplace_metric.heads._body import BodyRecord, body_tensors
from laplace_metric.heads._fitted_weights import FittedWeights, stamped_buffers
from laplace_metric.heads._locate import check_head
from laplace_metric.heads._located import APPEND, HeadActivations, LocatedHead
from laplace_metric.heads._row_checks import check_rows
from laplace_metric.inputs import (
    Inputs,
    ModelInput,
    read_batch,
    read_inputs,
    read_loader,
    read_vectors,
)
from laplace_metric.inputs._given_labels import check_index, check_order
from laplace_metric.inputs._labels import check_labels
from laplace_metric.io import Part, SavedFile, write
from laplace_metric.laplace import (
    Diagnosis,
    Distance,
    Fitted,
    Posterior,
    Settings,
    _prior_precision,
)
from laplace_metric.laplace._diagnosis import Uncertainties, diagnose
from laplace_metric.laplace._evidence import log_marginal_likelihood, loss_of
from laplace_metric.laplace._predicted import (
    distance_of,
    predicted_embedding,
    seen_at_head,
    uncertainties_of,
)
from laplace_metric.laplace._predictive_vectors import PredictiveVectors
from laplace_metric.laplace._prior_precision import Metric, validation_score
from laplace_metric.laplace._saved_posterior import POSTERIOR, fitted_of_part, posterior_part
from laplace_metric.laplace._settings_of_vectors import all_unit, settings_of_vectors
from laplace_metric.laplace.fit._available import available
from laplace_metric.laplace.fit._fit import fit_posterior, warn_if_negative
from laplace_metric.laplace.fit._fit_options import FitOptions
from laplace_metric.laplace.fit._settings import Miner
from laplace_metric.models import Precomputed
from laplace_metric.models._fingerprints import in_fit, row_fingerprints
from laplace_metric.models._modules import unwrapped
from laplace_metric.models._trained import trained_on
from laplace_metric.probabilistic_embedder import Draw, ProbabilisticEmbedder
from laplace_metric.search import Index, cross_index
from laplace_metric.search._cross_fit import class_places
from laplace_metric.search._encoder import Encoder
from laplace_metric.search._expected_vectors import warn_if_by_uncertainty
from laplace_metric.search._refit import seen_at
from laplace_metric.search._trained_items import check_untrained
from laplace_metric.search.engines._engine import EngineKind
from laplace_metric.search.rank._chosen_ranking import layers_asked
from laplace_metric.search.rank._rankings import Predictive, PredictiveRanking

if TYPE_CHECKING:
    from typing_extensions import Self

    from laplace_metric.export._graph import ExportedGraph
    from laplace_metric.export._module import EmbedderModule
    from laplace_metric.export._predictive import RankedVectors

_LOG = logging.getLogger(__name__)
KEYWORDS = {
    "metric": "the distance is LaplaceEmbedder(model, distance='arccos') or 'euclidean'.",
    "loss": "the loss is LaplaceEmbedder(model, distance=, hessian=, margin=).",
    "prior": "pass LaplaceEmbedder(model, prior_precision=).",
    "layer": "pass LaplaceEmbedder(model, head=).",
    "last_layer": "pass LaplaceEmbedder(model, head=).",
    **dict.fromkeys(("X", "x", "inputs", "data", "items"), "pass the inputs, the first argument."),
    **dict.fromkeys(("y", "targets", "classes"), "pass labels, the second argument of fit."),
    **dict.fromkeys(("epochs", "lr"), "the model is trained already: a fit reads the data once."),
    "batch_size": "pass a DataLoader with batches of this size, or arrays: 256 rows enter at once.",
    "verbose": "pass progress=True or False.",
    "random_state": "pass seed=.",
    "device": "move the model first, model.to(device): the posterior is where its weights are.",
    **dict.fromkeys(("size", "num_samples", "n_samples"), "pass n=, the number of draws."),
}
"""Keywords of other libraries, and what is meant here."""
METHODS = {
    "predict": "Guard(items, labels, model=).ask(queries).label",
    "predict_proba": "Guard(items, labels, model=).ask(queries).probability",
    "score": "embedder.index(items, labels).evaluate(queries, labels)",
    "evaluate": "embedder.index(items, labels).evaluate(queries, labels)",
    **dict.fromkeys(("transform", "encode"), "embedder(inputs).mean"),
    "fit_transform": "embedder.fit(inputs, labels), then embedder(inputs).mean",
    "search": "embedder.index(items, labels).search(queries, k)",
    "ask": "Guard(items, labels, model=embedder).ask(queries)",
}
"""Methods of other libraries, and what does the same here."""


class LaplaceEmbedder(Shown, ProbabilisticEmbedder):
    """A Laplace posterior over the last layer of a trained embedder (Warburg et al. 2023, LAM).

    Parameters
    ----------
    model : nn.Module
        Trained embedder: inputs -> [B, Z]. ``laplace_metric.models`` adapts models that return
        something else. The model is never changed: weights, modes, hooks and gradients stay as they
        are. Of a compiled or data parallel model the module inside is used.
    head : module, dotted name, "append" or None
        Part of the model that gets the posterior: any sub-module [B, D] -> [B, Z], or the last
        modules in a row (``model[-3:]``). None, the default: the last ``nn.Linear`` that runs, or
        the last 1x1 convolution if no linear layer fits. "append" adds a linear layer after the
        model, initialised with the identity; use it if the model ends in no such layer.
    distance : "arccos" | "euclidean"
        Distance of two embeddings. With "arccos", the default (or a model that l2-normalises),
        embeddings are directions on the unit sphere. Use "euclidean" where lengths carry
        information.
    hessian : "fixed" | "positives" | "full"
        Pairs and blocks of the Gauss-Newton matrix that count. "fixed", the default, has all pairs
        and no blocks that couple the two points of a pair. "positives" has the pairs of one class
        alone, with these blocks; use it with "euclidean", where "fixed" without a margin has no
        curvature for balanced classes. "full" has everything.
    structure : "auto" | "diag" | "kron" | "full"
        Form in which the curvature is stored: its diagonal; the nearest Kronecker product of each
        linear layer, in its own eigenbasis; or every entry (small heads). "auto", the default, is
        Kronecker where layers have up to 2,048 inputs and outputs, else the diagonal; ``settings``
        has the structure that it chose.
    margin : float > 0 or None
        Largest distance at which negative pairs count: that of the loss the model was trained with.
        None, the default: every negative pair counts.
    prior_precision : float > 0, "auto" or "layerwise"
        Precision of the Gaussian prior over the head's parameters. "auto", the default, is
        ``tr(H) / P``, what one observation tells of each of the P weights on average (the
        unit-information prior, Kass and Wasserman 1995); "layerwise" is the same of each linear
        layer, for heads of several. Without a number predictive vectors have ``P / |theta|^2``. The
        larger the precision, the less uncertain; ``tune_prior`` tunes it.
    n_effective : float > 0 or None
        Number of observations that turns the curvature, an average over pairs, into a sum over
        data. None, the default: the number of fitted points. The larger, the less uncertain.
    pairs : "all" | "batch" | miner
        Pairs that are summed: "all" of the data set, the default, exact; all pairs of each loader
        "batch"; or the tuples that a pytorch-metric-learning miner picks from each batch, if the
        model was trained with it.
    backend : "auto" | "analytic" | "torch.func" | "backpack" | "nnj"
        Library that differentiates the head. "auto", the default, uses closed forms where they
        exist.
    positivity : "absolute" | "clip"
        Rule for the directions in which the loss curves down. With "absolute", the default, the
        size of their curvature counts; with "clip" (Warburg et al. 2023) it is set to zero and the
        prior alone holds them. "absolute" departs from the paper, and so does the Kronecker
        structure: both are chosen because they rank inputs better. Use "clip" where variances,
        evidence or calibration are to mean something and classes are unbalanced; ``fit`` warns from
        a negative share of .2 on.
    temperature : float > 0 or "auto"
        Factor of the posterior covariance, which leaves rankings by uncertainty as they are and
        says how far draws lie from the trained weights. "auto", the default, is the one up to 1
        (Laplace's approximation itself) at which draws of a new embedding lie .08 r^2 from its
        mean; r, the reach of a class, lies between the distance of neighbours and the spread of the
        class. So ``uncertainty`` hardly depends on how many points were fitted, and draws lose some
        .02 of recall@1 on new inputs, or less. Where points are not kept (pairs of batches, several
        processes) or none has another of its class, directions without data vary as the trained
        weights do: ``prior_precision |theta|^2 / P``, up to 1.

    Raises
    ------
    UnknownNameError, InputError
        For names that do not exist and numbers out of range.
    HeadError
        For a ``head`` that is no module, name or None.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    >>> x, y = torch.randn(20, 4), torch.arange(20) % 2
    >>> embedder = LaplaceEmbedder(model).fit([(x, y)], progress=False)
    >>> embedder(x).variance.shape
    torch.Size([20, 2])
    """

    _keywords_meant = KEYWORDS

    @named_keywords
    def __init__(
        self,
        model: nn.Module,
        head: nn.Module | str | None = None,
        distance: str = "arccos",
        hessian: str = "fixed",
        structure: str = "auto",
        margin: float | None = None,
        prior_precision: float | str = "auto",
        n_effective: float | None = None,
        pairs: str | Miner = "all",
        backend: str = "auto",
        positivity: str = "absolute",
        temperature: float | str = "auto",
    ) -> None:
        self.model, self.head = unwrapped(model), check_head(head)
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
            temperature,
        )
        self._fitted: Fitted | None = None
        self._weights: FittedWeights | None = None

    @classmethod
    def from_fitted(cls, model: nn.Module, settings: Settings, fitted: Fitted) -> Self:
        """Return an embedder of a posterior that was fitted elsewhere, to this model as it is.

        Parameters
        ----------
        model : nn.Module
            Model that holds the fitted head.
        settings : Settings
            Settings of the posterior.
        fitted : Fitted
            Head and posterior.
        """
        embedder = cls(model, head=fitted.head.place)
        body = BodyRecord.of(embedder.model, fitted.head.module)
        embedder._adopt(settings, replace(fitted, body=body))
        return embedder

    def _adopt(self, settings: Settings, fitted: Fitted) -> None:
        """Take a fit to the model as it is now."""
        # an embedding computes its variance when it is read: the model may have been trained since
        fitted = replace(fitted, jacobian=fitted.jacobian.owned())
        weights = FittedWeights(
            self.model, fitted.head, fitted.posterior.mean, fitted.body, verified=True
        )
        self.settings, self._fitted, self._weights = settings, fitted, weights

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

    @property
    def spherical(self) -> bool:
        """True if embeddings are directions: arccos, or a model that l2-normalises."""
        return self.fitted_.spherical

    def _fitted_to_these_weights(self, *, values: bool = False) -> Fitted:
        """Return the fit, if the model still has the weights that it belongs to."""
        fitted, weights = self.fitted_, self._weights
        assert weights is not None
        weights.check(values=values)
        return fitted

    @classmethod
    def from_embeddings(
        cls, embeddings: Any, labels: Any, *, progress: bool = False, **settings: Any
    ) -> Self:
        """Fit on embeddings that are there already: no model, arrays in.

        An identity-initialised linear layer over the embeddings gets the posterior; the result
        maps embeddings [B, D] to the same ``Embedding`` as with a model.

        Parameters
        ----------
        embeddings : array [N, D]
            Embeddings of an API, a vector database or any encoder, as NumPy array, list, data frame
            or tensor.
        labels : [N] whole numbers or names of classes
            Class of each embedding.
        progress : bool
            Show a progress bar. Default: False.
        **settings
            Settings of ``LaplaceEmbedder`` other than ``model`` and ``head``. Without ``distance``,
            vectors that all have length 1 are compared by direction ("arccos"), others with their
            lengths ("euclidean"); without ``hessian``, "positives" goes with "euclidean".

        Raises
        ------
        InputError, NonFiniteError
            For arrays of other shapes, NaN.
        EmptyLoaderError
            Without embeddings.
        LabelError
            For missing labels, or another number of them; it names the rows.

        Examples
        --------
        >>> from laplace_metric import LaplaceEmbedder
        >>> embeddings, labels = torch.randn(20, 8), torch.arange(20) % 4
        >>> embedder = LaplaceEmbedder.from_embeddings(embeddings, labels)
        >>> embedder(embeddings[:3]).uncertainty.shape
        torch.Size([3])
        """
        check_index("embeddings", getattr(embeddings, "index", None), labels)
        tensor = read_vectors("embeddings", embeddings)
        if not len(tensor):
            raise EmptyLoaderError("embeddings is empty: pass at least one vector of two classes.")
        settings = settings_of_vectors(settings, unit=all_unit(tensor))
        if len(tensor) and settings["distance"] == "arccos":
            check_rows(tensor, spherical=True)
        embedder = cls(Precomputed(tensor.shape[1]), head=APPEND, **settings)
        if (n := len(check_labels(labels))) != len(tensor):
            raise LabelError(f"embeddings has {len(tensor)} rows, but labels has {n} entries.")
        return embedder.fit([(tensor, labels)], progress=progress)

    @named_keywords
    def fit(
        self,
        loader: Any,
        labels: Any = None,
        *,
        progress: bool = False,
        reference: int | None = None,
        seed: Seed = None,
        memory_bytes: int = FitOptions.memory_bytes,
        checkpoint_dir: str | Path | None = None,
        distributed: bool = False,
        dtype: torch.dtype | None = None,
    ) -> Self:
        """Fit the posterior from ``(inputs, labels)`` batches; the model runs over them once.

        Parameters
        ----------
        loader : iterable of batches, a data set of single items, or inputs next to ``labels``
            Data to fit. Batches are ``(inputs, labels)``, or mappings with an entry "labels" or
            "label". Inputs are arrays, data frames, lists of rows or of texts, mappings of them.
        labels : [N] whole numbers or names of classes, or None
            Class of each input, if the loader has none of its own: ``fit(X, y)``. Next to a loader,
            they are in its order: one that shuffles is refused, and labels of its own are compared.
            An iterable that shuffles what it yields cannot be recognised: let it yield the labels.
            None, the default: the loader has them.
        progress : bool
            Show a progress bar. Default: False.
        reference : int or None
            Number of random points from which in-margin negatives are estimated, for a finite
            margin and many points (``hessian_.standard_error`` reports how well). None, the
            default: exact, O(N^2).
        seed : torch.Generator, int or None
            Generator of the CPU, or seed, that picks the reference points by their place in the
            loader. With several ranks, the seed of the first one counts, and places count through
            the shards in the order of the ranks. None, the default: torch's global generator.
        memory_bytes : int
            Most bytes of head inputs in memory; beyond this they go to a temporary file that is
            removed at the end. Default: 512 MiB.
        checkpoint_dir : path or None
            Folder that holds head inputs and sums while fitting. A fit that was killed goes on from
            there and ends with the same posterior, bit for bit on a CPU; the loader must yield the
            same batches again. The folder stays: delete it when the posterior is saved. None, the
            default: no checkpoint.
        distributed : bool
            True if each process of the initialised ``torch.distributed`` group calls ``fit`` with
            the loader of its own shard (uneven or empty as it may be, but no point twice, as a
            ``DistributedSampler`` pads by default). Each gets the same posterior. It does not
            depend on how points are split, except in which points ``reference`` picks. Default:
            False.
        dtype : torch.dtype or None
            Dtype of the sums over points. None, the default: that of the head's inputs, float64 if
            ``distributed``. Where terms cancel (all but ``hessian="fixed"`` with arccos) it is
            float64 in any case.

        Raises
        ------
        HeadError, InputError, DtypeError, LabelError, NonFiniteError, EmptyLoaderError
            Nothing changes if fitting fails or is interrupted.
        FileFormatError
            If ``checkpoint_dir`` holds another fit, or is damaged; it is left as it is.
        ShardError
            On every rank, if one of them fails; it names the rank and its error.

        Warns
        -----
        LimitWarning
            If more than 8,192 numbers enter the head (no ``epistemic``).

        Examples
        --------
        >>> from laplace_metric import LaplaceEmbedder
        >>> x, y = torch.randn(20, 4), ["cat", "dog"] * 10
        >>> model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
        >>> LaplaceEmbedder(model).fit(x.numpy(), y, progress=False)(x[0]).mean.shape
        torch.Size([1, 2])
        """
        inputs = read_inputs("loader", loader, labels, labelled=True)
        folder = None if checkpoint_dir is None else as_path("checkpoint_dir", checkpoint_dir)
        options = FitOptions(reference, seed, memory_bytes, progress, dtype, distributed, folder)
        self.settings.check_options(options)
        runtime: tuple[Any, ...] = ()
        if options.needs_runtime:
            from laplace_metric.distributed._runtime import runtime_of

            runtime = runtime_of(self.model, options)
        start, buffers = time.perf_counter(), stamped_buffers(self.model)
        fitted = fit_posterior(self.model, self.head, inputs, self.settings, options, *runtime)
        after = stamped_buffers(self.model)
        moving = [name for name, stamp in after.items() if buffers.get(name, stamp) != stamp]
        body = BodyRecord.of(self.model, fitted.head.module, moving)
        settings = replace(self.settings, structure=fitted.structure)  # it may have been "auto"
        self._adopt(settings, replace(fitted, trained_on=trained_on(self.model), body=body))
        if _LOG.isEnabledFor(logging.INFO):
            _LOG.info("fitted in %.1f s: %s", time.perf_counter() - start, self._sentence())
        return self

    def _sentence(self) -> str:
        if (fitted := self._fitted) is None:
            return f"around a {type(self.model).__name__}, not fitted: call fit(X, y)."
        kind = "directions" if fitted.spherical else "vectors"
        return (
            f"{type(self.model).__name__} with a posterior over {len(fitted.posterior.mean):,} "
            f"weights, fitted to {fitted.n_points:,} points; embeddings are {kind}."
        )

    def _shown_rows(self) -> Rows:
        s, fitted = self.settings, self._fitted
        pairs = s.pairs if isinstance(s.pairs, str) else type(s.pairs).__name__
        scales = {
            "prior_precision": s.prior_precision,
            "n_effective": s.n_effective or "N",
            "temperature": s.temperature,
        }
        if fitted is not None:
            scales |= {name: getattr(fitted.posterior, name) for name in scales}
        shown = ", ".join(
            f"{name}={x if isinstance(x, str) else format(x, '.4g')}" for name, x in scales.items()
        )
        settings = {
            "loss": f"distance={s.distance!r}, hessian={s.hessian!r}, margin={s.margin}",
            "curvature": f"structure={s.structure!r}, pairs={pairs!r}, positivity={s.positivity!r}",
            "prior": shown,
        }
        if fitted is None:
            return in_rows(settings.items())
        sizes = f"{fitted.head.name!r} to {fitted.head.n_outputs} dimensions"
        draws = {} if fitted.draws is None else {"draws": str(fitted.draws)}
        return in_rows({"head": sizes, **settings, **draws, **available(fitted)}.items())

    def __getattr__(self, name: str) -> Any:
        """Raise for a missing attribute; for one that modules have, say where to find it."""
        if name in METHODS:
            raise AttributeError(f"LaplaceEmbedder has no {name!r}: call {METHODS[name]}.")
        if name.startswith("_") or not hasattr(nn.Module, name):
            return object.__getattribute__(self, name)  # of a property, its own error
        raise AttributeError(
            f"LaplaceEmbedder has no attribute {name!r}: it is no nn.Module, and its posterior "
            f"belongs to the model as it was fitted. Call embedder.as_module().{name}, or move "
            "the model before the fit (after it: save, move, LaplaceEmbedder.load)."
        )

    def __call__(self, inputs: ModelInput) -> Embedding:
        """Return distributions over the embeddings of a batch, in closed form, by one forward pass.

        ``inputs`` are a tensor, an array, a data frame, a list of rows or of texts, or a mapping
        (whose "labels" are left out); one row [D] gives a batch of one.

        Any number of threads may call at once. All of the result except ``mean`` is computed
        when it is first read, from what the forward pass gave; ``inputs`` may change meanwhile.

        Raises
        ------
        NonFiniteError, InputError
            For embeddings with NaN or infinity, and without a direction; when it is read, for a
            variance that overflows.
        WeightsChangedError
            If the model no longer has the weights of the fit, in its head or before it.
        """
        fitted = self._fitted_to_these_weights()
        seen = seen_at_head(self.model, fitted, read_batch("inputs", inputs))
        h, z = seen.features.clone(), seen.raw.clone()  # of memory that the caller may write to
        return predicted_embedding(h, z, fitted)

    def draw(self, n: int, seed: Seed = None) -> Draw:
        """Draw n embedders from the posterior; return a function from inputs to [n, B, Z].

        Parameters
        ----------
        n : int
            Number of draws, at least 1.
        seed : torch.Generator, int or None
            Generator or seed of the draws. None, the default: torch's global generator.

        Raises
        ------
        WeightsChangedError
            If the model no longer has the weights of the fit that is drawn from; when the function
            is called, too, whatever was fitted since.

        Warns
        -----
        WideDrawsWarning
            When the function is called, if draws of directions lie more than .5 from their means,
            in the mean squared distance.
        """
        check_count("n", n)
        fitted, weights_at_fit = self._fitted_to_these_weights(), self._weights
        assert weights_at_fit is not None
        weights = fitted.posterior.sample(n, seed)

        def embed(inputs: ModelInput) -> Tensor:
            weights_at_fit.check()  # not those of a later fit: the draws are of this one
            seen = seen_at_head(self.model, fitted, read_batch("inputs", inputs))
            with full_precision():
                check_rows(seen.raw, spherical=fitted.spherical)
                z = fitted.jacobian.forward_with(seen.features, weights)
                if not fitted.spherical:
                    return z
                draws = nn.functional.normalize(z, dim=-1)
                warn_if_wide(draws, nn.functional.normalize(seen.raw, dim=-1))
                return draws

        return embed

    def predictive_vectors(
        self, inputs: ModelInput, *, temperature: float | None = None
    ) -> Float[Tensor, "B Z_plus_A"]:
        """Return one vector an input whose inner products are the expected ones.

        ``v = [z ; C^(1/2) h]``, with C the sum of the output blocks of a covariance of the head:
        under weights that all inputs share, ``E z(x)' z(y) = v_x' v_y`` and
        ``E |z(x) - z(y)|^2 = |v_x - v_y|^2``. So any engine of vectors searches by the posterior
        predictive. Where embeddings are directions, vectors have length 1: their inner product is
        the expected cosine to first order.

        Unless ``prior_precision`` is a number, theirs is ``P / |theta|^2``, of the P trained
        weights, and not that of ``posterior_``: search wants what two inputs share in every
        direction, uncertainty what no data determined (``docs/settings.md``). A number holds for
        both.

        Parameters
        ----------
        inputs : one batch of inputs
            Inputs as the model takes them.
        temperature : float > 0 or None
            Temperature of the covariance: the larger, the more of each vector is the posterior's
            (``search.Predictive`` chooses it for an index, by a share). None, the default: the one
            at which directions without data are as wide as in the posterior.

        Returns
        -------
        Tensor [B, Z + A]
            Predictive vectors. A is the number of head inputs, and one more of a head with a bias.

        Raises
        ------
        HeadError
            For a head that is not one linear layer.
        InputError, NonFiniteError
            As for a call; for a temperature that is no positive number.
        WeightsChangedError
            If the model no longer has the weights of the fit, in its head or before it.

        Examples
        --------
        >>> from laplace_metric import LaplaceEmbedder
        >>> x, y = torch.randn(40, 8), torch.arange(40) % 4
        >>> LaplaceEmbedder.from_embeddings(x, y).predictive_vectors(x[:5]).shape
        torch.Size([5, 16])
        """
        fitted = self._fitted_to_these_weights()
        vectors = PredictiveVectors.of(fitted)
        factor = 1.0
        if temperature is not None:
            own = fitted.predictive_posterior.temperature
            factor = check_positive("temperature", temperature) / own
        seen = seen_at_head(self.model, fitted, read_batch("inputs", inputs))
        with full_precision():
            check_rows(seen.raw, spherical=fitted.spherical)
            return vectors(vectors.seen(seen.features), factor)

    def activations(self, inputs: ModelInput) -> HeadActivations:
        """Run the model once; return what enters its head [B, D] and what leaves it [B, Z].

        Raises
        ------
        WeightsChangedError
            If the model no longer has the weights of the fit, in its head or before it.
        """
        fitted = self._fitted_to_these_weights()
        return seen_at_head(self.model, fitted, read_batch("inputs", inputs))

    def uncertainties(
        self, loader: Iterable[Any], *, kind: str = "uncertainty", progress: bool = False
    ) -> Tensor:
        """Return one number [N] for everything a loader yields, without its distributions.

        One forward pass an input; besides the result, only one batch is in memory at a time.

        Parameters
        ----------
        loader : iterable of batches
            Inputs, or ``(inputs, labels)``: pairs whose second entry is one whole number per item.
        kind : "uncertainty" | "epistemic" | "ambiguity"
            Number of ``Embedding`` that is computed. Default: "uncertainty".
        progress : bool
            Show a progress bar. Default: False.

        Raises
        ------
        NotFittedError, EmptyLoaderError, InputError, NonFiniteError, WeightsChangedError

        Examples
        --------
        >>> from laplace_metric import LaplaceEmbedder
        >>> x, y = torch.randn(20, 8), torch.arange(20) % 4
        >>> embedder = LaplaceEmbedder.from_embeddings(x, y)
        >>> embedder.uncertainties([x[:10], (x[10:], y[10:])], progress=False).shape
        torch.Size([20])
        """
        fitted = self._fitted_to_these_weights()
        inputs = read_loader("loader", loader)
        return uncertainties_of(self.model, fitted, inputs, kind=kind, progress=progress)

    def distance(self, x: ModelInput, y: ModelInput, *, shared_weights: bool = True) -> Distance:
        """Return mean and variance [B] of the squared distance between the rows of two batches.

        Both embeddings come from the same uncertain weights, so their errors are correlated. For a
        linear head, moments of raw embeddings are a closed form and those on the sphere a
        quadrature, half a millisecond a pair, or second order where the spread ``tr C / |z|^2`` is
        at most .001. The quadrature's relative error is largest for zero-mean embeddings: of the
        standard deviation 1.4 % at Z = 2, 0.4 % at Z = 3 and 0.2 % at Z = 4. Other heads are
        linearised at their weights. In float32 the covariances of inputs .001 apart lose most
        digits: use a float64 head there.

        Parameters
        ----------
        x, y : one batch of inputs each
            Batches of equal length; row i of ``x`` and row i of ``y`` are one pair.
        shared_weights : bool
            True, the default: both embeddings come from the same uncertain weights. False treats
            the two embeddings as independent, as sampling each on its own does.

        Raises
        ------
        InputError
            If the batches have different lengths, or rows without a direction.
        NonFiniteError
            For rows with NaN or infinity.
        WeightsChangedError
            If the model no longer has the weights of the fit, in its head or before it.
        """
        fitted = self._fitted_to_these_weights()
        a, b = (
            seen_at_head(self.model, fitted, read_batch(name, side))
            for name, side in (("x", x), ("y", y))
        )
        return distance_of(a, b, fitted, shared_weights=shared_weights)

    def index(
        self,
        gallery: Any,
        labels: Any = None,
        ids: Any = None,
        *,
        engine: str | EngineKind = "flat",
        rank_by: str | Predictive = "auto",
        compact: bool = False,
        progress: bool = False,
    ) -> Index:
        """Return an index of items to search among, with their uncertainty.

        Parameters
        ----------
        gallery : inputs (an array, a list of texts, a mapping) or a loader of batches
            Items of the index. A loader may yield ``(inputs, labels)``.
        labels, ids : [N] whole numbers or strings, or None
            Class and name of each item. ``Index.calibrate`` needs labels; None, the default: items
            have none, unless the loader yields them. Without ids, items are numbered from 0.
        engine : "flat" | "ivf" | "hnsw", or ``search.Flat``, ``IVF``, ``HNSW`` with settings
            Search engine: exact, or approximate by FAISS for large galleries. Default: "flat",
            exact.
        rank_by : "auto" | "mean" | "predictive" | "expected" | "shared", or ``search.Predictive``
            Ranking of the items. "mean": by the distance of the means. "predictive": by the
            expected inner product under uncertain weights of the head that queries and items
            share (``predictive_vectors``); it often finds more on classes and instances that the
            head was not trained on, and stores longer vectors. "auto", the default: "predictive" if
            it finds the nearest other item of the same class for significantly more of the labelled
            items, else "mean"; ``print(index)`` says which, with its prior, share and centre.
            "expected": by the expected distance, as if errors were independent, which prefers
            certain items and is often worse than "mean" (FashionMNIST at 14 x 14, nearest item
            right: 0.79 by "mean", 0.78 by "expected", 0.25 at temperature 1). "shared": the
            shortlist of the means by the expected distance under shared weights. Distances of a
            result are those of the means, with "predictive" those of the predictive vectors.
        compact : bool
            Leave out the head inputs of the items, D of the D + Z numbers of each: ``distance_sd``
            then counts errors as independent and the same in all directions, and the rankings are
            "mean" and "expected" alone ("auto" is "mean"). For millions of items. Default: False.
        progress : bool
            Show a progress bar. Default: False.

        Raises
        ------
        InputError, NonFiniteError, EmptyLoaderError, MissingPackageError

        Warns
        -----
        WideDrawsWarning
            If "expected" ranks the items by their uncertainty more than by their means.

        Examples
        --------
        >>> import torch
        >>> x, y = torch.randn(40, 8), torch.arange(40) % 4
        >>> index = LaplaceEmbedder.from_embeddings(x, y).index(x, y, progress=False)
        >>> index.search(x[:2], k=3).ids[:, 0]
        array([0, 1])
        """
        encoder = Encoder.of(self, compact=compact)
        index = Index.build(
            encoder, gallery, labels, ids, engine=engine, rank_by=rank_by, progress=progress
        )
        if index.rank_by == "expected":
            encoded = index.items.encoded
            warn_if_by_uncertainty(encoded.mean, encoded.trace, spherical=self.spherical)
        return index

    def cross_index(
        self,
        inputs: Any,
        labels: Any = None,
        ids: Any = None,
        *,
        folds: int = 5,
        n_queries: int | None = None,
        seed: Seed = 0,
        k: int = 10,
        depth: int = 50,
        portable: bool = False,
        open_set_fraction: float = 0.0,
        engine: str | EngineKind | Callable[..., Any] = "flat",
        rank_by: str | Predictive = "auto",
        groups: Any = None,
        progress: bool = False,
    ) -> Index:
        """Return a calibrated index of all items, for collections too small to hold queries out.

        Fits to the items unless this is fitted to them, and calibrates by cross-fitting: each of
        ``folds`` parts of the items asks an index of the other parts, with a posterior that was
        fitted to the other parts. All items are queries once, the model runs over them once, and
        its head is fitted ``folds`` times more.

        No query was in the fit, or among the items, that it was asked of. But it was asked of a
        part of the items, and new queries are asked of all of them. This is cross-validation, not
        CV+ (Barber et al. 2021), which scores a new query by the index of every fold. No theorem
        covers sets, p-values and thresholds here; for one, hold queries out and call
        ``Index.calibrate``. ``Calibration.cross_fitted`` is True.

        Simulated (``benchmarks/retrieval``; frozen encoder, new queries in the proportions of the
        items): from three items a class on, sets cover ``1 - alpha`` or more on average, "unknown"
        is at most as frequent as asked for, and given precisions hold. Mean match probabilities are
        off by up to .05. With two items a class nothing holds: such collections are refused.

        None of it holds for items that the *model* was trained on: the encoder must be frozen, or
        trained on other data. Copies of an item, or frames of one video, in several folds find
        each other as no new query would.

        Parameters
        ----------
        inputs : inputs (an array, a list of texts, a mapping) or a loader of batches
            Items of the index, each of which is a query once. A loader may yield
            ``(inputs, labels)``. All of it is held in memory.
        labels : [N] whole numbers or strings
            Class of each item. None, the default: the loader yields it.
        ids : [N] whole numbers or strings, or None
            Name of each item. None, the default: items are numbered from 0.
        folds : int
            Number of parts, from 2 to the number of items; the index of a fold has
            ``1 - 1 / folds`` of the items. Default: 5.
        n_queries : int or None
            Number of items that are queries, at least: a random part of each class. As many folds
            are asked as hold them, out of ``folds`` or more. It saves time where items are many.
            None, the default: all.
        seed : torch.Generator, int or None
            Generator or seed that deals each class out to the folds, and splits the queries as
            ``Index.calibrate`` does. None, or 0, the default: the same split in every run.
        k, depth : int
            Number of neighbours whose pairs count, and number of neighbours that retrieval sets may
            choose from. Default: 10 and 50.
        portable : bool
            Leave out what only this index knows, the deviation of each distance, so that
            ``Calibration.apply`` says the same of the hits of another engine, which holds the
            means: ``rank_by="auto"`` is then "mean". Default: False.
        open_set_fraction : float
            Share of open-set queries that are expected later, as for ``Index.calibrate``. Default:
            0.
        engine, rank_by
            Search engine and ranking, as for ``index``. ``engine`` may also be a search of yours
            over all items, as for ``Index.searched_by``, which then finds the items of other folds,
            too, and which ranks by the means. Default: "flat" and "auto".
        groups : [N] numbers or strings, or None
            Group of each item, such as the video of a frame: items of a group are in one fold, so
            that none finds another one of its group, and guarantees count groups. New queries are
            of other groups than the items. None, the default: items are independent.
        progress : bool
            Show a progress bar. Default: False.

        Raises
        ------
        InputError
            For too few items, or a posterior that was fitted to others. If more than a quarter of
            the items that have another one of their class are in classes of two. If
            ``train_embedder`` or ``OnlineLaplace`` trained the model on the items.
        LabelError
            Without labels.

        Examples
        --------
        >>> import torch
        >>> from laplace_metric.models import Precomputed
        >>> g = torch.Generator().manual_seed(0)
        >>> y = torch.arange(120) % 6
        >>> x = torch.nn.functional.one_hot(y, 6) + 0.4 * torch.randn(120, 6, generator=g)
        >>> embedder = LaplaceEmbedder(Precomputed(6), head="append")
        >>> index = embedder.cross_index(x, y, progress=False)
        >>> len(index), index.search(x[:2] + 0.1, k=3).match_probability.shape
        (120, torch.Size([2, 3]))
        """
        batches: Sequence[Any]
        read = read_inputs("inputs", inputs, labels)
        for name, given in (("ids=", ids), ("groups=", groups)):
            if given is not None:
                check_order(read.name, read.unordered, name)
        batches, column, sizes = read.with_column()
        check_untrained(self, batches)
        fitted_already = self._fitted is not None
        if not fitted_already:
            layers = () if portable or callable(engine) else layers_asked(rank_by, len(column))
            batches = seen_at(self.model, self.head, batches, layers=layers, progress=progress)
            pairs = zip(batches, class_places(column).split(sizes), strict=True)
            self.fit(Inputs.of_batches("inputs", pairs, labelled=True), progress=progress)
        return cross_index(
            self,
            batches,
            column,
            ids,
            folds=folds,
            n_queries=n_queries,
            seed=seed,
            k=k,
            depth=depth,
            portable=portable,
            open_set_fraction=open_set_fraction,
            engine=engine,
            rank_by=rank_by,
            groups=groups,
            progress=progress and fitted_already,
        )

    def diagnose(self, inputs: ModelInput | None = None) -> Diagnosis:
        """Explain the size of the uncertainty, in numbers and words.

        Parameters
        ----------
        inputs : one batch of inputs, or None
            Inputs whose uncertainties are described, too. None, the default: the posterior alone.

        Warns
        -----
        UndefinedMetricWarning
            If all inputs have one uncertainty or one length: then these do not correlate (NaN).

        Examples
        --------
        >>> from laplace_metric import LaplaceEmbedder
        >>> embedder = LaplaceEmbedder.from_embeddings(torch.randn(20, 8), torch.arange(20) % 4)
        >>> embedder.diagnose().n_parameters
        64
        """
        fitted = self.fitted_
        vanishes = fitted.loss.vanishes
        if inputs is None:
            return diagnose(fitted.posterior, vanishes=vanishes, draws=fitted.draws)
        activations = self.activations(inputs)
        embedding = predicted_embedding(activations.features, activations.raw, fitted)
        seen_as = Uncertainties.of(embedding.uncertainty, activations.raw)
        return diagnose(
            fitted.posterior, vanishes=vanishes, uncertainties=seen_as, draws=fitted.draws
        )

    def tune_prior(
        self,
        method: str = "marglik",
        *,
        loader: Iterable[Any] | None = None,
        metric: Metric | None = None,
        bounds: Sequence[float] = _prior_precision.BOUNDS,
        tune_n_effective: bool = False,
        tune_temperature: bool = False,
        progress: bool = False,
    ) -> float:
        """Tune the prior precision, adopt it and return it.

        A temperature that the fit chose moves with it, up to 1: directions without data stay as
        wide. One that was given stays, unless it is tuned, too (``posterior_.temperature``).

        Parameters
        ----------
        method : "marglik" | "validation"
            Criterion that is maximised. "marglik", the default, is the log marginal likelihood,
            which needs no data; "validation" is the ``metric`` on ``loader``.
        loader : iterable of (inputs, labels), or None
            Data on which "validation" computes the metric; take data that were not fitted. None,
            the default, goes with "marglik".
        metric : function of (Embedding, labels [N]), or None
            Number to maximise with "validation"; higher is better. None, the default, goes with
            "marglik".
        bounds : (low, high)
            Range of the prior precision. Default: 1e-6 to 1e6.
        tune_n_effective : bool
            Search n_effective too, with "validation", from a thousandth to a thousand times the
            fitted points. (The evidence of a contrastive loss says nothing about its scale.)
            Default: False.
        tune_temperature : bool
            Search the temperature, too, with "validation", from 2^-16 to 16, once the prior
            precision is chosen. It moves no ranking by uncertainty; metrics of calibration and of
            draws depend on it. Default: False.
        progress : bool
            Show a progress bar for "validation". Default: False.

        Raises
        ------
        UnknownNameError
            For another method.
        InputError
            For data that the method lacks or does not take.
        WeightsChangedError
            If the model no longer has the weights of the fit.

        Warns
        -----
        PriorAtEdgeWarning
            If the result lies at an end of ``bounds``, or within 2 % of it (of the log range);
            likewise for a tuned ``n_effective`` or temperature.
        NegativeCurvatureWarning
            If the evidence is of a curvature much of which was negative.
        """
        check_name("method", method, ("marglik", "validation"))
        self._fitted_to_these_weights()
        n_effective, before = self.posterior_.n_effective, self.posterior_
        # noted, as a temperature that was held at 1 does not tell it any more
        width = self.fitted_.width or before.temperature / before.prior_precision

        def temperature_at(tau: float) -> float:
            if not isinstance(self.settings.temperature, str):
                return before.temperature
            return min(1.0, width * tau)

        if method == "marglik":
            asked = {"tune_n_effective": tune_n_effective, "tune_temperature": tune_temperature}
            for name, wanted in asked.items():
                if wanted:
                    raise InputError(f"{name}=True needs method='validation'.")
            positivity = self.settings.positivity
            warn_if_negative(self.hessian_, positivity, "this evidence is of no model")
            tuned = _prior_precision.by_marginal_likelihood(self.posterior_, bounds)
            temperature = temperature_at(tuned)
        else:
            held = None if loader is None else read_inputs("loader", loader, labelled=True)
            score = validation_score(self.model, self.fitted_, held, metric, progress=progress)
            sizes = (
                _prior_precision.sizes(self.fitted_.n_points) if tune_n_effective else [n_effective]
            )
            tuned, n_effective = _prior_precision.by_validation(
                lambda tau, n: score(tau, n, temperature_at(tau)), bounds, sizes
            )
            temperature = temperature_at(tuned)
            if tune_temperature:
                temperature = _prior_precision.temperature_by_validation(
                    lambda t: score(tuned, n_effective, t)
                )
        fitted = self.fitted_.with_precision(tuned, n_effective)
        self._fitted = replace(fitted.with_temperature(temperature), width=width)
        self.settings = replace(self.settings, prior_precision=tuned)
        if tune_temperature:
            self.settings = replace(self.settings, temperature=temperature)
        if tune_n_effective:
            self.settings = replace(self.settings, n_effective=n_effective)
        return tuned

    def log_marginal_likelihood(
        self, loader: Any, labels: Any = None, *, progress: bool = False
    ) -> float:
        """Return the log marginal likelihood of the fit, to compare heads of one set of data.

        Of fits to the same data with the same loss, the one with the larger number explains the
        pairs better for its complexity: another head, structure or prior precision. Constants that
        all of them share are left out, and the temperature does not enter. A contrastive loss has
        no scale of its own, so fits with another ``n_effective`` do not compare.

        Parameters
        ----------
        loader : iterable of batches, a data set of single items, or inputs next to ``labels``
            Data that were fitted, as for ``fit``.
        labels : [N] whole numbers or names of classes, or None
            Class of each input. None, the default: the loader has them.
        progress : bool
            Show a progress bar. Default: False.

        Raises
        ------
        InputError, NonFiniteError
            For a finite margin; as for a call, for inputs without a finite embedding.
        LabelError
            For data of one class, where the loss has negative pairs.
        WeightsChangedError
            If the model no longer has the weights of the fit, in its head or before it.

        Warns
        -----
        NegativeCurvatureWarning
            If much of the curvature was negative: then this is the evidence of no model.

        Examples
        --------
        >>> from laplace_metric import LaplaceEmbedder
        >>> x, y = torch.randn(40, 8), torch.arange(40) % 4
        >>> fits = [
        ...     LaplaceEmbedder.from_embeddings(x, y, prior_precision=tau, hessian="positives")
        ...     for tau in (8.0, 1e4)
        ... ]
        >>> better, worse = (fit.log_marginal_likelihood(x, y) for fit in fits)
        >>> better > worse
        True
        """
        inputs = read_inputs("loader", loader, labels, labelled=True)
        fitted = self._fitted_to_these_weights()
        positivity = self.settings.positivity
        warn_if_negative(self.hessian_, positivity, "this evidence is of no model")
        loss = loss_of(self.model, fitted, inputs, progress=progress)
        return log_marginal_likelihood(fitted, loss)

    def as_module(
        self, *, predictive_temperature: float | None = None, index: Index | None = None
    ) -> EmbedderModule:
        """Return a copy as an ``nn.Module``, inputs -> mean, epistemic, uncertainty.

        For ``to(device)``, ``state_dict``, ``torch.compile``: an embedder is no module.

        Parameters
        ----------
        predictive_temperature : float > 0 or None
            Temperature of a fourth output, ``predictive_vectors`` [B, Z + A]; their own is
            ``fitted_.predictive_posterior.temperature``. None, the default: there is no such
            output.
        index : Index or None
            Index of this embedder, in the place of a temperature: the fourth output are the query
            vectors by which it ranks, with share, prior, centre and layer (``index.ranking``), so
            that another engine over ``index.engine.vectors`` finds what it finds. None, the
            default: no index.

        Raises
        ------
        HeadError
            For a head that is neither linear nor a chain of linear layers; for predictive vectors,
            for one that is not one linear layer.
        InputError
            For a temperature that is no positive number, next to an index, and for an index that
            ranks otherwise than by "predictive" or is of another embedder.
        WeightsChangedError
            If the model no longer has the weights of the fit, in its head or before it.
        """
        from laplace_metric.export._module import EmbedderModule

        fitted = self._fitted_to_these_weights(values=True)
        ranked = None if index is None else self._ranked_by(index, predictive_temperature)
        return EmbedderModule(self.model, fitted, predictive_temperature, ranked)

    def _ranked_by(self, index: Index, temperature: float | None) -> RankedVectors:
        """Return the vectors by which an index of this embedder ranks."""
        from laplace_metric.export._predictive import RankedVectors

        if temperature is not None:
            raise InputError("predictive_temperature= and index=: pass one of them.")
        if index.encoder.identity != Encoder.of(self).identity:
            raise InputError(
                "index is of another embedder, or of another fit: pass one of this embedder, "
                "embedder.index(items, labels)."
            )
        ranking = index.ranking
        if not isinstance(ranking, PredictiveRanking):
            raise InputError(
                f"index ranks by {index.rank_by!r}, whose vectors are the means: leave index= out."
            )
        assert isinstance(ranking.vectors, PredictiveVectors)  # of one embedder
        return RankedVectors(ranking.vectors, ranking.factor, ranking.layer)

    def export(
        self,
        path: str | Path,
        format: str = "onnx",
        *,
        example: ModelInput,
        predictive_temperature: float | None = None,
        index: Index | None = None,
    ) -> ExportedGraph:
        """Write one graph, inputs -> mean, epistemic, uncertainty, that runs without this package.

        The batch is free, and the length of tokens. A model of texts (``models.Sentences``) takes
        its tokenizer's tensors then: the tokenizer is not in the graph. Nothing is refused by a
        graph: NaN in, NaN out.

        Parameters
        ----------
        path : path
            Name of the file, which is replaced.
        format : "onnx" | "torch"
            Format of the file: "onnx", the default, of opset 18 (extra ``export``), or "torch",
            which ``torch.export.load`` reads.
        example : one batch of inputs, as the model takes it
            Inputs to trace the model with; their values do not count. A list of texts for a model
            of texts.
        predictive_temperature : float > 0 or None
            Temperature of a fourth output, "predictive", as for ``as_module``. None, the default:
            there is no such output.
        index : Index or None
            Index whose query vectors are this output, as for ``as_module``. None, the default: no
            index.

        Raises
        ------
        ExportError
            If the model cannot be traced.
        HeadError, InputError, WeightsChangedError
            As ``as_module``; an ``InputError``, too, for an example that the model does not take.
        MissingPackageError
            For "onnx" without the packages onnx and onnxscript.

        Examples
        --------
        >>> import tempfile
        >>> import torch
        >>> from laplace_metric import LaplaceEmbedder
        >>> x, y = torch.randn(20, 8), torch.arange(20) % 4
        >>> embedder = LaplaceEmbedder.from_embeddings(x, y)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     graph = embedder.export(f"{folder}/embedder.pt2", "torch", example=x[:2])
        ...     run = torch.export.load(graph.path).module()
        >>> mean, epistemic, uncertainty = run(x)
        >>> mean.shape, epistemic.shape
        (torch.Size([20, 8]), torch.Size([20]))
        """
        from laplace_metric.export._graph import write_graph

        example = read_batch("example", example)
        module = self.as_module(predictive_temperature=predictive_temperature, index=index)
        try:
            return write_graph(module, self.model, example, as_path("path", path), format)
        except ExportError:
            self._check_example(example)
            raise

    def _check_example(self, example: ModelInput) -> None:
        """Refuse an example that the model does not take: tracing does not say what is wrong."""
        try:
            self(example)
        except InputError as error:
            error.args = (f"example: {error}", *error.args[1:])
            raise

    def save(self, path: str | Path) -> None:
        """Write the posterior, without the model, to one file.

        Parameters
        ----------
        path : path
            Name of a safetensors file, such as "p.safetensors", which is replaced in one step.

        Raises
        ------
        WeightsChangedError
            If the model no longer has the weights of the fit, in its head or before it.
        InputError
            If ``path`` is a folder.
        WriteError
            If it cannot be written; an old file is kept.
        """
        write(as_path("path", path), self._parts())
        _LOG.info("saved to %s: %s", path, self._sentence())

    def _parts(self) -> dict[str, Part]:
        """Return all parts of a file."""
        return {POSTERIOR.name: self._part()}

    def _part(self) -> Part:
        """Return the posterior as a part of a file."""
        return posterior_part(self.settings, self._fitted_to_these_weights(values=True))

    @classmethod
    def load(cls, path: str | Path, model: nn.Module | None = None, *, probe: Any = None) -> Self:
        """Read a posterior and put it on ``model``, which must be the fitted one.

        The file of a posterior of a model knows the weights of its head and of what comes before,
        by their names. It does not know what has no weights: another activation is not noticed.
        That of a posterior of vectors knows the vectors alone: with a model, pass as ``probe`` some
        inputs whose vectors were fitted.

        Parameters
        ----------
        path : path
            File of ``save``, or another that holds a posterior: of ``Guard.save``, or of the
            command line.
        model : nn.Module or None
            Model that was fitted. None, the default: a posterior of ``from_embeddings``.
        probe : inputs of ``model``, or None
            Inputs whose vectors were fitted, for a posterior of ``from_embeddings`` and the model
            that made them: it must embed them as then. None, the default: it is not compared.

        Raises
        ------
        FileFormatError
            If the file is not ours, damaged or newer, or ``model`` does not have the weights of the
            fitted one, in its head or before it.
        InputError
            If ``model`` does not embed ``probe`` as the fitted vectors.

        Warns
        -----
        NegativeCurvatureWarning
            If much of its curvature was negative and counts by its size.
        UncheckedModelWarning
            If a posterior of vectors is put on a model without ``probe``.
        """
        embedder = cls._of(SavedFile(as_path("path", path)), model)
        embedder._check_made_vectors(probe)
        return embedder

    def _check_made_vectors(self, probe: Any) -> None:
        """Require that the model made the vectors of a posterior of vectors, by some inputs."""
        fitted = self.fitted_
        known = fitted.body is None or fitted.body.tensors
        if known or not any(True for _ in body_tensors(self.model, fitted.head.module)):
            return
        if probe is None or fitted.fingerprints is None:
            warnings.warn(
                "the posterior was fitted to vectors, and its file does not know which model made "
                f"them: nothing shows that this {type(self.model).__name__} did. Pass probe=, "
                "inputs whose vectors were fitted, and they are compared.",
                UncheckedModelWarning,
                stacklevel=callers_line(),
            )
            return
        rows = [
            row_fingerprints(self.activations(batch.inputs).features)
            for batch in read_inputs("probe", probe)
        ]
        found = in_fit(fitted.fingerprints, np.concatenate(rows))
        if not found.all():
            raise InputError(
                f"model embeds {int((~found).sum())} of the {len(found)} inputs of probe unlike "
                "any fitted vector: it is not the encoder of this posterior, or these inputs were "
                "not fitted."
            )

    @classmethod
    def _of(cls, saved: SavedFile, model: nn.Module | None, name: str = POSTERIOR.name) -> Self:
        """Return the posterior of an opened file, a part of this name, on its model."""
        network = Precomputed() if model is None else unwrapped(model)
        with saved.checked():
            settings, fitted = fitted_of_part(saved.part(POSTERIOR, name), network)
        if isinstance(network, Precomputed):
            network.size = fitted.head.n_outputs
        warn_if_negative(fitted.posterior.curvature, settings.positivity)
        embedder = cls(network, head=fitted.head.place)
        embedder._adopt(settings, fitted)
        _LOG.info("loaded from %s: %s", saved.path, embedder._sentence())
        return embedder

    def save_pretrained(self, folder: str | Path, *, weights: bool = True) -> None:
        """Write a folder that a hub can hold, with the posterior and the weights of the model.

        Its one file, ``laplace.safetensors``, is written as ``save`` writes: whole or not at all.
        ``load`` and the command line (``--posterior``) read its posterior, too.
        ``huggingface_hub.upload_folder`` pushes the folder, and ``huggingface_hub.ModelCard``
        writes a card.

        Parameters
        ----------
        folder : path
            Folder of the file, which is made if it is missing.
        weights : bool
            True, the default, writes the weights of the model as well. False for a model that
            others have published.

        Raises
        ------
        WeightsChangedError
            If the model no longer has the weights of the fit, in its head or before it.
        InputError
            For a state of the model that is no tensor.
        WriteError
            If the folder cannot be written; what was there before is kept.

        Examples
        --------
        >>> import tempfile, torch
        >>> from laplace_metric import LaplaceEmbedder
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> x, y = torch.randn(20, 4), torch.arange(20) % 2
        >>> embedder = LaplaceEmbedder(model).fit(x, y, progress=False)
        >>> fresh = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     embedder.save_pretrained(folder)
        ...     loaded = LaplaceEmbedder.from_pretrained(folder, fresh)
        >>> bool((loaded(x).variance == embedder(x).variance).all())
        True
        """
        from laplace_metric.hub._pretrained import save_folder

        save_folder(as_path("folder", folder), self.model, self._part(), weights=weights)

    @classmethod
    def from_pretrained(
        cls,
        source: str | Path,
        model: nn.Module | Callable[[], nn.Module] | None = None,
        *,
        revision: str | None = None,
    ) -> Self:
        """Read what ``save_pretrained`` wrote, from a folder or a hub.

        Parameters
        ----------
        source : path or "owner/name"
            Folder; else the name of a repository of the Hugging Face hub (package huggingface_hub),
            which is downloaded once and then read from the cache of this machine.
        model : nn.Module, a function without arguments that makes one, or None
            Network, whose weights need not be those of the folder: then a copy of it gets them, and
            it stays as it is. None, the default: a posterior of ``from_embeddings``.
        revision : str or None
            Branch, tag or commit of the repository. None, the default: its main branch.

        Raises
        ------
        FileFormatError
            If the folder is not ours, damaged, newer, or of another network.
        InputError
            Without the model that the posterior needs, or a repository that cannot be read.
        MissingPackageError
            For a repository without the package huggingface_hub.
        """
        from laplace_metric.hub._pretrained import FILE, local_folder, network_of

        saved = SavedFile(local_folder(source, revision) / FILE)
        return cls._of(saved, network_of(saved, source, model))
