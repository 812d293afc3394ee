"""Tags with a precision: ``python -m benchmarks retrieval --pieces tags``.

Emoji, by averaged pixels: their groups and keywords are the tags. Random splits have 800 drawings,
which calibrate themselves; the others are asked. And 300 worlds of random tags: directions of tags
are summed under noise, 400 items calibrate themselves, and 3,000 new queries count which guards
break the precision of their tags. In half of the worlds, "uneven" ones, few rows have most tags.
"""

from __future__ import annotations

import warnings
from argparse import Namespace
from typing import Any

import numpy as np
import torch
from scipy.stats import beta
from torch import nn
from tqdm import tqdm

from benchmarks.datasets import captions, load
from benchmarks.records import folder_of, markdown, read_record, write_record
from laplace_metric.errors import InputError, LaplaceMetricWarning
from laplace_metric.tags import TagGuard

SPLITS, ITEMS, PRECISIONS = 8, 800, (0.6, 0.8)
WORLDS, CALIBRATE, ASKED, KEPT = 150, 400, 3_000, 0.7
TAGS, DIMENSIONS, NOISE = 12, 16, 0.5
KINDS = ("even", "uneven")
Row = dict[str, Any]


def emoji(splits: int, data: Any) -> list[Row]:
    """Return what a guard gives of the tags of emoji, split by split."""
    drawings, words = load("emoji", "train", data), captions("emoji", "train", data)
    _, first = np.unique(drawings.extras["base"].numpy(), return_index=True)
    x = nn.functional.avg_pool2d(torch.as_tensor(drawings.images)[first].float(), 8).flatten(1)
    groups = [drawings.class_names[int(drawings.labels[i])].split(" > ") for i in first]
    tags = [[*own, *words[i][:-1]] for own, i in zip(groups, first, strict=True)]
    rows = []
    for seed in tqdm(range(splits), desc="emoji", disable=None):
        order = np.random.default_rng(seed).permutation(len(x))
        items, asked = order[:ITEMS], order[ITEMS:]
        for precision in PRECISIONS:
            row: Row = {"precision": precision, "seed": seed}
            try:
                guard = TagGuard(x[items], [tags[i] for i in items], precision)
            except InputError:
                rows.append({**row, "refused": True})
                continue
            found = guard.evaluate(x[asked], [tags[i] for i in asked])
            counts = {"given": found.given, "right": found.right, "true": found.tags}
            rows.append({**row, "refused": False, "queries": len(asked), **counts})
    return rows


def drawn(n: int, seed: int, kind: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return vectors [n, D], and their tags as a matrix [n, L]."""
    g = np.random.default_rng(seed)
    base = np.random.default_rng(99).normal(size=(TAGS, DIMENSIONS))
    has = g.random((n, TAGS)) < np.where(np.arange(TAGS) < 4, 0.25, 0.05)
    if kind == "uneven":
        has |= (g.random((n, 1)) < 0.08) & (g.random((n, TAGS)) < 0.6)
    far = np.where(g.random((n, 1)) < 0.3, 2.0, 1.0)
    x = has @ base + NOISE * far * g.normal(size=(n, DIMENSIONS))
    return x.astype(np.float32), has


def worlds(n: int) -> list[Row]:
    """Return the precision of the tags that the guard of each world gives."""
    rows = []
    for kind in KINDS:
        for seed in tqdm(range(n), desc=kind, disable=None):
            x, has = drawn(CALIBRATE + ASKED, 1_000 + seed, kind)
            row: Row = {"kind": kind, "seed": seed}
            try:
                guard = TagGuard(x[:CALIBRATE], has[:CALIBRATE], KEPT)
            except InputError:
                rows.append({**row, "refused": True})
                continue
            found = guard.evaluate(x[CALIBRATE:], has[CALIBRATE:])
            rows.append({**row, "refused": False, "given": found.given, "right": found.right})
    return rows


def run(options: Namespace) -> None:
    """Measure and write ``tags.json``."""
    small = options.size == "smoke"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LaplaceMetricWarning)
        record = {
            "emoji": emoji(2 if small else SPLITS, options.data),
            "worlds": worlds(3 if small else WORLDS),
        }
    write_record("tags", record, folder_of(options))
    print(emoji_table(folder_of(options)), worlds_table(folder_of(options)), sep="\n\n")


def _record(folder: Any) -> Row:
    return read_record("tags") if folder is None else read_record("tags", folder)


def emoji_table(folder: Any = None) -> str:
    """Return the table of emoji: means over splits, and how many guards keep their precision."""
    rows = _record(folder)["emoji"]
    lines = []
    for precision in PRECISIONS:
        every = [row for row in rows if row["precision"] == precision]
        some = [row for row in every if not row["refused"] and row["given"]]
        if not some:
            lines.append([f"{precision:.0%}", "none", "", "", f"0 of {len(every)}"])
            continue
        right, recall, given = (
            float(np.mean([row[a] / row[b] for row in some]))
            for a, b in (("right", "given"), ("right", "true"), ("given", "queries"))
        )
        kept = sum(row["right"] >= precision * row["given"] for row in some)
        cells = [f"{right:.1%}", f"{given:.2f}", f"{recall:.1%}", f"{kept} of {len(some)}"]
        lines.append([f"{precision:.0%}", *cells])
    header = ["asked", "right, of the given tags", "tags a query", "of its tags given"]
    return markdown([*header, "guards that keep it"], lines)


def worlds_table(folder: Any = None) -> str:
    """Return the table of worlds: guards that break their precision, with an exact interval."""
    rows = _record(folder)["worlds"]
    lines = []
    for kind in KINDS:
        some = [row for row in rows if row["kind"] == kind and not row["refused"]]
        refused = sum(row["kind"] == kind and row["refused"] for row in rows)
        broken, n = sum(row["right"] < KEPT * row["given"] for row in some), len(some)
        low = float(beta.ppf(0.025, broken, n - broken + 1)) if broken else 0.0
        high = float(beta.ppf(0.975, broken + 1, n - broken)) if broken < n else 1.0
        cells = [f"{broken} of {n}", f"{low:.1%} to {high:.1%}", str(refused)]
        lines.append([kind, *cells])
    header = ["tags", f"guards of {KEPT:.0%} that break it", "95 % interval", "refused"]
    return markdown(header, lines)


TABLES = {"tags-emoji": emoji_table, "tags-worlds": worlds_table}
