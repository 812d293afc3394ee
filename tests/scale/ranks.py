"""What every rank of ``torchrun`` does in ``test_ranks``: fits of shards, and things that go wrong.

    torchrun --nproc-per-node K ranks.py OUT

Rank 0 writes curvatures and messages to OUT.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from laplace_metric import LaplaceEmbedder
from laplace_metric.distributed._fit_on_disk import Checkpoint
from laplace_metric.errors import LaplaceMetricError
from tests.scale.data import N, batches, embedder, network

FITS = {
    "default": {},
    "full, cross": {"structure": "full", "hessian": "full"},
    "kron, cross": {"structure": "kron", "hessian": "positives", "deep": True},
    "margin": {"structure": "diag", "margin": 0.9},
    "euclidean": {"structure": "kron", "distance": "euclidean", "hessian": "full"},
}


def shard(rank: int, n: int, dtype=torch.float64):
    """Uneven shards in order; with four ranks the third is empty."""
    ends = {1: [0, N], 2: [0, 170, N], 4: [0, 40, 190, 190, N]}[n]
    return batches(40, slice(ends[rank], ends[rank + 1]), dtype)


def fitted(dtype=torch.float64, reference=None, folder=None, **settings):
    rank, n = dist.get_rank(), dist.get_world_size()
    g = torch.Generator().manual_seed(rank)  # rank 0's draw counts
    how = {"progress": False, "distributed": True, "reference": reference, "seed": g}
    one = embedder(dtype, **settings).fit(shard(rank, n, dtype), checkpoint_dir=folder, **how)
    assert one.fitted_.n_points == len(one.fitted_.fingerprints) == N
    return one.hessian_


def message(work) -> str:
    """What every rank is told."""
    try:
        work()
    except LaplaceMetricError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def bad_rank() -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    loader = shard(rank, n)
    if rank == n - 1:
        h, labels = loader[-1]
        loader[-1] = (h * float("nan"), labels)
    embedder().fit(loader, progress=False, distributed=True)


def other_weights() -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    model = network()
    with torch.no_grad():
        model[0].bias += rank
    LaplaceEmbedder(model).fit(shard(rank, n), progress=False, distributed=True)


def other_backbone() -> None:
    """The head, an identity, is the same everywhere."""
    rank, n = dist.get_rank(), dist.get_world_size()
    model = network()
    with torch.no_grad():
        model[0].bias += rank
    one = LaplaceEmbedder(model, head="append")
    one.fit(shard(rank, n), progress=False, distributed=True)


def full_disk() -> None:
    """Writing a pass fails on the first rank only."""
    rank, n = dist.get_rank(), dist.get_world_size()
    keep = Checkpoint.keep
    if rank == 0:
        Checkpoint.keep = lambda *_: (_ for _ in ()).throw(OSError("no space left"))
    with TemporaryDirectory() as folder:
        where = [folder]
        dist.broadcast_object_list(where)
        try:
            embedder().fit(
                shard(rank, n), progress=False, distributed=True, checkpoint_dir=where[0]
            )
        finally:
            Checkpoint.keep = keep
            dist.barrier()


def other_settings() -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    one = embedder(hessian="fixed" if rank else "full", structure="diag")
    one.fit(shard(rank, n), progress=False, distributed=True)


def nothing() -> None:
    embedder().fit([], progress=False, distributed=True)


def batch_pairs() -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    embedder(pairs="batch").fit(shard(rank, n), progress=False, distributed=True)


def main(out: Path) -> None:
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    found = {name: fitted(**settings).to_dense() for name, settings in FITS.items()}
    found["float32"] = fitted(torch.float32).to_dense()
    found["reference"] = fitted(structure="diag", margin=0.9, reference=80).to_dense()
    for _ in range(2):
        found["checkpoint"] = fitted(
            folder=out.parent / f"folder-{dist.get_world_size()}"
        ).to_dense()
    told = {}
    if dist.get_world_size() > 1:
        works = (
            bad_rank, other_weights, other_backbone, other_settings, full_disk, nothing,
            batch_pairs,
        )  # fmt: skip
        told = {work.__name__: message(work) for work in works}
    everywhere = [None] * dist.get_world_size()
    dist.all_gather_object(everywhere, (found, told))
    if dist.get_rank() == 0:
        torch.save(everywhere, out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
