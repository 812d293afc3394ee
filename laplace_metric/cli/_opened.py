"""What later commands need to know of a fit: the model's name, and how its inputs are read.

Opening what the options name: a model with its data, a posterior with its recipe.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from torch import nn

from laplace_metric._utils import files
from laplace_metric.cli._models import FORMS, LoadedModel, check_takes, load_model
from laplace_metric.cli._output import Reporter
from laplace_metric.cli.sources import ARRAYS, ReadOptions, Source, open_source
from laplace_metric.embedder import LaplaceEmbedder
from laplace_metric.errors import FileFormatError, InputError
from laplace_metric.models import Precomputed
from laplace_metric.models.heads import APPEND

KIND = files.FileKind("recipe", "a posterior of the command line", 1)


@dataclass(frozen=True)
class ModelRecipe:
    """Kept beside a posterior.

    Parameters
    ----------
    model : str or None
        As ``--model`` took it; None: the data are embeddings.
    head : str or None
    kind : str
        Of the inputs: images, texts, arrays.
    reading : dict
        Fields of ``ReadOptions`` that decide what an input looks like.
    """

    model: str | None
    head: str | None
    kind: str
    reading: dict[str, Any]

    def write(self, folder: Path) -> None:
        """Make it the recipe of ``folder``."""
        files.write(folder, asdict(self), {}, KIND)

    @classmethod
    def read(cls, folder: Path) -> ModelRecipe:
        """What ``write`` wrote.

        Raises
        ------
        FileFormatError
            If there is none, or it is damaged.
        """
        content, _ = files.read(folder, KIND)
        try:
            return cls(**{name: content[name] for name in cls.__dataclass_fields__})
        except KeyError as error:
            raise FileFormatError(f"{folder / KIND.index} is damaged: no {error}.") from error


@dataclass(frozen=True)
class LoadedPosterior:
    """A posterior on its model."""

    embedder: LaplaceEmbedder
    recipe: ModelRecipe
    named: LoadedModel | None

    def source(self, path: Path, options: Namespace, voice: Reporter) -> Source:
        """Data that are read as those of the fit were, unless options say otherwise.

        Raises
        ------
        InputError
            If they are of another kind, or the model does not take them.
        """
        reading = ReadOptions(**{**self.recipe.reading, **told(options)})
        source = _opened(path, reading, self.named, voice)
        if source.kind != self.recipe.kind:
            raise InputError(
                f"{path} holds {source.kind}, the posterior was fitted to {self.recipe.kind}."
            )
        if self.named is not None and self.recipe.model is not None:
            check_takes(self.recipe.model, self.named.model, source.read([0]))
        return source


def open_posterior(folder: Path, options: Namespace, voice: Reporter) -> LoadedPosterior:
    """A posterior that ``fit`` wrote, on the model of its recipe (or of --model).

    Raises
    ------
    FileFormatError, InputError
        If there is none, or its head is not that of the model.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder: give one that laplace-metric fit wrote.")
    recipe = ModelRecipe.read(folder)
    name = options.model or recipe.model
    if name is None:
        return LoadedPosterior(LaplaceEmbedder.load(folder), recipe, None)
    voice.note(f"model {name}, as {'told' if options.model else f'{folder} says'}")
    named = load_model(name, options.device)
    return LoadedPosterior(
        LaplaceEmbedder.load(folder, named.model), replace(recipe, model=name), named
    )


def model_and_data(options: Namespace, voice: Reporter) -> tuple[nn.Module, str | None, Source]:
    """The model to fit, its head, and the data to fit it to.

    Raises
    ------
    InputError
        If either is missing, or the model does not take the data.
    """
    named = None if options.model is None else load_model(options.model, options.device)
    source = _opened(options.data, ReadOptions(**told(options)), named, voice)
    if named is not None:
        check_takes(options.model, named.model, source.read([0]))
        return named.model, _head(options, named, voice), source
    if source.kind != ARRAYS:
        raise InputError(f"{options.data} holds {source.kind}, which need a --model: {FORMS}.")
    if options.head or options.device:
        raise InputError("--head and --device need a --model.")
    return Precomputed(source.read([0]).shape[1]), APPEND, source


def _head(options: Namespace, named: LoadedModel, voice: Reporter) -> str | None:
    if options.head is None and named.head is not None:
        voice.note(f"head {named.head!r}: a new linear layer behind {options.model}")
    return options.head or named.head


def told(options: Namespace) -> dict[str, Any]:
    """What options say of how to read the data."""
    names = {field.name for field in fields(ReadOptions)} - {"transform"}
    return {name: value for name in sorted(names) if (value := getattr(options, name))}


def _opened(path: Path, reading: ReadOptions, named: LoadedModel | None, voice: Reporter) -> Source:
    transform = None if named is None else named.transform
    if transform is not None and reading.size is not None:
        raise InputError("--size: this model comes with a transform, which sets the size.")
    return open_source(path, replace(reading, transform=transform), voice.note)
