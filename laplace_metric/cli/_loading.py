"""Loading what the options name: a model with its data, a posterior with its recipe."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from torch import nn

from laplace_metric._utils import files
from laplace_metric.cli._output import Reporter
from laplace_metric.cli._recipe import ModelRecipe
from laplace_metric.cli.models import FORMS, LoadedModel, check_inputs, code_of, load_model
from laplace_metric.cli.sources import ARRAYS, ReadOptions, Source, open_source
from laplace_metric.embedder import LaplaceEmbedder
from laplace_metric.errors import InputError
from laplace_metric.models import Precomputed
from laplace_metric.models.heads import APPEND


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


def load_posterior(folder: Path, options: Namespace, reporter: Reporter) -> LoadedPosterior:
    """A posterior that ``fit`` or ``LaplaceEmbedder.save`` wrote, on its recipe's model or --model.

    Raises
    ------
    InputError
        If there is no such folder, the recipe is not trusted, or the model cannot be loaded.
    FileFormatError
        If it holds no posterior, or its head is not that of the model.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder: give one that laplace-metric fit wrote.")
    files.finish_renames(folder)
    recipe = _recipe(folder, options)
    name = options.model or recipe.model
    if recipe.model is not None and options.model is None and not options.trust_recipe:
        raise InputError(distrust(folder / ModelRecipe.KIND.index, recipe.model, "--model"))
    if name is None:
        return LoadedPosterior(LaplaceEmbedder.load(folder), recipe, None)
    reporter.note(f"model {name}, as {'told' if options.model else f'{folder} says'}")
    loaded = load_model(name, options.device)
    embedder = LaplaceEmbedder.load(folder, loaded.model)
    return LoadedPosterior(embedder, replace(recipe, model=name), loaded)


def _recipe(folder: Path, options: Namespace) -> ModelRecipe:
    """What ``fit`` wrote beside the posterior; of one saved in Python, what the options say."""
    if (folder / ModelRecipe.KIND.index).exists() or not (folder / files.POSTERIOR.index).exists():
        return ModelRecipe.read(folder)
    if options.model is not None:
        return ModelRecipe.of_python(options.model, None)
    head = files.read_index(folder, files.POSTERIOR).get("head")
    if not isinstance(head, dict) or head.get("name") != APPEND:
        raise InputError(
            f"{folder} was saved in Python, which does not keep the model: name it with --model: "
            f"{FORMS}."
        )
    return ModelRecipe.of_python(None, ARRAYS)


def distrust(path: Path, model: str, option: str) -> str:
    """Why a model that a file names is not run, and what to do."""
    return (
        f"{path} names the model {model!r}: {code_of(model)}. Whoever wrote the folder chose that "
        f"code. Give --trust-recipe to run it, or name a model yourself with {option}."
    )


def load_model_and_data(
    options: Namespace, reporter: Reporter
) -> tuple[nn.Module, str | None, Source]:
    """The model to fit, its head, and the data to fit it to.

    Raises
    ------
    InputError
        If either is missing, or the model does not take the data.
    """
    loaded = None if options.model is None else load_model(options.model, options.device)
    read_options = ReadOptions(**read_options_of(options))
    source = _read_source(options.data, read_options, loaded, reporter)
    if loaded is not None:
        check_inputs(options.model, loaded.model, source.read([0]))
        return loaded.model, _head(options, loaded, reporter), source
    if source.kind != ARRAYS:
        raise InputError(f"{options.data} holds {source.kind}, which need a --model: {FORMS}.")
    if options.head or options.device:
        raise InputError("--head and --device need a --model.")
    return Precomputed(source.read([0]).shape[1]), APPEND, source


def _head(options: Namespace, loaded: LoadedModel, reporter: Reporter) -> str | None:
    if options.head is None and loaded.head is not None:
        reporter.note(f"head {loaded.head!r}: a new linear layer behind {options.model}")
    return options.head or loaded.head


def read_options_of(options: Namespace) -> dict[str, Any]:
    """The fields of ``ReadOptions`` that the command line sets."""
    names = {field.name for field in fields(ReadOptions)} - {"transform"}
    return {name: value for name in sorted(names) if (value := getattr(options, name))}


def _read_source(
    path: Path, options: ReadOptions, loaded: LoadedModel | None, reporter: Reporter
) -> Source:
    transform = None if loaded is None else loaded.transform
    if transform is not None and options.size is not None:
        raise InputError("--size: this model comes with a transform, which sets the size.")
    return open_source(path, replace(options, transform=transform), reporter.note)
