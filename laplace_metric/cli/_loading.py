"""What is saved with a posterior: its model, how inputs are read, which data were fitted."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_type_hints

import torch

from laplace_metric import io as files
from laplace_metric.cli._models import FORM, LoadedModel, check_inputs, code_of, load_model
from laplace_metric.cli._options import MOST_SIDE
from laplace_metric.cli._reporter import Reporter
from laplace_metric.cli._sources import ARRAYS, IMAGES, TEXTS, ReadOptions, Source, open_source
from laplace_metric.errors import FileFormatError, InputError
from laplace_metric.heads._located import APPEND
from laplace_metric.laplace._saved_posterior import POSTERIOR
from laplace_metric.laplace_embedder import LaplaceEmbedder
from laplace_metric.models import Precomputed

Record = TypeVar("Record", bound="SavedRecord")


_READ_OPTIONS = get_type_hints(ReadOptions)
del _READ_OPTIONS["transform"], _READ_OPTIONS["labels"]  # which no file holds
_RANGES: dict[str, Callable[[Any], bool]] = {
    "size": lambda x: 0 < x <= MOST_SIDE,
    "channels": lambda x: x in (1, 3),
    "kind": lambda x: x in (IMAGES, TEXTS, ARRAYS),
    "holdout": lambda x: 0 < x < 1,
    "seed": lambda x: 0 <= x < 2**63,
    "read_options": lambda x: all(name in _READ_OPTIONS and _fits(name, x[name]) for name in x),
}
"""Values of a file that are allowed, beyond the type of their field; None where it may be."""


def _fits(name: str, value: Any, hint: Any = None) -> bool:
    """Return whether a value of a file is of the type and in the range of its field."""
    kind = hint or _READ_OPTIONS[name]
    if not isinstance(value, kind):
        return False
    if isinstance(value, bool):  # which Python takes for a whole number
        return kind is bool
    return value is None or _RANGES.get(name, lambda _: True)(value)


@dataclass(frozen=True, kw_only=True)
class SavedRecord:
    """Values that are saved in the file of what they describe; data of Python are not known.

    Parameters
    ----------
    data : str or None
        Path of the data that it was made of, as it was resolved. None: not known.
    holdout : float or None
        Share of the data that was left out, see ``split_rows``.
    seed : int
        Of that split.
    read_options : dict
        Fields of ``ReadOptions``: how the inputs are read.
    """

    KIND: ClassVar[files.Kind]

    data: str | None = None
    holdout: float | None = None
    seed: int = 0
    read_options: dict[str, Any] = field(default_factory=dict)

    def split(self, n: int) -> tuple[list[int], list[int], list[int]]:
        """Rows of the items that were taken, and of those to calibrate and to evaluate with."""
        return split_rows(n, self.holdout, self.seed)

    def part(self) -> files.Part:
        """Return it as a part of a file."""
        return files.Part(self.KIND, asdict(self))

    @classmethod
    def read(cls: type[Record], saved: files.SavedFile) -> Record:
        """Read what ``part`` returned.

        Raises
        ------
        FileFormatError
            If the file has none, or it is damaged.
        """
        content, path = saved.part(cls.KIND).content, saved.path
        hints = get_type_hints(cls) | {"read_options": dict}
        names = [each.name for each in fields(cls)]
        for name in names:
            if name not in content:
                raise FileFormatError(f"{path} is damaged: {cls.KIND.name} has no {name!r}.")
            if not _fits(name, content[name], hints[name]):
                raise FileFormatError(
                    f"{path} is damaged: {cls.KIND.name}.{name} is {content[name]!r:.60}."
                )
        return cls(**{name: content[name] for name in names})


@dataclass(frozen=True, kw_only=True)
class ModelRecipe(SavedRecord):
    """The model of a posterior, how its inputs are read, what it was fitted to: for later commands.

    Parameters
    ----------
    model : str or None
        As ``--model`` took it; None: the data are embeddings.
    head : str or None
    kind : str or None
        Of the inputs: images, texts, arrays. None: not known, of a posterior saved in Python.
    fingerprint : str
        Of all of the data.
    """

    KIND = files.Kind("recipe", "a posterior of the command line", 2)

    model: str | None = None
    head: str | None = None
    kind: str | None = None
    fingerprint: str = ""

    def read_as(self, source: Source) -> ModelRecipe:
        """The same, which reads other data as ``source`` was read, where that was not known."""
        if self.kind is not None:
            return self
        return replace(self, kind=source.kind, read_options=source.options)

    def left_out(self, source: Source, options: Namespace) -> tuple[Source, Source] | None:
        """Return the part of ``source`` that the fit left out, to calibrate and to evaluate with.

        None for other data, and for those of the fit where --allow-fitted is given.

        Raises
        ------
        InputError
            If the fit left nothing out.
        """
        if source.fingerprint != self.fingerprint:
            return None
        if self.holdout is not None:
            _, first, second = self.split(len(source))
            return source.take(first), source.take(second)
        if options.allow_fitted:
            return None
        raise InputError(
            f"{source.path} is what the posterior was fitted to, all of it: the posterior is surer "
            f"of these items than of new ones, so that nothing learnt or measured with them holds. "
            f"{REMEDY}"
        )


def split_rows(n: int, holdout: float | None, seed: int) -> tuple[list[int], list[int], list[int]]:
    """Rows of the items to fit and to index, to calibrate with, and to evaluate with.

    Examples
    --------
    >>> parts = split_rows(8, 0.5, 0)
    >>> [len(rows) for rows in parts], sorted(sum(parts, []))
    ([4, 2, 2], [0, 1, 2, 3, 4, 5, 6, 7])
    """
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist()
    n_held_out = round(n * (holdout or 0.0))
    first, second = n - n_held_out, n - n_held_out // 2
    return sorted(order[:first]), sorted(order[first:second]), sorted(order[second:])


REMEDY = (
    "Give other data; or fit with --holdout 0.4, and index, evaluate and report follow its split; "
    "or --allow-fitted, to go on all the same."
)


# Loading what the options name: a model with its data, a posterior with its recipe.


@dataclass(frozen=True)
class LoadedPosterior:
    """A posterior on its model."""

    embedder: LaplaceEmbedder
    recipe: ModelRecipe
    loaded: LoadedModel | None

    def source(self, path: Path, options: Namespace, reporter: Reporter) -> Source:
        """Data, read as those of the fit were unless options say otherwise.

        Raises
        ------
        InputError
            If they are of another kind, or the model does not take them.
        """
        read_options = ReadOptions(**{**self.recipe.read_options, **read_options_of(options)})
        return self.checked(_read_source(path, read_options, self.loaded, reporter))

    def checked(self, source: Source) -> Source:
        """The same items.

        Raises
        ------
        InputError
            If they are of another kind than those of the fit, or the model does not take them.
        """
        if self.recipe.kind not in (None, source.kind):
            raise InputError(
                f"{source.path} holds {source.kind}, the posterior was fitted to "
                f"{self.recipe.kind}."
            )
        if self.loaded is not None and self.recipe.model is not None:
            check_inputs(self.recipe.model, self.loaded.model, source.read([0]))
        return source


def load_posterior(path: Path, options: Namespace, reporter: Reporter) -> LoadedPosterior:
    """Load what ``fit`` or ``LaplaceEmbedder.save`` wrote; see ``read_posterior``.

    Raises
    ------
    InputError
        If there is no such file; as ``read_posterior``.
    FileFormatError
        As ``read_posterior``.
    """
    if not path.exists():
        raise InputError(f"{path} does not exist: give a file that laplace-metric fit wrote.")
    return read_posterior(files.SavedFile(path), options, reporter)


def read_posterior(
    saved: files.SavedFile, options: Namespace, reporter: Reporter
) -> LoadedPosterior:
    """Return the posterior of a file, on the model of its recipe or of --model.

    Raises
    ------
    InputError
        If the recipe is not trusted, or the model cannot be loaded.
    FileFormatError
        If the file holds no posterior, or its head is not that of the model.
    """
    recipe, path = _recipe(saved, options), saved.path
    name = options.model or recipe.model
    if recipe.model is not None and options.model is None and not options.trust_recipe:
        raise InputError(distrust(path, recipe.model, "--model"))
    if name is None:
        return LoadedPosterior(LaplaceEmbedder._of(saved, None), recipe, None)
    reporter.note(f"model {name}, as {'told' if options.model else f'{path} says'}")
    loaded = load_model(name, options.device)
    embedder = LaplaceEmbedder._of(saved, loaded.model)
    return LoadedPosterior(embedder, replace(recipe, model=name), loaded)


def _recipe(saved: files.SavedFile, options: Namespace) -> ModelRecipe:
    """Read the recipe of ``fit`` in the file of the posterior, else use the options."""
    head = saved.part(POSTERIOR).content.get("head")
    if ModelRecipe.KIND.name in saved:
        return ModelRecipe.read(saved)
    if options.model is not None:
        return ModelRecipe(model=options.model)
    if not isinstance(head, dict) or head.get("name") != APPEND:
        raise InputError(
            f"{saved.path} was saved in Python, which does not keep the model: name it with "
            f"--model: {FORM}."
        )
    return ModelRecipe(kind=ARRAYS)


def distrust(path: Path, model: str, option: str) -> str:
    """Why a model that a file names is not run, and what to do."""
    return (
        f"{path} names the model {model!r}: {code_of(model)}. Whoever wrote the file chose that "
        f"code. Give --trust-recipe to run it, or name a model yourself with {option}."
    )


def load_model_and_data(
    options: Namespace, reporter: Reporter
) -> tuple[LoadedModel, str | None, Source]:
    """The model to fit, its head, and the data.

    Raises
    ------
    InputError
        If either is missing, or the model does not take the data.
    HeadError
        If there is no such head.
    """
    loaded = None if options.model is None else load_model(options.model, options.device)
    read_options = ReadOptions(**read_options_of(options))
    source = _read_source(options.data, read_options, loaded, reporter)
    if loaded is None:
        if source.kind != ARRAYS:
            raise InputError(f"{options.data} holds {source.kind}, which need a --model: {FORM}.")
        if options.head or options.device:
            raise InputError("--head and --device need a --model.")
        return LoadedModel(Precomputed(source.read([0]).shape[1])), APPEND, source
    check_inputs(options.model, loaded.model, source.read([0]))
    return loaded, options.head, source


def read_options_of(options: Namespace) -> dict[str, Any]:
    """The fields of ``ReadOptions`` that the command line sets."""
    names = {field.name for field in fields(ReadOptions)} - {"transform"}
    return {name: value for name in sorted(names) if (value := getattr(options, name))}


def _read_source(
    path: Path, options: ReadOptions, loaded: LoadedModel | None, reporter: Reporter
) -> Source:
    return open_source(path, options if loaded is None else loaded.reading(options), reporter.note)
