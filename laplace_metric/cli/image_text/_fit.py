"""``laplace-metric image-text fit``: heads on the pairs of a table, and an index of both sides.

A share of the images and a share of the texts are in no pair of the fit. Both indices hold
everything; that of images is calibrated by the texts that were left out, as new texts will ask it,
that of texts by the images that were left out, as new images will.
"""

from __future__ import annotations

import time
from argparse import Namespace
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from laplace_metric._utils import files
from laplace_metric._utils.files import write_atomically
from laplace_metric.cli._output import Reporter, discard, reporter_of, require_folder, require_new
from laplace_metric.cli.image_text._table import (
    HeldOut,
    fit_part,
    pairs_of,
    read_captions,
    say_if_one_to_one,
)
from laplace_metric.cli.image_text._towers import (
    IMAGES,
    TEXTS,
    ImageReader,
    PairsRecipe,
    encoded_by,
    text_encoder,
)
from laplace_metric.cli.models import check_inputs, load_model
from laplace_metric.cli.parsing import RUN, run_text
from laplace_metric.cli.sources import ReadOptions, readable_images
from laplace_metric.errors import InputError
from laplace_metric.image_text import ImageTextEmbedder, ImageTextPairs
from laplace_metric.models import Precomputed
from laplace_metric.search import Index

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
    """Of everything, each calibrated by what of the other side the fit left out."""
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
