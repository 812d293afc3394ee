"""Measures of a posterior while a model trains: plain numbers, by name.

``r_auroc_s``: the chance that a query whose nearest neighbour is wrong has the larger score s than
one whose is right. ``ausc_s``: area under the share of right answers as the queries with the
largest s are left out. ``ood_auroc_NAME``: the chance that an input of another data set has the
larger score than a query. Scores s: ``epistemic``, where the fit keeps it, and ``uncertainty``.

A callback of Lightning that fits a posterior after training, or every few epochs.

Lightning is not needed to import this, only to make a callback; both of its packages do.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

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
from laplace_metric.models._calling import device_of, labelled_batches


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
