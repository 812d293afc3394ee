"""Online against post-hoc Laplace on FashionMNIST: a sweep on validation images, then test images.

    python -m benchmarks variants --pieces online --data DIR --cache DIR

The LAM network with Z = 3 and 64 (RMSprop, contrastive loss with margin 0.5, no miner, a rate of
1e-3 that falls by exp(-0.1) an epoch), 55,000 training images in batches of 128, three epochs in
every line; 5,000 other training images choose. The backbone runs in bfloat16, the head, its loss
and its curvature in float32. Lines "from nothing" draw in all epochs, "warm" ones not in the first
(these, and positives and full, at Z = 3 alone). All others draw in the third only: they share the
first two with plain training and begin the third with a new optimiser, as plain training does here,
too. Post-hoc fits are put on the network of plain training. Everything is diagonal with distance
arccos and, unless named, fixed; n is the number of training images. Queries search among
themselves; MNIST and KMNIST are out of distribution and choose nothing.

One JSON and one network a run in the cache; a re-run measures what is missing.
"""

from __future__ import annotations

import math
import time
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
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
from benchmarks.networks import lam_network
from benchmarks.records import plain, read_record, read_rows, write_record, write_whole
from benchmarks.variants.noise import noise_of
from benchmarks.variants.post_hoc import OUT, SEEDS, Pairs, Sets, head_sets, measure
from laplace_metric import LaplaceEmbedder, OnlineLaplace, ProbabilisticEmbedder
from laplace_metric.datasets import ImageSet
from laplace_metric.errors import LaplaceMetricWarning
from laplace_metric.training import train_embedder

EPOCHS, SHARED, BATCH, MARGIN, RATE, DECAY = 3, 2, 128, 0.5, 1e-3, 0.1
HELD, NOISE_ON = 5_000, 2_000
N = 60_000 - HELD
NOTHING, SMALLEST = "from nothing", 3
PLAIN: dict[str, Any] = {"prior_precision": 1.0, "samples": 1}
"""What a line has that does not say otherwise."""
HUNDRED: dict[str, Any] = {"prior_precision": 100.0}
PAPER = {"recursion": "paper", "decay": 0.9999}
ONLINE: dict[str, dict[str, Any]] = {
    "prior 1": {},
    "prior 10": {"prior_precision": 10.0},
    "prior 100": HUNDRED,
    "prior 1000": {"prior_precision": 1e3},
    "prior 1, n^1.5": {"n_effective": N**1.5},
    "prior 100, n^1.5": {"n_effective": N**1.5, **HUNDRED},
    "prior 1, n^2": {"n_effective": "pairs"},
    "paper's sum, n": PAPER,
    "paper's sum, n^2": {**PAPER, "n_effective": "pairs"},
    "prior 100, decay .99": {"decay": 0.99, **HUNDRED},
    "prior 100, decay .9999": {"decay": 0.9999, **HUNDRED},
    "prior 100, 4 draws": {"samples": 4, **HUNDRED},
    "prior 100, positives": {"hessian": "positives", **HUNDRED},
    "prior 100, full": {"hessian": "full", **HUNDRED},
    "prior 1000, positives": {"hessian": "positives", "prior_precision": 1e3},
    "prior 1000, full": {"hessian": "full", "prior_precision": 1e3},
    "prior 100, from nothing": HUNDRED,
    "paper's sum, n, from nothing": PAPER,
    "prior by evidence, from nothing, warm": {"prior_precision": "evidence", "warmup": 1},
}
PRIORS: dict[str, float | None] = {
    "prior 1": 1.0, "prior 10": 10.0, "prior 100": 100.0, "prior 1000": 1e3,
    "prior by evidence": None,
}  # fmt: skip
HESSIANS = ("fixed", "positives", "full")
POST_HOC = {
    f"post-hoc {hessian}, {prior}{scale}": (value, count)
    for hessian in HESSIANS
    for prior, value in PRIORS.items()
    for scale, count in {"": float(N), ", n^1.5": N**1.5}.items()
}
CHOSEN: dict[int, tuple[str, ...]] = {
    3: (
        "prior 1000",
        "prior 1000, positives",
        "prior 1000, full",
        "post-hoc fixed, prior 1000",
        "post-hoc positives, prior 1000",
        "post-hoc full, prior 1000",
    ),
    64: (
        "prior 100, 4 draws",
        "post-hoc fixed, prior 1",
        "post-hoc positives, prior 10",
        "post-hoc full, prior 1",
    ),
}
"""An online and a post-hoc line of each approximation and Z, by ``best`` on validation images."""


