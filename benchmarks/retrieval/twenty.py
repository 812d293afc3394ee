"""Twenty queries with and without abstention: ``python -m benchmarks retrieval --pieces twenty``.

Drawings of emoji by subgroup, one drawing for each emoji without tone and gender; ten subgroups,
drawn at random, are missing from the items. A ``Guard`` over the EfficientNet-Lite0 features of the
items, calibrated by the items themselves. The twenty queries are the first of a random order of all
test drawings, without one rude gesture; both draws have the seed 0, fixed before anything was run.
"""

from __future__ import annotations

import textwrap
from argparse import Namespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.stats import binomtest
from sklearn.neighbors import NearestNeighbors

from benchmarks.datasets import captions, load
from benchmarks.plots import Figure, Tiles, headed, save_png, tiles_plot
from benchmarks.records import figures_of, folder_of, markdown, read_record, write_record
from benchmarks.retrieval.problems import Source
from laplace_metric import Guard

Array = npt.NDArray[Any]
SHOWN, MISSING, PRECISION, OPEN = 20, 10, 0.9, 0.1
"""The precision: the highest of 99, 95, 90 and 80 % that the items can guarantee."""
RUDE = "middle finger"


def interval(right: int, n: int) -> list[float]:
    """95 % interval of a share, exact (Clopper and Pearson)."""
    found = binomtest(right, n).proportion_ci()
    return [float(found.low), float(found.high)]


def emoji_parts(options: Namespace) -> dict[str, tuple[Array, Array, Array]]:
    """Features, subgroups and rows of the files, one drawing a base, for each split."""
    source, parts = Source(options.data, options.cache), {}
    for split in ("train", "test"):
        images = load("emoji", split, options.data)
        _, first = np.unique(images.extras["base"].numpy(), return_index=True)
        first.sort()
        names = np.array([name.split(" > ")[1] for name in images.class_names])
        features = source.whole("emoji", split)[0].numpy()
        parts[split] = features[first], names[images.labels.numpy()[first]], first
    return parts


def run(options: Namespace) -> None:
    """Measure and write ``twenty.json``."""
    parts = emoji_parts(options)
    (x, y, rows), (asked, truth, places) = parts["train"], parts["test"]
    groups = np.unique(y)
    order = torch.randperm(len(groups), generator=torch.Generator().manual_seed(0)).numpy()
    known = ~np.isin(y, groups[order[:MISSING]])
    x, y, rows = x[known], y[known], rows[known]
    guard = Guard(x, y, precision=PRECISION, open_set_fraction=OPEN)
    answers = guard.ask(asked)
    unit = [part / np.linalg.norm(part, axis=1, keepdims=True) for part in (x, asked)]
    nearest = NearestNeighbors(n_neighbors=1).fit(unit[0]).kneighbors(unit[1])[1][:, 0]
    label = np.array([str(one) for one in answers.label])
    words = captions("emoji", "test", options.data)
    order = torch.randperm(len(asked), generator=torch.Generator().manual_seed(0)).numpy()
    shown = [q for q in order if words[places[q]][-1] != RUDE][:SHOWN]
    answered, right = answers.answered, label == truth
    first = y[nearest] == truth
    n, given = len(asked), int(answered.sum())
    summary = {
        "items": len(x), "queries": n, "subgroups": len(np.unique(y)), "precision": PRECISION,
        "no match": int((~np.isin(truth, y)).sum()), "guard": str(guard),
        "nearest right": int(first.sum()), "nearest interval": interval(int(first.sum()), n),
        "answered": given, "answers right": int(right[answered].sum()),
        "answers interval": interval(int(right[answered].sum()), given),
    }  # fmt: skip
    cells = [
        {
            "row": int(places[q]), "truth": truth[q], "nearest": y[nearest[q]],
            "nearest row": int(rows[nearest[q]]), "known": bool(truth[q] in y),
            "answer": label[q] if answered[q] else None, "reason": str(answers.reason[q]),
            "probability": float(answers.probability[q]),
        }
        for q in shown
    ]  # fmt: skip
    print(summary, *cells, sep="\n")
    write_record("twenty", {"summary": summary, "shown": cells}, folder_of(options))


def run_figure(options: Namespace) -> None:
    """Draw the record of the twenty queries."""
    record = read_record("twenty", folder_of(options))
    save_png(twenty_figure(record, options.data), figures_of(options) / "twenty.png")


def twenty_figure(record: dict[str, Any], data: str | None) -> Figure:
    """Every query with the answer of the nearest item, and with what the guard says to it."""
    images, shown = load("emoji", "test", data), record["shown"]
    pixels = images.pixels(torch.tensor([q["row"] for q in shown]))
    pictures = [picture.permute(1, 2, 0).numpy() for picture in pixels]
    always = [q["nearest"] == q["truth"] for q in shown]
    frames = [None if q["answer"] is None else q["answer"] == q["truth"] for q in shown]
    then = [
        q["reason"] if q["answer"] is None
        else "answered" if q["answer"] == q["nearest"] else _short(q["answer"])
        for q in shown
    ]  # fmt: skip
    given = [right for right in frames if right is not None]
    words = {True: "answers, right", False: "answers, wrong", None: "abstains, and why"}
    summary = record["summary"]
    note = (
        f"Twenty of {summary['queries']} new emoji, drawn before any was answered.\n"
        f"First line, the nearest item: {len(shown)} answers, {sum(always)} right.\n"
        f"Frame and second line, the guard: {len(given)} answers, {sum(given)} right.\n"
        f"Guaranteed: {summary['precision']:.0%} of its answers are right; of all "
        f"{summary['answered']} it was {summary['answers right'] / summary['answered']:.0%}."
    )
    tiles = Tiles(pictures, [_short(q["nearest"]) for q in shown], always, then, frames)
    return headed(tiles_plot(tiles, 5, words), "Which answers can be trusted?", note)


def _short(name: str) -> str:
    """At most 15 letters on a line, two lines."""
    return "\n".join(textwrap.wrap(name.replace("-", "- "), 15)[:2]).replace("- ", "-")


def twenty_table() -> str:
    """All queries, and the twenty of the figure."""
    record = read_record("twenty")
    summary, shown = record["summary"], record["shown"]
    first = sum(one["nearest"] == one["truth"] for one in shown)
    given = [one["answer"] == one["truth"] for one in shown if one["answer"]]
    lines = []
    for way, n, key in (
        ("nearest item", summary["queries"], "nearest"),
        ("Guard", summary["answered"], "answers"),
    ):
        low, high = summary[f"{key} interval"]
        right = summary[f"{key} right"]
        share = f"{right} ({right / n:.0%}, {low:.0%} to {high:.0%})"
        few = f"{first} of {SHOWN}" if way == "nearest item" else f"{sum(given)} of {len(given)}"
        lines.append([way, f"{n} of {summary['queries']}", share, few])
    return markdown(["answer of", "answered", "right (95 % interval)", "of the twenty"], lines)


TABLES = {"twenty": twenty_table}
