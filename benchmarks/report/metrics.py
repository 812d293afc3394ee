"""Every metric by its key: its name, which way is good, and what it means."""

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
    "auroc": Metric("AUROC", 1, "chance that a strange input is less certain than a query"),
    "auprc": Metric("AUPRC", 1, "average precision when strange inputs are to be found"),
    "fpr95": Metric(
        "FPR95", -1, "share of queries flagged when 95 % of the strange inputs are flagged"
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
