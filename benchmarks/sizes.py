"""How much is done: every size of every benchmark.

``smoke`` takes seconds to two minutes, ``small`` an hour on two cores, ``paper`` as much as the
papers; what has no smaller run than the one that is published calls it ``full``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True)
class Size:
    """Everything that a protocol's cost depends on; ``MEANINGS`` says what each field is."""

    name: str
    seeds: int
    rounds: int
    short: int
    trials: int
    train: int
    queries: int
    fit: int
    draws: int
    resamples: int
    embedding: int
    side: int
    corrupted: int


MEANINGS = {
    "seeds": "trainings of each method",
    "rounds": "rounds of a training, 20 batches of 128 each",
    "short": "rounds of a training that is tuned",
    "trials": "settings tried for each method",
    "train": "training images read",
    "queries": "test images of each set",
    "fit": "images of a post-hoc fit",
    "draws": "joint draws of the calibration",
    "resamples": "bootstrap resamples",
    "embedding": "numbers of an embedding",
    "side": "pixels given to the image encoder",
    "corrupted": "images of each corruption and severity",
}
SMOKE = Size("smoke", 1, 2, 1, 2, 600, 150, 400, 5, 20, 8, 32, 8)
SMALL = Size("small", 3, 30, 10, 5, 20_000, 2_500, 10_000, 30, 200, 64, 96, 200)
PAPER = Size("paper", 5, 500, 100, 30, 60_000, 10_000, 60_000, 100, 1_000, 128, 224, 2_000)
SIZES = {size.name: size for size in (SMOKE, SMALL, PAPER)}
TUNING_SEED = 100


@dataclass(frozen=True)
class TrainingSize:
    """One run of ``recovery``; the paper's, except that a step's negatives are shared."""

    batch: int
    negatives: int
    draws: tuple[int, int]
    steps: tuple[int, int]  # of mu, of kappa
    hidden: tuple[int, ...]
    learning_rate: float
    latent: int = 0  # of the encoder; 0: that of the process
    shared: bool = False  # whether kappa reads the output of mu's network


RECOVERY = {
    "smoke": TrainingSize(64, 64, (2, 4), (20, 20), (16, 16), 1e-3),
    "small": TrainingSize(256, 128, (8, 32), (1_500, 700), (100, 200, 200, 100), 1e-3),
    "paper": TrainingSize(
        512, 512, (512, 512), (50_000, 50_000), (100, 500, 500, 500, 500, 100), 1e-4
    ),
}


@dataclass(frozen=True)
class Problem:
    """Sizes of a linear head and of the points before it, whose classes share a mean.

    ``common`` is its length beside that of a class's own: with sqrt(2) the points of two classes
    are about 60 degrees apart, without it 90.
    """

    n_features: int = 512
    n_outputs: int = 128
    n_classes: int = 1_000
    batch: int = 10_000
    common: float = 0.0

    def model(self, device: str = "cpu") -> torch.nn.Module:
        """A linear layer with the same weights every time."""
        torch.manual_seed(0)
        return torch.nn.Linear(self.n_features, self.n_outputs).to(device)


SMALL_PROBLEM = Problem(16, 8, 10, 200)


@dataclass(frozen=True)
class ScaleSize:
    """One piece of ``scale``.

    Parameters
    ----------
    problem : Problem
    n : tuple of int
        Points of each fit, or items of the gallery.
    repeats, product : int
        Repeats of a timing; side of the matrices whose product is the machine's rate.
    memory_bytes : int
        Features stay in memory up to these.
    largest_kron : int
        Of ``points``: the Kronecker fit goes up to it.
    fit : int
        Of ``gallery``: points of the fit.
    estimated, compared, references, draws
        Of ``margin``: points of the estimates; points at which they are compared with the exact
        curvature; their reference points; draws of these.
    embedded, samples : int
        Of ``device``.
    """

    name: str
    problem: Problem
    n: tuple[int, ...] = (1_000_000,)
    repeats: int = 5
    product: int = 2_048
    memory_bytes: int = 64 * 2**20
    largest_kron: int = 1_000_000
    fit: int = 20_000
    estimated: int = 1_000_000
    compared: int = 30_000
    references: tuple[int, ...] = (1_000, 4_000, 16_000)
    draws: int = 8
    embedded: int = 10_000
    samples: int = 100


