"""Encoders with uncertainty tokens, from nothing: piece ``tokens`` of ``image-text``.

The drawings and keywords of ``emoji``, in the same parts, as pixels and as texts. Settings were
chosen on the validation drawings, none on the test drawings.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.datasets import captions, load
from benchmarks.image_text.emoji import NEW_SHARE, VALIDATION_SHARE, EmojiPart, share_of
from benchmarks.image_text.questions import Row, rank_correlation, retrieval
from benchmarks.image_text.token_tables import RECORD, TABLES
from benchmarks.image_text.towers import ImageTransformer, TextTransformer, masked
from benchmarks.records import Store, folder_of, write_record
from laplace_metric.errors import CollapseError
from laplace_metric.image_text import (
    ImageTextEmbedder,
    ImageTextPairs,
    Objective,
    ProLIP,
    SigLIP,
)
from laplace_metric.models._evaluation_mode import evaluation_mode

SIDE, PATCH, WIDTH, DEPTH, TEXT_DEPTH, HEADS = 32, 8, 96, 3, 2, 4
DIM, DROPOUT, LEARNING_RATE, WEIGHT_DECAY, FIRST_TRACE = 64, 0.1, 1e-3, 0.05, 0.35
BATCH = 128
SHARES = (0.0, 0.25, 0.5, 0.75, 0.9)
"""Of the patches that are hidden."""
DRAWS = 4
MASKED_SHARE = 0.75
"""Of the patches or words that are hidden in the training."""
FIRST_B = -2.0
METHODS: dict[str, Objective] = {
    "siglip": SigLIP(first_b=FIRST_B - 10 * FIRST_TRACE),  # the same first logit
    "prolip": ProLIP(first_b=FIRST_B),
    "prolip, masked .001": ProLIP(first_b=FIRST_B, masked=1e-3),
    "prolip, masked .1": ProLIP(first_b=FIRST_B, masked=0.1),
}
STARTS = (-10.0, -5.0, -2.0)
"""Of b, for a few epochs of "prolip" each."""
BUDGETS: dict[str, tuple[int, int, int | None]] = {"small": (15, 3, None), "smoke": (1, 1, 60)}
"""Epochs, those of ``STARTS``, and emoji of each split."""


@dataclass(frozen=True)
class Drawings:
    """Parts as pixels [N, 3, 32, 32] with keywords, keywords never trained on, and counts."""

    parts: dict[str, EmojiPart]
    new: frozenset[str]
    images: Counter[str]

    def pairs(self, part: str, *, without_new: bool = False) -> ImageTextPairs:
        """Of a part."""
        asked = self.parts[part].without(self.new) if without_new else self.parts[part]
        return ImageTextPairs.of(asked.features, asked.keywords)


def load_drawings(data: str | None, limit: int | None = None) -> Drawings:
    """Read and split, as ``emoji.load_problem`` does."""
    parts: dict[str, EmojiPart] = {}
    for split in ("train", "test"):
        drawings = load("emoji", split, data, limit, size=SIDE)
        texts = captions("emoji", split, data, limit)
        keywords = tuple(own[:-1] for own in texts)  # without the name
        part = EmojiPart(drawings.images, keywords, drawings.labels, torch.arange(len(keywords)))
        rows = [row for row in range(len(part)) if part.keywords[row]]
        if split == "test":
            parts["test"] = part[rows]
            continue
        bases = drawings.extras["base"].tolist()
        chooses = {row for row in rows if share_of(f"base {bases[row]}") < VALIDATION_SHARE}
        parts["train"] = part[[row for row in rows if row not in chooses]]
        parts["validation"] = part[sorted(chooses)]
    images = Counter(k for part in parts.values() for own in part.keywords for k in own)
    new = frozenset(k for k in sorted(images) if share_of(f"keyword {k}") < NEW_SHARE)
    return Drawings(parts, new, images)


def trained(
    drawings: Drawings, objective: Objective, seed: int, epochs: int, **changes: Any
) -> ImageTextEmbedder:
    """Both encoders and heads, from nothing."""
    how = {"rate": LEARNING_RATE, "first_trace": FIRST_TRACE, "dropout": DROPOUT, **changes}
    pairs = drawings.pairs("train", without_new=True)
    sizes: dict[str, Any] = {"width": WIDTH, "heads": HEADS, "dropout": how["dropout"]}
    embedder = ImageTextEmbedder(
        ImageTransformer(pairs.images, PATCH, depth=DEPTH, **sizes, seed=seed),
        TextTransformer(pairs.texts, depth=TEXT_DEPTH, **sizes, seed=seed + 1),
        dim=DIM,
        objective=objective,
        tokens="uncertainty",
        train_encoders=True,
        encoder_rate=1.0,
        first_trace=how["first_trace"],
    )
    rates = {"learning_rate": how["rate"], "weight_decay": WEIGHT_DECAY}
    hidden = masked(pairs, MASKED_SHARE) if objective.masked else None
    return embedder.fit(
        pairs,
        epochs=epochs,
        batch_size=BATCH,
        masked=hidden,
        **rates,
        seed=seed,
        progress=False,
    )


def found(embedder: ImageTextEmbedder, pairs: ImageTextPairs) -> Row:
    """Image -> text and text -> image, among everything of the part."""
    image, text = embedder.embed_image(pairs.images), embedder.embed_text(pairs.texts)
    s = embedder.similarity(image, text)
    match = pairs.match(torch.arange(pairs.n_images), torch.arange(pairs.n_texts))
    ways = {"image to text": retrieval(s, match), "text to image": retrieval(s.mT, match.mT)}
    return {f"{way} {name}": value for way, row in ways.items() for name, value in row.items()}


def masking(embedder: ImageTextEmbedder, images: Tensor, seed: int = 0) -> Row:
    """Spearman of the share of hidden patches and an image's ambiguity: a mean over images.

    Beside it that of the epistemic number and of 1 / |z|, the raw mean's length.
    """
    encoder, fitted = embedder.towers.image, embedder.fitted_
    assert isinstance(encoder, ImageTransformer)
    assert fitted.posteriors is not None
    levels: dict[str, list[Tensor]] = {"ambiguity": [], "epistemic": [], "1/norm": []}
    with torch.random.fork_rng(devices=[]), evaluation_mode(encoder):
        torch.manual_seed(seed)
        for share in SHARES:
            draws: dict[str, list[Tensor]] = {name: [] for name in levels}
            for _ in range(DRAWS if share else 1):
                seen = encoder(images, torch.full((len(images),), share) if share else None)
                out = fitted.heads.image(seen)
                draws["ambiguity"].append(out.trace)
                draws["epistemic"].append(fitted.posteriors[0].parts(out.inputs).epistemic)
                draws["1/norm"].append(1 / out.raw.norm(dim=1))
            for name, values in draws.items():
                levels[name].append(torch.stack(values).mean(0))
    row: Row = {}
    for name, values in levels.items():
        numbers = torch.stack(values, 1).double()
        if name == "ambiguity" and not bool(numbers.any()):  # no variances
            continue
        each = [rank_correlation(np.array(SHARES), one.numpy()) for one in numbers]
        row[f"{name} spearman"] = float(np.mean(each))
        row |= {f"{name} at {s}": float(v) for s, v in zip(SHARES, numbers.mean(0), strict=True)}
    return row


def general(embedder: ImageTextEmbedder, drawings: Drawings, keywords: list[str]) -> Row:
    """Spearman of a keyword's ambiguity and the log number of drawings that it names."""
    ambiguity = embedder.embed_text(keywords).uncertainty.numpy()
    counts = np.log([drawings.images[keyword] for keyword in keywords])
    return {"spearman": rank_correlation(ambiguity, counts), "keywords": float(len(keywords))}


