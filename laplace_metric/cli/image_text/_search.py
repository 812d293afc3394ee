"""``laplace-metric image-text search``: images by texts, texts by images, and how sure each is."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from laplace_metric._utils import files
from laplace_metric._utils.files import write_atomically
from laplace_metric.cli._output import Reporter
from laplace_metric.cli._search import (
    ImageFiles,
    columns_of,
    picture_of,
    promised_of,
    reporter_of_answers,
    tell_answers,
)
from laplace_metric.cli.image_text._towers import (
    IMAGES,
    TEXTS,
    ImageReader,
    PairsRecipe,
    encoded_by,
    text_encoder,
)
from laplace_metric.cli.models import load_model
from laplace_metric.cli.sources import OPTIONS, Pixels
from laplace_metric.errors import InputError
from laplace_metric.image_text import ImageTextEmbedder
from laplace_metric.models import Precomputed
from laplace_metric.search import INDEX, Index


@dataclass(frozen=True)
class LoadedPairs:
    """What ``image-text fit`` wrote: heads, an index of one side, and how it came about."""

    index: Index
    recipe: PairsRecipe
    folder: Path

    @classmethod
    def read(cls, folder: Path, side: str) -> LoadedPairs:
        """The index of ``side``, which the other side asks.

        Raises
        ------
        InputError
            If there is no such folder.
        FileFormatError
            If it holds something else, or is damaged.
        """
        if not folder.is_dir():
            raise InputError(f"{folder} is not a folder: give one that image-text fit wrote.")
        paths = [folder / PairsRecipe.KIND.index, folder / side / INDEX.index]

        def load() -> LoadedPairs:
            recipe = PairsRecipe.read(folder)
            embedder = ImageTextEmbedder.load(folder, Precomputed(), Precomputed())
            return cls(Index.load(folder / side, embedder), recipe, folder)

        return files.settled_together(paths, load)

    @property
    def photographs(self) -> Path:
        """The folder that names of images are seen from."""
        return Path(self.recipe.data).parent


def search_pairs(options: Namespace) -> None:
    """Search, show, write."""
    reporter = reporter_of_answers(options)
    if bool(options.text) == bool(options.image):
        raise InputError("give --text, which finds images, or --image, which finds texts.")
    if any(not text.strip() for text in options.text):
        raise InputError("--text is empty: give a text.")
    loaded = LoadedPairs.read(options.folder, IMAGES if options.text else TEXTS)
    k, threshold = min(options.k, len(loaded.index)), promised_of(loaded.index, options, reporter)
    with reporter.warnings():
        result = loaded.index.search(_queries(loaded, options, reporter), k)
    names = options.text or [str(path) for path in options.image]
    if options.picture is not None:
        shown = _shown(loaded, names, options)
        write_atomically(options.picture, picture_of(result, *shown))
    columns = columns_of(result, names, threshold)
    tell_answers(columns, len(names), Namespace(**{**vars(options), "k": k}), reporter)


def _queries(loaded: LoadedPairs, options: Namespace, reporter: Reporter) -> Any:
    """Features of the texts, or of the images."""
    recipe, size = loaded.recipe, options.batch_size
    name = recipe.trusted(loaded.folder, options, TEXTS if options.text else IMAGES)
    if options.text:
        texts = text_encoder(name, options.device)
        return encoded_by(texts, options.text, size, TEXTS, reporter)
    model = load_model(name, options.device)
    how = recipe.read_options
    pixels = Pixels(Path(), how["size"], how["channels"], model.transform, remedies=OPTIONS)
    paths = [str(path) for path in options.image]
    return encoded_by(ImageReader(model.model, pixels), paths, size, IMAGES, reporter)


def _shown(
    loaded: LoadedPairs, names: Sequence[str], options: Namespace
) -> tuple[Sequence[Any], Sequence[Any]]:
    """Queries and items of the picture: texts, or images that are read when they are shown."""
    items = loaded.index.ids.tolist()
    if options.text:
        return names, ImageFiles(loaded.photographs, items)
    return ImageFiles(Path(), names), items
