"""Claims of ProLIP (Chun et al. 2025)."""

from __future__ import annotations

from functools import partial

from benchmarks.report.claims import measured as ours
from benchmarks.report.claims.criterion import OTHER, Claim, Ours, Side, Value

METHOD = "prolip, as printed"
SMALL = "heads on frozen encoders, trained on 2,100 drawings (there 1.28 billion pairs)"
CAPTIONS = "csd, inclusion of the caption"


def read(*path: str, method: str = METHOD) -> Ours:
    """Return a number of the heads of images and texts."""
    return Ours.of_seeds(ours.of_rows("image_text", path, method=method))


def less(first: tuple[str, ...], second: tuple[str, ...]) -> Ours:
    """Return the difference of two numbers of one training, seed by seed."""
    one, other = (ours.reader("image_text", *path, method=METHOD) for path in (first, second))
    return ours.less(one, other)


def prompts(way: str) -> Ours:
    """Return the accuracy on CIFAR-10 of a way to use the prompts, less that of all prompts."""
    return less(("cifar10", way), ("cifar10", "all prompts"))


CLAIMS = (
    Claim("figure 5", "texts are more uncertain than images: trace less trace", "above 0",
          Side(low=0), partial(less, ("spreads", "texts", "trace"), ("spreads", "images", "trace")),
          OTHER, SMALL),
    *(Claim("figure 7", f"general texts are more uncertain: rank, {kind}", "above 0", Side(low=0),
            partial(read, kind, "spearman"), OTHER,
            f"{SMALL}; generality: how many drawings a keyword names")
      for kind in ("trained keywords", "new keywords")),
    Claim("table 3", "prompt weights without labels, less all prompts", "+.0012", Side(low=0),
          partial(prompts, "weights, 0 shots"), OTHER, "ten prompts, CIFAR-10, heads of emoji"),
    Claim("section 4.2", "mean variance less variance of the mean", "+.0007", Side(low=0),
          partial(prompts, "all prompts, mean variance"), OTHER,
          "ten prompts, CIFAR-10, heads of emoji"),
    Claim("C.7", "bins of uncertainty and accuracy, MNIST", "-.98", Side(high=0),
          partial(read, "subgroups", "bins: spearman"), OTHER, f"subgroups of emoji; {SMALL}"),
    Claim("C.7", "bins of uncertainty and accuracy, ImageNet", "+.98", Side(low=0),
          partial(read, "cifar10", "bins: spearman"), OTHER, f"CIFAR-10; {SMALL}"),
    Claim("table 2", "traversal, precision", ".359", Value(0.359, 0.001),
          partial(read, "hierarcaps", CAPTIONS, "precision"), OTHER,
          "trained on keywords of emoji: the transfer fails"),
    Claim("table 2", "traversal, R@1 of [ROOT]", ".153", Value(0.153, 0.001),
          partial(read, "hierarcaps", CAPTIONS, "root"), OTHER,
          "trained on keywords of emoji: the transfer fails"),
    Claim("table 2", "traversal from the inclusive root is ahead of the empty one, precision",
          "above 0", Side(low=0),
          partial(less, ("hierarcaps", CAPTIONS, "precision"),
                  ("hierarcaps", "csd, empty", "precision")), OTHER, "the same"),
)  # fmt: skip
