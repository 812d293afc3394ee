"""What each structure costs and how far it is from dense.

    python -m benchmarks speed --pieces structures --data DIR --cache DIR

On the trained embedders of ``embedders`` (10,000 points, 2,500 queries, arccos fixed, every pair),
each structure in a process of its own: seconds to fit and to predict (minimum of repeats), peak
memory that they add, and the relative error of the predictive variance against the dense posterior
under the same prior (``|v - v_full| / |v_full|`` over all queries and coordinates). With
``--laplace-python`` laplace-torch runs on the same features and head in its own environment, in the
same run. The approximations themselves are compared in ``approximation_errors``.
"""

from __future__ import annotations

import json
import subprocess
import warnings
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.costs.approximation_errors import approximation_errors, relative
from benchmarks.costs.embedders import NAMES, Problem, problem
from benchmarks.costs.peers.problem import write_problem
from benchmarks.records import folder_of, write_record
from benchmarks.timing import best, in_own_process, peak_bytes
from laplace_metric import LaplaceEmbedder
from laplace_metric.errors import LaplaceMetricWarning

STRUCTURES = ("diag", "kron", "full")
WITH_FULL = ("fashion-mnist", "efficientnet")
REPEATS = {"diag": 5, "kron": 3, "full": 1}
MODES = ("analytic", "nn")
PEER_MODES = {"diag": ("analytic", "fast", "nn"), "kron": MODES, "full": MODES}
PEER_SECONDS = 60


def fitted(head: Problem, structure: str) -> LaplaceEmbedder:
    """Our posterior over the head, default settings."""
    embedder = LaplaceEmbedder(head.head, structure=structure, positivity="clip")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LaplaceMetricWarning)
        return embedder.fit([(head.features, head.labels)], progress=False)


def our_cost(name: str, structure: str, data: str | None, cache: Path) -> dict[str, Any]:
    """Times and extra peak memory of one structure; its predictive variance goes to the cache."""
    trained = problem(name, data, cache)
    embedder, fit_mb = _extra_peak(lambda: fitted(trained, structure))
    embedding, predict_mb = _extra_peak(lambda: embedder(trained.queries).variance)
    repeats = REPEATS[structure]
    torch.save(embedding, _variance_path(cache, name, structure))
    return {
        "library": "laplace_metric",
        "problem": name,
        "structure": structure,
        "n_parameters": trained.weight.numel() + trained.bias.numel(),
        "fit_seconds": best(lambda: fitted(trained, structure), repeats),
        "fit_mb": fit_mb,
        "predict_seconds": best(lambda: embedder(trained.queries).variance, repeats),
        "predict_points": len(trained.queries),
        "predict_mb": predict_mb,
        "clipped_fraction": embedder.hessian_.negative_fraction,
    }


def _extra_peak(call: Callable[[], Any]) -> tuple[Any, float]:
    before = peak_bytes()
    result = call()
    return result, (peak_bytes() - before) / 1e6


def _variance_path(cache: Path, name: str, structure: str) -> Path:
    return cache / "embedders" / f"{name}-{structure}-variance.pt"


def with_errors(rows: list[dict[str, Any]], cache: Path) -> list[dict[str, Any]]:
    """Add each row's variance error against the dense structure, where there is one."""
    for row in rows:
        if row["problem"] in WITH_FULL:
            full, ours = (
                torch.load(_variance_path(cache, row["problem"], structure), weights_only=True)
                for structure in ("full", row["structure"])
            )
            row["variance_error"] = relative(ours, full)
    return rows


def peer_cost(python: str, path: Path, name: str, structure: str, mode: str) -> dict[str, Any]:
    """laplace-torch on the same problem: its own JSON line."""
    options = ["--structure", structure, "--backend", "backpack", "--predict", mode]
    limits = ["--seconds", str(PEER_SECONDS), "--queries", "2500"]
    module = ["-m", "benchmarks.costs.peers.laplace_torch", "--problem", str(path)]
    done = subprocess.run(
        [python, *module, *options, *limits], capture_output=True, text=True, check=True
    )
    row: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return {**row, "library": "laplace-torch", "problem": name, "mode": mode}


def run(options: Namespace) -> None:
    """Ours on every problem, then the peer where there is one, then the approximations."""
    problems = {name: problem(name, options.data, options.cache) for name in NAMES}
    cases = [(n, s) for n in NAMES for s in STRUCTURES if s != "full" or n in WITH_FULL]
    rows = []
    for name, structure in cases:
        rows.append(in_own_process(our_cost, name, structure, options.data, options.cache))
        print(rows[-1], flush=True)
    rows = with_errors(rows, options.cache)
    for name, structure in cases if options.laplace_python else []:
        trained = problems[name]
        path = options.cache / "embedders" / f"{name}-problem.safetensors"
        write_problem(path, trained.features, trained.queries, trained.weight, trained.bias)
        for mode in PEER_MODES[structure]:
            rows.append(peer_cost(options.laplace_python, path, name, structure, mode))
            print(rows[-1], flush=True)
    errors = approximation_errors(problems["fashion-mnist"])
    content = {"rows": rows, "approximations": errors}
    print(write_record("structures", content, folder_of(options)).name)
