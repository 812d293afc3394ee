"""Pairs in place of judgements: ``python -m benchmarks retrieval --pieces pairs``.

Without judgements, an item of the gallery and a copy of it can pose as a query and its match: the
copy asks, its original is relevant, and every other item is not (``relevant="pairs"``). Two laws:

near  images: a square whose side is a random .8 to 1 of the image's; texts: every word dropped with
      a probability of a quarter, two at least stay
far   images: .25 to 1, the crops of the URL benchmark; texts: the next sentence of the same
      function's description, which a person wrote

Up to 1,000 items of each problem's gallery have a copy of either kind. Twenty times up to 300 are
drawn and calibrate: all with their original in the gallery, or half of them without it ("half
open": these have no match). Compared: as many real queries, judged by their class. Then up to 2,000
other queries ask, whose nearest item is right if it has their class; and, as a control, the other
copies, whose nearest item is right if it is their original, which every second one lacks.

Recorded of the first hit's probability: its AUROC (right against wrong, which is its R-AUROC), its
calibration error, and its mean less the share that is right. Of the rule that guarantees 90 %
(cross-fitted in five parts, as is advised for few queries): how often it was given, what share it
answers, the precision of these answers, and whether that kept the 90 %. The same of as many answers
as keep the mean probability of the real queries, judged or not, at 90 % ("assumed"): it is never
refused for want of queries. Nothing was chosen by these numbers. The splits share the queries, so
that intervals are of the calibration, not of the data set.
"""

from __future__ import annotations

import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.stats import t
from torch import Tensor, nn

from benchmarks.corruptions import SMALLEST, cropped, kept_shares
from benchmarks.datasets import load
from benchmarks.encoders import texts
from benchmarks.encoders.features import Encoding, encoded
from benchmarks.encoders.pretrained import (
    EFFICIENTNET_PACKAGES,
    MINILM_PACKAGES,
    EfficientNetLite0,
    MiniLM,
)
from benchmarks.examples.texts import UNKNOWN
from benchmarks.records import markdown, read_record, thousandths
from benchmarks.retrieval.decisions import ASKED, HITS, TARGET
from benchmarks.retrieval.measure import shuffled, summarised
from benchmarks.retrieval.problems import (
    CHARACTERS,
    DRAWN,
    GALLERY,
    HELD,
    LACKING,
    SIDE,
    SPECIES,
    WHOLE,
    Problem,
    Source,
    _of,
    _rank_in_class,
)
from benchmarks.retrieval.rows import record_rows
from benchmarks.retrieval.split import drawn
from laplace_metric.calibration import ScoreCalibration, calibrate_scores
from laplace_metric.calibration._hits import LabelledHits, SearchHits
from laplace_metric.errors import InputError, LaplaceMetricWarning
from laplace_metric.evaluation import auroc, expected_calibration_error

COPIES, CALIBRATE, PARTS = 1_000, 300, 5
"""Copies, at most; of these and of queries as many calibrate, cross-fitted in as many parts."""
NEAR, FAR = "near", "far"
SHORTEST, DROPPED, LEAST = 0.8, 0.25, 2
"""Side of a near crop, at least; share of the words that go, and how many stay at least."""
Array = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Origin:
    """Where a gallery's items come from: the set, how it is read, and which rows are in it.

    ``side`` is that of the encoder; None where the problem's own network sees the pixels.
    """

    dataset: str
    split: str = "train"
    limit: int | None = None
    size: int | None = None
    side: int | None = SIDE
    rows: Callable[[Tensor], Tensor] = lambda labels: torch.arange(len(labels))

    def images(self, source: Source, places: Tensor) -> tuple[Tensor, Tensor]:
        """Pixels [N, C, H, W] of these places of the gallery, and labels."""
        images = load(self.dataset, self.split, source.data, self.limit, size=self.size)
        rows = self.rows(images.labels)[places]
        return images.pixels(rows), images.labels[rows]


def _classes(*chosen: int, limit: int | None = None) -> Callable[[Tensor], Tensor]:
    """Rows of these classes, in the order of the problems."""
    return lambda labels: _of((torch.arange(len(labels)), labels), chosen, limit)[0]


def _enrolled(labels: Tensor) -> Tensor:
    return ((labels < CHARACTERS) & (_rank_in_class(labels) < DRAWN)).nonzero().flatten()