def measured(drawings: Drawings, method: str, seed: int, epochs: int) -> dict[str, Any]:
    """One training, and what is asked of it."""
    start = time.perf_counter()
    embedder = trained(drawings, METHODS[method], seed, epochs)
    seconds = time.perf_counter() - start
    fitted = embedder.fitted_
    row: dict[str, Any] = {
        "method": method,
        "seed": seed,
        "epochs": epochs,
        "seconds": seconds,
        "losses": fitted.losses,
        "spreads": {side: [asdict(s) for s in rows] for side, rows in fitted.spreads.items()},
        "masking": masking(embedder, drawings.parts["test"].features),
    }
    for part in ("train", "validation", "test"):
        row[part] = found(embedder, drawings.pairs(part, without_new=part == "train"))
    if embedder.objective.probabilistic:
        known = list(drawings.pairs("train", without_new=True).texts)
        row["trained keywords"] = general(embedder, drawings, known)
        row["new keywords"] = general(embedder, drawings, sorted(drawings.new))
    return row


def started(drawings: Drawings, first_b: float, epochs: int) -> dict[str, Any]:
    """What becomes of a few epochs that begin at an offset, or why they stop."""
    row: dict[str, Any] = {"first_b": first_b, "epochs": epochs}
    try:
        embedder = trained(drawings, ProLIP(first_b=first_b), 0, epochs)
    except CollapseError as error:
        return {**row, "error": str(error)}
    spreads = {side: [asdict(s) for s in rows] for side, rows in embedder.fitted_.spreads.items()}
    found_ones = found(embedder, drawings.pairs("validation"))
    return {**row, "losses": embedder.fitted_.losses, "spreads": spreads, "validation": found_ones}


def run(options: Namespace) -> None:
    """Every method; finished ones are kept in the cache."""
    epochs, few, limit = BUDGETS[options.size]
    drawings = load_drawings(options.data, limit)
    store, rows = Store(options.cache / f"image-text-tokens-{options.size}"), []
    for seed in options.seeds or (0,):
        for method in METHODS:
            if not store.has(method, seed):
                store.write(measured(drawings, method, seed, epochs), method, seed)
            rows.append(store.read(method, seed))
            rows[-1].pop("environment")
            print(method, seed, {k: round(v, 3) for k, v in rows[-1]["test"].items()}, flush=True)
    starts = []
    for first_b in STARTS:
        if not store.has("start", first_b):
            store.write(started(drawings, first_b, few), "start", first_b)
        starts.append(store.read("start", first_b))
        starts[-1].pop("environment")
    folder = folder_of(options)
    print(write_record(RECORD, {"rows": rows, "starts": starts}, folder).name)
    for table in TABLES.values():
        print(table(folder), end="\n\n")
