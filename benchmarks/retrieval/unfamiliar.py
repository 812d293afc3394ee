"""Does a guard know the unfamiliar: ``python -m benchmarks retrieval --pieces unfamiliar``.

Queries that have no match in the index are unfamiliar at p <= .05, a level that the calibration
queries fix. Ways to rank them, all with the same items and the same 5 %:

- weighted: the p-value of the library, where the epistemic number counts four times, or once where
  the calibration queries are unlike the points of the fit, or the gallery has fewer classes.
- alike: the same with each statistic once: distance, epistemic number, ambiguity.
- epistemic, distance: one of them alone.
- cosine: mean cosine distance to the ten nearest items (Sun et al. 2022).

Cases: frozen vectors of four sets, each beside the three others and beside four of its ten classes;
networks that are trained, likewise; and galleries of other classes than those of the fit. Birds and
characters were not looked at when the weight was chosen.
"""

from __future__ import annotations

import warnings
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from pytorch_metric_learning.losses import ContrastiveLoss
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestNeighbors
from torch import Tensor, nn

from benchmarks.datasets import load
from benchmarks.encoders.pretrained import EfficientNetLite0
from benchmarks.networks import perceptron
from benchmarks.posterior.frozen import features
from benchmarks.records import folder_of, markdown, read_record, write_record
from laplace_metric import LaplaceEmbedder
from laplace_metric.calibration._conformal import least_common_p_values
from laplace_metric.calibration.probability._features import query_statistics
from laplace_metric.errors import UnfamiliarQueriesWarning
from laplace_metric.training import train_embedder

NAME = "unfamiliar"
SETS, UNSEEN, NETWORKS = ("fashion-mnist", "kmnist", "mnist", "cifar10"), ("cub", "omniglot"), (
    "fashion-mnist", "mnist",
)  # fmt: skip
N, N_UNSEEN, N_STRANGE, SIDE, TRAINED, TESTED = 2_000, 1_500, 500, 64, 10_000, 3_000
K, NEAREST, ALPHA = 20, 10, 0.05
SAME, OTHERS = "classes of the set", "another set"
WAYS = ("weighted", "alike", "epistemic", "distance", "cosine")
Array = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Labelled = tuple[Tensor, Tensor]
Row = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """Queries that the gallery knows, and strangers by name.

    Parameters
    ----------
    kind, name : str
    embedder : LaplaceEmbedder
    known : (inputs [n], labels [n])
        One half are items, a quarter calibrates, a quarter asks.
    strangers : mapping of a name to inputs
    """

    kind: str
    name: str
    embedder: LaplaceEmbedder
    known: Labelled
    strangers: dict[str, Tensor]

    def rows(self) -> Iterator[Row]:
        """Yield a row for each way and each kind of strangers."""
        x, y = self.known
        half, most = len(y) // 2, 3 * len(y) // 4
        index = self.embedder.index(x[:half], y[:half], progress=False)
        index.calibrate(x[half:most], y[half:most])
        calibration = index.calibration
        assert calibration is not None
        reference = np.asarray(calibration.statistics)
        vectors = [self.embedder(part).mean.numpy() for part in (x[:half], x[half:most])]
        nearest = NearestNeighbors(n_neighbors=NEAREST, metric="cosine").fit(vectors[0])
        far = np.asarray(nearest.kneighbors(vectors[1])[0].mean(1))

        def scores(queries: Tensor) -> dict[str, tuple[Array, Flags]]:
            """Scores of queries, small for strangers, and whether each is unfamiliar."""
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UnfamiliarQueriesWarning)  # they are
                found = index.search(queries, K)
            assert found.p_value is not None
            ours = np.asarray(query_statistics(found.hits.nearest(calibration.depth)))
            alike = least_common_p_values(reference, ours)
            p = {"weighted": np.asarray(found.p_value), "alike": alike}
            vectors = self.embedder(queries).mean.numpy()
            columns = {
                "epistemic": (reference[:, 1], ours[:, 1]),
                "distance": (reference[:, 0], ours[:, 0]),
                "cosine": (far, np.asarray(nearest.kneighbors(vectors)[0].mean(1))),
            }
            for way, (known, new) in columns.items():
                at_least = len(known) - np.searchsorted(np.sort(known), new)
                p[way] = (1 + at_least) / (1 + len(known))
            raw = {way: -new for way, (_, new) in columns.items()}
            return {way: (raw.get(way, value), value <= ALPHA) for way, value in p.items()}

        asked = scores(x[most:])
        for name, queries in self.strangers.items():
            strange = scores(queries)
            for way in WAYS:
                both = np.concatenate([asked[way][0], strange[way][0]])
                truth = np.arange(len(both)) < len(asked[way][0])
                yield {
                    "kind": self.kind, "set": self.name, "strangers": name, "way": way,
                    "weight": calibration.epistemic_weight,
                    "auroc": float(roc_auc_score(truth, both)),
                    "found": float(strange[way][1].mean()),
                    "refused": float(asked[way][1].mean()),
                }  # fmt: skip


def _some(pair: Labelled, classes: Tensor) -> Labelled:
    rows = torch.isin(pair[1], classes)
    return pair[0][rows], pair[1][rows]


