"""How much is done: every size of every benchmark.

``smoke`` takes seconds to two minutes, ``small`` an hour on two cores, ``paper`` as much as the
papers; what has no smaller run than the one that is published calls it ``full``.
"""

from __future__ import annotations

from dataclasses import dataclass

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
SMALL = Size("small", 3, 30, 10, 5, 20_000, 2_500, 10_000, 30, 100, 64, 96, 200)
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
    """Sizes of a linear head, and of the points before it, whose classes share a mean."""

    n_features: int = 512
    n_outputs: int = 128
    n_classes: int = 1_000
    batch: int = 2_000

    def model(self) -> torch.nn.Module:
        """Return a linear layer with the same weights every time."""
        torch.manual_seed(0)
        return torch.nn.Linear(self.n_features, self.n_outputs)


SMALL_PROBLEM = Problem(16, 8, 10, 200)


@dataclass(frozen=True)
class PointsSize:
    """Numbers of points of the fits of ``points``; features stay in memory up to some bytes."""

    name: str
    problem: Problem
    n: tuple[int, ...]
    memory_bytes: int


POINTS = {
    "full": PointsSize("full", Problem(), (100_000, 1_000_000), 64 * 2**20),
    "smoke": PointsSize("smoke", SMALL_PROBLEM, (500, 2_000), 16_000),
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
