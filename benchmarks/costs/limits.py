"""What fits and predictions cost, beside the products that no method could do without.

    python -m benchmarks costs --pieces limits [--device cuda]

One linear head a row, in a process of its own, features given, every pair. Work and limit are
measured in turn, so that both see the same machine; times are minima of repeats.

- fit, Kronecker, limit: ``h W'``, ``z' h``, ``h' h``, ``z' z`` and the eigenvectors of the last two
  in float64: one KFAC pass. Diagonal, limit: the first two products.
- whole: ``LaplaceEmbedder.fit``, with what ``epistemic`` needs, checks and the model's own pass.
- predict, limit: ``h W'`` and ``x = h Q`` [B, D] x [D, D] (diagonal: none); for variances
  ``x^2 V`` [B, D] x [D, Z]; for ``epistemic`` ``h W'``, two of [B, D] x [D, D], two with the S
  points that the fit keeps, [B, D] x [D, S], and one with the class means.
"""

from __future__ import annotations

import warnings
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.records import write_shown
from benchmarks.timing import in_own_process, seconds, wait
from laplace_metric import LaplaceEmbedder
from laplace_metric.curvature import ContrastiveLoss
from laplace_metric.curvature._all_pairs import all_pairs_curvature
from laplace_metric.errors import LaplaceMetricWarning
from laplace_metric.heads._backends import jacobian_of
from laplace_metric.models._feature_store import FeatureStore

SHAPES = ((60_000, 512, 128, 10), (20_000, 1_280, 64, 100), (3_000, 1_280, 1_280, 100))
"""N, D, Z and classes; the last is an appended head."""
FITTED, BATCH, REPEATS = 3_000, 2_000, 5
"""Points of the fit that predicts, and inputs that it predicts; rounds."""
STRUCTURES = ("kron", "diag")


def points(n: int, d: int, n_classes: int, device: str) -> tuple[Tensor, Tensor]:
    """Rectified Gaussians around a mean for each class."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(n) % n_classes
    means = torch.randn(n_classes, d, generator=generator)
    h = (means[labels] + torch.randn(n, d, generator=generator)).relu()
    return h.to(device), labels.to(device)


def head_of(d: int, z: int, device: str) -> nn.Linear:
    """Random; the identity where it is square."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        head = nn.Linear(d, z)
    if d == z:
        nn.init.eye_(head.weight)
        nn.init.zeros_(head.bias)
    return head.to(device).eval().requires_grad_(False)


def in_turn(calls: dict[str, Callable[[], Any]], device: str) -> dict[str, float]:
    """Least seconds of each, after one round to warm up."""
    rounds = []
    for _ in range(REPEATS + 1):
        rounds.append({name: seconds(call, device)[0] for name, call in calls.items()})
    return {name: min(row[name] for row in rounds[1:]) for name in calls}


def fit_cost(shape: tuple[int, int, int, int], structure: str, device: str) -> dict[str, Any]:
    """Curvature alone and the whole fit, beside their limit."""
    n, d, z, n_classes = shape
    (h, labels), head = points(n, d, n_classes, device), head_of(d, z, device)
    loss = ContrastiveLoss.of("arccos", "fixed", normalized=False)
    jacobian, w = jacobian_of(head, z), head.weight
    batches = list(zip(h.split(4_096), labels.split(4_096), strict=True))

    def products() -> Tensor:
        raw = h @ w.T
        raw.T @ h
        return raw

    def kfac() -> None:
        raw = products()
        for gram in (h.T @ h, raw.T @ raw):
            torch.linalg.eigh(gram.double())

    def curvature() -> None:
        store = FeatureStore.of(h, labels)
        all_pairs_curvature(store, jacobian, loss, structure).decompose()

    def whole() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LaplaceMetricWarning)
            LaplaceEmbedder(head, structure=structure).fit(batches, progress=False)

    limit = kfac if structure == "kron" else products
    times = in_turn({"limit": limit, "curvature": curvature, "whole": whole}, device)
    return {"n": n, "d": d, "z": z, "structure": structure, **times}


def predict_cost(shape: tuple[int, int, int, int], structure: str, device: str) -> dict[str, Any]:
    """Of a batch of 2,000 that was not fitted: each number alone, beside its limit."""
    _, d, z, n_classes = shape
    (all_h, all_labels), head = points(FITTED + BATCH, d, n_classes, device), head_of(d, z, device)
    h, labels = all_h[:FITTED], all_labels[:FITTED]
    x, w, b = all_h[FITTED:].clone(), head.weight, head.bias
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LaplaceMetricWarning)
        embedder = LaplaceEmbedder(head, structure=structure).fit([(h, labels)], progress=False)
    square, tall = torch.randn(d, d, device=device), torch.randn(d, z, device=device)
    kept = embedder.fitted_.near_far
    assert kept is not None
    forward = lambda: torch.addmm(b, x, w.T)  # noqa: E731
    rotated = (lambda: x @ square) if structure == "kron" else (lambda: x)

    def variance_limit() -> None:
        forward()
        rotated() @ tall

    def epistemic_limit() -> None:
        forward()
        x @ square
        white = x @ square
        white @ kept.class_means.T
        white @ kept.points.T
        x @ kept.points.T

    calls: dict[str, Callable[[], Any]] = {
        "forward": forward,
        "variance_limit": variance_limit,
        "epistemic_limit": epistemic_limit,
        "mean": lambda: embedder(x).mean,
        "uncertainty": lambda: embedder(x).uncertainty,
        "variance": lambda: embedder(x).variance,
        "epistemic": lambda: embedder(x).epistemic,
        "uncertainties": lambda: embedder.uncertainties([x], progress=False),
    }
    wait(device)
    return {"batch": BATCH, "d": d, "z": z, "structure": structure, **in_turn(calls, device)}


def run(options: Namespace) -> None:
    """Measure each row in a process of its own."""
    device = str(options.device)
    cases = [(shape, structure) for shape in SHAPES for structure in STRUCTURES]
    content = {
        "fit": [in_own_process(fit_cost, *case, device) for case in cases],
        "predict": [in_own_process(predict_cost, *case, device) for case in cases],
    }
    write_shown("limits" if device == "cpu" else "limits_cuda", content, options)
