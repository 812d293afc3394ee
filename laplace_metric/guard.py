"""Answer or abstain: one object over vectors or a model, with a guarantee.

``Guard`` fits the posterior, indexes the items, calibrates by the items themselves (or by held-out
queries) and chooses the threshold of a guaranteed precision. ``LaplaceEmbedder`` and ``Index`` do
the work; use them for everything else.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from laplace_metric._utils.display import Rows, Shown
from laplace_metric._utils.keywords import check_keywords, named_keywords, positional
from laplace_metric._utils.randomness import Seed
from laplace_metric._utils.validation import as_path, check_fraction, check_share, shown_argument
from laplace_metric.calibration import Answers, Calibration, ClassRule, LevelRule, Rule
from laplace_metric.calibration.labels._levels import Levels
from laplace_metric.calibration.rules._gallery_change import warn_uncovered
from laplace_metric.embedder import LaplaceEmbedder
from laplace_metric.errors import (
    EmptyLoaderError,
    FewQueriesWarning,
    FileFormatError,
    FittedQueriesWarning,
    InputError,
    LabelError,
    NotFittedError,
    callers_line,
)
from laplace_metric.inputs import Inputs, read_inputs, read_vectors
from laplace_metric.inputs._columns import Column
from laplace_metric.inputs._inputs import labels_beside
from laplace_metric.inputs._no_data import check_not_swapped
from laplace_metric.io import Fields, Kind, Part, SavedFile, write
from laplace_metric.laplace._settings_of_vectors import all_unit, settings_of_vectors
from laplace_metric.laplace_ensemble import ENSEMBLE, LaplaceEnsemble
from laplace_metric.models import Precomputed
from laplace_metric.models._modules import check_module
from laplace_metric.search import AnswerReport, Flat, Index
from laplace_metric.search._trained_items import TOLERATED, share_trained_on, training_inputs
from laplace_metric.search.classes._label_review import LabelReview
from laplace_metric.search.engines._engine import FlatEngine
from laplace_metric.search.engines._foreign_engine import ForeignEngine
from laplace_metric.search.engines._found_shares import NEAREST, shares_found
from laplace_metric.search.engines._running_faiss import (
    RunningFaiss,
    check_is_faiss,
    check_own_ids,
    check_vectors_of,
    inner_index,
    stored_vectors,
)

GUARD = Kind("guard", "a saved guard", 1)
LEVELS = (0.8, 0.9, 0.95, 0.99)
"""Precisions that a guard shows."""
LARGE, ASKED = 20_000, 5_000
"""With more than LARGE items, ASKED of them, drawn at random, calibrate."""
KEYWORDS = {
    "metric": "the distance is distance='arccos' or 'euclidean'.",
    "threshold": "a guard chooses it: state precision=, the share of the answers that are right.",
    "alpha": "state precision=; guard.index.guarantee(precision=, alpha=) takes an alpha.",
    "confidence": "it is 95%; guard.index.guarantee(precision=, confidence=) takes another one.",
    "k": "20 neighbours vote; guard.index.search(queries, k) returns others.",
    "n_neighbors": "20 neighbours vote; guard.index.search(queries, k) returns others.",
    "engine": "pass search=, a function or a FAISS index.",
    "index": "pass search=, a function or a FAISS index; or call Guard.wrap(index, labels).",
    "encoder": "pass model=.",
    **dict.fromkeys(("hierarchy", "levels", "taxonomy"), "pass coarser=, groups of the labels."),
    "embedder": "pass model=.",
    "device": "move the model first, model.to(device).",
    **dict.fromkeys(("X", "x", "vectors", "embeddings", "gallery"), "pass items, the first one."),
    **dict.fromkeys(("y", "targets", "classes"), "pass labels, the second one."),
    **dict.fromkeys(
        ("validation", "calibration", "queries", "test", "holdout"),
        "pass held_out=(queries, labels).",
    ),
}
"""Keywords of other libraries, and what is meant here."""
ASKED_OF_METHODS = {
    "precision": "a guard has its precision: guard.at(precision).ask(queries) for another one.",
    "threshold": "a guard chooses it: guard.at(precision) for another one.",
    "held_out": "call guard.calibrate(queries, labels).",
    **dict.fromkeys(("k", "top_k", "n_neighbors"), "call guard.index.search(queries, k)."),
    "confidence": KEYWORDS["confidence"],
    "alpha": KEYWORDS["alpha"],
}
"""Keywords that methods of a guard do not have, and what is meant."""
METHODS = {
    "fit": "Guard(items, labels) fits; guard.calibrate(queries, labels) calibrates again",
    "predict": "call guard.ask(queries).label, which is None where it abstains",
    "predict_proba": "call guard.ask(queries).probability",
    **dict.fromkeys(("query", "answer", "answers"), "call guard.ask(queries)"),
    "search": "call guard.index.search(queries, k)",
    "score": "call guard.evaluate(queries, labels).right_share",
    "guarantee": "call guard.at(precision), or guard.index.guarantee(...) for another rate",
    "guarantee_by_class": "call guard.at(precision, by_class=True)",
    "guarantee_by_level": "call guard.at(precision, coarser=levels)",
    "threshold": "read guard.rule.value",
    "labels": "read guard.index.labels",
    "ids": "read guard.index.ids",
}
"""Attributes that a guard does not have, and what does the same."""


_OF_OTHER_VIEWS = {
    True: "of= asks for one answer from several views, and this guard was calibrated with single "
    "rows, so that its guarantee is of those: call guard.calibrate(views, labels, of=ids) first.",
    False: "this guard was calibrated with several views of each thing (of=), so that its "
    "guarantee is of those: pass of=, the id of each row.",
}
"""Errors where the guarantee is of other queries, by whether views are asked for."""


class Guard(Shown):
    """Answer queries with the label of their neighbours, or abstain.

    Without ``held_out`` the items calibrate it: each (of more than 20,000 at least 5,000) is a
    query to an index that it is not in, with a posterior that was not fitted to it. Its guarantees
    are then simulated, not proven (``LaplaceEmbedder.cross_index``), and hold only if the model
    that embeds was not trained on the items. With ``held_out`` they hold for later queries that
    come from the same distribution. From 1,000 queries on they are proven, except for the rule that
    finds unknown ones; with fewer they are simulated (``Index.calibrate``).

    Parameters
    ----------
    items : array [N, D], list of texts, or loader
        Items of the gallery: embeddings, or inputs of ``model``. Exact copies calibrate once.
    labels : [N] whole numbers or strings, or None
        Label of each item, which is the answer to a query like it. None, the default: ``items`` is
        a loader that yields ``(inputs, labels)``.
    model : nn.Module, LaplaceEmbedder, LaplaceEnsemble or None
        Model that turns inputs into embeddings. A ``LaplaceEmbedder`` that is fitted stays as it
        is, and so do the members of a ``LaplaceEnsemble``, which needs ``held_out``. None, the
        default: ``items`` and queries are embeddings.
    precision : float in (0, 1)
        Share of the answers that are right, to be guaranteed with 95 % confidence. A higher
        precision answers fewer queries, and needs more items or held-out queries; ``at`` changes it
        later. Default: 0.9.
    by_class : bool
        Guarantee the precision of the answers of each class (``Index.guarantee_by_class``). False:
        of all answers together, which can hide a rare class whose answers are mostly wrong. True
        needs more queries: about as many of each class as of all otherwise, and the answers of
        classes that have fewer are not given. Default: False.
    coarser : list of levels, a level, or None
        Groups of labels with which a query is answered where its label is not sure enough, from
        fine to coarse: of each level the group of each item, such as its department, or a mapping
        of label to group. The finest level that is sure enough answers (``answers.level``: 0 for a
        label). The precision is that of the answers of each level as given, so that it holds of the
        labels alone, and of all answers together. None, the default: labels alone.
    held_out : (queries, labels) or None
        Calibration queries and their labels: neither items nor inputs that the model was trained
        on. Pass 1,000 or more for proven guarantees. Copies count once: a guarantee is one of
        distinct queries. None, the default: the items calibrate.
    trained_on_items : bool or None
        True if the model that embeds was trained on the items, by your statement. Without
        ``held_out``, a model needs False here: a frozen encoder, or one that was trained on other
        data. None, the default: not stated, which is enough for vectors and with ``held_out``.
    ids : [N] whole numbers or strings, or None
        Name of each item, which ``search`` returns. None, the default: items are numbered from 0,
        or have the ids of an ``IndexIDMap``.
    search : function, faiss.Index or None
        Search that runs elsewhere over the same vectors. A function takes queries [Q, D] as a NumPy
        array, and k; it returns for each query a list of the ``ids`` of the nearest items, up to k,
        or an array [Q, k]. None, the default: exact search.
    open_set_fraction : float in [0, 1)
        Share of the later queries whose label no item has; see ``Index.calibrate``. Set it if such
        queries come: with 0, guarantees cover only queries whose label some item has, unless
        ``held_out`` holds others. Default: 0.
    groups : [N] numbers or strings, or None
        Group of each item, or, with ``held_out``, of each of its queries: the video of a frame, the
        session of a question. Those of a group depend on each other, and guarantees then count
        groups. None, the default: all are independent.
    of : [n] numbers or strings, or None
        Id of the thing that each row of ``held_out`` is a view of, such as the track of a frame:
        each id is one query, and ``ask(views, of=ids)`` answers once for each. None, the default:
        each row is a query.
    seed : torch.Generator, int or None
        Generator or seed of the random split into folds, or of ``held_out`` into halves or fifths.
        None, or 0, the default: the same split in every run.
    progress : bool
        Show a progress bar. Default: False.
    **settings
        Settings of a new ``LaplaceEmbedder``, such as ``hessian``. ``distance`` is by default
        "arccos" for a model; for vectors it is "euclidean", or "arccos" if all have length 1 or
        ``search`` compares them by direction.

    Raises
    ------
    InputError, LabelError
        For items or labels that cannot be read, and as ``LaplaceEmbedder.cross_index``. Without
        ``held_out``, for a model that may have been trained on the items. For ``coarser`` levels
        with a label without a group or in two, or that are not nested from fine to coarse.

    Warns
    -----
    FewQueriesWarning
        If the precision cannot be guaranteed, with what can; ``ask`` is then an error.
    FittedQueriesWarning
        If of what calibrates, items or ``held_out``, more than a hundredth are copies of others, or
        more than a fiftieth near-copies, such as frames of one video; or if the model was trained
        on more than a hundredth of ``held_out``.
    LaplaceMetricWarning
        If labels of ``held_out`` differ from those of the items by a blank or by case.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> x, y = load_digits(return_X_y=True)
    >>> guard = Guard(x[:900], y[:900], precision=0.95)
    >>> answers = guard.ask(np.concatenate([x[900:902], 16 - x[900:901]]))
    >>> answers.label.tolist(), answers.reason.tolist()
    ([4, 9, None], ['', '', 'unfamiliar'])
    """

    _keywords_meant = ASKED_OF_METHODS
    trained_on_items: bool | None = None
    """Statement of the caller, which a saved guard keeps; None if there was none."""
    by_class: bool = False
    """True if the precision is that of the answers of each class, not of all together."""
    coarser: Levels | None = None
    """Groups of labels with which it answers where the label is not sure enough, if it does."""

    @positional("name the argument, such as precision={}.")
    def __init__(
        self,
        items: Any,
        labels: Any = None,
        *,
        model: nn.Module | LaplaceEmbedder | LaplaceEnsemble | None = None,
        precision: float = 0.9,
        by_class: bool = False,
        coarser: Any = None,
        held_out: tuple[Any, Any] | None = None,
        trained_on_items: bool | None = None,
        ids: Any = None,
        search: Any = None,
        open_set_fraction: float = 0.0,
        groups: Any = None,
        of: Any = None,
        seed: Seed = 0,
        progress: bool = False,
        **settings: Any,
    ) -> None:
        check_share("precision", precision)
        check_fraction("open_set_fraction", open_set_fraction)
        check_one_kind(_check_flag("by_class", by_class), coarser)
        known = {**signature(Guard).parameters, **signature(LaplaceEmbedder).parameters}
        check_keywords("Guard", settings, known, KEYWORDS)
        if held_out is not None and (not isinstance(held_out, (tuple, list)) or len(held_out) != 2):
            raise InputError(f"held_out is a {type(held_out).__name__}: pass (queries, labels).")
        if of is not None and held_out is None:
            raise InputError(
                "of= names what each row of held_out is a view of, and there is none: pass "
                "held_out=(views, labels), or call guard.calibrate(views, labels, of=ids) later."
            )
        if not isinstance(model, (LaplaceEmbedder, LaplaceEnsemble, type(None))):
            check_module(model)
        if isinstance(model, LaplaceEnsemble) and held_out is None:
            raise InputError(
                "model is a LaplaceEnsemble, which its items cannot calibrate: pass held_out="
                "(queries, labels)."
            )
        _check_trained(model, trained_on_items, calibrates=held_out is None)
        self.trained_on_items = trained_on_items
        if ids is None and hasattr(search, "id_map"):
            ids = _faiss().vector_to_array(search.id_map)
        if model is None:
            items, labels = labels_beside("items", items, labels)
            items = _vectors(items)
            if labels is None:
                raise LabelError(
                    "labels=None: pass a label for each vector. Judged pairs without labels: pass "
                    "their scores to laplace_metric.calibration.calibrate_scores."
                )
            unit = all_unit(items)
            if "distance" not in settings and search is not None and not unit:
                settings["distance"] = _distance_of_search(items, ids, search)
            settings = settings_of_vectors(settings, unit=unit)
            model = LaplaceEmbedder(Precomputed(items.shape[1]), head="append", **settings)
        elif not isinstance(model, (LaplaceEmbedder, LaplaceEnsemble)):
            model = LaplaceEmbedder(model, **settings)
        elif settings:
            kind = type(model).__name__
            raise InputError(f"model is a {kind}, which has its own {[*settings]}.")
        self.embedder: LaplaceEmbedder | LaplaceEnsemble = model
        inputs = read_inputs("items", items, labels)
        n = inputs.count or 0
        if coarser is not None and inputs.labels is not None:
            coarser = _levels(coarser, inputs.labels)  # refused before the long part
        if held_out is None:
            assert isinstance(model, LaplaceEmbedder)
            self.index = model.cross_index(
                inputs,
                ids=ids,
                seed=seed,
                n_queries=ASKED if n > LARGE else None,
                open_set_fraction=open_set_fraction,
                engine="flat" if search is None else _search_of(search, ids, n),
                groups=groups,
                progress=progress,
            )
        else:
            inputs = inputs.held() if isinstance(items, Iterator) else inputs
            if isinstance(model, LaplaceEmbedder) and model._fitted is None:
                model.fit(inputs, progress=progress)
            with _of_held_out(*held_out):
                held_out = _told_if_trained_on(model, *held_out)
            rank_by = "auto" if search is None else "mean"  # a search has the means alone
            self.index = model.index(inputs, ids=ids, rank_by=rank_by, progress=progress)
            if search is not None:
                self.index = self.index.searched_by(_search_of(search, ids, len(self.index)))
            with _of_held_out(*held_out):
                self.index.calibrate(
                    *held_out,
                    open_set_fraction=open_set_fraction,
                    groups=groups,
                    of=of,
                    seed=seed,
                    progress=progress,
                )
        self._choose(precision, by_class, _levels_of(self.index, coarser))

    def __getattr__(self, name: str) -> Any:
        if hasattr(type(self), name):  # a property of ours that has failed: with its own words
            return object.__getattribute__(self, name)
        near = [name]
        if name not in METHODS and not name.startswith("_"):  # of a name of ours Python tells
            near = get_close_matches(name, [*METHODS, *dir(type(self)), *vars(self)], 1, 0.7)
        advice = f": {METHODS[near[0]]}." if near and near[0] in METHODS else ""
        raise AttributeError(
            f"{type(self).__name__!r} object has no attribute {name!r}{advice}",
            name=name,
            obj=self,
        )

    @classmethod
    def wrap(cls, index: Any, labels: Any, *, vectors: Any = None, **options: Any) -> Guard:
        """Guard a FAISS index: it goes on searching, with the vectors that it has.

        Vectors that all have length 1 are compared by direction, others by Euclidean distance. The
        scores of the index are not used, so their scale does not matter. Its parameters
        (``nprobe``, ``efSearch``, ``k_factor``, also those of indexes inside it) must stay as they
        are: ``ask`` refuses an index that has changed. New vectors go through ``add``.

        Parameters
        ----------
        index : faiss.Index
            IndexFlat, IVF, HNSW or PQ. ``METRIC_INNER_PRODUCT`` needs normalised vectors.
        labels : [N] whole numbers or strings
            Label of each vector, in the order in which the vectors were added. An inverted file
            with ids of its own from 0 to N - 1 takes them in the order of these ids.
        vectors : array [N, D] or None
            Vectors of the index, in the order of ``labels``. Pass them if the index stores them
            compressed. None, the default: they are read from the index.
        **options
            Other arguments of ``Guard``, such as ``precision`` and ``held_out``.

        Raises
        ------
        InputError
            For an index without vectors, inner products of vectors of other lengths, compressed
            vectors that are not given, ``vectors`` of another shape than those of the index, other
            ids of an inverted file, and an index that does not find its own vectors.
        """
        check_is_faiss(index)
        check_own_ids(index)
        inner = inner_index(index)
        if vectors is None:
            x = read_vectors("embeddings", stored_vectors(inner))
        else:
            x = read_vectors("vectors", vectors)
            check_vectors_of(index, x)
        unit = all_unit(x)
        if not unit and inner.metric_type == 0:  # METRIC_INNER_PRODUCT
            raise InputError(
                "index ranks by the inner product of vectors that do not have length 1, which is "
                "no distance: the longest vectors are near to everything. Store normalised ones."
            )
        options.setdefault("distance", "arccos" if unit else "euclidean")
        return cls(x, labels, search=index, **options)

    @property
    def recall(self) -> float | None:
        """Share of the 10 nearest of stored vectors that ``search`` finds; None: exact search."""
        engine = self.index.engine
        return engine.recall if isinstance(engine, ForeignEngine) else None

    @property
    def calibration(self) -> Calibration:
        """Calibration of the index.

        Raises
        ------
        NotFittedError
            If another class model was fitted to the index since.
        """
        return _calibration_of(self.index)

    @property
    def rule(self) -> Rule | None:
        """Rule of the precision, by the present calibration, for the gallery as it is now.

        None if the precision cannot be guaranteed.
        """
        return self._rule(self.precision, self.index)

    @named_keywords
    def add(
        self, items: Any, labels: Any = None, ids: Any = None, *, progress: bool = False
    ) -> None:
        """Add items to the gallery; the class model is fitted to all items again.

        The posterior, the calibration and the threshold stay. A guarantee is about the gallery that
        was calibrated: ``print(guard)`` and ``guard.rule`` say what it still covers. Up to a tenth
        of the items, of the same classes, it is simulated to hold; beyond a tenth, or with a new
        class, it is over, and ``calibrate`` or a new ``Guard`` makes another.

        A FAISS index that is wrapped is given the vectors, unless it has them already: no search
        may run in it meanwhile. A search function must find the new items before they are added
        here.

        Parameters
        ----------
        items : array [n, D], list of texts, or loader
            New items, of the kind of ``items``.
        labels : [n] whole numbers or strings, or None
            Label of each new item. None, the default: ``items`` is a loader that yields
            ``(inputs, labels)``.
        ids : [n] whole numbers or strings, or None
            Name of each new item, which no other item has. None, the default: numbers go on, or an
            ``IndexIDMap`` has them already.
        progress : bool
            Show a progress bar. Default: False.

        Raises
        ------
        InputError, LabelError
            For ids that are there already, items of another width or with NaN, another number of
            labels than of items or none, and a search that does not find the items. Nothing is
            added then.

        Warns
        -----
        StaleCalibrationWarning
            If the guarantee no longer covers the gallery, with the reason.
        DependentQueriesWarning
            If more than a hundredth of the new items are copies of others, new or old.

        Examples
        --------
        >>> from sklearn.datasets import load_digits
        >>> x, y = load_digits(return_X_y=True)
        >>> guard = Guard(x[:900], y[:900])
        >>> guard.add(x[900:940], y[900:940])
        >>> guard.rule.gallery.changed, guard.rule.gallery.covered
        (40, True)
        """
        engine = self.index.engine
        if isinstance(engine, ForeignEngine):
            ids = engine.ids_of_new(ids)
        if labels is None and isinstance(items, Inputs):
            labels = items.labels
        self.index.add(items, labels, ids, progress=progress)
        self._changed()

    def remove(self, ids: Any) -> None:
        """Remove items from the gallery; the class model is fitted to the others again.

        The posterior, the calibration and the threshold stay. ``print(guard)`` and ``guard.rule``
        say what the guarantee still covers. Up to a tenth of the items, drawn as the others were,
        it is simulated to hold. Beyond a tenth, or if a class has no items left, it is over.

        Of a FAISS index that is wrapped, a flat one loses the vectors, unless it has lost them; its
        other rows move up. An inverted file and a graph cannot, which is an error. A search
        function must have lost the items before they are removed here.

        Parameters
        ----------
        ids : [n] whole numbers or strings
            Ids of the items (``guard.index.ids``).

        Raises
        ------
        InputError
            For ids that are not there, which it names; if fewer than two classes would be left; for
            a search that still finds the items, and a FAISS index that cannot give them up. Nothing
            is removed then.

        Warns
        -----
        StaleCalibrationWarning
            If the guarantee no longer covers the gallery, with the reason.

        Examples
        --------
        >>> from sklearn.datasets import load_digits
        >>> x, y = load_digits(return_X_y=True)
        >>> guard = Guard(x[:900], y[:900])
        >>> guard.remove([3, 5, 8])
        >>> len(guard.index), guard.rule.gallery.changed, guard.rule.gallery.covered
        (897, 3, True)
        """
        items = self.index.items  # read once: another thread may replace them
        stays = np.ones(len(items), bool)
        stays[items.rows_of(ids).numpy()] = False
        labels = items.labels
        if labels is not None and stays.any() and len(left := np.unique(labels.values[stays])) < 2:
            raise InputError(
                f"ids name all items but those of one class, {left.tolist()[0]!r}: a guard needs "
                "two. Guard other items."
            )
        self.index.remove(ids)
        self._changed()

    def _changed(self) -> None:
        """Fit the class model again, and warn if the guarantee no longer covers the gallery."""
        if (model := self.index.class_model) is not None:
            self.index.learn_classes(*model.prior)
        change = self.index.change
        if change is not None and not change.covered:
            warn_uncovered(change)

    @named_keywords
    def calibrate(
        self,
        queries: Any,
        labels: Any = None,
        *,
        open_set_fraction: float = 0.0,
        groups: Any = None,
        of: Any = None,
        seed: Seed = 0,
        progress: bool = False,
    ) -> None:
        """Calibrate again with held-out queries, such as after ``add``; the precision stays.

        Parameters
        ----------
        queries : array [Q, D], list of texts, or loader
            Queries that are neither items nor inputs that the model was trained on, like later
            ones.
        labels : [Q] whole numbers or strings, or None
            Label of each query. None, the default: ``queries`` is a loader that yields
            ``(inputs, labels)``.
        open_set_fraction : float in [0, 1)
            Share of the later queries whose label no item has. Default: 0.
        groups : [Q] numbers or strings, or None
            Group of each query, as for ``Guard``. None, the default: all are independent.
        of : [n] numbers or strings, or None
            Id of the thing that each of n rows is a view of, as for ``Guard``. None, the default:
            each row is a query.
        seed : torch.Generator, int or None
            Generator or seed of the random split. Default: 0.
        progress : bool
            Show a progress bar. Default: False.

        Raises
        ------
        InputError, LabelError
            As ``Index.calibrate``.

        Warns
        -----
        FewQueriesWarning
            If the precision cannot be guaranteed, with what can.
        """
        check_not_swapped("queries", queries, labels)
        self.index.calibrate(
            *_told_if_trained_on(self.embedder, queries, labels),
            open_set_fraction=open_set_fraction,
            groups=groups,
            of=of,
            seed=seed,
            progress=progress,
        )
        self._choose(self.precision, self.by_class, self.coarser)

    @positional(
        "a guard has its precision: guard.at({}).ask(queries) for another one.",
        of_data="ask takes queries alone. Pass labels to guard.evaluate(queries, labels) for a "
        "report, or to guard.calibrate(queries, labels) to calibrate again.",
    )
    @named_keywords
    def ask(
        self, queries: Any, *, of: Any = None, among: Any = None, progress: bool = False
    ) -> Answers:
        """Answer or abstain.

        Parameters
        ----------
        queries : array [Q, D], list of texts, or loader
            Vectors or inputs of the model, of the kind of ``items``.
        among : [N] booleans, [n] ids, or None
            Items that may be found, such as those of a tenant, a category or in stock: a mask in
            the order of ``guard.index.ids``, or their ids. The search among them is exact, also
            next to a ``search`` of yours. The guarantee was tested with the whole gallery, and is
            not known to hold among some items; ``Answers.among`` says so. None, the default: all
            items.
        of : [n] numbers or strings, or None
            Id of the thing that each of n rows is a view of: there is one answer for each, in the
            order of their first rows (``answers.query_ids``). None, the default: each row is a
            query.
        progress : bool
            Show a progress bar. Default: False.

        Returns
        -------
        Answers
            For each query a label, or None if it abstains; the probability of the label; and the
            reason for abstaining.

        Raises
        ------
        InputError
            If the precision cannot be guaranteed; for another precision, as a number: see ``at``.
            If single rows calibrated it and several views ask, or the other way round.
            For a mask of another length or of numbers, ids that are not there, and a filter that
            leaves no item.

        Warns
        -----
        UnfamiliarQueriesWarning
            If more queries are unlike the items than chance explains, in this call or over several;
            see ``Index.search``.
        StaleCalibrationWarning
            If the guarantee no longer covers the gallery; see ``add``. If ``among`` is given.
        """
        index = copy.copy(self.index)  # one calibration for the rule and the search, under threads
        if (rule := self._rule(self.precision, index)) is None:
            raise InputError(self._refusal())
        _check_of_views(index, of)
        return index.ask(queries, rule, of=of, among=among, progress=progress)

    @named_keywords
    def evaluate(
        self, queries: Any, labels: Any = None, *, of: Any = None, progress: bool = False
    ) -> AnswerReport:
        """Report what becomes of labelled queries: answered, right, by class and by reason.

        Parameters
        ----------
        queries : array [Q, D], list of texts, or loader
            Test queries that are neither items nor calibrated it.
        labels : [Q] whole numbers or strings, or None
            Label of each query. None, the default: ``queries`` is a loader that yields
            ``(inputs, labels)``.
        of : [n] numbers or strings, or None
            Id of the thing that each row is a view of, as for ``ask``. None, the default: each row
            is a query.
        progress : bool
            Show a progress bar. Default: False.

        Returns
        -------
        AnswerReport
            ``print`` shows it as a table, the class with the least precise answers first; ``plot``
            draws risk against coverage, and the reliability.

        Raises
        ------
        InputError
            If the precision cannot be guaranteed.
        LabelError
            For queries without labels.

        Warns
        -----
        FittedQueriesWarning
            If more than a hundredth of the queries were in the fit of the posterior, or more than a
            fiftieth are near-copies of others.
        StaleCalibrationWarning
            If the guarantee no longer covers the gallery; see ``add``.

        Examples
        --------
        >>> from sklearn.datasets import load_digits
        >>> x, y = load_digits(return_X_y=True)
        >>> report = Guard(x[:900], y[:900]).evaluate(x[900:], y[900:])
        >>> report.lower > 0.9, report.classes[0].name
        (True, 9)
        """
        index = copy.copy(self.index)
        if (rule := self._rule(self.precision, index)) is None:
            raise InputError(self._refusal())
        _check_of_views(index, of)
        return index.evaluate_answers(queries, labels, rule, of=of, progress=progress)

    def suspicious_labels(self, most: int = 100) -> LabelReview:
        """Return up to ``most`` items, 100 by default, whose label looks wrong; see ``Index``."""
        return self.index.suspicious_labels(most)

    @named_keywords
    def at(self, precision: float, *, by_class: bool | None = None, coarser: Any = None) -> Guard:
        """Return the same guard with another guaranteed precision; nothing is fitted again.

        Both are one gallery with one calibration: what ``add`` and ``calibrate`` change through one
        holds for the other, too.

        Parameters
        ----------
        precision : float in (0, 1)
            Share of the answers that are right, to be guaranteed with 95 % confidence.
        by_class : bool or None
            True guarantees it of the answers of each class, False of all together, as for
            ``Guard``. None, the default: as this guard does.
        coarser : list of levels, a level, False or None
            Levels of coarser answers, as for ``Guard``; False: labels alone. None, the default: as
            this guard does.

        Raises
        ------
        InputError
            For a precision outside (0, 1), another ``by_class``, and levels as for ``Guard``.

        Warns
        -----
        FewQueriesWarning
            If the precision cannot be guaranteed, with what can.

        Examples
        --------
        >>> from sklearn.datasets import load_digits
        >>> x, y = load_digits(return_X_y=True)
        >>> guard = Guard(x[:900], y[:900]).at(0.9, by_class=True)
        >>> len(guard.rule.rules), guard.rule.refused
        (10, {})
        """
        other = copy.copy(self)
        chosen = self.by_class if by_class is None else _check_flag("by_class", by_class)
        levels = self.coarser if coarser is None else None
        if coarser is not None and coarser is not False:
            levels = _levels_of(self.index, coarser)
        check_one_kind(chosen, levels)
        other._choose(check_share("precision", precision), chosen, levels)
        return other

    def save(self, path: str | Path) -> None:
        """Write posterior, index and precision to one file; a model's weights are not in it.

        Parameters
        ----------
        path : path
            Name of a safetensors file, such as "guard.safetensors", which is replaced in one step.

        Raises
        ------
        InputError
            If ``path`` is a folder.
        WriteError
            If it cannot be written; an old file is kept.
        """
        parts = {**self.embedder._parts(), "index": self.index._part()}
        told: dict[str, Any] = {"precision": self.precision}
        told["trained_on_items"] = self.trained_on_items
        told["by_class"] = self.by_class
        if self.coarser is not None:
            told["coarser"] = self.coarser.content()
        parts["guard"] = Part(GUARD, told)
        write(as_path("path", path), parts)

    @classmethod
    @named_keywords
    def load(
        cls,
        path: str | Path,
        model: nn.Module | Sequence[nn.Module] | None = None,
        search: Any = None,
        *,
        probe: Any = None,
    ) -> Guard:
        """Read what ``save`` wrote.

        Parameters
        ----------
        path : path
            File of ``save``.
        model : nn.Module, optional
            Model that it was saved with: its weights are not in the file. A list of models, in the
            order of the members, of an ensemble. None, the default, for vectors.
        search : function or faiss.Index, optional
            Search that runs elsewhere, as for ``Guard``. It is not saved, and guarantees hold for
            the search that was calibrated: pass the same. None, the default: exact search.
        probe : inputs of ``model``, or None
            Inputs whose vectors were fitted, for a guard of vectors and the model that made them;
            they are compared, as by ``LaplaceEmbedder.load``. None, the default: they are not.

        Raises
        ------
        FileFormatError
            For a damaged file, one of another program or a newer version, or one without a guard.
        InputError
            If ``model`` does not embed ``probe`` as the fitted vectors.

        Warns
        -----
        UncheckedModelWarning
            If a guard of vectors is put on a model without ``probe``.
        """
        saved, guard = SavedFile(as_path("path", path)), cls.__new__(cls)
        with saved.checked():
            told = Fields(saved.part(GUARD).content, "guard")
            precision, stated = told.share("precision"), None
            by_class = told.flag("by_class") if "by_class" in told else False
            coarser = Levels.of_content(told, "coarser") if "coarser" in told else None
            if by_class and coarser is not None:
                raise FileFormatError("guard.by_class is true next to guard.coarser")
            if "trained_on_items" in told:
                stated = told.flag("trained_on_items")
        guard.trained_on_items = stated
        guard.embedder = _embedder_of(saved, model)
        if isinstance(guard.embedder, LaplaceEmbedder):
            guard.embedder._check_made_vectors(probe)
        guard.index = Index._of(saved, guard.embedder)
        if guard.index.calibration is None or guard.index.calibration.labels is None:
            raise FileFormatError(f"{path} is damaged: its index is not calibrated by labels.")
        assert guard.index.labels is not None
        if coarser is not None and not coarser.has_one_of(guard.index.labels.tolist()):
            raise FileFormatError(
                f"{path} is damaged: guard.coarser has no label of the items of its index."
            )
        if search is not None:
            ids = guard.index.ids
            guard.index = guard.index.searched_by(_search_of(search, ids, len(ids)))
        guard._choose(precision, by_class, coarser)
        return guard

    def _choose(self, precision: float, by_class: bool, coarser: Levels | None) -> None:
        self.precision, self.by_class, self.coarser = precision, by_class, coarser
        if self.rule is None:
            warnings.warn(self._refusal(), FewQueriesWarning, stacklevel=callers_line())

    def _rule(self, precision: float, index: Index) -> Rule | None:
        """Return the rule of a precision by the calibration of an index; None if there is none."""
        with suppress(InputError):
            return self._guaranteed(precision, index)
        return None

    def _guaranteed(self, precision: float, index: Index) -> Rule:
        """Return the rule of a precision.

        Raises
        ------
        InputError
            If there is none, with the reason.
        """
        calibration = _calibration_of(index)
        if self.by_class:
            return calibration.guarantee_by_class(precision).after(index.change)
        if self.coarser is not None:
            return calibration.guarantee_by_level(precision, self.coarser).after(index.change)
        return calibration.guarantee(precision=precision, of="label").after(index.change)

    def _refusal(self) -> str:
        if self.by_class:
            try:
                self._guaranteed(self.precision, self.index)
            except InputError as error:
                return f"{error} All together: guard.at({self.precision:g}, by_class=False)."
        if self.coarser is not None:
            try:
                self._guaranteed(self.precision, self.index)
            except InputError as error:
                return f"{error} Ask for less: guard.at(precision)."
        told = self._missing(self.precision)
        try:
            best = self.calibration.largest_guarantee(of="label").target or 0.0
        except InputError:
            best = 0.0
        can = f" {best:g} can be: guard.at({best:g})." if best else ""
        return f"precision={self.precision:g} cannot be guaranteed: {told}.{can}"

    def _missing(self, precision: float) -> str:
        if self.by_class:
            return "of no class"
        if self.coarser is not None:
            return "at no level"
        needed = self.calibration.queries_needed(precision, of="label")
        kind = "items or held-out queries" if self.calibration.own_items else "queries"
        told = needed.told(f"{kind} needed")
        return told or needed.reason

    def _sentence(self) -> str:
        if self.rule is None:
            return self._refusal()
        change = self.index.change
        if change is not None and not change.covered:
            return f"its guarantee {change}."
        those = "answers"
        if isinstance(self.rule, ClassRule):
            given = len(self.rule.rules)
            those = f"answers with each of {given} of {given + len(self.rule.refused)} labels"
        own, right = "", "are right"
        if isinstance(self.rule, LevelRule):
            own, those, right = (
                f" ({self.rule.by_level})",
                "answers of each level",
                "are right as given",
            )
        return (
            f"answers {self.rule.coverage:.0%} of queries like its own{own}; of the {those} at "
            f"least {100 * self.precision:.4g}% {right}, with 95% confidence"
            f"{'' if self.rule.proven else ', simulated and not proven'}"
            f"{'.' if change is None else f'; it {change}.'}"
        )

    def _if_untrained(self) -> str:
        """Return the condition of a calibration by the items, and whether it was stated."""
        if self.trained_on_items is False:
            return ", stated not to have trained the model"
        of = "encoder" if isinstance(self.embedder.model, Precomputed) else "model"
        return f"; holds only if the {of} was not trained on them"

    def _shown_rows(self) -> Rows:
        by = "held-out queries: proven, but for the test for unfamiliar queries"
        if self.calibration.cross_fitted or self.calibration.simulated:
            by = "held-out queries: simulated, not proven"
        if self.calibration.own_items:
            by = f"its own items: simulated, not proven{self._if_untrained()}"
        rows = [("items", f"{len(self.index):,}"), ("calibrated by", by)]
        if bool(self.calibration.known.all()):
            rows.append(("open-set queries", "not covered: pass open_set_fraction= if some come"))
        elif self.calibration.simulated:
            share = f"{1 - self.calibration.known.mean():.0%} of the queries, simulated"
            rows.append(("open-set queries", f"{share}: real ones may lie nearer to the items"))
        rows.append(("compared by", _compared_by(self.embedder)))
        if self.recall is not None:
            rows.append(("search finds", f"{self.recall:.0%} of the {NEAREST} nearest"))
        change = self.index.change
        levels = sorted({*LEVELS, self.precision})
        for level in levels if change is None or change.covered else ():
            if (found := self._rule(level, self.index)) is not None:
                told = f"answers {found.coverage:.0%}"
                if isinstance(found, ClassRule):
                    told += f", with {len(found.rules)} labels"
                if isinstance(found, LevelRule):
                    told += f": {found.by_level}"
            else:
                told = self._missing(level)
            of = " by class" * self.by_class + " by level" * (self.coarser is not None)
            rows.append((f"{100 * level:g}% right{of}", told))
        return rows


def _check_of_views(index: Index, of: Any) -> None:
    """Require that several views ask where several views calibrated, and only there."""
    if _calibration_of(index).of_views != (of is not None):
        raise InputError(_OF_OTHER_VIEWS[of is not None])


def _calibration_of(index: Index) -> Calibration:
    if index.calibration is None:
        raise NotFittedError(
            "the calibration of this guard was of another class model (index.learn_classes): call "
            "guard.calibrate(queries, labels)."
        )
    return index.calibration


def _check_flag(name: str, value: Any) -> bool:
    """Return a flag.

    Raises
    ------
    InputError
        For anything but True and False.
    """
    if not isinstance(value, (bool, np.bool_)):
        raise InputError(f"{shown_argument(name, value)}: pass True or False.")
    return bool(value)


def check_one_kind(by_class: bool, coarser: Any) -> None:
    """Refuse a precision of each class next to coarser answers.

    Parameters
    ----------
    by_class : bool
        True for a precision of the answers of each class.
    coarser : levels or None
        Levels of coarser answers; None: answers are labels alone.

    Raises
    ------
    InputError
        If both are asked for.
    """
    if by_class and coarser is not None:
        raise InputError(
            "by_class=True next to coarser=: a guarantee is one of the answers of each class, or "
            "of each level. Pass one of them; guard.at(precision, coarser=False) has labels alone."
        )


def _levels(coarser: Any, labels: Any) -> Levels:
    """Return checked levels of the labels of items."""
    column = Column.of_labels(labels)
    return Levels.read(coarser, np.unique(column.values).tolist(), column.values.tolist())


def _levels_of(index: Index, coarser: Any) -> Levels | None:
    """Return checked levels of the labels of an index; None without any."""
    if coarser is None or isinstance(coarser, Levels):
        return coarser
    return _levels(coarser, index.labels)


def _check_trained(model: Any, stated: Any, *, calibrates: bool) -> None:
    """Refuse items that calibrate a model which may have been trained on them."""
    if not isinstance(stated, (bool, type(None))):
        raise InputError(f"{shown_argument('trained_on_items', stated)}: pass True, False or None.")
    of_vectors = isinstance(model, LaplaceEmbedder) and isinstance(model.model, Precomputed)
    trained = stated is True or (stated is None and model is not None and not of_vectors)
    if calibrates and trained:
        why = "was trained on the items" if stated else "may have been trained on the items"
        raise InputError(
            f"{'the encoder' if model is None else 'model'} {why}, which it then embeds better "
            "than anything new, so that they cannot calibrate its guarantees. Pass held_out="
            "(queries, labels), on which it was not trained; or trained_on_items=False if it was "
            "trained on other data (a frozen encoder)."
        )


def _embedder_of(saved: SavedFile, model: Any) -> LaplaceEmbedder | LaplaceEnsemble:
    """Return the embedder of an opened file on its model, or the ensemble on its models.

    Raises
    ------
    InputError
        For several models where there is one posterior.
    """
    if ENSEMBLE.name in saved:
        return LaplaceEnsemble._of(saved, model)
    if model is not None and not isinstance(model, nn.Module):
        raise InputError(f"model is a {type(model).__name__}: pass the nn.Module.")
    return LaplaceEmbedder._of(saved, model)


def _compared_by(embedder: LaplaceEmbedder | LaplaceEnsemble) -> str:
    if isinstance(embedder, LaplaceEnsemble):
        return f"{len(embedder)} embedders: {_compared_by(embedder.members[0])}"
    chosen = embedder.settings
    return f"distance={chosen.distance!r}, hessian={chosen.hessian!r}"


def _told_if_trained_on(
    model: LaplaceEmbedder | LaplaceEnsemble, queries: Any, labels: Any
) -> tuple[Any, Any]:
    """Warn of held-out queries that the model was trained on; return them to be read again."""
    inputs = read_inputs("held_out", queries)
    members = model.members if isinstance(model, LaplaceEnsemble) else (model,)
    if all(training_inputs(member) is None for member in members):
        return inputs, labels
    inputs = inputs.held()
    batches = [batch.inputs for batch in inputs]
    share = max(share_trained_on(member, batches) for member in members)
    if share > TOLERATED:
        warnings.warn(
            f"the model was trained on {share:.0%} of the queries of held_out=, which it embeds "
            "better than anything new: guarantees will not hold. Pass queries that it was not "
            "trained on.",
            FittedQueriesWarning,
            stacklevel=callers_line(),
        )
    return inputs, labels


@contextmanager
def _of_held_out(queries: Any, labels: Any) -> Iterator[None]:
    """Name ``held_out`` in the errors of its queries and labels, which are raised inside."""
    if getattr(queries, "ndim", 2) == 1 and getattr(labels, "ndim", 1) == 2:
        raise InputError(
            f"held_out has shapes {list(queries.shape)} and {list(labels.shape)}, labels first: "
            "pass (queries, labels)."
        )
    try:
        yield
    except InputError as error:
        if "held_out" not in str(error):
            error.args = (f"held_out=(queries, labels): {error}", *error.args[1:])
        raise


def _vectors(items: Any) -> Tensor:
    try:
        if getattr(items, "shape", (1,))[:1] == (0,) or (isinstance(items, list) and not items):
            raise EmptyLoaderError("items are empty: pass at least one item of each of two labels.")
        vectors = read_vectors("items", items)
    except InputError as error:
        where = "Guard(vectors [N, D], labels [N]); of texts or images, with model="
        raise type(error)(f"{error} {where}.") from error
    if len(vectors) > 1 and bool((vectors == vectors[0]).all()):
        raise InputError(f"items are {len(vectors):,} equal vectors: nothing tells them apart.")
    return vectors


def _faiss() -> Any:
    import faiss

    return faiss


def _distance_of_search(items: Tensor, ids: Any, search: Any) -> str:
    """Return "euclidean" or "arccos", in which a search compares: that of what it finds."""
    column = Column.of("ids", np.arange(len(items)) if ids is None else ids, len(items))
    find, agreed = _search_of(search, ids, len(items)), {}
    for name, x in (("euclidean", items), ("arccos", nn.functional.normalize(items, dim=1))):
        agreed[name] = shares_found(ForeignEngine(x, column, find), FlatEngine(x, Flat()), x)[1]
    return max(agreed, key=lambda name: agreed[name])


def _search_of(search: Any, ids: Any, n: int) -> Callable[..., Any]:
    """Return a search for n items with these ids; that of a FAISS index that has not changed."""
    if not hasattr(search, "ntotal"):
        if callable(search):
            found: Callable[..., Any] = search
            return found
        raise InputError(
            f"search is a {type(search).__name__}: pass a function from queries [Q, D] and k "
            "to ids [Q, k], or a FAISS index."
        )

    own = np.arange(n or search.ntotal) if ids is None else Column.of("ids", ids).values
    return RunningFaiss(search, own)
