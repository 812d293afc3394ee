"""A last-layer problem as a file that any environment reads.

    python -m benchmarks.costs.peers.problem OUT.safetensors --points 10000

Tensors, float32: ``features`` [N, D], ``targets`` [N, Z], ``queries`` [M, D], ``weight`` [Z, D]
and ``bias`` [Z]. The targets are the network's own outputs: the GGN of a regression does not depend
on them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor


def write_problem(
    path: Path, features: Tensor, queries: Tensor, weight: Tensor, bias: Tensor
) -> Path:
    """Write a problem for the linear head ``weight``, ``bias``; returns ``path``.

    Parameters
    ----------
    features : Tensor [N, D], queries : Tensor [M, D]
        Inputs of the head: the points to fit on and the points to predict.
    weight : Tensor [Z, D], bias : Tensor [Z]
    """
    tensors = {"features": features, "queries": queries, "weight": weight, "bias": bias}
    tensors["targets"] = torch.nn.functional.linear(features, weight, bias)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: t.detach().float().contiguous() for name, t in tensors.items()}, path)
    return path


def random_problem(
    path: Path, n_points: int, n_queries: int, n_features: int, n_outputs: int
) -> Path:
    """N(0, 1) features and queries, N(0, 1/D) weights, zero bias."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(n_points, n_features, generator=generator)
    queries = torch.randn(n_queries, n_features, generator=generator)
    weight = torch.randn(n_outputs, n_features, generator=generator) / n_features**0.5
    return write_problem(path, features, queries, weight, torch.zeros(n_outputs))


def main() -> None:
    """Run it as a command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--points", type=int, default=10_000)
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--outputs", type=int, default=128)
    o = parser.parse_args()
    print(random_problem(o.path, o.points, o.queries, o.features, o.outputs).name)


if __name__ == "__main__":
    main()
