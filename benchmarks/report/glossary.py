"""What metrics and protocols are called, what they mean, and which way is good."""

from __future__ import annotations

from typing import NamedTuple


class Metric(NamedTuple):
    """``direction`` is +1 where higher is better, -1 where lower, 0 where neither."""

    name: str
    direction: int
    meaning: str


METRICS = {
    "recall@1": Metric("recall@1", 1, "share of queries whose nearest other item has their class"),
    "map@5": Metric("mAP@5", 1, "the same over the five nearest, earlier ones counting more"),
    "r_auroc": Metric(
        "R-AUROC", 1, "chance that a query with a wrong nearest neighbour is less certain than one "
        "with a right one; 0.5 is guessing",
    ),
    "ausc": Metric(
        "AUSC", 1, "mean recall@1 while the least certain queries are removed step by step"
    ),
    "ece": Metric("ECE", -1, "gap between the share of draws that vote for a class and how often "
        "that vote is right; points have none"),
    "adaptive_ece": Metric("adaptive ECE", -1, "the same over bins of equally many queries"),
    "auroc": Metric("AUROC", 1, "chance that an OOD input is less certain than a query"),
    "auprc": Metric("AUPRC", 1, "average precision when OOD inputs are to be found"),
    "fpr95": Metric(
        "FPR95", -1, "share of queries flagged when 95 % of the OOD inputs are flagged"
    ),
    "crop more uncertain": Metric(
        "crop less certain", 1, "share of images that are less certain after cropping"
    ),
    "crop rank": Metric(
        "crop rank", 1, "rank correlation of a crop's uncertainty with how much was cut off"
    ),
    "mixture r_auroc": Metric(
        "mixture R-AUROC", 1, "R-AUROC when half of the queries show classes of the training"
    ),
    "new classes": Metric(
        "AUROC new classes", 1, "chance that an image of a new class is less certain than one of "
        "a training class",
    ),
    "entropy rank": Metric(
        "entropy rank", 1, "rank correlation of the uncertainty with how much people disagree"
    ),
    "severity": Metric(
        "severity", 1, "rank correlation of the mean uncertainty with the severity of a corruption"
    ),
    "severity mean": Metric(
        "severity, mean", 1, "its mean over the types of corruption"
    ),
    "severity pooled": Metric(
        "severity, all images", 1, "the same over all images instead of their means"
    ),
    "probe accuracy": Metric("probe accuracy", 1, "of a linear classifier of the embeddings"),
    "failure auroc": Metric(
        "failure AUROC", 1, "chance that an error of the linear classifier is less certain than "
        "a right answer",
    ),
    "failure p": Metric("failure p", -1, "Mann-Whitney's one-sided p-value of the same"),
    "k-nn auroc": Metric(
        "k-nn AUROC", 1, "chance that an OOD input is farther from the training items"
    ),
    "k-nn+u auroc": Metric(
        "k-nn+u AUROC", 1, "the same with the uncertainty as one more coordinate"
    ),
}  # fmt: skip


def metric(key: str) -> Metric:
    """The metric of a key such as ``"auroc mnist"``: the longest known beginning, and the rest.

    Examples
    --------
    >>> metric("auroc mnist").name
    'AUROC mnist'
    """
    if key in METRICS:
        return METRICS[key]
    head = max((name for name in METRICS if key.startswith(f"{name} ")), key=len)
    known = METRICS[head]
    return known._replace(name=f"{known.name}{key[len(head) :]}")


class About(NamedTuple):
    """``main`` is the metric of the paired differences and of the cost plane."""

    title: str
    question: str
    main: str


ABOUT = {
    "lam": About(
        "Retrieval, calibration, OOD inputs",
        "Does the uncertainty know which answers are wrong, is the confidence honest, and are "
        "inputs from elsewhere noticed? (Warburg et al. 2023)",
        "r_auroc",
    ),
    "pretrained": About(
        "Published encoders as they come",
        "The same questions without any training: a linear layer that starts as the identity is "
        "all that methods are fitted on.",
        "r_auroc",
    ),
    "url": About(
        "Classes that training never saw",
        "Does the uncertainty carry over to new classes, to crops, and to mixtures of old and new "
        "classes? (URL, Kirchhof et al. 2023)",
        "r_auroc",
    ),
    "human": About(
        "Where people disagree",
        "Is the uncertainty high where many people gave an image different names?",
        "entropy rank",
    ),
    "corruption": About(
        "Worse and worse pictures",
        "Does the uncertainty grow with the severity of noise, blur, weather and compression?",
        "severity mean",
    ),
}
RECOVERY = About(
    "Posteriors that are known",
    "Data from a process whose posteriors are known: are their place and their width recovered?",
    "",
)


def about(protocol: str) -> About:
    """Of a protocol; its bare name where nothing is said about it."""
    return ABOUT.get(protocol, About(protocol, "", "r_auroc"))
