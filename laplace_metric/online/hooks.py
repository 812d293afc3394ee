"""Measures of a posterior while a model trains: plain numbers, by name.

``r_auroc_s``: the chance that a query whose nearest neighbour is wrong has the larger score s than
one whose is right. ``ausc_s``: area under the share of right answers as the queries with the
largest s are left out. ``ood_auroc_NAME``: the chance that an input of another data set has the
larger score than a query. Scores s: ``epistemic``, where the fit keeps it, and ``uncertainty``.

A callback of Lightning that fits a posterior after training, or every few epochs.

Lightning is not needed to import this, only to make a callback; both of its packages do.

A tester of pytorch-metric-learning whose accuracies have the numbers of a posterior too.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from pytorch_metric_learning.testers import GlobalEmbeddingSpaceTester
from pytorch_metric_learning.utils import common_functions
from torch import Tensor, nn

from laplace_metric._utils.randomness import own_randomness
from laplace_metric._utils.validation import as_path, check_count
from laplace_metric.embedder import LaplaceEmbedder
from laplace_metric.errors import (
    InputError,
    MissingPackageError,
    NotFittedError,
    UndefinedMetricWarning,
)
from laplace_metric.evaluation import auroc, r_auroc, recall_at_k, sparsification
from laplace_metric.models._calling import device_of, labelled_batches, unwrapped

__all__ = ["LaplaceTester", "lightning_callback"]


@dataclass(frozen=True)
class Seen:
    """A data set as a posterior sees it.

    Parameters
    ----------
    mean : Tensor [N, Z]
    labels : Tensor [N]
    scores : dict of name to Tensor [N]
        "uncertainty" and, where the fit keeps it, "epistemic"; larger = less sure.
    """

    mean: Float[Tensor, "N Z"]
    labels: Int[Tensor, " N"]
    scores: dict[str, Float[Tensor, " N"]]

    @classmethod
    def joined(cls, parts: Iterable[Seen]) -> Seen:
        """Several data sets as one.

        Examples
        --------
        >>> one = Seen(torch.ones(2, 3), torch.tensor([0, 1]), {"uncertainty": torch.ones(2)})
        >>> Seen.joined([one, one]).mean.shape
        torch.Size([4, 3])
        """
        listed = list(parts)
        names = set.intersection(*(set(part.scores) for part in listed))
        scores = {name: torch.cat([part.scores[name] for part in listed]) for name in names}
        mean = torch.cat([part.mean for part in listed])
        labels = torch.cat([part.labels for part in listed])
        return cls(mean, labels, scores)


def seen_by(embedder: LaplaceEmbedder, loader: Iterable[Any]) -> Seen:
    """Encode all that a loader of ``(inputs, labels)`` yields; one forward pass.

    Raises
    ------
    EmptyLoaderError, LabelError
        For a loader without batches or labels.

    Examples
    --------
    >>> x, y = torch.randn(20, 8), torch.arange(20) % 4
    >>> sorted(seen_by(LaplaceEmbedder.from_embeddings(x, y), [(x, y)]).scores)
    ['epistemic', 'uncertainty']
    """
    device, parts = device_of(embedder.model), []
    for inputs, labels in labelled_batches(loader, device, progress=False, description="Measuring"):
        embedding = embedder(inputs)
        scores = {"uncertainty": embedding.uncertainty}
        with suppress(NotFittedError):  # pairs of batches keep nothing to compare with
            scores["epistemic"] = embedding.epistemic
        parts.append(Seen(embedding.mean, labels, scores))
    return Seen.joined(parts)


def posterior_numbers(
    queries: Seen,
    references: Seen | None = None,
    ood: Mapping[str, Seen] | None = None,
    *,
    among_them: bool = False,
) -> dict[str, float]:
    """Compute how well the scores rank the answers to queries; undefined ones are left out.

    Parameters
    ----------
    queries : Seen
    references : Seen or None
        What the nearest neighbours are of; None: the queries, each without itself.
    ood : mapping of name to Seen
        Out-of-distribution sets; their labels do not count.
    among_them : bool
        Whether the queries are the first rows of the references; each is left out of its own.

    Examples
    --------
    >>> x, y = torch.randn(40, 8), torch.arange(40) % 4
    >>> embedder = LaplaceEmbedder.from_embeddings(x, y)
    >>> near, far = (seen_by(embedder, [(values, y)]) for values in (x, 9 - x))
    >>> sorted(posterior_numbers(near, ood={"far": far}))[:2]
    ['ausc_epistemic', 'ausc_uncertainty']
    """
    score = "epistemic" if "epistemic" in queries.scores else "uncertainty"
    found = {f"mean_{name}": float(values.mean()) for name, values in queries.scores.items()}
    for name, other in (ood or {}).items():
        found[f"ood_auroc_{name}"] = auroc(queries.scores[score], other.scores[score])
    own = torch.arange(len(queries.labels)) if references is not None and among_them else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedMetricWarning)
        recall = recall_at_k(
            queries.mean,
            queries.labels,
            gallery=None if references is None else references.mean,
            gallery_labels=None if references is None else references.labels,
            exclude=own,
        )
        if recall.n_queries:  # with another item of their class
            counted, right = recall.counted, recall.per_query[recall.counted]
            found["recall_at_1"] = recall.value
            for name, values in queries.scores.items():
                found[f"r_auroc_{name}"] = r_auroc(values[counted], right)
                found[f"ausc_{name}"] = sparsification(values[counted], right).ausc
    return {name: value for name, value in found.items() if math.isfinite(value)}


PACKAGES = ("lightning.pytorch", "pytorch_lightning")
PREFIX = "laplace/"
"""Before the names of what is logged."""


def lightning_callback(
    every_n_epochs: int | None = None,
    *,
    fit_on: Any = None,
    queries: Any = None,
    ood: Mapping[str, Any] | None = None,
    folder: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Any:
    """A callback for ``Trainer(callbacks=[...])``; its ``embedder_`` is the fitted embedder.

    It fits after the last epoch and logs ``laplace/r_auroc_epistemic``, ``laplace/ood_auroc_NAME``
    and so on (``posterior_numbers``). It moves neither weights, nor modes, nor random states: a
    training with it ends with the same weights as without.

    Parameters
    ----------
    every_n_epochs : int or None
        Fit after every so many epochs too.
    fit_on : loader of batches or None
        None: the trainer's ``train_dataloader``.
    queries : loader of batches or None
        Measured among themselves, each without itself. None: the trainer's ``val_dataloaders``, if
        it is one loader.
    ood : mapping of name to loader
        Out-of-distribution sets.
    folder : path or None
        Where ``save_pretrained`` writes each time, with the numbers on its card.
    settings : mapping
        Of ``LaplaceEmbedder``.

    Raises
    ------
    MissingPackageError
        Without lightning and pytorch_lightning.
    InputError
        For a number of epochs below 1.
    """
    if every_n_epochs is not None:
        every_n_epochs = check_count("every_n_epochs", every_n_epochs)
    path = None if folder is None else as_path("folder", folder)
    kind: Any = type("LaplaceCallback", (PosteriorCallback, _callback_class()), {})
    return kind(every_n_epochs, fit_on, queries, dict(ood or {}), path, dict(settings or {}))


def _callback_class() -> type:
    """Return the callback class of the package that is in use, or of one that is installed."""
    for name in sorted(PACKAGES, key=lambda name: name not in sys.modules):
        try:
            return import_module(name).Callback
        except ImportError as error:
            if getattr(error, "name", None) not in (name, name.partition(".")[0]):
                raise
    raise MissingPackageError("lightning", "lightning_callback", "pip install lightning")


@dataclass(eq=False, repr=False)
class PosteriorCallback:
    """State of ``lightning_callback``; it needs no Lightning by itself."""

    every_n_epochs: int | None
    fit_on: Any
    queries: Any
    ood: dict[str, Any]
    folder: Path | None
    settings: dict[str, Any]
    numbers_: dict[str, float] = field(default_factory=dict)
    _embedder: LaplaceEmbedder | None = None
    _fitted_at: int | None = None

    @property
    def embedder_(self) -> LaplaceEmbedder:
        """Embedder of the last fit, around the model as it was then.

        Raises
        ------
        NotFittedError
            Before the first fit.
        """
        if self._embedder is None:
            raise NotFittedError("this callback has fitted nothing yet: call trainer.fit(...).")
        return self._embedder

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Refuse early what would fail after hours.

        Raises
        ------
        InputError
            For several processes.
        """
        if trainer.world_size > 1:
            raise InputError(
                f"lightning_callback fits in one process, the trainer has {trainer.world_size}: "
                "leave it out, and call LaplaceEmbedder.fit(loader, distributed=True) afterwards."
            )

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Fit after the last epoch, and after every ``every_n_epochs``."""
        epochs = trainer.current_epoch + 1
        due = self.every_n_epochs is not None and epochs % self.every_n_epochs == 0
        if due or trainer.should_stop or epochs == trainer.max_epochs:
            pl_module.log_dict(self._fit(trainer, pl_module))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Fit if training ended in the middle of an epoch."""
        if self._fitted_at != trainer.global_step:
            numbers = self._fit(trainer, pl_module)
            for logger in trainer.loggers:
                logger.log_metrics(numbers, step=trainer.global_step)

    def _fit(self, trainer: Any, pl_module: Any) -> dict[str, float]:
        """Fit, measure and save; return what is logged."""
        loader = trainer.train_dataloader if self.fit_on is None else self.fit_on
        if loader is None or isinstance(loader, Mapping):
            kind = type(loader).__name__
            raise InputError(f"fit_on is a {kind}: pass lightning_callback(fit_on=loader).")
        queries = _single(trainer.val_dataloaders) if self.queries is None else self.queries
        with own_randomness(0, device_of(pl_module)):  # loaders draw from global states
            embedder = LaplaceEmbedder(pl_module, **self.settings).fit(loader, progress=False)
            self.numbers_ = {}
            if queries is not None:
                ood = {name: seen_by(embedder, data) for name, data in self.ood.items()}
                self.numbers_ = posterior_numbers(seen_by(embedder, queries), ood=ood)
        self._embedder, self._fitted_at = embedder, trainer.global_step
        if self.folder is not None:
            embedder.save_pretrained(self.folder, numbers=self.numbers_)
        return {PREFIX + name: value for name, value in self.numbers_.items()}