class Bfloat16(nn.Module):
    """A network under autocast, float32 in and out: twice as fast on CPUs that have it."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        """[B, 1, 28, 28] -> [B, D]."""
        with torch.autocast(x.device.type, torch.bfloat16):
            return self.body(x).float()


@dataclass(frozen=True)
class Data:
    """Training images, and the queries and OOD images of one split."""

    train: ImageSet
    asked: Sets

    @classmethod
    def read(cls, folder: str | None, split: str, limit: int) -> Data:
        """``split`` is "validation" (of training images) or "test"."""
        images = load("fashion-mnist", "train", folder)
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
        held, train = images.subset(order[:HELD]), images.subset(order[HELD:])
        if split == "test":
            held = load("fashion-mnist", "test", folder, limit)
        out = {name: load(name, "test", folder) for name in OUT}
        if split == "validation":  # KMNIST has no training images here: its last ones
            out = {name: x.subset(torch.arange(len(x) - limit, len(x))) for name, x in out.items()}
        else:
            out = {name: first(x, limit) for name, x in out.items()}
        return cls(train, {"fashion-mnist": first(held, limit), **out})


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
        network = nn.Sequential(Bfloat16(body[:-1]), body[-1])
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

    def online(self, name: str) -> tuple[LaplaceEmbedder, nn.Sequential, dict[str, Any]]:
        """The embedder, its network, and what is noted of the training."""
        folder, nothing = self._path(name).with_suffix(""), NOTHING in name
        network = self.network() if nothing else self.plain(SHARED)
        if not (folder / "note.json").is_file():
            laplace = OnlineLaplace(network, **{**PLAIN, **ONLINE[name]})
            start = time.perf_counter()
            fit = partial(laplace.fit, seed=self.seed)
            embedder = self.train(network, fit, 0 if nothing else SHARED, EPOCHS)
            seconds = (time.perf_counter() - start) / (EPOCHS if nothing else EPOCHS - SHARED)
            embedder.save(folder / "posterior")
            save_model(network, str(folder / "network.safetensors"))
            lists = {"losses": laplace.losses_, "variances": laplace.variances_}
            note = {"epoch_seconds": seconds, "priors": laplace.priors_, **lists}
            write_record("note", note, folder)
        load_model(network, folder / "network.safetensors")
        note = {k: v for k, v in read_record("note", folder).items() if k != "environment"}
        return LaplaceEmbedder.load(folder / "posterior", network.eval()), network, note

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


@dataclass(frozen=True)
class Measuring:
    """The lines of one Z and one seed on one split, one JSON each."""

    trainer: Trainer
    data: Data
    folder: Path
    points: int

    def __call__(self, online: Iterable[str], post_hoc: Iterable[str]) -> None:
        """Measure what is missing."""
        for name in online:
            self._record(name, "online", partial(self._online, name))
        missing = [name for name in ("plain", *post_hoc) if not self._file(name).is_file()]
        if not missing:
            return
        network = self.trainer.plain()
        sets = head_sets(
            network[0], {**self.data.asked, "train": first(self.data.train, self.points)}
        )
        head, numbers = network[1], partial(self._numbers, network=network, sets=sets)
        self._record("plain", "plain", lambda: numbers(Deterministic(head).fit(sets["train"])))
        for hessian in HESSIANS:
            names = [name for name in missing if name.startswith(f"post-hoc {hessian},")]
            if names:
                embedder = LaplaceEmbedder(
                    head, hessian=hessian, structure="diag", positivity="clip", n_effective=N
                ).fit(sets["train"], progress=False)
            for name in names:
                at = rescaled(embedder, *POST_HOC[name])
                self._record(name, "post-hoc", partial(numbers, at))

    def _online(self, name: str) -> dict[str, Any]:
        embedder, network, note = self.trainer.online(name)
        sets = head_sets(network[0], {**self.data.asked, "train": first(self.data.train, NOISE_ON)})
        return {**self._numbers(on_head(embedder, network[1]), network, sets), **note}

    def _numbers(
        self, method: ProbabilisticEmbedder, network: nn.Sequential, sets: dict[str, Pairs]
    ) -> dict[str, Any]:
        numbers, head = measure(method, sets, 0.0), network[1]
        assert isinstance(head, nn.Linear)
        if isinstance(method, LaplaceEmbedder):
            numbers["noise"] = noise_of(head, method.posterior_.variance, sets["train"][:4])
            numbers["n_effective"] = method.posterior_.n_effective
            numbers["prior_precision"] = method.posterior_.prior_precision
        return numbers

    def _file(self, name: str) -> Path:
        words = plain(name, f"z{self.trainer.size}", f"seed{self.trainer.seed}")
        return self.folder / f"{words}.json"

    def _record(self, name: str, kind: str, run: Callable[[], dict[str, Any]]) -> None:
        path = self._file(name)
        if path.is_file():
            return
        facts = {"embedding_size": self.trainer.size, "seed": self.trainer.seed}
        row = {"method": name, "kind": kind, **facts, **run()}
        write_record(path.stem, row, self.folder)
        shown = {k: round(row[k], 4) for k in ("recall@1", "ausc", "retrieval_ece") if k in row}
        print(self.trainer.size, self.trainer.seed, name, shown, flush=True)


def rescaled(embedder: LaplaceEmbedder, prior: float | None, count: float) -> LaplaceEmbedder:
    """The same curvature with another prior (None: by the evidence) and another n."""
    settings = replace(embedder.settings, n_effective=count, prior_precision=prior or 1.0)
    posterior = replace(embedder.posterior_, n_effective=count, prior_precision=prior or 1.0)
    fitted = replace(embedder.fitted_, posterior=posterior)
    other = LaplaceEmbedder.from_fitted(embedder.model, settings, fitted)
    if prior is None:
        other.tune_prior()
    return other


def best(rows: Sequence[dict[str, Any]], size: int, kind: str) -> tuple[str, ...]:
    """Of each approximation the line of the least mean rank in ECE and AUSC.

    Among those within .005 of plain training's recall@1; where there is none, the line of the
    highest recall.
    """
    own = [row for row in rows if row["embedding_size"] == size]
    (least,) = [row["recall@1"] - 0.005 for row in own if row["kind"] == "plain"]
    found = []
    for hessian in HESSIANS:
        lines = [
            row for row in own if (row["kind"], approximation(row["method"])) == (kind, hessian)
        ]
        if not lines:  # see ``swept``
            continue
        able = [row for row in lines if row["recall@1"] >= least]
        able = able or [max(lines, key=lambda row: float(row["recall@1"]))]
        places = [sorted(able, key=key) for key in (_error, _sparsification)]
        able.sort(key=lambda row: (sum(place.index(row) for place in places), _error(row)))
        found.append(able[0]["method"])
    return tuple(found)


def approximation(name: str) -> str:
    """Which of the three a line has.

    Examples
    --------
    >>> approximation("prior 100, full"), approximation("prior 100"), approximation("plain")
    ('full', 'fixed', 'fixed')
    """
    return next((hessian for hessian in HESSIANS[1:] if hessian in name), HESSIANS[0])


def swept(size: int) -> list[str]:
    """Every line; at Z = 64 neither those from nothing nor those with cross blocks.

    The first take three times as long, the cross blocks of a batch ten times, as Z^2.
    """
    slow = (NOTHING, *HESSIANS[1:])
    return [*(x for x in ONLINE if size == SMALLEST or not any(y in x for y in slow)), *POST_HOC]


def _error(row: dict[str, Any]) -> float:
    return float(row["retrieval_ece"])


def _sparsification(row: dict[str, Any]) -> float:
    return -float(row["ausc"])


def run(options: Namespace) -> None:
    """Measure what is missing, and write the records: the sweep, then what it chose."""
    warnings.simplefilter("ignore", LaplaceMetricWarning)  # clipped curvature, priors at the edge
    done = {}
    for split in ("validation", "test"):
        data = Data.read(options.data, split, options.limit)
        folder = options.cache / f"online-{split}"
        for size in options.widths:
            for seed in (0,) if split == "validation" else options.seeds or SEEDS:
                trainer = Trainer(size, seed, options.cache, data.train)
                measuring = Measuring(trainer, data, folder, options.fit)
                lines = CHOSEN.get(size, ()) if split == "test" else swept(size)
                measuring([x for x in lines if x in ONLINE], [x for x in lines if x in POST_HOC])
        done[split] = read_rows(folder)
    content = {"protocol": (__doc__ or "").split("\n\n")[2].strip(), **done}
    print(write_record("online", content).name)
