"""A posterior of a file, with its model and how its inputs are read."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass, replace
from pathlib import Path

from laplace_metric import io as files
from laplace_metric.cli._model_recipe import ModelRecipe, _recipe, distrust, read_options_of
from laplace_metric.cli._models import FORM, LoadedModel, check_inputs, load_model
from laplace_metric.cli._open_source import open_source
from laplace_metric.cli._reporter import Reporter
from laplace_metric.cli._source import ARRAYS, ReadOptions, Source
from laplace_metric.embedder import LaplaceEmbedder
from laplace_metric.errors import InputError
from laplace_metric.heads._located import APPEND
from laplace_metric.models import Precomputed

# Loading what the options name: a model with its data, a posterior with its recipe.


@dataclass(frozen=True)
class LoadedPosterior:
    """A posterior on its model."""

    embedder: LaplaceEmbedder
    recipe: ModelRecipe
    loaded: LoadedModel | None

    def source(self, path: Path, options: Namespace, reporter: Reporter) -> Source:
        """Return data, read as those of the fit were unless options differ.

        Raises
        ------
        InputError
            If they are of another kind, or the model does not take them.
        """
        read_options = ReadOptions(**{**self.recipe.read_options, **read_options_of(options)})
        return self.checked(_read_source(path, read_options, self.loaded, reporter))

    def checked(self, source: Source) -> Source:
        """Return the same items, checked.

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


def load_model_and_data(
    options: Namespace, reporter: Reporter
) -> tuple[LoadedModel, str | None, Source]:
    """Return the model to fit, its head, and the data.

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


def _read_source(
    path: Path, options: ReadOptions, loaded: LoadedModel | None, reporter: Reporter
) -> Source:
    return open_source(path, options if loaded is None else loaded.reading(options), reporter.note)
