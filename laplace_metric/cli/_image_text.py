"""``laplace-metric image-text``: heads on the pairs of a table, an index of both sides, search.

A share of the images and a share of the texts are in no pair of the fit. Both indices hold
everything; that of images is calibrated by the texts that were left out, as new texts will ask it,
that of texts by the images that were left out, as new images will.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from laplace_metric import io as files
from laplace_metric._utils.progress import ItemBar
from laplace_metric.cli._columns import read_columns
from laplace_metric.cli._gallery import Pictures
from laplace_metric.cli._loading import SavedRecord, distrust
from laplace_metric.cli._models import check_inputs, load_model
from laplace_metric.cli._output import Reporter, discard, reporter_of
from laplace_metric.cli._parser import RUN, run_text
from laplace_metric.cli._search import (
    columns_of,
    guaranteed_of,
    reporter_of_answers,
    tell_answers,
    write_picture,
)
from laplace_metric.cli._sources import IMAGES, TEXTS, ReadOptions, readable_images
from laplace_metric.datasets._pixels import Pixels
from laplace_metric.errors import InputError
from laplace_metric.image_text import ImageTextEmbedder, ImageTextPairs
from laplace_metric.io import write_atomically
from laplace_metric.models import Precomputed
from laplace_metric.models._calling import device_of, evaluation_mode
from laplace_metric.search import Index
from laplace_metric.search._storage import INDEX

CHECKPOINT = ".checkpoint"
DROPOUT = 0.3
STEPS = ("reading and encoding", "training", "indexing and calibrating")


@dataclass(frozen=True, kw_only=True)
class PairsRecipe(SavedRecord):
    """Settings that a later search needs; the data are the table, images are named as seen from it.

    Parameters
    ----------
    model, text_model : str
        As the command line took them.
    """

    KIND = files.FileKind("pairs", "a folder of laplace-metric image-text", 1)

    model: str
    text_model: str


# The table of pairs.


def read_captions(path: Path, *columns: str) -> list[tuple[str, str]]:
    """Read (image, text) of each row, from the columns of images and of texts.

    Raises
    ------
    InputError
        If there is no such file or column, a row is without its image or its text, or there is
        no row.
    """
    options = ("--image-column", "--text-column")
    cells = read_columns(path, dict(zip(columns, options, strict=True)))
    sides = {name: [cell.strip() for cell in cells[name]] for name in columns}
    for name, side in sides.items():
        if "" in side:
            raise InputError(
                f"{path}: row {side.index('') + 1} has an empty {name!r}. Fill it in, or leave the "
                "row out."
            )
    return list(zip(*sides.values(), strict=True))


def _held_out(pairs: ImageTextPairs, share: float, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of the images and of the texts that the fit leaves out, and its pairs [P], a mask."""
    g = torch.Generator().manual_seed(seed)
    images, texts = (
        torch.randperm(n, generator=g)[: round(share * n)].sort().values
        for n in (pairs.n_images, pairs.n_texts)
    )
    i, j = pairs.pairs.unbind(1)
    fitted = ~(torch.isin(i, images) | torch.isin(j, texts))
    if (n := int(fitted.sum())) < 2:
        raise InputError(
            f"--holdout {share:g} leaves {n} of {len(pairs)} pairs to fit: give a smaller share, "
            "or more pairs."
        )
    return images, texts, fitted


# The encoders of both sides.


class ImageReader(nn.Module):
    """Names of B images -> features [B, F]: reads the files, then runs the model."""

    def __init__(self, model: nn.Module, pixels: Pixels) -> None:
        super().__init__()
        self.model, self.pixels = model, pixels

    def forward(self, names: Sequence[str]) -> Tensor:
        """Read files below the folder of the table, or given by a whole path."""
        return self.model(self.pixels.batch(names).to(device_of(self.model)))


def _text_encoder(name: str, device: str | None) -> nn.Module:
    """The model of texts; ``InputError`` if it takes none."""
    model = load_model(name, device).model
    check_inputs(name, model, ["a text"])
    return model


def _features(
    encoder: nn.Module, inputs: Sequence[str], size: int, name: str, reporter: Reporter
) -> Tensor:
    """Features [N, F], a batch of ``size`` after the other."""
    parts = []
    with ItemBar(f"Encoding {name}", len(inputs), shown=reporter.progress) as bar:
        for start in range(0, len(inputs), size):
            batch = list(inputs[start : start + size])
            with evaluation_mode(encoder):
                features = encoder(batch)
            if not isinstance(features, Tensor) or features.shape[:1] != (len(batch),):
                raise InputError(
                    f"the model of {name} gives no features [B, F] of {len(batch)} {name}."
                )
            parts.append(features.flatten(1).cpu())
            bar.advance(len(batch))
    return torch.cat(parts)


# ``laplace-metric image-text fit``.