def _wrapped(pair: Labelled) -> LaplaceEmbedder:
    """Fit the posterior to the half that are items."""
    half = len(pair[1]) // 2
    return LaplaceEmbedder.from_embeddings(pair[0][:half], pair[1][:half])


def frozen_cases(data: Any) -> Iterator[Case]:
    """Yield sets beside each other, classes beside each other, and galleries of other classes."""
    sets = {name: features(name, N, data) for name in SETS}
    for name, pair in sets.items():
        others = {one: sets[one][0][:N_STRANGE] for one in SETS if one != name}
        yield Case("frozen, another set", name, _wrapped(pair), pair, others)
        known, new = (_some(pair, torch.arange(a, b)) for a, b in ((0, 6), (6, 10)))
        strangers = {SAME: new[0][:N_STRANGE]}
        yield Case("frozen, other classes", name, _wrapped(known), known, strangers)
        fit, gallery, new = (_some(pair, torch.arange(*ends)) for ends in ((0, 5), (5, 8), (8, 10)))
        embedder = LaplaceEmbedder.from_embeddings(*fit)
        strangers = {SAME: new[0][:N_STRANGE]}
        yield Case("gallery of other classes than the fit", name, embedder, gallery, strangers)
    pairs = {name: _unseen(name, data) for name in UNSEEN}
    for name, pair in pairs.items():
        classes = pair[1].unique()
        half = len(classes) // 2
        known, new = _some(pair, classes[:half]), _some(pair, classes[half:])
        strangers = {one: sets[one][0][:N_STRANGE] for one in ("cifar10", "kmnist")}
        yield Case("not looked at, another set", name, _wrapped(known), known, strangers)
        strangers = {SAME: new[0][:N_STRANGE]}
        yield Case("not looked at, other classes", name, _wrapped(known), known, strangers)


@torch.no_grad()
def _unseen(name: str, data: Any) -> Labelled:
    network = EfficientNetLite0()
    images = load(name, "test", data, N_UNSEEN, size=SIDE)
    parts = [(network(x.expand(-1, 3, -1, -1)), y) for x, y in images.loader(100)]
    x, y = (torch.cat(each) for each in zip(*parts, strict=True))
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    return x[order], y[order]


def _pixels(name: str, split: str, data: Any, n: int) -> Labelled:
    images = load(name, split, data)
    return images.pixels(slice(None))[:n].flatten(1), images.labels[:n]


def _trained(pair: Labelled) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = perceptron(784, 64, hidden=256)
        orders = [torch.randperm(len(pair[1])).split(256) for _ in range(5)]
        batches = [(pair[0][part], pair[1][part]) for order in orders for part in order]
        train_embedder(network, batches, ContrastiveLoss(neg_margin=0.5), epochs=1, progress=False)
    return network.eval()


def trained_cases(data: Any) -> Iterator[Case]:
    """Yield networks of ten classes beside other sets, and galleries of classes they never saw."""
    tests = {name: _pixels(name, "test", data, TESTED) for name in SETS[:3]}
    for name in NETWORKS:
        pair = _pixels(name, "train", data, TRAINED)
        others = {one: x[:N_STRANGE] for one, (x, _) in tests.items() if one != name}
        embedder = LaplaceEmbedder(_trained(pair)).fit([pair], progress=False)
        yield Case("trained, another set", name, embedder, tests[name], others)
        fit = _some(pair, torch.arange(4))
        embedder = LaplaceEmbedder(_trained(fit)).fit([fit], progress=False)
        gallery, new = (_some(tests[name], torch.arange(*ends)) for ends in ((4, 7), (7, 10)))
        strangers = {SAME: new[0][:N_STRANGE], **others}
        yield Case("gallery of other classes than the fit", name, embedder, gallery, strangers)


def run(options: Namespace) -> None:
    """Measure every case and write the record."""
    rows: list[Row] = []
    for cases in (frozen_cases, trained_cases):
        for case in cases(options.data):
            rows += case.rows()
            for row in rows[-len(WAYS) :]:
                print({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()})
    write_record(NAME, {"rows": rows}, folder_of(options))


NAMES = {
    "weighted": "ours, weighted", "alike": "three alike", "epistemic": "`epistemic` alone",
    "distance": "distance alone", "cosine": "cosine, 10 nearest",
}  # fmt: skip


def table() -> str:
    """Return shares that are found, and shares of known queries that are refused, at 5 %."""
    rows = read_record(NAME)["rows"]
    lines = []
    for kind in dict.fromkeys(row["kind"] for row in rows):
        of = [row for row in rows if row["kind"] == kind]
        cells = []
        for way in WAYS:
            mine = [row for row in of if row["way"] == way]
            found, refused, area = (
                np.mean([row[key] for row in mine]) for key in ("found", "refused", "auroc")
            )
            cells.append(f"{found:.2f} at {refused:.2f} ({area:.3f})")
        lines.append([kind, str(len(of) // len(WAYS)), *cells])
    return markdown(["unfamiliar queries", "cases", *NAMES.values()], lines)


TABLES = {NAME: table}
