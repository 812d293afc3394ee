"""Claims of URL (Kirchhof et al. 2023b)."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from statistics import fmean

from benchmarks.records import read_record
from benchmarks.report import papers
from benchmarks.report.claims import measured as ours
from benchmarks.report.claims.criterion import OTHER, SAME, Claim, Ours, Side, Value
from benchmarks.variants import transfer

METHODS = {
    "cross-entropy": "cross-entropy",
    "ensemble": "shared-backbone ensemble",
    "dropout": "dropout over classes",
    "hetxl": "het-xl, class entropy",
    "sngp": "sngp",
    "infonce": "infonce, 1/norm",
    "mcinfonce": "mcinfonce",
    "elk": "elk, proxies",
    "nivmf": "nivmf",
    "hib": "contrastive hib",
    "riskpred": "loss prediction",
}
"""The eleven methods as the published runs name them -> as ours are named."""
TASKS = {"cub": "birds", "cifar10-unseen": "CIFAR-10"}
HEAD = "a head on frozen features, {}"
R_AUROC, RECALL = "r_auroc", "recall@1"


def printed() -> dict[str, float]:
    """Return the best R-AUROC of each method over its settings, the mean of both backbones."""
    best: dict[tuple[str, str], float] = defaultdict(float)
    for row in read_record("papers")["rows"]:
        if row["quantity"] == "three seeds":
            key = row["method"], row["backbone"]
            best[key] = max(best[key], row[R_AUROC])
    of: dict[str, list[float]] = defaultdict(list)
    for (method, _), value in best.items():
        of[METHODS[method]].append(value)
    return {method: fmean(values) for method, values in of.items()}


def ranking(task: str) -> Ours:
    """Return the rank correlation of the printed R-AUROC of the methods and ours."""
    return ours.over_methods(printed(), ours.means("url", task, R_AUROC))


def above(task: str, method: str, less: str, metric: str = R_AUROC) -> Ours:
    """Return how far a method is ahead of another, seed by seed."""
    first, second = (partial(ours.small, "url", task, name, metric) for name in (method, less))
    return ours.less(first, second)


def many_shots() -> Ours:
    """Return the R-AUROC of many shots, less that of the best method without any."""
    best = max(ours.means("url", "cub", R_AUROC).values())
    shown = ours.of_rows("transfer", (R_AUROC,), method=transfer.MANY)
    return Ours.of_seeds([value - best for value in shown])


def many_shots_of(metric: str) -> Ours:
    """Return a number of many shots."""
    return Ours.of_seeds(ours.of_rows("transfer", (metric,), method=transfer.MANY))


def traded() -> Ours:
    """Return of how many methods the settings trade recall for R-AUROC."""
    rows = read_record("transfer")["rows"]
    of = [[row for row in rows if row["method"] == name] for name in transfer.ASKED]
    negative = [fmean(transfer.by_seed(own, RECALL, R_AUROC)) < 0 for own in of]
    return ours.share(sum(negative), len(of))


def foretold(title: str) -> Ours:
    """Return a rank correlation over our methods, as the table of proxies has it."""
    proxy = next(one for one in papers.PROXIES if one.title == title)
    return ours.over_methods(papers.means(proxy.proxy), papers.means(proxy.target))


PUBLISHED = "from its own published runs"
CLAIMS = (
    Claim("section 4.5", "errors on old classes foretell those on new ones, rank", ".09",
          Value(0.09, 0.01),
          partial(ours.exact, "section 4.5, errors on old and on new classes"), SAME, PUBLISHED),
    Claim("section 4.5", "crops of old classes foretell errors on new ones, rank", ".54",
          Value(0.54, 0.01),
          partial(ours.exact, "section 4.5, crops of old classes and errors on new ones"), SAME,
          PUBLISHED),
    Claim("section 4.6", "agreement with people goes with R-AUROC, rank", ".80",
          Value(0.80, 0.01), partial(ours.exact, "section 4.6, people and errors"), SAME,
          PUBLISHED),
    Claim("section 4.6", "crops go with R-AUROC, rank", ".71", Value(0.71, 0.01),
          partial(ours.exact, "section 4.6, crops and errors"), SAME, PUBLISHED),
    Claim("section 4.3", "R-AUROC of MCInfoNCE, ResNet", ".569", Value(0.569, 0.001),
          partial(ours.three_seeds, "resnet", "mcinfonce", R_AUROC), SAME, PUBLISHED),
    Claim("section 4.3", "R-AUROC of loss prediction, ViT", ".568", Value(0.568, 0.001),
          partial(ours.three_seeds, "vit", "riskpred", R_AUROC), SAME, PUBLISHED),
    Claim("section 4.3", "recall@1 of nivMF, ViT", ".57", Value(0.57, 0.01),
          partial(ours.three_seeds, "vit", "nivmf", RECALL), SAME, PUBLISHED),
    Claim("figures 7, 8", "methods whose settings trade recall@1 for R-AUROC", "15 of 22",
          Value(15, 1), partial(ours.exact, "figures 7 and 8, trade-offs", of=True), SAME,
          f"{PUBLISHED}; the captions of both figures say seven each"),
    Claim("figures 7, 8", "the same: it is most of the methods", "15 of 22", Side(low=0.5),
          traded, OTHER, "four settings of each, birds, ten rounds"),
    *(Claim("section 4.3", f"the ranking of its eleven methods, on {name}", "the ranking",
            Side(low=0), partial(ranking, task), OTHER,
            f"{HEAD.format(name)}; 95 %")
      for task, name in TASKS.items()),
    Claim("section 4.3", "MCInfoNCE is ahead of cross-entropy, R-AUROC", "+.065", Side(low=0),
          partial(above, "cub", "mcinfonce", "cross-entropy"), OTHER, HEAD.format("birds")),
    Claim("section 4.3", "loss prediction is ahead of cross-entropy, R-AUROC", "+.040",
          Side(low=0), partial(above, "cub", "loss prediction", "cross-entropy"), OTHER,
          HEAD.format("birds")),
    *(Claim("its runs", f"HET-XL: class entropy ahead of the determinant, {name}", "+.011",
            Side(low=0), partial(above, task, "het-xl, class entropy", "het-xl"), OTHER,
            HEAD.format(name))
      for task, name in TASKS.items()),
    Claim("section 4.2", "trained on the classes asked: ahead of every other", ".68", Side(low=0),
          many_shots, OTHER, "50 species, half of their images; less the best of our methods"),
    Claim("section 4.2", "the same, R-AUROC itself", ".68", Value(0.68, 0.01),
          partial(many_shots_of, R_AUROC), OTHER, "the same"),
    Claim("C.1", "the same, recall@1", ".54", Value(0.54, 0.01), partial(many_shots_of, RECALL),
          OTHER, "the same"),
    *(Claim("section 4.6", f"{what} R-AUROC, over our methods", said, Side(low=0),
            partial(foretold, title), OTHER, f"{title.split(': ')[1]}; 95 %")
      for title, what, said in (
          ("people's entropy: soft labels", "agreement with people goes with", ".80"),
          ("crops more uncertain: CIFAR-10", "crops go with", ".71"),
          ("crops more uncertain: birds", "crops go with", ".71"))),
)  # fmt: skip
