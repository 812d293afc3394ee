"""Claims of contrastive learning with an explicit concentration (2024)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from statistics import fmean

from benchmarks.records import read_record
from benchmarks.report.claims import measured as ours
from benchmarks.report.claims.criterion import OTHER, SAME, Claim, Ours, Side, Value
from benchmarks.variants.views import NOISES

METHOD = "explicit concentration"
FROZEN = "frozen features, 30 rounds"


def severity(line: str, kinds: Sequence[str] = ("severity",), sign: float = -1) -> Ours:
    """Return the rank correlation of severity and kappa; uncertainty is stored."""
    rows = [row for row in read_record("views")["rows"] if row["line"] == line]
    return Ours.of_seeds([sign * fmean(row[kind] for kind in kinds) for row in rows])


def varied(line: str) -> Ours:
    """Return how much kappa varies: its standard deviation over its mean."""
    return Ours.of_seeds(ours.of_rows("views", ("variation",), line=line))


def corrupted(metric: str) -> Ours:
    """Return a number of the comparison on corrupted images."""
    return Ours.of_seeds(ours.small("corruption", "cifar10", METHOD, metric))


def with_kappa() -> Ours:
    """Return what kappa adds to a detector on features, seed by seed."""
    first, second = (
        partial(ours.small, "corruption", "cifar10", METHOD, f"{name} auroc mnist")
        for name in ("k-nn+u", "k-nn")
    )
    return ours.less(first, second)


CLAIMS = (
    Claim("proposition 1", "pairs of densities that the dropped normaliser puts in another order",
          "none", Value(0, 0.001),
          partial(ours.exact, "proposition 1, share of pairs in another order"), SAME,
          "its proof drops a factor, C(k2) / C(k1)"),
    Claim("eqs. 6, 10", "k orders pairs by the cosine of their views, rank", "1",
          Value(1, 0.001), partial(ours.exact, "eq. 6, rank of k and cosine"), SAME,
          "fixed directions, closed form"),
    Claim("eqs. 5, 10", "the same with the other regulariser, where it has a minimum", "1",
          Value(1, 0.001), partial(ours.exact, "eq. 5, rank of k and cosine"), SAME,
          "fixed directions, closed form"),
    Claim("section 2.2", "eq. 6 trains more stably: from this cosine on eq. 5 has no minimum",
          "in words", Side(high=1), partial(ours.exact, "eq. 5, least cosine without a minimum"),
          SAME, "weights .05 and .005; beyond it k grows without bound, with eq. 6 it never does"),
    Claim("section 4.2", "differential entropy is higher where kappa is lower, rank", "-1",
          Value(-1, 0.001), partial(ours.exact, "differential entropy, rank with kappa"), SAME,
          "closed form"),
    Claim("table 1", "differential entropy and severity", "-.807", Side(high=0),
          partial(severity, "mcinfonce: views", sign=1), OTHER,
          "it is the rank of kappa with the other sign; printed is the sign of kappa itself (read "
          "from a text version of the paper)"),
    Claim("table 1", "MCInfoNCE with two views of an image, severity and kappa", "-.743",
          Side(high=0), partial(severity, "mcinfonce: views"), OTHER, FROZEN),
    Claim("table 1", "the same with pairs of a class", "-.743", Side(high=0),
          partial(severity, "mcinfonce: labels"), OTHER,
          f"{FROZEN}; these are not the pairs of the paper"),
    Claim("table 1", "its method, severity and kappa", "-.876", Side(high=0),
          partial(severity, f"{METHOD}: views"), OTHER,
          f"{FROZEN}; reason not known: kappa varies by 3 %, as that of MCInfoNCE does"),
    Claim("figure 3", "its method, four noises", "below 0", Side(high=0),
          partial(severity, f"{METHOD}: views", NOISES), OTHER, f"{FROZEN}; reason not known"),
    Claim("figure 3", "the same with noise in the views", "above 0", Side(low=0),
          partial(severity, f"{METHOD}: views, noise", NOISES), OTHER,
          f"{FROZEN}; here noise in the views makes the sign right"),
    Claim("table 8", "weight of kappa^2 .0005: kappa is constant, its variation", "below .01",
          Side(high=0.01), partial(varied, f"{METHOD}, regularize 0.0005: views"), OTHER, FROZEN),
    Claim("table 8", "weight .04, severity and kappa", "-.853", Side(high=0),
          partial(severity, f"{METHOD}, regularize 0.04: views"), OTHER,
          f"{FROZEN}: kappa is pulled to .001 to .003"),
    Claim("section 4.4", "kappa is lower where a probe errs, AUROC", "above .5", Side(low=0.5),
          partial(corrupted, "failure auroc"), OTHER, "frozen features, pairs of a class"),
    Claim("table 2", "kappa helps a detector on features, CIFAR-10 against MNIST", "+.0008",
          Side(low=0), with_kappa, OTHER, "frozen features, pairs of a class"),
)  # fmt: skip
