"""laplace-torch on one last-layer problem: one JSON line of times, memory peaks and versions.

    LAPLACE_PYTHON -m benchmarks.costs.peers.laplace_torch --problem FILE --structure diag

Runs on the environment of ``README.md`` and imports nothing of laplace_metric. The model is
``Sequential(Identity(), Linear)``, ``subset_of_weights="last_layer"``: the features are given, as a
user has them who fits the last layer of an embedder. Prior precision and noise are 1, the defaults.
Fit and prediction run in a process each, so that the peaks are their own.

What passes ``--seconds`` is measured on fewer points: ``fit_points`` and ``predict_points`` say on
how many. Else both are the minimum over ``--repeats``. A failure is the field ``error``.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import laplace
import laplace.curvature
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from benchmarks.costs.peers.problem import Batches, guarded, own_process, repeated

MODULE = "benchmarks.costs.peers.laplace_torch"
STRUCTURES = ("diag", "kron", "full")
BACKENDS = {"curvlinops": "CurvlinopsGGN", "backpack": "BackPackGGN"}
PREDICT_BATCH = {"analytic": 4, "fast": 10_000, "nn": 10_000}  # the fastest of those tried
PACKAGES = ("laplace-torch", "torch", "backpack-for-pytorch", "curvlinops-for-pytorch", "numpy")
KEPT = 256  # queries whose variance is written

Options = argparse.Namespace
Problem = dict[str, Tensor]


def fit_batch(options: Options) -> int:
    """The fastest of those tried; the diagonal of curvlinops builds Jacobians [B, Z, P]."""
    slow = (options.structure, options.backend) == ("diag", "curvlinops")
    return options.fit_batch or (4 if slow else 256)


def predict_batch(options: Options) -> int:
    """The analytic prediction builds Jacobians [B, Z, P]."""
    return options.predict_batch or PREDICT_BATCH[options.predict]


def posterior(options: Options, problem: Problem) -> Any:
    """A Laplace that is not fitted yet."""
    n_outputs, n_features = problem["weight"].shape
    model = nn.Sequential(nn.Identity(), nn.Linear(n_features, n_outputs))
    model.load_state_dict({"1.weight": problem["weight"], "1.bias": problem["bias"]})
    return laplace.Laplace(
        model.eval(),
        "regression",
        subset_of_weights="last_layer",
        hessian_structure=options.structure,
        backend=getattr(laplace.curvature, BACKENDS[options.backend]),
    )


def fit(options: Options, problem: Problem) -> dict[str, Any]:
    """Time the fit and write what it learned."""
    x, y = problem["features"], problem["targets"]
    posterior(options, problem).fit(Batches(x[:2], y[:2], 2, 60.0))  # libraries load workspaces
    fitted: list[Any] = []

    def run() -> int:
        batches = Batches(x, y, fit_batch(options), options.seconds)
        fitted[:] = [posterior(options, problem)]
        fitted[0].fit(batches)
        return batches.points

    numbers = repeated(run, len(x), options.repeats, options.seconds)
    torch.save(fitted[0].state_dict(), options.state)
    return numbers


def variance_of(fitted: Any, x: Tensor, options: Options) -> Tensor:
    """Variance [B, Z] of the outputs, without the noise."""
    if options.predict == "nn":
        return fitted(x, pred_type="nn", link_approx="mc", n_samples=options.samples)[1]
    if options.predict == "fast":  # public, but not what a call uses, even of diagonal_output=True
        return fitted.functional_variance_fast(x)[1].detach()
    return fitted(x, pred_type="glm")[1].diagonal(dim1=1, dim2=2).clone()


def predict(options: Options, problem: Problem) -> dict[str, Any]:
    """Time the predictions of what was fitted, and keep the first variances."""
    queries = problem["queries"][: options.queries]
    fitted = posterior(options, problem)
    fitted.load_state_dict(torch.load(options.state, weights_only=False))
    variances: list[Tensor] = []

    def run() -> int:
        batches = Batches(queries, queries, predict_batch(options), options.seconds)
        variances[:] = [variance_of(fitted, x, options) for x, _ in batches]
        return batches.points

    numbers = repeated(run, len(queries), options.repeats, options.seconds)
    if options.variance:
        save_file({"variance": torch.cat(variances)[:KEPT].contiguous()}, options.variance)
    return numbers


def measure(options: Options) -> dict[str, Any]:
    """Both stages; a prediction follows only a fit on every point."""
    problem = load_file(options.problem)
    record = {n: getattr(options, n) for n in ("structure", "backend", "predict", "samples")}
    record["shapes"] = {name: list(problem[name].shape) for name in ("features", "weight")}
    record["batches"] = {"fit": fit_batch(options), "predict": predict_batch(options)}
    record["threads"] = torch.get_num_threads()
    record["versions"] = {name: importlib.metadata.version(name) for name in PACKAGES}
    with tempfile.TemporaryDirectory() as folder:
        state = str(Path(folder) / "state.pt")
        record |= own_process(MODULE, "--stage", "fit", "--state", state)
        if record.get("fit_points") == len(problem["features"]):
            record |= own_process(MODULE, "--stage", "predict", "--state", state)
    return record


def arguments() -> Options:
    """Of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--problem", required=True, help="see problem.py")
    parser.add_argument("--structure", choices=STRUCTURES, default="diag")
    parser.add_argument("--backend", choices=BACKENDS, default="backpack")
    parser.add_argument("--predict", choices=PREDICT_BATCH, default="analytic")
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--samples", type=int, default=20, help="draws of --predict nn")
    parser.add_argument("--seconds", type=float, default=120.0, help="cap of fit and of predict")
    parser.add_argument("--repeats", type=int, default=3, help="while they fit under the cap")
    parser.add_argument("--fit-batch", type=int, help="default: 256; diag with curvlinops: 4")
    parser.add_argument("--predict-batch", type=int, help=f"default: {PREDICT_BATCH}")
    parser.add_argument("--memory-gb", type=float, default=16.0, help="of address space")
    parser.add_argument("--variance", help=f"file for those of {KEPT} queries")
    parser.add_argument("--stage", choices=("fit", "predict"), help=argparse.SUPPRESS)
    parser.add_argument("--state", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Run it as a command."""
    options = arguments()
    if options.stage:
        run = fit if options.stage == "fit" else predict
        work = partial(run, options, load_file(options.problem))
        print(json.dumps(guarded(options.stage, options.memory_gb, work)))
    else:
        print(json.dumps(measure(options)))


if __name__ == "__main__":
    main()
