"""Every method: what it is, and its measured cost beside plain metric learning."""

from __future__ import annotations

from typing import Any, NamedTuple

import baselines
from baselines.base import Trained
from benchmarks.methods import BASE, METHODS
from benchmarks.records import markdown
from benchmarks.report.statistics import Row


class MethodNote(NamedTuple):
    """One line of the page of baselines, and of the page of its method."""

    file: str
    source: str
    predicts: str
    uncertainty: str
    tests: str


CONTRACT = "test_contract"
DIRECTIONAL = "test_directional_losses"
LEARNING = "test_learning"

METHOD_NOTES = {
    "metric learning, 1/norm": MethodNote(
        "metric_learning", "Warburg 2023 (base)", "a point", "1/norm", CONTRACT
    ),
    "infonce, 1/norm": MethodNote("infonce", "URL B.2", "a point", "1/norm", "test_losses"),
    "laplace": MethodNote("", "Warburg 2023", "projected normal", "variance", "contrastive/"),
    "mahalanobis": MethodNote(
        "mahalanobis", "Lee 2018, Ren 2021", "a point", "squared distance", "test_mahalanobis"
    ),
    "mahalanobis++": MethodNote(
        "mahalanobis", "Mueller 2025", "a point", "squared distance", "test_mahalanobis"
    ),
    "k-nn distance": MethodNote(
        "knn_distance", "Sun 2022", "a point", "distance", "test_neighbour_methods"
    ),
    "vim": MethodNote(
        "vim", "Wang 2022", "a point", "residual and logits", "test_neighbour_methods"
    ),
    "nuq": MethodNote("nuq", "Kotelevskii 2022", "a point", "log of total uncertainty", "test_nuq"),
    "nnguide": MethodNote(
        "nnguide", "Park 2023", "a point", "minus guided energy", "test_neighbour_methods"
    ),
    "loss prediction, frozen": MethodNote(
        "frozen_loss_prediction",
        "Kirchhof 2024, Yoo 2019",
        "a point",
        "predicted rank of the loss",
        "test_frozen_loss_prediction",
    ),
    "pfe": MethodNote("pfe", "Shi 2019, LAM", "diagonal Gaussian", "variance", "test_losses"),
    "mc dropout": MethodNote("mc_dropout", "Gal 2016, LAM", "draws", "variance", "test_baselines"),
    "deep ensemble": MethodNote(
        "deep_ensemble", "Lakshminarayanan 2017, LAM", "draws", "variance", "test_deep_ensemble"
    ),
    "hib": MethodNote("hib", "Oh 2019, LAM", "diagonal Gaussian", "variance", "test_losses"),
    "mcinfonce": MethodNote("mcinfonce", "Kirchhof 2023a", "vMF", "1/kappa", DIRECTIONAL),
    "elk, proxies": MethodNote("elk", "Kirchhof 2022, URL B.4", "vMF", "1/kappa", DIRECTIONAL),
    "elk": MethodNote("elk", "Kirchhof 2023a, eq. 55", "vMF", "1/kappa", DIRECTIONAL),
    "nivmf": MethodNote("nivmf", "Kirchhof 2022, URL B.5", "vMF", "1/kappa", DIRECTIONAL),
    "nivmf, as printed": MethodNote("nivmf", "Kirchhof 2022", "vMF", "1/kappa", DIRECTIONAL),
    "contrastive hib": MethodNote("contrastive_hib", "URL B.6", "vMF", "1/kappa", DIRECTIONAL),
    "vmf loss": MethodNote("scott_vmf", "Scott 2021", "vMF", "1/kappa", DIRECTIONAL),
    "explicit concentration": MethodNote(
        "explicit_concentration", "unnormalised vMF (2024)", "direction, k", "1/k", "test_losses"
    ),
    "cross-entropy": MethodNote(
        "cross_entropy", "URL B.1", "a point", "class entropy", "test_classifier_losses"
    ),
    "het-xl": MethodNote("het_xl", "Collier 2023", "low-rank Gaussian", "log det", "test_het_xl"),
    "het-xl, class entropy": MethodNote(
        "het_xl", "Collier 2023", "low-rank Gaussian", "class entropy", "test_het_xl"
    ),
    "sngp": MethodNote("sngp", "Liu 2020", "a point", "class entropy", "test_sngp"),
    "loss prediction": MethodNote(
        "loss_prediction",
        "Yoo 2019, URL B.9",
        "a point",
        "predicted loss",
        "test_classifier_losses",
    ),
    "shared-backbone ensemble": MethodNote(
        "shared_backbone_ensemble",
        "URL B.10",
        "a point",
        "class entropy or JSD",
        "test_classifier_losses",
    ),
    "dropout over classes": MethodNote(
        "class_dropout", "URL B.11", "a point", "class entropy", "test_class_dropout"
    ),
}


def methods(record: dict[str, Any], task: str) -> str:
    """A line for each method that was measured on the task."""
    rows = {name: [r for r in record["rows"] if (r["task"], r["method"]) == (task, name)]
            for name in METHOD_NOTES}  # fmt: skip
    lines = [
        [link(name), w.source, fits(w.file), w.uncertainty, *relative(rows, name)]
        for name, w in METHOD_NOTES.items()
        if rows[name]
    ]
    header = [
        "method", "source", "`fit`", "uncertainty", "numbers added", "training", "query",
    ]  # fmt: skip
    return markdown(header, lines)


TRAINS, HEAD, READS = "trains", "trains a head on a trained net", "reads a trained net"
SEVERAL = "DeepEnsemble"
"""Trains, though it is no ``Trained``: its members are."""


def fits(file: str) -> str:
    """Whether ``fit`` trains the network that it is given, or needs one that is trained.

    Examples
    --------
    >>> fits("mcinfonce"), fits("pfe"), fits("mc_dropout"), fits("")
    ('trains', 'trains a head on a trained net', 'reads a trained net', 'reads a trained net')
    """
    kinds = (getattr(baselines, name) for name in baselines.__all__)
    kind = next((x for x in kinds if x.__module__ == f"baselines.{file}"), None)
    if kind is None or not issubclass(kind, Trained):
        return TRAINS if kind is not None and kind.__name__ == SEVERAL else READS
    return HEAD if kind.frozen else TRAINS


def link(name: str) -> str:
    """The method's name, linked to its file."""
    file = METHOD_NOTES[name].file
    return f"[{name}]({file}.py)" if file else name


def relative(rows: dict[str, list[Row]], name: str) -> tuple[str, str, str]:
    """Numbers added, and CPU time over that of metric learning (fits on top of it: plus)."""

    def least(method: str, part: str) -> float:
        return min(float(row["cost"][part]["cpu_seconds"]) for row in rows[method])

    training = least(name, "fit") / least(BASE, "fit")
    query = least(name, "queries") / least(BASE, "queries")
    added = rows[name][0]["cost"]["extra_parameters"]
    return (
        f"{added:,}",
        f"{'+ ' if METHODS[name].base else ''}{training:.2f} x",
        f"{query:.1f} x",
    )
