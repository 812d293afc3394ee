"""What each method is, in words: its file, source, prediction, uncertainty and tests."""

from __future__ import annotations

from typing import NamedTuple


class Words(NamedTuple):
    """One line of the page of baselines."""

    file: str
    source: str
    predicts: str
    uncertainty: str
    tests: str


CONTRACT = "test_method_contracts"
DIRECTIONAL = "test_directional_losses"
LEARNING = "test_learning_classifiers"

WORDS = {
    "metric learning, 1/norm": Words(
        "metric_learning", "Warburg 2023 (base)", "a point", "1/norm", CONTRACT
    ),
    "infonce, 1/norm": Words("infonce", "URL B.2", "a point", "1/norm", "test_losses"),
    "laplace": Words("", "Warburg 2023", "projected normal", "variance", "contrastive/"),
    "mahalanobis": Words(
        "mahalanobis", "Lee 2018, Ren 2021", "a point", "squared distance", "test_mahalanobis"
    ),
    "k-nn distance": Words("knn_distance", "Sun 2022", "a point", "distance", "test_knn_distance"),
    "vim": Words("vim", "Wang 2022", "a point", "residual and logits", "test_vim"),
    "pfe": Words("pfe", "Shi 2019, LAM", "diagonal Gaussian", "variance", "test_losses"),
    "mc dropout": Words("mc_dropout", "Gal 2016, LAM", "draws", "variance", "test_baselines"),
    "deep ensemble": Words(
        "deep_ensemble", "Lakshminarayanan 2017, LAM", "draws", "variance", "test_deep_ensemble"
    ),
    "hib": Words("hib", "Oh 2019, LAM", "diagonal Gaussian", "variance", "test_losses"),
    "mcinfonce": Words("mcinfonce", "Kirchhof 2023a", "vMF", "1/kappa", DIRECTIONAL),
    "elk, proxies": Words("elk", "Kirchhof 2022, URL B.4", "vMF", "1/kappa", DIRECTIONAL),
    "elk": Words("elk", "Kirchhof 2023a, eq. 55", "vMF", "1/kappa", DIRECTIONAL),
    "nivmf": Words("nivmf", "Kirchhof 2022, URL B.5", "vMF", "1/kappa", DIRECTIONAL),
    "contrastive hib": Words("contrastive_hib", "URL B.6", "vMF", "1/kappa", DIRECTIONAL),
    "vmf loss": Words("scott_vmf", "Scott 2021", "vMF", "1/kappa", DIRECTIONAL),
    "explicit concentration": Words(
        "explicit_concentration", "unnormalised vMF (2024)", "direction, k", "1/k", "test_losses"
    ),
    "cross-entropy": Words(
        "cross_entropy", "URL B.1", "a point", "class entropy", "test_cross_entropy"
    ),
    "het-xl": Words("het_xl", "Collier 2023", "low-rank Gaussian", "log det", "test_het_xl"),
    "sngp": Words("sngp", "Liu 2020", "a point", "class entropy", "test_sngp"),
    "loss prediction": Words(
        "loss_prediction", "Yoo 2019, URL B.9", "a point", "predicted loss", "test_loss_prediction"
    ),
    "shared-backbone ensemble": Words(
        "shared_backbone_ensemble",
        "URL B.10",
        "a point",
        "class entropy or JSD",
        "test_shared_backbone_ensemble",
    ),
    "dropout over classes": Words(
        "class_dropout", "URL B.11", "a point", "class entropy", "test_class_dropout"
    ),
}
