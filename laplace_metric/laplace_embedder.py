"""``LaplaceEmbedder``, the main class: distributions over embeddings, and indexes of them.

The posterior is in ``embedder``, the index in ``search``; neither imports the other, and this file
imports both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from laplace_metric._utils.randomness import Seed
from laplace_metric.embedder import PosteriorEmbedder
from laplace_metric.inputs import Inputs, read_inputs
from laplace_metric.inputs._given_labels import check_order
from laplace_metric.search import Index, cross_index
from laplace_metric.search._encoder import Encoder
from laplace_metric.search._engine_settings import EngineKind
from laplace_metric.search._expected_vectors import warn_if_by_uncertainty
from laplace_metric.search._folds import class_places
from laplace_metric.search._rankings import Predictive
from laplace_metric.search._seen_items import seen_at
from laplace_metric.search._trained_items import check_untrained


class LaplaceEmbedder(PosteriorEmbedder):
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
        says how far draws lie from the trained weights. "auto", the default, is the largest one up
        to 1 (Laplace's approximation itself) at which draws find neighbours of the right class as
        often as their means, up to .01 or the standard error, on up to 1,000 fitted points. Where
        these are not kept (pairs of batches, several processes) or none has another of its class,
        directions without data vary as the trained weights do: ``prior_precision |theta|^2 / P``,
        up to 1.

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
            items, else "mean"; ``print(index)`` says which. "expected": by the expected distance,
            as if errors were independent, which prefers certain items and is often worse than
            "mean" (FashionMNIST at 14 x 14, nearest item right: 0.79 by "mean", 0.73 by "expected",
            0.25 at temperature 1). "shared": the shortlist of the means by the expected distance
            under shared weights. Distances of a result are those of the means, with
            "predictive" those of the predictive vectors.
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
            ``Index.calibrate`` does. Default: 0.
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
            batches = seen_at(self.model, self.head, batches, progress=progress)
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
