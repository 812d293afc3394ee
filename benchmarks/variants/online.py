"""Online against post-hoc Laplace on FashionMNIST: ``benchmarks variants --pieces online``.

The LAM network with Z = 3 and 64 (RMSprop, contrastive loss with margin 0.5, no miner, a rate of
1e-3 that falls by exp(-0.1) an epoch), 30,000 training images in batches of 128, three epochs in
every line. Online lines draw in the third epoch: they share the first two with plain training and
begin the third with a new optimiser, as plain training does here, too. Post-hoc fits are put on the
network of plain training. Everything is diagonal with distance arccos and clips negative curvature.
The prior of each line was chosen on validation images by a sweep of 0.3.0. 2,500 test images search
among themselves; 2,500 images of MNIST and KMNIST each are out of distribution.

One JSON and one network a run in the cache; a re-run measures what is missing.
"""

from __future__ import annotations

import math
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pytorch_metric_learning.losses import ContrastiveLoss
from safetensors.torch import load_model, save_model
from torch import Tensor, nn

from baselines import Deterministic
from benchmarks.datasets import load
from benchmarks.engine.method import evaluate_method
from benchmarks.networks import lam_network
from benchmarks.records import plain, read_rows, write_record, write_whole
from laplace_metric import LaplaceEmbedder, OnlineLaplace, ProbabilisticEmbedder
from laplace_metric.datasets import ImageSet
from laplace_metric.errors import LaplaceMetricWarning
from laplace_metric.training import train_embedder

Pairs = list[tuple[Tensor, Tensor]]
Sets = dict[str, ImageSet]
OUT, SEEDS, N_DRAWS = ("mnist", "kmnist"), (0, 1, 2), 100
EPOCHS, SHARED, BATCH, MARGIN, RATE, DECAY = 3, 2, 128, 0.5, 1e-3, 0.1
N, FITTED, ASKED = 30_000, 10_000, 2_500
"""Images that train, those of a post-hoc fit, and those that are asked of each set."""
ONLINE: dict[str, dict[str, Any]] = {
    "prior 1000": {"prior_precision": 1e3, "samples": 1},
    "prior 100, 4 draws": {"prior_precision": 100.0, "samples": 4},
}
HESSIANS = ("fixed", "positives", "full")
PRIORS = (1.0, 10.0, 1e3)
POST_HOC = {
    f"post-hoc {hessian}, prior {prior:g}": prior for hessian in HESSIANS for prior in PRIORS
}
ASKED_LINES: dict[int, tuple[str, ...]] = {
    3: ("prior 1000", *(f"post-hoc {hessian}, prior 1000" for hessian in HESSIANS)),
    64: (
        "prior 100, 4 draws",
        "post-hoc fixed, prior 1",
        "post-hoc positives, prior 10",
        "post-hoc full, prior 1",
    ),
}
"""An online line of each Z, and a post-hoc line of each approximation."""


@dataclass(frozen=True)
class Data:
    """Training images, and the queries and OOD images by the name of their set."""

    train: ImageSet
    asked: Sets

    @classmethod
    def read(cls, folder: str | None) -> Data:
        """Read the images of the data folder."""
        images = load("fashion-mnist", "train", folder)
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
        asked = {name: load(name, "test", folder, ASKED) for name in ("fashion-mnist", *OUT)}
        return cls(images.subset(order[:N]), asked)


def first(images: ImageSet, n: int) -> ImageSet:
    """At most n images."""
    return images.subset(torch.arange(min(n, len(images))))


@dataclass(frozen=True)
class Trainer:
    """Networks of one Z and one seed, from the cache or trained now."""

    size: int
    seed: int
    cache: Path
    images: ImageSet

    def network(self) -> nn.Sequential:
        """With the weights of the seed."""
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            body = lam_network(self.size)
        network = nn.Sequential(body[:-1], body[-1])
        return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def train(self, network: nn.Module, fit: Callable[..., Any], start: int, stop: int) -> Any:
        """Epochs ``start`` to ``stop`` of the schedule, with a new optimiser."""
        optimizer = torch.optim.RMSprop(network.parameters(), RATE * math.exp(-DECAY * start))
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, math.exp(-DECAY))
        order = torch.Generator().manual_seed(100 * self.seed + start)
        loader = self.images.loader(BATCH, True, order)
        result = fit(
            loader,
            ContrastiveLoss(neg_margin=MARGIN),
            epochs=stop - start,
            optimizer=optimizer,
            scheduler=scheduler,
            progress=False,
        )
        network.eval()
        return result

    def plain(self, epochs: int = EPOCHS) -> nn.Sequential:
        """Plain training: two epochs, or these and a third with a new optimiser."""
        path = self._path(f"plain {epochs}")
        network = self.network() if epochs == SHARED else self.plain(SHARED)
        if path.is_file():
            load_model(network, path)
            return network.eval()
        start = 0 if epochs == SHARED else SHARED
        self.train(network, partial(train_embedder, network), start, epochs)
        write_whole(path, lambda part: save_model(network, str(part)))
        return network

    def online(self, name: str) -> tuple[LaplaceEmbedder, nn.Sequential]:
        """Return the embedder and its network."""
        folder = self._path(name).with_suffix("")
        network = self.plain(SHARED)
        if not (folder / "network.safetensors").is_file():
            laplace = OnlineLaplace(network, refit=False, **ONLINE[name])
            fit = partial(laplace.fit, seed=self.seed)
            embedder = self.train(network, fit, SHARED, EPOCHS)
            embedder.save(folder / "posterior")
            write_whole(folder / "network.safetensors", lambda part: save_model(network, str(part)))
        load_model(network, folder / "network.safetensors")
        return LaplaceEmbedder.load(folder / "posterior", network.eval()), network

    def _path(self, name: str) -> Path:
        words = plain("online", name, f"z{self.size}", f"seed{self.seed}")
        folder = self.cache / "online-networks"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{words}.safetensors"


