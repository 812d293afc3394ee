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
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from laplace_metric import io as files
from laplace_metric._utils.progress import ItemBar
from laplace_metric._utils.tables import read_table
from laplace_metric.cli._loading import SavedRecord, distrust
from laplace_metric.cli._models import check_inputs, load_model
from laplace_metric.cli._output import Reporter, discard, reporter_of, require_folder, require_new
from laplace_metric.cli._parser import RUN, run_text
from laplace_metric.cli._search import (
    ImageFiles,
    columns_of,
    guaranteed_of,
    picture_of,
    reporter_of_answers,
    tell_answers,
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


@dataclass(frozen=True)
class PairsRecipe(SavedRecord):
    """Settings that a later search needs: models, how images are read, where the table was.

    Parameters
    ----------
    model, text_model : str
        As the command line took them.
    read_options : dict
        Size and channels of images.
    data : str
        The table: the path, as it was resolved; images are named as seen from it.
    holdout : float
        Share of images and of texts that the fit left out.
    seed : int
    """

    KIND = files.FileKind("pairs", "a folder of laplace-metric image-text", 1)

    model: str
    text_model: str
    read_options: dict[str, Any]
    data: str
    holdout: float
    seed: int


# The table of pairs.


def read_captions(path: Path, *columns: str) -> list[tuple[str, str]]:
    """Read (image, text) of each row, from the columns of images and of texts.

    Raises
    ------
    InputError
        If there is no such file or column, a row is without its image or its text, or there is
        no row.
    """
    if not path.is_file() or path.suffix.lower() not in (".csv", ".tsv"):
        raise InputError(f"{path} is no table: give a .csv or .tsv that exists.")
    header, rows = read_table(path)
    sides = []
    for name, option in zip(columns, ("--image-column", "--text-column"), strict=True):
        if name not in header:
            listed = ", ".join(map(repr, header)) or "none"
            raise InputError(
                f"{path} has no column {name!r}. Name it with {option}; its columns: {listed}."
            )
        sides.append([row[header.index(name)].strip() for row in rows])
        if "" in sides[-1]:
            number = sides[-1].index("") + 1
            raise InputError(
                f"{path}: row {number} has an empty {name!r}. Fill it in, or leave the row out."
            )
    if not rows:
        raise InputError(f"{path} holds no row.")
    return list(zip(*sides, strict=True))


def _pairs_of(rows: list[tuple[str, str]], readable: set[str]) -> ImageTextPairs:
    """Names of images and texts, each once, without images that cannot be read."""
    captions: dict[str, list[str]] = {}
    for image, text in rows:
        if image in readable:
            captions.setdefault(image, []).append(text)
    return ImageTextPairs.of(list(captions), list(captions.values()))


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


@dataclass(frozen=True)
class EncodedPairs:
    """Names of images and texts that belong together, and the features of both [N, F], [M, F']."""

    named: ImageTextPairs
    images: Tensor
    texts: Tensor
    read_options: dict[str, Any]
    """How the images were read."""

    def part(self, chosen: Tensor) -> ImageTextPairs:
        """Pairs of features, those of a mask [P], without what has no partner then."""
        links = self.named.pairs[chosen]
        (i, i_rows), (j, j_rows) = (side.unique(return_inverse=True) for side in links.unbind(1))
        return ImageTextPairs(self.images[i], self.texts[j], torch.stack([i_rows, j_rows], 1))


def fit_pairs(options: Namespace) -> None:
    """Read, encode, train, index, calibrate, save; interrupted, training goes on."""
    reporter, folder, began = reporter_of(options), options.output, time.monotonic()
    require_folder(folder)
    require_new(folder / PairsRecipe.KIND.index, overwrite=options.overwrite, named=folder)
    checkpoint = files.refuse_link(folder / CHECKPOINT)
    with reporter.warnings():
        encoded = _encoded(options, reporter)
        seconds = {"reading and encoding": time.monotonic() - began}
        images, texts, fitted = _held_out(encoded.named, options.holdout, options.seed)
        began, pairs = time.monotonic(), encoded.part(fitted)
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
        seconds["training"], began = time.monotonic() - began, time.monotonic()
        indices = _indices(embedder, encoded, images, texts, reporter)
    recipe = PairsRecipe(
        options.model,
        options.text_model,
        encoded.read_options,
        str(options.data.resolve()),
        options.holdout,
        options.seed,
    )
    with files.together(folder):
        recipe.write(folder)
        embedder.save(folder)
        for side, index in indices.items():
            index.save(folder / side)
    write_atomically(folder / RUN, run_text(options))
    seconds["indexing and calibrating"] = time.monotonic() - began
    discard(checkpoint)
    _tell(encoded.named, len(pairs), indices, seconds, options, reporter)


def _encoded(options: Namespace, reporter: Reporter) -> EncodedPairs:
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
    texts = _text_encoder(options.text_model, options.device)
    named = _pairs_of(rows, set(names))
    if len(named) == named.n_images == named.n_texts:
        reporter.note(
            f"{path}: every image has one text and every text one image. How general a text is, "
            "and how ambiguous an image, cannot be learnt from such pairs: ambiguity will say "
            "little. Texts that name several images, or images with several texts, would teach it"
        )
    return EncodedPairs(
        named,
        _features(ImageReader(loaded.model, pixels), named.images, size, IMAGES, reporter),
        _features(texts, named.texts, size, TEXTS, reporter),
        {"size": options.size, "channels": pixels.channels},
    )


def _indices(
    embedder: ImageTextEmbedder,
    encoded: EncodedPairs,
    images: Tensor,
    texts: Tensor,
    reporter: Reporter,
) -> dict[str, Index]:
    """Index everything, each side calibrated by the queries of the other that the fit left out."""
    named = encoded.named
    of_images = embedder.index_images(encoded.images, named.images, progress=False)
    of_texts = embedder.index_texts(encoded.texts, named.texts, progress=False)
    asked = {
        IMAGES: (of_images, encoded.texts, texts, named.images_of_texts(), TEXTS),
        TEXTS: (of_texts, encoded.images, images, named.texts_of_images(), IMAGES),
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
    return {IMAGES: of_images, TEXTS: of_texts}


def _tell(
    named: ImageTextPairs,
    n_fitted: int,
    indices: dict[str, Index],
    seconds: dict[str, float],
    options: Namespace,
    reporter: Reporter,
) -> None:
    numbers: dict[str, Any] = {"images": named.n_images, "texts": named.n_texts}
    numbers |= {"pairs": len(named), "pairs of the fit": n_fitted, "seconds": seconds}
    reporter.say(
        f"fitted {n_fitted:,} of {len(named):,} pairs of {named.n_images:,} images and "
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
        queries = names if options.text else ImageFiles(Path(), names)
        shown = ImageFiles(Path(recipe.data).parent, items) if options.text else items
        write_atomically(options.picture, picture_of(result, queries, shown))
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
