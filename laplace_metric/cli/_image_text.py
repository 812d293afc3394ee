"""``laplace-metric image-text``: heads on the pairs of a table, an index of both sides, search.

A share of the images and a share of the texts are in no pair of the fit. Both indices hold
everything; that of images is calibrated by the texts that were left out, as new texts will ask it,
that of texts by the images that were left out, as new images will.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from laplace_metric import io as files
from laplace_metric._utils.tables import read_table
from laplace_metric.cli._answers_table import columns_of, guaranteed_of, tell_answers
from laplace_metric.cli._image_source import image_source
from laplace_metric.cli._model_recipe import distrust
from laplace_metric.cli._models import LoadedModel, check_inputs, load_model
from laplace_metric.cli._output_paths import discard, working_folder
from laplace_metric.cli._pictures import Pictures
from laplace_metric.cli._records import SavedRecord
from laplace_metric.cli._reporter import Reporter, reporter_of
from laplace_metric.cli._result_picture import write_picture
from laplace_metric.cli._search import reporter_of_answers
from laplace_metric.cli._source import IMAGES, TEXTS, ReadOptions, Source, given_texts
from laplace_metric.errors import InputError
from laplace_metric.image_text import ImageTextEmbedder, ImageTextPairs
from laplace_metric.image_text.towers._encoder_features import encode
from laplace_metric.inputs import read_loader
from laplace_metric.models import Precomputed
from laplace_metric.models._batches import input_batches
from laplace_metric.models._modules import device_of
from laplace_metric.search import Index

DROPOUT = 0.3


@dataclass(frozen=True, kw_only=True)
class PairsRecipe(SavedRecord):
    """Settings that a later search needs; the data are the table, images are named as seen from it.

    Parameters
    ----------
    model, text_model : str
        Names of the models, as they stood on the command line.
    """

    KIND = files.Kind("pairs", "a file of laplace-metric image-text", 2)

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
    cells = read_table(path, dict(zip(columns, options, strict=True)))
    sides = {name: [cell.strip() for cell in cells[name]] for name in columns}
    for name, side in sides.items():
        if "" in side:
            raise InputError(
                f"{path}: row {side.index('') + 1} has an empty {name!r}. Fill it in, or leave the "
                "row out."
            )
    return list(zip(*sides.values(), strict=True))


def _held_out(pairs: ImageTextPairs, share: float, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows of images and texts that the fit leaves out, and its pairs [P], a mask."""
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


# The features of both sides: a source of images or of texts, through the model of its option.


def _features(
    loaded: LoadedModel, source: Source, options: Namespace, reporter: Reporter
) -> Tensor:
    """Return features [N, F] of the items of a source."""
    batches = input_batches(
        read_loader(source.kind, source.batches(options.batch_size)),
        device_of(loaded.model),
        progress=reporter.progress,
        description=f"Encoding {source.kind}",
    )
    parts = [encode(loaded.model, inputs, source.kind).flatten(1).cpu() for inputs in batches]
    return torch.cat(parts)


def _text_model(name: str, device: str | None) -> LoadedModel:
    """Return the model of texts; raise ``InputError`` if it takes none."""
    loaded = load_model(name, device)
    check_inputs(name, loaded.model, ["a text"])
    return loaded


# ``laplace-metric image-text fit``.


def fit_pairs(options: Namespace) -> None:
    """Read, encode, train, index, calibrate, save; interrupted, training goes on."""
    reporter, output = reporter_of(options, options.output), options.output
    checkpoint = files.refuse_link(working_folder(output))
    with reporter.warnings():
        loaded, image_source, named = _read(options, reporter)
        text_model = _text_model(options.text_model, options.device)
        images = _features(loaded, image_source, options, reporter)
        texts = _features(text_model, given_texts(named.texts), options, reporter)
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
            seed=options.seed,
            checkpoint=checkpoint,
            progress=reporter.progress,
        )
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
        read_options=image_source.options,
        data=str(options.data.resolve()),
        holdout=options.holdout,
        seed=options.seed,
    )
    parts = {"heads": embedder._part(), "pairs": recipe.part()}
    files.write(output, parts | {side: index._part() for side, index in indices.items()})
    discard(checkpoint)
    numbers: dict[str, Any] = {"images": named.n_images, "texts": named.n_texts}
    numbers |= {"pairs": len(named), "pairs of the fit": len(pairs), "output": str(output)}
    reporter.say(
        f"fitted {len(pairs):,} of {len(named):,} pairs of {named.n_images:,} images and "
        f"{named.n_texts:,} texts"
    )
    for side, index in indices.items():
        if index.calibration is not None:
            quality = index.calibration.quality()
            reporter.say(f"match probability of {side}, on what was left out: {quality}")
            numbers[f"ece of {side}"] = quality.ece.estimate
    reporter.say(f"wrote {output}")
    reporter.numbers(numbers)


def _read(options: Namespace, reporter: Reporter) -> tuple[LoadedModel, Source, ImageTextPairs]:
    """Return the model of images, the images, and the pairs of names of images and texts."""
    path = options.data
    rows = read_captions(path, options.image_column, options.text_column)
    loaded = load_model(options.model, options.device)
    names = list(dict.fromkeys(image for image, _ in rows))
    how = ReadOptions(options.size, options.channels, options.skip_unreadable)
    source = image_source(path, names, None, loaded.reading(how), reporter.note)
    check_inputs(options.model, loaded.model, source.read([0]))
    captions: dict[str, list[str]] = {name: [] for name in source.ids}
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
    return loaded, source, named


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
    reporter, path = reporter_of_answers(options), options.file
    if bool(options.text) == bool(options.image):
        raise InputError("give --text, which finds images, or --image, which finds texts.")
    if any(not text.strip() for text in options.text):
        raise InputError("--text is empty: give a text.")
    if not path.exists():
        raise InputError(f"{path} does not exist: give a file that image-text fit wrote.")
    saved = files.SavedFile(path)
    recipe = PairsRecipe.read(saved)
    embedder = ImageTextEmbedder._of(saved, Precomputed(), Precomputed())
    index = Index._of(saved, embedder, IMAGES if options.text else TEXTS)
    k, rule = min(options.k, len(index)), guaranteed_of(index, options, reporter)
    with reporter.warnings():
        loaded, queries = _queries(recipe, options, reporter)
        result = index.search(_features(loaded, queries, options, reporter), k)
    answers = None if rule is None else rule(result)
    if options.picture is not None:
        items = index.ids.tolist()
        if options.text:
            asked, shown = options.text, Pictures(Path(str(recipe.data)).parent, items)
        else:
            asked, shown = Pictures(Path(), queries.ids), items
        write_picture(options.picture, result, asked, shown, answers)
    tell_answers(columns_of(result, queries.ids, answers), len(queries), k, options, reporter)


def _queries(
    recipe: PairsRecipe, options: Namespace, reporter: Reporter
) -> tuple[LoadedModel, Source]:
    """Return the model that the user named or trusts, and texts or images."""
    told, own, option = options.model, recipe.model, "--model"
    if options.text:
        told, own, option = options.text_model, recipe.text_model, "--text-model"
    if told is None and not options.trust_recipe:
        raise InputError(distrust(options.file, own, option))
    if options.text:
        return _text_model(told or own, options.device), given_texts(options.text)
    loaded = load_model(told or own, options.device)
    how = replace(ReadOptions(**recipe.read_options), transform=loaded.transform)
    return loaded, image_source(Path(), list(map(str, options.image)), None, how, reporter.note)