SCALE = {
    "points": {
        "full": ScaleSize("full", Problem(batch=2_000), (100_000, 1_000_000, 10_000_000)),
        "smoke": ScaleSize("smoke", SMALL_PROBLEM, (500, 2_000), product=128, memory_bytes=16_000,
                           largest_kron=2_000),
    },
    "processes": {
        "full": ScaleSize("full", Problem()),
        "smoke": ScaleSize("smoke", SMALL_PROBLEM, (4_000,), product=128),
    },
    "memory": {
        "full": ScaleSize("full", Problem(256, batch=256), (100_000, 400_000, 1_600_000), 10),
        "smoke": ScaleSize("smoke", SMALL_PROBLEM, (500, 2_000), 2, memory_bytes=16_000),
    },
    "margin": {
        "full": ScaleSize("full", Problem(128, 128, common=2**0.5), (10_000, 30_000, 100_000)),
        "smoke": ScaleSize("smoke", replace(SMALL_PROBLEM, common=2**0.5), (400, 800), product=128,
                           estimated=2_000, compared=800, references=(50, 200)),
    },
    "gallery": {
        "full": ScaleSize("full", Problem()),
        "smoke": ScaleSize("smoke", SMALL_PROBLEM, (2_000,), 2, 128, fit=500),
    },
    "device": {
        "full": ScaleSize("full", Problem(768, 512), (1_000_000,), 3, 4_096, 2**33),
        "smoke": ScaleSize("smoke", SMALL_PROBLEM, (2_000,), 2, 128, 2**33, embedded=200,
                           samples=5),
    },
}  # fmt: skip


@dataclass(frozen=True)
class StreamSize:
    """Numbers of the streams of ``drift``, and how long they are."""

    size: str = "small"
    test: int = 10_000
    simulated: int = 700
    reference: int = 1_000
    stream: int = 2_000
    window: int = 500
    splits: int = 250
    quiet: int = 1_000
    repeats: int = 20
    windows: int = 200
    rates: tuple[float, ...] = (0.01, 0.1)
    shares: tuple[float, ...] = (0.05, 0.1, 0.2, 0.5)


DRIFT = {
    "full": StreamSize(),
    "smoke": StreamSize("smoke", 600, 3, 120, 120, 40, 2, 40, 2, 3, (0.1,), (0.5,)),
}


FitShape = tuple[int, int, int, int]
"""N, D, Z and classes of a fit."""


@dataclass(frozen=True)
class DeviceSize:
    """Numbers of ``speed --size gpu``.

    Parameters
    ----------
    fits : tuple of FitShape
        Fits; the last one is also that of ``blocks``, and the one before it that of ``kernels``.
    galleries : tuple of int
        Items of each search.
    compared : FitShape
        Fit that is compared with float64 on the CPU.
    reference : int
        Points of the fits whose embedders are asked.
    batch, queries : int
        Inputs of a batch that is embedded; queries of a search.
    blocks : tuple of int
        Megabytes of the blocks that a pass reads at once.
    repeats : int
        Fits whose median is recorded.
    limit, total : float
        Seconds of a part, and of all parts, at most.
    """

    fits: tuple[FitShape, ...]
    galleries: tuple[int, ...]
    compared: FitShape
    reference: int
    batch: int
    queries: int
    blocks: tuple[int, ...]
    repeats: int = 3
    limit: float = 100.0
    total: float = 520.0


ON_DEVICE = {
    "gpu": DeviceSize(
        ((20_000, 512, 64, 100), (60_000, 512, 128, 10), (1_000_000, 1_280, 128, 1_000)),
        (200_000, 1_000_000), (4_000, 256, 32, 20), 20_000, 2_000, 1_000, (4, 32, 128, 512),
    ),
    "smoke": DeviceSize(
        ((300, 24, 6, 6), (400, 24, 8, 4), (600, 32, 8, 10)),
        (500, 800), (200, 16, 4, 4), 200, 50, 20, (1, 4), repeats=1,
    ),
}  # fmt: skip
