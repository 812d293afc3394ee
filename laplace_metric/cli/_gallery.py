"""The file of an index: all that a search needs except the model.

    index                the index itself, see ``search``
    gallery              where its items came from, and which of them were held out
    posterior, recipe    a copy of the posterior, and its model

``Index.save`` writes the first alone: its posterior is --posterior then. ``Guard.save`` writes the
posterior, too.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from laplace_metric import io as files
from laplace_metric.calibration._calibrated import LEAST
from laplace_metric.cli._image_source import root_of
from laplace_metric.cli._loaded_posterior import LoadedPosterior, load_posterior, read_posterior
from laplace_metric.cli._open_source import open_source
from laplace_metric.cli._pictures import Pictures
from laplace_metric.cli._records import SavedRecord
from laplace_metric.cli._reporter import Reporter
from laplace_metric.cli._source import TEXTS, ReadOptions, Source
from laplace_metric.errors import FileFormatError, InputError, LabelError, LaplaceMetricError
from laplace_metric.laplace._saved_posterior import POSTERIOR
from laplace_metric.search import Index
from laplace_metric.search._storage import INDEX

LONGEST = 1_000
"""Characters of a text that an answer shows; the last says that there are more."""
CALIBRATE = (
    f"Calibrating takes at least {LEAST} labelled items: of other data (--calibrate), of the index "
    f"itself (--cross-fit 5), or held out by fit (--holdout 0.4, of {5 * LEAST} items or more)"
)


@dataclass(frozen=True, kw_only=True)
class Origin(SavedRecord):
    """The data that an index was built from: of ``Index.save`` in Python, none are known.

    Parameters
    ----------
    fingerprint : str
        Fingerprint of all of the data.
    calibrated_with : str or None
        Fingerprint of the data of --calibrate.
    embedder : str or None
        Hash of the posterior of the index: a file of another index is refused.
    """

    KIND = files.Kind("gallery", "an index of the command line", 2)

    fingerprint: str = ""
    calibrated_with: str | None = None
    embedder: str | None = None


@dataclass(frozen=True)
class LoadedIndex:
    """An index with its posterior and its origin."""

    index: Index
    posterior: LoadedPosterior
    origin: Origin
    named: tuple[Path, ...] = ()
    """Places that the command line names; the images of items are read below them alone."""
    told: Path | None = None
    """Where --data says that the items lie."""

    def item_data(self) -> Path:
        """Return the path of the data that were indexed, as --data or the index names it.

        Raises
        ------
        InputError
            If neither does.
        """
        if self.told is None and self.origin.data is None:
            raise InputError(
                "the items are needed, and an index saved in Python does not keep where they are. "
                "Give --data, or index with laplace-metric."
            )
        return self.told or Path(str(self.origin.data))

    def item_pictures(self) -> Pictures:
        """Return the images of the items.

        They lie below the data, unless a table that the command line names lists them elsewhere.

        Raises
        ------
        InputError
            If the index keeps no place, or one that the command line does not name.
        """
        path = self.item_data().resolve()
        named = [place.resolve() for place in (self.named if self.told is None else (self.told,))]
        if not any(path.is_relative_to(place) for place in named):
            listed = " or ".join(map(str, self.named))
            raise InputError(
                f"{self.named[0]} says that the items lie in {path}, which is "
                f"not below {listed}. Whoever wrote that file chose the place: to read images "
                f"there, give --data {path}."
            )
        listed_there = path.is_file() and path in named
        inside = not (listed_there and set(self.index.ids.tolist()) <= set(self._opened(path).ids))
        return Pictures(root_of(path), self.index.ids, inside)

    def _opened(self, path: Path) -> Source:
        options = {**self.posterior.recipe.read_options, **self.origin.read_options}
        return open_source(path, ReadOptions(**options))

    def items(self) -> Source:
        """Return the data that were indexed, as they are now.

        Raises
        ------
        InputError
            If they are not known, gone, or have changed.
        """
        source = self._opened(self.item_data())
        if self.origin.data is not None and source.fingerprint != self.origin.fingerprint:
            raise InputError(f"{source.path} has changed since the index was built from it.")
        return source

    def item_texts(self, reporter: Reporter) -> Mapping[Any, str]:
        """Return the text of each id; empty for images, arrays, and a table that has changed."""
        if self.origin.data is None or self.posterior.recipe.kind != TEXTS:
            return {}
        try:
            texts = self.items().texts()
        except (LaplaceMetricError, OSError) as error:
            reporter.note(f"the texts of the items are not shown: {error}")
            return {}
        return {name: excerpt(texts[name]) for name in self.index.ids.tolist() if name in texts}

    def queries(self, path: Path, options: Namespace, reporter: Reporter) -> Source:
        """Return data to evaluate with; of the data of the index or the fit, the held-out part.

        Raises
        ------
        InputError
            If these are the items of the index themselves, of the fit, or what calibrated it.
        """
        source = self.posterior.source(path, options, reporter)
        if self.origin.data is None:
            reporter.note(
                "the index was saved in Python, which does not keep what it was built from: none "
                f"of {path} should be among its items, nor have calibrated it"
            )
            return source
        if source.fingerprint == self.origin.calibrated_with:
            raise InputError(
                f"{path} calibrated the index, which would look better on it than it is. Give "
                "other data."
            )
        if source.fingerprint != self.origin.fingerprint:
            if str(path.resolve()) == self.origin.data:
                raise InputError(
                    f"{path} has changed since the index was built from it, so that its items "
                    "would find themselves. Build the index again, or give other data."
                )
            left_out = self.posterior.recipe.left_out(source, options)
            if left_out is None:
                return source
            reporter.note(f"{path}: only the {len(left_out[1]):,} items that the fit kept for this")
            return left_out[1]
        rows = self.origin.split(len(source))[2]
        if not rows:
            raise InputError(
                f"{path} holds the items of the index themselves, which would find themselves. "
                "Give other data, or fit with --holdout 0.4."
            )
        reporter.note(
            f"{path} is what the index was built from: only the {len(rows):,} items are queries "
            "that were neither indexed nor used to calibrate"
        )
        return source.take(rows)

    def classes_of(self, source: Source) -> Sequence[str] | list[int] | None:
        """Return the classes of queries as the index has its labels, which may be numbers.

        Raises
        ------
        LabelError
            If the labels of the index are numbers, and these are not.
        """
        labels = self.index.labels
        if source.classes is None or labels is None or labels.dtype.kind != "i":
            return source.classes
        try:
            return [int(name) for name in source.classes]
        except ValueError as error:
            raise LabelError(
                f"{source.path} has classes such as {source.classes[0]!r}, but the labels of the "
                "index are whole numbers. Give the same numbers as classes, or index with names."
            ) from error


def load_gallery(path: Path, options: Namespace, reporter: Reporter) -> LoadedIndex:
    """Load a file of ``laplace-metric index``, or of ``Index.save`` with --posterior.

    Raises
    ------
    InputError
        If there is no such file.
    FileFormatError
        If it holds no index, or is damaged.
    """
    if not path.exists():
        raise InputError(f"{path} does not exist: give a file that laplace-metric index wrote.")
    saved = files.SavedFile(path)
    saved.part(INDEX)  # another file is named before its model is loaded
    origin = Origin.read(saved) if Origin.KIND.name in saved else Origin()
    posterior = _posterior_of(saved, options, reporter)
    index = Index._of(saved, posterior.embedder)
    if origin.embedder not in (None, index.encoder.identity):
        raise FileFormatError(f"{path} is damaged: its gallery is of another index.")
    told: Path | None = getattr(options, "item_data", None)
    paths = (getattr(options, name, None) for name in ("data", "queries"))
    return LoadedIndex(index, posterior, origin, (path, *filter(None, paths)), told)


def _posterior_of(
    saved: files.SavedFile, options: Namespace, reporter: Reporter
) -> LoadedPosterior:
    """Load the posterior of an index: as given, else that of its file."""
    told: Path | None = getattr(options, "posterior", None)
    if told is not None:
        return load_posterior(told, options, reporter)
    if POSTERIOR.name in saved:
        return read_posterior(saved, options, reporter)
    raise InputError(
        f"{saved.path} was saved in Python, without its posterior: give --posterior FILE, which "
        "embedder.save or laplace-metric fit wrote, and --model."
    )


def excerpt(text: str, longest: int = LONGEST) -> str:
    """Return at most so many characters.

    Examples
    --------
    >>> len(excerpt("x" * 2_000)), excerpt("x" * 2_000)[-2:], excerpt("short")
    (1000, 'x…', 'short')
    """
    return text if len(text) <= longest else text[: longest - 1] + "…"
