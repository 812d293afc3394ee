"""Classes and images that the fit never saw, by one number: ``--pieces unfamiliar``.

Three times a random half of the classes is known (two thirds of the texts'). Half of their points
are fitted, the other half is asked as known; all points of the other classes are asked as new, and
images of other sets as foreign. AUROC of ``epistemic`` and of rivals that read the same points:

1-NN, 10-NN     distance to the nearest, tenth nearest fitted point, directions
Mahalanobis++   to the nearest class mean under the covariance within classes (a ridge of 1e-8 of
                its mean eigenvalue), directions; relative: less that to the mean of all
MSP, energy     of a multinomial logistic regression (scikit-learn, standardised, C = .1)
ViM             its energy and the residual of the head's inputs (Wang et al. 2022)

The last three where there are at most 200 known classes. "trained": inputs of the last layer of a
network that learnt the known classes.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import logsumexp
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import NearestNeighbors
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from benchmarks.encoders.features import encoded_texts
from benchmarks.records import markdown, read_record, thousandths
from benchmarks.retrieval.few import summarised
from benchmarks.retrieval.problems import Labelled, Source, _trained
from benchmarks.retrieval.rows import record_rows
from laplace_metric import LaplaceEmbedder
from laplace_metric.evaluation import auroc

Array = npt.NDArray[Any]
SPLITS, FITTED, ASKED, PROBED = 3, 10_000, 2_000, 200
RIVALS = ("1-NN", "10-NN", "Mahalanobis++", "relative", "MSP", "energy", "ViM")
DEVELOPED = ("fashion-mnist, pixels", "fashion-mnist, trained", "cifar10", "cifar10, trained",
             "birds", "birds, trained")  # fmt: skip
"""The weights and the sum were developed on these sets; the others were run afterwards."""


@dataclass(frozen=True)
class Points:
    """Inputs of a head with classes, and foreign ones; ``widths`` of a network to train first."""

    name: str
    points: Labelled
    foreign: dict[str, Tensor]
    widths: tuple[int, ...] = ()
    share: float = 0.5


def classes_of(points: Points, seed: int) -> tuple[Labelled, Tensor, dict[str, Tensor]]:
    """The fit set, known points, and the others by name; inputs of the last layer."""
    x, y = points.points
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(int(y.max()) + 1, generator=generator)
    known = order[: round(points.share * len(order))]
    inside = torch.isin(y, known)
    rows = inside.nonzero()[:, 0]
    rows = rows[torch.randperm(len(rows), generator=generator)]
    fitted, asked = rows[: len(rows) // 2][:FITTED], rows[len(rows) // 2 :][:ASKED]
    new = (~inside).nonzero()[:, 0]
    new = new[torch.randperm(len(new), generator=generator)][:ASKED]
    body = trained_body(x[fitted], y[fitted], points.widths, seed)
    foreign = {name: body(images[:ASKED]) for name, images in points.foreign.items()}
    return (body(x[fitted]), y[fitted]), body(x[asked]), {"new": body(x[new]), **foreign}


def trained_body(x: Tensor, y: Tensor, widths: tuple[int, ...], seed: int) -> Callable[..., Tensor]:
    """All but the last layer of a network that learnt the classes; nothing without ``widths``."""
    if not widths:
        return lambda part: part
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        sizes = (x.shape[1], *widths)
        layers = [
            layer
            for before, after in pairwise(sizes)
            for layer in (nn.Linear(before, after), nn.ReLU())
        ]
        model = nn.Sequential(*layers[:-1])
    body = nn.Sequential(*[*_trained(model, (x, y), 10).children()][:-1])
    return lambda part: body(part).detach()


def rivals(fit: Labelled) -> Callable[[Array], dict[str, Array]]:
    """Scores of the rivals by their names, higher for what is less familiar."""
    x, y = fit[0].double().numpy(), fit[1].numpy()
    u, codes = unit(x), np.unique(y, return_inverse=True)[1]
    neighbours = NearestNeighbors(n_neighbors=10).fit(u)
    means = np.stack([u[codes == c].mean(0) for c in range(codes.max() + 1)])
    within, total = (inverse(np.cov((u - m).T, bias=True)) for m in (means[codes], u.mean(0)))
    probe, residual, alpha = None, np.zeros(0), 0.0
    if len(means) <= PROBED:
        probe = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=200))
        probe.fit(x, codes)
        # their dimensions: 512 from 1,024 on, else half
        dimension = 512 if x.shape[1] >= 1_024 else x.shape[1] // 2
        residual = np.linalg.eigh(np.cov(x.T))[1][:, :-dimension]
        size = np.linalg.norm((x - x.mean(0)) @ residual, axis=1)
        alpha = probe.decision_function(x).max(1).mean() / size.mean()

    def scores(q: Array) -> dict[str, Array]:
        v = unit(q)
        near = neighbours.kneighbors(v)[0]
        centred, of_class = v - u.mean(0), means - u.mean(0)
        cross = centred @ within @ of_class.T
        to_class = squared(centred, within) + (squared(of_class, within) - 2 * cross).min(1)
        found = {"1-NN": near[:, 0], "10-NN": near[:, 9], "Mahalanobis++": to_class,
                 "relative": to_class - squared(centred, total)}  # fmt: skip
        if probe is not None:
            logits = probe.decision_function(q)
            energy = -logsumexp(logits, 1)
            size = np.linalg.norm((q - x.mean(0)) @ residual, axis=1)
            found |= {"MSP": -(logits.max(1) + energy), "energy": energy}
            found["ViM"] = alpha * size + energy
        return found

    return scores


def unit(x: Array) -> Array:
    """Rows of length 1."""
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))


def inverse(covariance: Array) -> Array:
    """With a ridge of 1e-8 of the mean eigenvalue."""
    ridge = 1e-8 * np.trace(covariance) / len(covariance)
    return np.linalg.pinv(covariance + ridge * np.eye(len(covariance)))


def squared(gap: Array, precision: Array) -> Array:
    """Mahalanobis distances of rows."""
    return np.asarray(((gap @ precision) * gap).sum(1))


def measured(points: Points) -> dict[str, Any]:
    """Means of every AUROC over the splits."""
    rows = []
    for seed in range(SPLITS):
        fit, known, others = classes_of(points, seed)
        embedder, their = LaplaceEmbedder.from_embeddings(*fit, distance="arccos"), rivals(fit)

        def scored(x: Tensor, ours: Any = embedder, other: Any = their) -> dict[str, Array]:
            e = ours(x)
            parts = {"near": e.near, "far": e.far, "local": e.local, "epistemic": e.epistemic}
            return {name: part.numpy() for name, part in parts.items()} | {
                "near + far": (e.near + e.far).numpy(), **other(x.double().numpy())
            }  # fmt: skip

        base = scored(known)
        row: dict[str, float] = {}
        for name, x in others.items():
            values = {key: auroc(base[key], part) for key, part in scored(x).items()}
            row |= {f"{name}: {key}": value for key, value in values.items()}
            best = max(values[key] for key in RIVALS if key in values)
            row |= {f"{name}: best": best, f"{name}: ahead": values["epistemic"] - best}
        rows.append(row)
    facts = {"problem": points.name, "splits": SPLITS, "developed on": points.name in DEVELOPED}
    return facts | {"asked": ["new", *points.foreign]} | summarised(rows)


def pixels(name: str, widths: tuple[int, ...], source: Source) -> Points:
    """Grey images as they are."""
    x, y = source.pixels(name, "train", 2 * FITTED)
    foreign = {other: source.pixels(other, "test", ASKED)[0].flatten(1) for other in ("mnist",)}
    return Points(
        f"{name}, {'trained' if widths else 'pixels'}", (x.flatten(1), y), foreign, widths
    )


def photographs(name: str, widths: tuple[int, ...], source: Source) -> Points:
    """Features of a frozen EfficientNet-Lite0."""
    if name == "cifar10":
        parts = [source.features(name, "train", FITTED), source.features(name, "test")]
        others = ("fashion-mnist", "mnist")
        images = {other: source.features(other, "test", 2_500)[0] for other in others}
    else:
        parts = [source.whole("cub", split) for split in ("train", "test")]
        images = {other: source.whole(other, "test")[0] for other in ("hierarcaps", "emoji")}
    return Points(name + (", trained" if widths else ""), joined(parts), images, widths)


def joined(parts: list[Labelled]) -> Labelled:
    """Both splits of a set."""
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def omniglot(source: Source) -> Points:
    """Characters of the background alphabets; FashionMNIST is foreign."""
    images = {"fashion-mnist": source.features("fashion-mnist", "test", 2_500)[0]}
    return Points("omniglot", source.features("omniglot", "train"), images)


def emoji(source: Source) -> Points:
    """Drawings by subgroup; photographs are foreign."""
    points = joined([source.whole("emoji", split) for split in ("train", "test")])
    return Points("emoji", points, {"hierarcaps": source.whole("hierarcaps", "test")[0]})


def texts(source: Source) -> Points:
    """Summaries by sub-package."""
    cache = source.cache / "encoded"
    parts = [encoded_texts(cache, split, False) for split in ("train", "test")]
    return Points("texts", joined(parts), {}, share=2 / 3)


def digits(widths: tuple[int, ...], _: Source) -> Points:
    """scikit-learn's digits, six of ten known."""
    found = load_digits()
    x = torch.from_numpy(found.data).float() / 16
    y = torch.from_numpy(found.target)
    return Points("digits, trained" if widths else "digits", (x, y), {}, widths, 0.6)


