"""A fit with a checkpoint, as a script that can be killed.

Batches and blocks are slow and small, so that there is time to kill it anywhere.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from laplace_metric.distributed import _fit_on_disk as checkpoint
from laplace_metric.models import _feature_store
from tests.blocks import of_rows
from tests.scale.data import batches, embedder


def slow(loader, seconds: float):
    for batch in loader:
        time.sleep(seconds)
        yield batch


def main(folder: str, out: str, structure: str, hessian: str, seconds: str) -> None:
    torch.set_num_threads(1)
    checkpoint.SECONDS = 0.0
    _feature_store.blocks = of_rows(40)
    loader = slow(batches(20, dtype=torch.float32), float(seconds))
    model = embedder(torch.float32, structure=structure, hessian=hessian)
    where = None if folder == "none" else folder
    model.fit(loader, progress=False, checkpoint_dir=where).save(out)


if __name__ == "__main__":
    main(*sys.argv[1:])
