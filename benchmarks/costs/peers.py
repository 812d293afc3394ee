"""Fits beside two libraries of curvature: ``python -m benchmarks costs --pieces peers``.

One linear head a row, features given, in a process of its own; CPU seconds of one thread, the ways
in turn, medians. The others see squared errors of the head's outputs, for they have no
contrastive loss: one Kronecker pass over all points. They are timed where they are installed;
``RIVALS`` of ``benchmarks.whole_run`` says how.

- laplace-torch: last layer, Kronecker, by BackPACK.
- curvlinops: EKFAC by one Monte Carlo sample, its factors and its eigenvalues.
- ours, curvature: every pair of the contrastive loss and the eigenvectors.
- ours, whole: ``LaplaceEmbedder.fit``, with a temperature and with ``epistemic``, which they lack.
"""

from __future__ import annotations

import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, cast

import torch
from torch import Tensor, nn

from benchmarks.costs.cpu import in_turn
from benchmarks.costs.limits import head_of, points
from benchmarks.records import write_shown
from benchmarks.timing import in_own_process
from laplace_metric import LaplaceEmbedder
from laplace_metric.curvature import ContrastiveLoss
from laplace_metric.curvature._all_pairs import all_pairs_curvature
from laplace_metric.heads._backends import jacobian_of
from laplace_metric.models._feature_store import FeatureStore

SHAPES = ((20_000, 512, 64, 100), (6_000, 512, 32, 10))
"""N, D, Z and classes."""
BATCH, REPEATS = 1_024, 5
PACKAGES = {"laplace": "laplace-torch", "curvlinops": "curvlinops-for-pytorch"}
"""Module -> the package that has it."""


class Batches:
    """Points and what squared errors compare with, as laplace-torch reads a loader."""

    def __init__(self, h: Tensor, targets: Tensor) -> None:
        self.batches = list(zip(h.split(BATCH), targets.split(BATCH), strict=True))
        self.dataset = range(len(h))

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


def laplace_torch(head: nn.Linear, batches: Batches) -> None:
    """Fit its posterior of the last layer."""
    from laplace import Laplace
    from laplace.curvature import BackPackGGN

    model = nn.Sequential(nn.Identity(), head).eval()
    Laplace(
        model, "regression", subset_of_weights="last_layer", hessian_structure="kron",
        backend=BackPackGGN,
    ).fit(cast(Any, batches))  # fmt: skip


def curvlinops(head: nn.Linear, batches: Batches) -> None:
    """Make its eigenvalue-corrected factors."""
    from curvlinops import EKFACLinearOperator, FisherType

    operator = EKFACLinearOperator(
        head, nn.MSELoss(), list(head.parameters()), batches.batches,
        fisher_type=FisherType.MC, mc_samples=1, check_deterministic=False,
    )  # fmt: skip
    operator @ torch.zeros(operator.shape[1])  # the factors are made when they are asked


def ways(n: int, d: int, z: int, n_classes: int) -> dict[str, Callable[[], Any]]:
    """Return what is timed."""
    (h, labels), head = points(n, d, n_classes, "cpu"), head_of(d, z, "cpu")
    learned = nn.Linear(d, z)
    learned.load_state_dict(head.state_dict())
    squared = Batches(h, head(h))
    batches = list(zip(h.split(BATCH), labels.split(BATCH), strict=True))
    loss = ContrastiveLoss.of("arccos", "fixed", normalized=False)
    jacobian = jacobian_of(head, z)

    def curvature() -> None:
        all_pairs_curvature(FeatureStore.of(h, labels), jacobian, loss, "kron").decompose()

    def whole() -> None:
        LaplaceEmbedder(head, structure="kron").fit(batches, progress=False)

    found: dict[str, Callable[[], Any]] = {"curvature": curvature, "whole": whole}
    if find_spec("laplace"):
        found["laplace-torch"] = lambda: laplace_torch(learned, squared)
    if find_spec("curvlinops"):
        found["curvlinops"] = lambda: curvlinops(learned, squared)
    return found


def cost(n: int, d: int, z: int, n_classes: int) -> dict[str, Any]:
    """Return median CPU seconds of each way."""
    warnings.simplefilter("ignore")  # in a process of its own
    return {"n": n, "d": d, "z": z, **in_turn(ways(n, d, z, n_classes), REPEATS)}


def run(options: Namespace) -> None:
    """Measure each row in a process of its own."""
    rows = [in_own_process(cost, *shape) for shape in SHAPES]
    there = [package for module, package in PACKAGES.items() if find_spec(module)]
    content = {"rows": rows, "versions": [{"package": x, "version": version(x)} for x in there]}
    write_shown("peers", content, options)
