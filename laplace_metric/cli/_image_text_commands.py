"""``laplace-metric image-text fit``: heads on the pairs of a table, and an index of both sides.

A share of the images and a share of the texts are in no pair of the fit. Both indices hold
everything; that of images is calibrated by the texts that were left out, as new texts will ask it,
that of texts by the images that were left out, as new images will.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from laplace_metric import io as files
from laplace_metric.cli._image_text import (
    IMAGES,
    TEXTS,
    HeldOut,
    ImageReader,
    PairsRecipe,
    encoded_by,
    fit_part,
    pairs_of,
    read_captions,
    say_if_one_to_one,
    text_encoder,
)
from laplace_metric.cli._models import check_inputs, load_model
from laplace_metric.cli._output import Reporter, discard, reporter_of, require_folder, require_new
from laplace_metric.cli._parser import RUN, run_text
from laplace_metric.cli._search import (
    ImageFiles,
    columns_of,
    picture_of,
    promised_of,
    reporter_of_answers,
    tell_answers,
)
from laplace_metric.cli.sources import OPTIONS, Pixels, ReadOptions, readable_images
from laplace_metric.errors import InputError
from laplace_metric.image_text import ImageTextEmbedder, ImageTextPairs
from laplace_metric.io import write_atomically
from laplace_metric.models import Precomputed
from laplace_metric.search import Index
from laplace_metric.search._storage import INDEX

CHECKPOINT = ".checkpoint"
DROPOUT = 0.3


@dataclass(frozen=True)
class EncodedPairs:
    """Names of images and texts that belong together, and the features of both [N, F], [M, F']."""

    named: ImageTextPairs
    images: Tensor
    texts: Tensor


def fit_pairs(options: Namespace) -> None:
    """Read, encode, train, index, calibrate, save; interrupted, training goes on."""
    reporter, folder, began = reporter_of(options), options.output, time.monotonic()
    require_folder(folder)
    require_new(folder / PairsRecipe.KIND.index, overwrite=options.overwrite, named=folder)
    with reporter.warnings():
        encoded, read_options = _encoded(options, reporter)
        seconds = {"reading and encoding": time.monotonic() - began}
        held = HeldOut.of(encoded.named, options.holdout, options.seed)
        pairs = fit_part(encoded.named, held, encoded.images, encoded.texts)
        settings = {"objective": options.objective, "dropout": DROPOUT}
        embedder = ImageTextEmbedder(Precomputed(), Precomputed(), options.dim, **settings)
        how: dict[str, Any] = {"learning_rate": options.learning_rate, "generator": options.seed}
        checkpoint = files.refuse_link(folder / CHECKPOINT)
        how |= {"checkpoint": checkpoint, "progress": reporter.progress}
        began = time.monotonic()
        embedder.fit(pairs, epochs=options.epochs, **how)
        seconds["training"], began = time.monotonic() - began, time.monotonic()
        indices = _indices(embedder, encoded, held, reporter)
    data = str(options.data.resolve())
    models = options.model, options.text_model
    recipe = PairsRecipe(*models, read_options, data, options.holdout, options.seed)
    with files.together(folder):
        recipe.write(folder)
        embedder.save(folder)
        for side, index in indices.items():
            index.save(folder / side)
    write_atomically(folder / RUN, run_text(options))
    seconds["indexing and calibrating"] = time.monotonic() - began
    discard(checkpoint)
    _tell(encoded.named, pairs, indices, seconds, options, reporter)


def _encoded(options: Namespace, reporter: Reporter) -> tuple[EncodedPairs, dict[str, Any]]:
    """And how the images were read."""
    path, size = options.data, options.batch_size
    rows = read_captions(path, options.image_column, options.text_column)
    loaded = load_model(options.model, options.device)
    if loaded.transform is not None and options.size is not None:
        raise InputError("--size: this model comes with a transform, which sets the size.")
    how = ReadOptions(
        options.size, options.channels, options.skip_unreadable, transform=loaded.transform
    )
    names = list(dict.fromkeys(image for image, _ in rows))
    pixels, names = readable_images(path.parent, names, how, reporter.note)
    check_inputs(options.model, loaded.model, pixels.batch(names[:1]))
    texts = text_encoder(options.text_model, options.device)
    named = pairs_of(rows, set(names))
    say_if_one_to_one(named, path, reporter.note)
    reader = ImageReader(loaded.model, pixels)
    features = (
        encoded_by(reader, named.images, size, IMAGES, reporter),
        encoded_by(texts, named.texts, size, TEXTS, reporter),
    )
    return EncodedPairs(named, *features), {"size": options.size, "channels": pixels.channels}


def _indices(
    embedder: ImageTextEmbedder, encoded: EncodedPairs, held: HeldOut, reporter: Reporter
) -> dict[str, Index]:
    """Index everything, each side calibrated by the queries of the other that the fit left out."""
    named = encoded.named
    images = embedder.index_images(encoded.images, named.images, progress=False)
    texts = embedder.index_texts(encoded.texts, named.texts, progress=False)
    asked = {
        IMAGES: (images, encoded.texts, held.texts, named.images_of_texts(), TEXTS),
        TEXTS: (texts, encoded.images, held.images, named.texts_of_images(), IMAGES),
    }
    for side, (index, queries, rows, matches, what) in asked.items():
        own = [index.ids[matches[row]].tolist() for row in rows.tolist()]
        try:
            if not own:
                raise InputError("nothing was left out of the fit.")
            index.calibrate(queries[rows], matches=own)
        except InputError as error:
            reporter.note(
                f"{side} are not calibrated, so without match probabilities, with {len(own)} "
                f"{what} that were left out: {error} More pairs or a larger --holdout would help"
            )
    return {IMAGES: images, TEXTS: texts}


def _tell(
    named: ImageTextPairs,
    pairs: ImageTextPairs,
    indices: dict[str, Index],
    seconds: dict[str, float],
    options: Namespace,
    reporter: Reporter,
) -> None:
    numbers: dict[str, Any] = {"images": named.n_images, "texts": named.n_texts}
    numbers |= {"pairs": len(named), "pairs of the fit": len(pairs), "seconds": seconds}
    reporter.say(
        f"fitted {len(pairs):,} of {len(named):,} pairs of {named.n_images:,} images and "
        f"{named.n_texts:,} texts"
    )
    reporter.say(", ".join(f"{what} {taken:.1f} s" for what, taken in seconds.items()))
    for side, index in indices.items():
        if index.calibration is not None:
            quality = index.calibration.quality()
            reporter.say(f"match probability of {side}, on what was left out: {quality}")
            numbers[f"ece of {side}"] = quality.ece.estimate
    reporter.say(f"wrote {options.output}")
    reporter.numbers({**numbers, "output": str(options.output)})


# ``laplace-metric image-text search``: images by texts, texts by images, and how sure each is.


@dataclass(frozen=True)
class LoadedPairs:
    """A folder of ``image-text fit``: heads, an index of one side, and its provenance."""

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

        return files.settled(paths, load)

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
