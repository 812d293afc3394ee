"""Twenty queries with and without abstention, and the wrong labels of a public set.

``python -m benchmarks retrieval --pieces twenty twenty-figure wrong-labels --data DIR --cache DIR``

twenty          drawings of emoji by subgroup, one drawing for each emoji without tone and gender;
                ten subgroups, drawn at random, are missing from the items. A ``Guard`` over the
                EfficientNet-Lite0 features of the items, calibrated by the items themselves. The
                twenty queries are the first of a random order of all test drawings, without one
                rude gesture; both draws have the seed 0, fixed before anything was run.
wrong-labels    test images of CIFAR-10, whose labels 47 to 63 people each judged (CIFAR-10H,
                Peterson et al. 2019). A label counts as wrong if most people chose another class.
                Features: EfficientNet-Lite0 at its 224 pixels, the first 128 principal components.
                ``Index.suspicious_labels`` reads the same ones as its rivals, of a logistic
                regression in five folds: the probability of the given label (self-confidence),
                and confident learning (Northcutt et al. 2021): items of the off-diagonal of the
                confident joint, by normalised margin.
"""

from __future__ import annotations

import textwrap
from argparse import Namespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.stats import binomtest
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.neighbors import NearestNeighbors
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.datasets import captions, load
from benchmarks.encoders.features import encoded_images
from benchmarks.plots import Figure, Tiles, headed, save_png, tiles_plot
from benchmarks.records import figures_of, folder_of, markdown, read_record, write_record
from benchmarks.retrieval.problems import Source
from laplace_metric import Guard, LaplaceEmbedder

Array = npt.NDArray[Any]
SHOWN, MISSING, PRECISION, OPEN = 20, 10, 0.9, 0.1
"""The precision: the highest of 99, 95, 90 and 80 % that the items can guarantee."""
RUDE = "middle finger"
LOOKED_AT = (20, 50, 100)
LARGE, COMPONENTS = 224, 128


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


def run_twenty(options: Namespace) -> None:
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


def run_wrong_labels(options: Namespace) -> None:
    """Measure and write ``wrong_labels.json``."""
    cache = options.cache / "encoded"
    whole = encoded_images(cache, options.data, "cifar10", "test", None, side=LARGE)
    x, y = (part.numpy() for part in whole)
    x = PCA(COMPONENTS, random_state=0).fit_transform(x).astype(np.float32)
    votes = load("cifar10", "test", options.data).extras["cifar10h_counts"].numpy()
    wrong = votes.argmax(1) != y
    index = LaplaceEmbedder.from_embeddings(x, y, distance="arccos").cross_index(
        x, y, progress=False
    )
    review = index.suspicious_labels(len(y))
    probe = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=300))
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    p = cross_val_predict(probe, x, y, cv=folds, method="predict_proba")
    own = p[np.arange(len(y)), y]
    orders = {
        "suspicious_labels": review.positions.numpy(),
        "confident learning": confident(p, y),
        "self-confidence": own.argsort(kind="stable"),
    }
    agreed = votes[np.arange(len(y)), y] / votes.sum(1)
    rows = [
        {"method": name, "looked at": n, "wrong": (k := int(wrong[order[:n]].sum())),
         "interval": interval(k, n), "agree": float(agreed[order[:n]].mean())}
        for name, order in orders.items()
        for n in LOOKED_AT
    ]  # fmt: skip
    summary = {
        "images": len(y),
        "wrong": int(wrong.sum()),
        "agree": float(agreed.mean()),
        "right by five folds": float((p.argmax(1) == y).mean()),
    }
    print(summary, *rows, sep="\n")
    write_record("wrong_labels", {"summary": summary, "rows": rows}, folder_of(options))


def confident(p: Array, y: Array) -> Array:
    """Order of N items by confident learning, given probabilities [N, C] and labels [N].

    Items whose probability of another class is above the mean of that class's own items come
    first, by the normalised margin ``p(label) - max p(other)``; then the rest by the same.
    """
    classes = np.arange(p.shape[1])
    mean = np.array([p[y == c, c].mean() for c in classes])
    above = np.where(p >= mean, p, -1)
    joint = (above.max(1) >= 0) & (above.argmax(1) != y)
    other = np.where(classes == y[:, None], -1, p).max(1)
    margin = p[np.arange(len(y)), y] - other
    found: Array = np.lexsort((margin, ~joint))
    return found


def run_figure(options: Namespace) -> None:
    """Draw the record of the twenty queries."""
    record = read_record("twenty", folder_of(options))
    save_png(twenty_figure(record, options.data), figures_of(options) / "twenty.png")


def twenty_figure(record: dict[str, Any], data: str | None) -> Figure:
    """Every query twice: the nearest item's answer, and the guard's."""
    images, shown = load("emoji", "test", data), record["shown"]
    pixels = images.pixels(torch.tensor([q["row"] for q in shown]))
    pictures = [picture.permute(1, 2, 0).numpy() for picture in pixels]
    always = [q["nearest"] == q["truth"] for q in shown]
    guarded = [None if q["answer"] is None else q["answer"] == q["truth"] for q in shown]
    given = [right for right in guarded if right is not None]
    left = Tiles(
        f"nearest item: {len(shown)} answers, {sum(always)} right",
        pictures, [_short(q["nearest"]) for q in shown], always,
    )  # fmt: skip
    right = Tiles(
        f"Guard: {len(given)} answers, {sum(given)} right, {len(shown) - len(given)} not answered",
        pictures, [_short(q["answer"] or q["reason"]) for q in shown], guarded,
    )  # fmt: skip
    words = {True: "right subgroup", False: "wrong, or none is right", None: "abstains, and why"}
    summary = record["summary"]
    note = (
        f"Twenty of {summary['queries']} new emoji, drawn before any was answered. Below: the "
        f"answer. Guaranteed: {summary['precision']:.0%} of the answers are right; of all "
        f"{summary['answered']} it was {summary['answers right'] / summary['answered']:.0%}."
    )
    return headed(tiles_plot([left, right], 5, words), "Which answers can be trusted?", note)


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


def wrong_labels_table() -> str:
    """Precision of each order, as far as one looks."""
    record = read_record("wrong_labels")
    summary, rows = record["summary"], record["rows"]
    lines = []
    for name in dict.fromkeys(row["method"] for row in rows):
        cells = []
        of_method = [row for row in rows if row["method"] == name]
        for row in of_method:
            low, high = row["interval"]
            share = row["wrong"] / row["looked at"]
            cells.append(f"{row['wrong']} ({share:.0%}, {low:.0%} to {high:.0%})")
        lines.append([name, *cells, f"{of_method[-1]['agree']:.0%}"])
    chance = summary["wrong"] / summary["images"]
    last = [f"{chance * n:.1f} ({chance:.1%})" for n in LOOKED_AT]
    lines.append(["at random", *last, f"{summary['agree']:.0%}"])
    header = ["order", *(f"wrong in the first {n}" for n in LOOKED_AT)]
    return markdown([*header, "people who chose the label, first 100"], lines)


TABLES = {"twenty": twenty_table, "wrong-labels": wrong_labels_table}