LAYERS = (256, 128, 64)
PROBLEMS: dict[str, Callable[[Source], Any]] = {
    "fashion-mnist, pixels": partial(pixels, "fashion-mnist", ()),
    "fashion-mnist, trained": partial(pixels, "fashion-mnist", LAYERS),
    "cifar10": partial(photographs, "cifar10", ()),
    "cifar10, trained": partial(photographs, "cifar10", LAYERS),
    "birds": partial(photographs, "birds", ()),
    "birds, trained": partial(photographs, "birds", LAYERS),
    "emoji": emoji,
    "texts": texts,
    "digits": partial(digits, ()),
    "digits, trained": partial(digits, LAYERS[1:]),
    "omniglot": omniglot,
}


def run(options: Namespace) -> None:
    """Every problem."""
    record_rows(options, "unfamiliar", measured, PROBLEMS)


def table(foreign: bool = False) -> str:
    """AUROC of new classes, or of foreign images."""
    names = ("near", "far", "local", "near + far", *RIVALS, "epistemic")
    lines = []
    for row in read_record("unfamiliar")["rows"]:
        for asked in row["asked"]:
            if (asked != "new") != foreign:
                continue
            values = {n: row[f"{asked}: {n}"]["mean"] for n in names if f"{asked}: {n}" in row}
            top = max(values, key=lambda name: values[name])
            cells = [thousandths(values[n]) if n in values else "" for n in names]
            cells = [f"**{c}**" if n == top else c for n, c in zip(names, cells, strict=True)]
            ahead = f"{row[f'{asked}: ahead']['mean']:+.3f}".replace("0.", ".")
            title = row["problem"] + (f": {asked}" if foreign else "")
            chosen = "developed on it" if row["developed on"] else "confirmed on it"
            lines.append([title, chosen, *cells, ahead])
    return markdown(["problem", "epistemic was", *names, "ahead of the best rival"], lines)


TABLES: dict[str, Callable[[], str]] = {
    "unfamiliar-new": table,
    "unfamiliar-foreign": partial(table, True),
}