ORIGINS = {
    "fashion-mnist": Origin("fashion-mnist", limit=GALLERY, side=None),
    "fashion-mnist, unseen": Origin(
        "fashion-mnist", side=None, rows=_classes(*HELD, limit=GALLERY)
    ),
    "cifar10": Origin("cifar10", limit=GALLERY),
    "cifar10, unseen": Origin("cifar10", limit=GALLERY, rows=_classes(*HELD)),
    "birds": Origin("cub", side=WHOLE),
    "birds, unseen": Origin(
        "cub", side=WHOLE, rows=_classes(*range(SPECIES // 2, SPECIES - LACKING))
    ),
    "omniglot": Origin("omniglot", "test", size=SIDE, rows=_enrolled),
    "emoji": Origin("emoji", side=WHOLE),
}


# Copies.


def copies(
    name: str, source: Source, gallery: tuple[Tensor, Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Places in the gallery [M], and inputs [M, ...] of their copies of either kind."""
    order = torch.randperm(len(gallery[1]), generator=torch.Generator().manual_seed(2))
    if name == "texts":
        return rewritten(source, order)
    origin, places = ORIGINS[name], order[:COPIES]
    crops = {kind: _crops(origin, source, gallery[1], places, kind) for kind in (NEAR, FAR)}
    if origin.side is None:
        return places, {kind: made()[0] for kind, made in crops.items()}
    return places, {
        kind: _encoded(
            Encoding(
                "efficientnet-lite0",
                origin.dataset,
                origin.split,
                origin.limit,
                EFFICIENTNET_PACKAGES,
                f"side {origin.side}, {kind} crops of {len(places)} of {name}",
            ),
            source,
            partial(EfficientNetLite0, origin.side),
            lambda made=made: _batches(*made()),  # type: ignore[misc]
        )
        for kind, made in crops.items()
    }


def _crops(
    origin: Origin, source: Source, all_labels: Tensor, places: Tensor, kind: str
) -> Callable[[], tuple[Tensor, Tensor]]:
    def made() -> tuple[Tensor, Tensor]:
        pixels, labels = origin.images(source, places)
        assert torch.equal(labels, all_labels[places]), "the origin is not the gallery's"
        return cropped(pixels, sides(len(places), kind)), labels

    return made


def sides(n: int, kind: str) -> Tensor:
    """Side of each crop over that of its image [n]."""
    shares = kept_shares(n)
    return shares if kind == FAR else 1 - (1 - shares) * (1 - SHORTEST) / (1 - SMALLEST)


def _batches(x: Tensor, y: Tensor, size: int = 200) -> Iterator[tuple[Tensor, Tensor]]:
    """Three channels, as the encoder sees the gallery's images."""
    for rows in torch.arange(len(x)).split(size):
        yield x[rows].expand(-1, 3, -1, -1), y[rows]


def _encoded(
    key: Encoding, source: Source, model: Callable[[], nn.Module], batches: Callable[[], Any]
) -> Tensor:
    return encoded(key, model, batches, source.cache / "encoded", progress=False)[0]


def rewritten(source: Source, order: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Places in the gallery of the texts whose description goes on, and their copies."""
    train, further, g = texts.load_texts("train"), texts.next_sentences(), np.random.default_rng(0)
    known = [i for i, name in enumerate(texts.CLASSES) if name not in UNKNOWN]
    rows = _classes(*known)(train.labels)
    places = [place for place in order.tolist() if train.texts[rows[place]] in further]
    originals = [train.texts[rows[place]] for place in places]
    lists = {NEAR: [thinned(text, g) for text in originals], FAR: [further[x] for x in originals]}
    packages = (*MINILM_PACKAGES, *texts.PACKAGES)
    return torch.tensor(places), {
        kind: _encoded(
            Encoding("minilm", "scipy", "train", None, packages, f"{kind} copies"),
            source,
            MiniLM,
            texts.TextSet(tuple(of), train.labels[rows][places]).batches(64).__iter__,
        )
        for kind, of in lists.items()
    }


def thinned(text: str, g: np.random.Generator) -> str:
    """The text without some of its words.

    Examples
    --------
    >>> thinned("Return the roots of a polynomial.", np.random.default_rng(0))
    'Return the roots of polynomial.'
    """
    words = text.split()
    order = np.argsort(g.random(len(words)), kind="stable")
    stay = max(LEAST, int((g.random(len(words)) >= DROPPED).sum()))
    return " ".join(words[i] for i in np.sort(order[:stay]))


# One split.


@dataclass(frozen=True)
class Found:
    """What M copies find with their original in the gallery, and without: [M, HITS] each."""

    own: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    distance: Array
    positions_without: npt.NDArray[np.int64]
    distance_without: Array

    @classmethod
    def of(cls, hits: SearchHits, own: npt.NDArray[np.int64]) -> Found:
        """From one hit more than is needed; the original, or else the last one, is left out."""
        is_own = hits.positions == own[:, None]
        is_own[~is_own.any(1), -1] = True
        others = [
            values[~is_own].reshape(len(own), -1) for values in (hits.positions, hits.distance)
        ]
        return cls(own, hits.positions[:, :-1], hits.distance[:, :-1], *others)

    def half_open(self, rows: npt.NDArray[np.int64], *, some: bool) -> tuple[Array, Any, Flags]:
        """Distances, items and whether the original is there; every second row lacks it."""
        there = np.arange(len(rows)) % 2 == 0 if some else np.ones(len(rows), bool)
        distance = np.where(there[:, None], self.distance[rows], self.distance_without[rows])
        items = np.where(there[:, None], self.positions[rows], self.positions_without[rows])
        return distance, items, there


def by_pairs(found: Found, rows: npt.NDArray[np.int64], *, some: bool) -> ScoreCalibration:
    """Calibrate by copies: the item with the query's own id is relevant."""
    distance, items, there = found.half_open(rows, some=some)
    return calibrate_scores(
        distance,
        "pairs",
        items=dict(zip(found.own[rows].tolist(), items, strict=True)),
        kind="distance",
        mated=there,
        cross_fit=PARTS,
    )


def one_split(judged: LabelledHits, found: dict[str, Found], n: int, seed: int) -> dict[str, Any]:
    """Every number of every way."""
    order = drawn(len(judged), torch.Generator().manual_seed(seed))
    ours, test = judged.take(order[:n]), judged.take(order[n : n + ASKED])
    unjudged = ours.hits.distance[:, :HITS]
    by_class = calibrate_scores(
        unjudged, ours.match[:, :HITS], kind="distance", mated=ours.known, cross_fit=PARTS
    )
    real = {"": (test.hits.distance[:, :HITS], test.match[:, 0])}
    row = asked("judged", by_class, real) | assumed("judged", by_class, unjudged, real[""])
    copied = drawn(len(next(iter(found.values())).own), torch.Generator().manual_seed(seed))
    m = min(n, len(copied) // 2)
    others = {}
    for kind, of in found.items():
        distance, items, _ = of.half_open(copied[m:], some=True)
        others[f"{kind} copies"] = distance, items[:, 0] == of.own[copied[m:]]
    for kind, of in found.items():
        for some in (False, True):
            way = f"{kind}, half open" if some else kind
            calibration = by_pairs(of, copied[:m], some=some)
            row |= asked(way, calibration, real | others)
            row |= assumed(way, calibration, unjudged, real[""])
    return row


def asked(
    way: str, calibration: ScoreCalibration, queries: dict[str, tuple[Array, Flags]]
) -> dict[str, float | None]:
    """What a calibration says of each set of queries, and what its rule answers."""
    try:
        rule = calibration.guarantee(precision=TARGET)
    except InputError:
        rule = None
    row: dict[str, float | None] = {f"{way}: given": float(rule is not None)}
    for name, (distance, right) in queries.items():
        head = f"{way}: {name}: " if name else f"{way}: "
        p = calibration.probability(distance)[:, 0]
        row |= {
            f"{head}auroc": auroc(-p[right], -p[~right]),
            f"{head}ece": expected_calibration_error(p, right).ece,
            f"{head}off": float(p.mean() - right.mean()),
        }
        accepted = np.zeros(len(p), bool) if rule is None else rule(distance).answered
        row |= answers(head, accepted, right)
    return row


def assumed(
    way: str, calibration: ScoreCalibration, unjudged: Array, new: tuple[Array, Flags]
) -> dict[str, float | None]:
    """As many answers as keep the mean probability of queries that nobody judged."""
    likelier = np.sort(calibration.probability(unjudged)[:, 0])[::-1]
    enough = np.flatnonzero(np.cumsum(likelier) / np.arange(1, len(likelier) + 1) >= TARGET)
    threshold = likelier[enough[-1]] if len(enough) else np.inf
    accepted = calibration.probability(new[0])[:, 0] >= threshold
    return answers(f"{way}: assumed ", accepted, new[1])


def answers(head: str, accepted: Flags, right: Flags) -> dict[str, float | None]:
    """Share that is answered, precision of these, and whether it is as wanted."""
    precision = float(right[accepted].mean()) if accepted.any() else None
    return {
        f"{head}answered": float(accepted.mean()),
        f"{head}precision": precision,
        f"{head}kept": float(precision is None or precision >= TARGET),
    }


def compared(problem: Problem, source: Source, splits: int, queries: int) -> dict[str, Any]:
    """Means of every number over the splits."""
    x, y = shuffled(problem.pool, queries)
    index = problem.embedder.index(*problem.gallery, progress=False)
    judged = index.labelled_hits(x, y, HITS)
    places, made = copies(problem.name, source, problem.gallery)
    own = places.numpy()
    found = {
        kind: Found.of(index.search(inputs, HITS + 1).hits, own) for kind, inputs in made.items()
    }
    n = min(CALIBRATE, len(judged) // 2)
    rows = [one_split(judged, found, n, seed) for seed in range(splits)]
    facts = {"problem": problem.name, "queries": n, "copies": len(own), "splits": splits}
    facts |= {"right": float(judged.match[:, 0].mean()), "known": float(judged.known.mean())}
    for kind, of in found.items():
        facts[f"{kind}: original is first"] = float((of.positions[:, 0] == own).mean())
        labels = problem.gallery[1].numpy()
        facts[f"{kind}: class is first"] = float((labels[of.positions[:, 0]] == labels[own]).mean())
    return facts | summarised(rows)


def run(options: Namespace) -> None:
    """Every problem."""
    warnings.simplefilter("ignore", LaplaceMetricWarning)
    how = options.splits, options.queries
    source = Source(options.data, options.cache)
    record_rows(options, "pairs", lambda problem: compared(problem, source, *how))


# Tables.


def told(found: dict[str, float], form: Callable[[float], str]) -> str:
    """Mean and half width of its 95 % t-interval over the splits in which there is one."""
    n = found["n"]
    if n < 2:
        return form(found["mean"]) if n else ""
    half = float(t.ppf(0.975, n - 1)) * found["sd"] / n**0.5
    return f"{form(found['mean'])} ± {form(half)}"


def percent(value: float) -> str:
    """With one decimal."""
    return f"{value:.1%}"


def pairs_table() -> str:
    """Queries judged by class next to copies that stand for them, asked the same."""
    header = ["problem", "calibrated by", "AUROC", "ECE", "probability less share right"]
    header += ["assumed 90 %: precision", "answered", "not broken"]
    header += ["guarantee: given", "precision", "answered"]
    lines = []
    for row in read_record("pairs")["rows"]:
        for way in ("judged", NEAR, FAR):
            lines.append([
                row["problem"],
                f"{row['queries']} judged" if way == "judged" else f"{way} copies",
                told(row[f"{way}: auroc"], thousandths),
                told(row[f"{way}: ece"], thousandths),
                f"{row[f'{way}: off']['mean']:+.3f}",
                told(row[f"{way}: assumed precision"], percent),
                f"{row[f'{way}: assumed answered']['mean']:.1%}",
                f"{row[f'{way}: assumed kept']['mean']:.0%}",
                f"{row[f'{way}: given']['mean']:.0%}",
                told(row[f"{way}: precision"], percent),
                f"{row[f'{way}: answered']['mean']:.1%}",
            ])  # fmt: skip
    return markdown(header, lines)


def copies_table() -> str:
    """The same calibrations where only the original is right, which every second copy lacks."""
    header = ["problem", "copies", "original is first", "ECE", "given", "precision", "answered"]
    header += ["not broken", "other copies: precision", "not broken", "real queries accepted"]
    lines = []
    for row in read_record("pairs")["rows"]:
        for kind, other in ((NEAR, FAR), (FAR, NEAR)):
            own, new = (f"{kind}, half open: {of} copies: " for of in (kind, other))
            lines.append([
                row["problem"],
                kind,
                f"{row[f'{kind}: original is first']:.0%}",
                told(row[f"{own}ece"], thousandths),
                f"{row[f'{kind}, half open: given']['mean']:.0%}",
                told(row[f"{own}precision"], percent),
                f"{row[f'{own}answered']['mean']:.1%}",
                f"{row[f'{own}kept']['mean']:.0%}",
                told(row[f"{new}precision"], percent),
                f"{row[f'{new}kept']['mean']:.0%}",
                f"{row[f'{kind}, half open: answered']['mean']:.1%}",
            ])  # fmt: skip
    return markdown(header, lines)


TABLES = {"retrieval-pairs": pairs_table, "retrieval-pairs-copies": copies_table}
