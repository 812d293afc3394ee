"""Loading what the options name: a model with its data, a posterior with its recipe."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from laplace_metric._utils import files
from laplace_metric.cli._output import Reporter
from laplace_metric.cli._recipe import ModelRecipe
from laplace_metric.cli.models import (
    CACHE,
    FORMS,
    FeatureFiles,
    KeptFeatures,
    LoadedModel,
    check_inputs,
    code_of,
    load_model,
)
from laplace_metric.cli.sources import ARRAYS, ReadOptions, Source, open_source
from laplace_metric.embedder import LaplaceEmbedder
from laplace_metric.errors import InputError
from laplace_metric.models import Precomputed, device_of, to_device
from laplace_metric.models.heads import APPEND, LocatedHead, find_head


@dataclass(frozen=True)
class LoadedPosterior:
    """A posterior on its model."""

    embedder: LaplaceEmbedder
    recipe: ModelRecipe
    loaded: LoadedModel | None
    kept: KeptFeatures | None = None
    """What the model gives for items; None without a model."""

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
        return source if self.kept is None else self.kept.of(source)


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
    recipe = _recipe(folder, options)
    name = options.model or recipe.model
    if recipe.model is not None and options.model is None and not options.trust_recipe:
        raise InputError(distrust(folder / ModelRecipe.KIND.index, recipe.model, "--model"))
    if name is None:
        return LoadedPosterior(LaplaceEmbedder.load(folder), recipe, None)
    reporter.note(f"model {name}, as {'told' if options.model else f'{folder} says'}")
    loaded = load_model(name, options.device)
    embedder = LaplaceEmbedder.load(folder, loaded.model)
    beside = getattr(options, "index", None) or folder
    kept = kept_features(loaded, embedder.head_, beside, options, reporter)
    return LoadedPosterior(embedder, replace(recipe, model=name), loaded, kept)


def kept_features(
    loaded: LoadedModel, head: LocatedHead, beside: Path, options: Namespace, reporter: Reporter
) -> KeptFeatures:
    """What a model gives for items, kept in --cache, or beside a folder; nowhere with --no-cache.

    Where it came from is told with the result.
    """
    files = None
    if not getattr(options, "no_cache", True):
        folder = options.cache or beside.absolute().parent / CACHE
        files = FeatureFiles(folder, reporter.note)
    kept = KeptFeatures(loaded.model, head, files, loaded.reads)
    reporter.at_end.append(kept.summary)
    return kept


def _recipe(folder: Path, options: Namespace) -> ModelRecipe:
    """What ``fit`` wrote beside the posterior; of one saved in Python, what the options say."""
    recipe, posterior = (folder / kind.index for kind in (ModelRecipe.KIND, files.POSTERIOR))
    if files.exists(recipe) or not files.exists(posterior):
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
) -> tuple[LoadedModel, str | None, Source]:
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
        return loaded, _head(options, loaded, reporter), source
    if source.kind != ARRAYS:
        raise InputError(f"{options.data} holds {source.kind}, which need a --model: {FORMS}.")
    if options.head or options.device:
        raise InputError("--head and --device need a --model.")
    return LoadedModel(Precomputed(source.read([0]).shape[1])), APPEND, source


def remembered(
    source: Source, loaded: LoadedModel, head: str | None, options: Namespace, reporter: Reporter
) -> Source:
    """The data to fit to, of which what enters the head is kept; embeddings as they are.

    Raises
    ------
    HeadError
        If there is no such head.
    """
    if isinstance(loaded.model, Precomputed):
        return source
    first = source.read(range(min(2, options.batch_size, len(source))))
    found = find_head(loaded.model, to_device(first, device_of(loaded.model)), head)
    return kept_features(loaded, found, options.output, options, reporter).of(source)


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