def _single(loaders: Any) -> Any:
    """The one loader of what a trainer has; None of several, or of none."""
    if isinstance(loaders, (list, tuple)):
        return loaders[0] if len(loaders) == 1 else None
    return None if isinstance(loaders, Mapping) else loaders


# A tester of pytorch-metric-learning whose accuracies have the numbers of a posterior too.

Splits = list[tuple[str, list[str]]]
"""(name of the queries, names of the references)."""


class LaplaceTester(GlobalEmbeddingSpaceTester):  # type: ignore[misc]
    """``GlobalEmbeddingSpaceTester`` that also fits a posterior and measures it.

    The model is ``embedder(trunk(x))``, whose weights stay as they are. In addition to
    ``precision_at_1_level0`` and the like, ``all_accuracies`` then has
    ``r_auroc_epistemic_level0``, ``ood_auroc_NAME_level0`` and so on (``posterior_numbers``), so
    that a ``HookContainer`` records them. It goes through the fit set and each split once more than
    its base does.

    Parameters
    ----------
    fit_on : name of a split, or data set
        What the posterior is fitted to: the training data, never the queries.
    ood : mapping of name to data set
        Out-of-distribution sets.
    settings : mapping
        Of ``LaplaceEmbedder``, such as ``{"structure": "kron"}``.
    **tester
        Of ``GlobalEmbeddingSpaceTester``: ``accuracy_calculator``, ``end_of_testing_hook`` and so
        on. With ``normalize_embeddings=False`` pass ``settings={"distance": "euclidean"}``.

    Examples
    --------
    >>> import torch
    >>> from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
    >>> from torch.utils.data import TensorDataset
    >>> g = torch.Generator().manual_seed(0)
    >>> y = torch.arange(60) % 3
    >>> data = TensorDataset(torch.randn(60, 4, generator=g) + 2 * y[:, None], y)
    >>> calculator = AccuracyCalculator(include=("precision_at_1",), device=torch.device("cpu"))
    >>> tester = LaplaceTester(
    ...     fit_on=data,
    ...     settings={"distance": "euclidean"},
    ...     normalize_embeddings=False,
    ...     accuracy_calculator=calculator,
    ...     dataloader_num_workers=0,
    ... )
    >>> model = nn.Linear(4, 2)
    >>> with torch.no_grad():
    ...     _ = model.weight.copy_(torch.eye(2, 4))
    >>> found = tester.test({"val": data}, 1, model)["val"]
    >>> "r_auroc_epistemic_level0" in found
    True
    """

    def __init__(
        self,
        fit_on: Any = "train",
        ood: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        **tester: Any,
    ) -> None:
        super().__init__(**tester)
        self.fit_on, self.ood, self.settings = fit_on, dict(ood or {}), dict(settings or {})
        self._embedder: LaplaceEmbedder | None = None
        self._seen: Callable[..., Seen] | None = None

    @property
    def embedder_(self) -> LaplaceEmbedder:
        """That of the last test, of its last level of labels.

        Raises
        ------
        NotFittedError
            Before ``test``.
        """
        if self._embedder is None:
            raise NotFittedError("this LaplaceTester has fitted nothing yet: call test(...).")
        return self._embedder

    def test(
        self,
        dataset_dict: Mapping[str, Any],
        epoch: int,
        trunk_model: nn.Module,
        embedder_model: nn.Module | None = None,
        splits_to_eval: Splits | None = None,
        collate_fn: Any = None,
    ) -> dict[str, dict[str, Any]]:
        """Return the accuracies of the base class by split, and the posterior's numbers.

        Raises
        ------
        InputError
            If ``fit_on`` names no split.
        """
        if isinstance(self.fit_on, str) and self.fit_on not in dataset_dict:
            raise InputError(
                f"fit_on={self.fit_on!r} is none of the splits {sorted(dataset_dict)}: pass one of "
                "them, or LaplaceTester(fit_on=data_set)."
            )
        trunk = unwrapped(trunk_model)
        plain = self.use_trunk_output or isinstance(embedder_model, (nn.Identity, type(None)))
        model = trunk if plain else nn.Sequential(trunk, unwrapped(embedder_model))
        embedders: dict[int, LaplaceEmbedder] = {}

        def batches(data: Any, level: int) -> Iterator[tuple[Any, Tensor]]:
            return self._batches(data, level, device_of(model), collate_fn)

        @cache
        def seen(name: str, level: int, ood: bool = False) -> Seen:
            """Return a split, or a set of ``ood``, as the posterior of a level sees it."""
            if level not in embedders:
                on = dataset_dict[self.fit_on] if isinstance(self.fit_on, str) else self.fit_on
                one = LaplaceEmbedder(model, **self.settings)
                embedders[level] = one.fit(batches(on, level), progress=False)
            self._embedder = embedders[level]
            data = self.ood[name] if ood else dataset_dict[name]
            return seen_by(embedders[level], batches(data, level))

        self._seen = seen
        splits = deepcopy(splits_to_eval)  # the base takes names out of it
        try:
            with own_randomness(0, device_of(model)):  # loaders draw from global states
                return super().test(
                    dataset_dict, epoch, trunk_model, embedder_model, splits, collate_fn
                )
        finally:
            self._seen = None

    def _batches(
        self, data: Any, level: int, device: torch.device, collate_fn: Any
    ) -> Iterator[tuple[Any, Tensor]]:
        """Yield ``(inputs, labels)`` of a data set, read as the base class reads it."""
        loader = common_functions.get_eval_dataloader(
            data, self.batch_size, self.dataloader_num_workers, collate_fn
        )
        for batch in loader:
            inputs, labels = self.data_and_label_getter(batch)
            if isinstance(inputs, Tensor):
                inputs = common_functions.to_device(inputs, device=device, dtype=self.dtype)
            codes = common_functions.process_label(labels, "all", self.label_mapper)
            yield inputs, codes[:, level] if codes.ndim > 1 else codes

    def do_knn_and_accuracies(
        self,
        accuracies: dict[str, Any],
        embeddings_and_labels: Any,
        query_split_name: str,
        reference_split_names: list[str],
    ) -> None:
        """Compute the accuracies of the base class, and the posterior's."""
        super().do_knn_and_accuracies(
            accuracies, embeddings_and_labels, query_split_name, reference_split_names
        )
        assert self._seen is not None
        every = []
        for level in self.label_levels:
            found = posterior_numbers(
                self._seen(query_split_name, level),
                Seen.joined([self._seen(name, level) for name in reference_split_names]),
                {name: self._seen(name, level, ood=True) for name in self.ood},
                among_them=query_split_name in reference_split_names,  # in front, as in the base
            )
            every.append(found)
            for name, value in found.items():
                accuracies[self.accuracies_keyname(name, label_hierarchy_level=level)] = value
        if len(every) > 1:
            shared = set.intersection(*map(set, every))
            self.calculate_average_accuracies(accuracies, sorted(shared), self.label_levels)

    def end_of_epoch_hook(
        self,
        dataset_dict: Mapping[str, Any],
        *,
        splits_to_eval: Splits | None = None,
        test_interval: int = 1,
        collate_fn: Any = None,
    ) -> Callable[[Any], bool]:
        """A hook for trainers that tests every so many epochs, where there is no HookContainer.

        Raises
        ------
        InputError
            For an interval below 1.
        """
        test_interval = check_count("test_interval", test_interval)

        def hook(trainer: Any) -> bool:
            if trainer.epoch % test_interval == 0:
                trunk, embedder = trainer.models["trunk"], trainer.models["embedder"]
                self.test(dataset_dict, trainer.epoch, trunk, embedder, splits_to_eval, collate_fn)
            return True

        return hook