def fit_pairs(options: Namespace) -> None:
    """Read, encode, train, index, calibrate, save; interrupted, training goes on."""
    reporter = reporter_of(options, holds=PairsRecipe.KIND.index)
    folder, size = options.output, options.batch_size
    checkpoint, times = files.refuse_link(folder / CHECKPOINT), [time.monotonic()]
    with reporter.warnings():
        named, reader, text_model = _read(options, reporter)
        images = _features(reader, named.images, size, IMAGES, reporter)
        texts = _features(text_model, named.texts, size, TEXTS, reporter)
        times.append(time.monotonic())
        held_images, held_texts, fitted = _held_out(named, options.holdout, options.seed)
        (i, i_rows), (j, j_rows) = (
            side.unique(return_inverse=True) for side in named.pairs[fitted].unbind(1)
        )
        pairs = ImageTextPairs(images[i], texts[j], torch.stack([i_rows, j_rows], 1))
        embedder = ImageTextEmbedder(
            Precomputed(),
            Precomputed(),
            options.dim,
            objective=options.objective,
            dropout=DROPOUT,
        )
        embedder.fit(
            pairs,
            epochs=options.epochs,
            learning_rate=options.learning_rate,
            generator=options.seed,
            checkpoint=checkpoint,
            progress=reporter.progress,
        )
        times.append(time.monotonic())
        indices = {
            IMAGES: embedder.index_images(images, named.images, progress=False),
            TEXTS: embedder.index_texts(texts, named.texts, progress=False),
        }
        matches = named.images_of_texts(), named.texts_of_images()
        _calibrate(indices[IMAGES], texts, held_texts, matches[0], IMAGES, TEXTS, reporter)
        _calibrate(indices[TEXTS], images, held_images, matches[1], TEXTS, IMAGES, reporter)
    recipe = PairsRecipe(
        model=options.model,
        text_model=options.text_model,
        read_options={"size": options.size, "channels": reader.pixels.channels},
        data=str(options.data.resolve()),
        holdout=options.holdout,
        seed=options.seed,
    )
    with files.together(folder):
        recipe.write(folder)
        embedder.save(folder)
        for side, index in indices.items():
            index.save(folder / side)
    write_atomically(folder / RUN, run_text(options))
    times.append(time.monotonic())
    discard(checkpoint)
    taken = [end - start for start, end in pairwise(times)]
    seconds = dict(zip(STEPS, taken, strict=True))
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
    reporter.say(f"wrote {folder}")
    reporter.numbers({**numbers, "output": str(folder)})


def _read(options: Namespace, reporter: Reporter) -> tuple[ImageTextPairs, ImageReader, nn.Module]:
    """Names of images and texts that belong together, and the models of both."""
    path = options.data
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
    texts = _text_encoder(options.text_model, options.device)
    captions: dict[str, list[str]] = {name: [] for name in names}
    for image, text in rows:
        if image in captions:
            captions[image].append(text)
    named = ImageTextPairs.of(list(captions), list(captions.values()))
    if len(named) == named.n_images == named.n_texts:
        reporter.note(
            f"{path}: every image has one text and every text one image. How general a text is, "
            "and how ambiguous an image, cannot be learnt from such pairs: ambiguity will say "
            "little. Texts that name several images, or images with several texts, would teach it"
        )
    return named, ImageReader(loaded.model, pixels), texts


def _calibrate(
    index: Index,
    features: Tensor,
    held: Tensor,
    matches: Sequence[Any],
    side: str,
    what: str,
    reporter: Reporter,
) -> None:
    """Calibrate a side by the queries of the other that the fit left out."""
    own = [index.ids[matches[row]].tolist() for row in held.tolist()]
    try:
        if not own:
            raise InputError("nothing was left out of the fit.")
        index.calibrate(features[held], matches=own)
    except InputError as error:
        reporter.note(
            f"{side} are not calibrated, so without match probabilities, with {len(own)} {what} "
            f"that were left out: {error} More pairs or a larger --holdout would help"
        )


# ``laplace-metric image-text search``: images by texts, texts by images, and how sure each is.


def search_pairs(options: Namespace) -> None:
    """Search, show, write."""
    reporter, folder = reporter_of_answers(options), options.folder
    if bool(options.text) == bool(options.image):
        raise InputError("give --text, which finds images, or --image, which finds texts.")
    if any(not text.strip() for text in options.text):
        raise InputError("--text is empty: give a text.")
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder: give one that image-text fit wrote.")
    side = IMAGES if options.text else TEXTS

    def load() -> tuple[PairsRecipe, Index]:
        recipe = PairsRecipe.read(folder)
        embedder = ImageTextEmbedder.load(folder, Precomputed(), Precomputed())
        return recipe, Index.load(folder / side, embedder)

    paths = [folder / PairsRecipe.KIND.index, folder / side / INDEX.index]
    recipe, index = files.settled(paths, load)
    k, threshold = min(options.k, len(index)), guaranteed_of(index, options, reporter)
    names = options.text or [str(path) for path in options.image]
    with reporter.warnings():
        result = index.search(_queries(recipe, names, options, reporter), k)
    if options.picture is not None:
        items = index.ids.tolist()
        queries = names if options.text else Pictures(Path(), names)
        shown = Pictures(Path(str(recipe.data)).parent, items) if options.text else items
        write_picture(options.picture, result, queries, shown)
    tell_answers(columns_of(result, names, threshold), len(names), k, options, reporter)


def _queries(
    recipe: PairsRecipe, names: Sequence[str], options: Namespace, reporter: Reporter
) -> Tensor:
    """Features of texts, or of images, by the models that the user named or trusts."""
    told, own, option = options.model, recipe.model, "--model"
    if options.text:
        told, own, option = options.text_model, recipe.text_model, "--text-model"
    if told is None and not options.trust_recipe:
        raise InputError(distrust(options.folder / recipe.KIND.index, own, option))
    name, size = told or own, options.batch_size
    if options.text:
        return _features(_text_encoder(name, options.device), names, size, TEXTS, reporter)
    model, how = load_model(name, options.device), recipe.read_options
    pixels = Pixels(Path(), how["size"], how["channels"], model.transform)
    return _features(ImageReader(model.model, pixels), names, size, IMAGES, reporter)