def on_head(embedder: LaplaceEmbedder, head: nn.Module) -> LaplaceEmbedder:
    """The same posterior on the head alone, whose inputs are kept."""
    located = replace(embedder.fitted_.head, name="", parts=(head, head))
    fitted = replace(embedder.fitted_, head=located)
    return LaplaceEmbedder.from_fitted(head, embedder.settings, fitted)


@torch.no_grad()
def head_sets(backbone: nn.Module, images: Sets) -> dict[str, Pairs]:
    """Return the head's inputs of every set, batch by batch: the backbone runs once."""
    return {n: [(backbone(x), y) for x, y in of.loader(500)] for n, of in images.items()}


def measure(method: ProbabilisticEmbedder, sets: dict[str, Pairs]) -> dict[str, Any]:
    """Return the numbers of one fitted method on the queries and the OOD sets."""
    result = evaluate_method(
        method,
        sets["fashion-mnist"],
        {name: sets[name] for name in OUT},
        n_draws=N_DRAWS,
        seed=torch.Generator().manual_seed(0),
        n_bootstrap=200,
    )
    return result.numbers()


@dataclass(frozen=True)
class Measuring:
    """The lines of one Z and one seed, one JSON each."""

    trainer: Trainer
    data: Data
    folder: Path

    def __call__(self, lines: Iterable[str]) -> None:
        """Measure what is missing."""
        network = self.trainer.plain()
        train = first(self.data.train, FITTED)
        sets = head_sets(network[0], {**self.data.asked, "train": train})
        head = network[1]
        self._record(
            "plain", "plain", lambda: measure(Deterministic(head).fit(sets["train"]), sets)
        )
        for name in lines:
            if name in ONLINE:
                self._record(name, "online", partial(self._online, name))
            else:
                self._record(name, "post-hoc", partial(self._post_hoc, name, head, sets))

    def _post_hoc(self, name: str, head: nn.Module, sets: dict[str, Pairs]) -> dict[str, Any]:
        settings: dict[str, Any] = {"hessian": approximation(name), "n_effective": N}
        settings |= {"structure": "diag", "positivity": "clip", "prior_precision": POST_HOC[name]}
        return measure(LaplaceEmbedder(head, **settings).fit(sets["train"], progress=False), sets)

    def _online(self, name: str) -> dict[str, Any]:
        embedder, network = self.trainer.online(name)
        sets = head_sets(network[0], self.data.asked)
        return measure(on_head(embedder, network[1]), sets)

    def _record(self, name: str, kind: str, run: Callable[[], dict[str, Any]]) -> None:
        facts = {"embedding_size": self.trainer.size, "seed": self.trainer.seed}
        words = plain(name, *(f"{key}{value}" for key, value in facts.items()))
        if not (self.folder / f"{words}.json").is_file():
            row = {"method": name, "kind": kind, **facts, **run()}
            write_record(words, row, self.folder)
            print(*facts.values(), name, row["recall@1"], row.get("retrieval_ece"), flush=True)


def approximation(name: str) -> str:
    """Return which of the three a line has.

    Examples
    --------
    >>> approximation("post-hoc full, prior 1"), approximation("prior 1000")
    ('full', 'fixed')
    """
    return next((hessian for hessian in HESSIANS[1:] if hessian in name), HESSIANS[0])


def run(options: Namespace) -> None:
    """Measure what is missing, and write ``online.json``."""
    warnings.simplefilter("ignore", LaplaceMetricWarning)  # clipped curvature, priors at the edge
    data, folder = Data.read(options.data), options.cache / "online"
    for size, lines in ASKED_LINES.items():
        for seed in options.seeds or SEEDS:
            Measuring(Trainer(size, seed, options.cache, data.train), data, folder)(lines)
    print(write_record("online", {"rows": read_rows(folder)}).name)
