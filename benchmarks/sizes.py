"""How much is done: under two minutes on digits, an hour on two cores, or as much as the papers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    """Everything that a protocol's cost depends on.

    Parameters
    ----------
    seeds : int
        Trainings of each method, numbered from 0.
    rounds, short : int
        Rounds of a training, and of one that is tuned; a round are 20 batches of 128.
    trials : int
        Settings tried for each method, its defaults first.
    train, queries, fit : int
        Training images read, test images of each set, training images of a post-hoc fit.
    draws, resamples : int
        Joint draws of the calibration; bootstrap resamples.
    embedding : int
        Z.
    side : int
        Pixels that the frozen image encoder is given.
    corrupted : int
        Images of each corruption type and severity.
    """

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


SMOKE = Size("smoke", 1, 2, 1, 2, 600, 150, 400, 5, 20, 8, 32, 8)
SMALL = Size("small", 3, 30, 10, 5, 20_000, 2_500, 10_000, 30, 200, 64, 96, 200)
PAPER = Size("paper", 5, 500, 100, 30, 60_000, 10_000, 60_000, 100, 1_000, 128, 224, 2_000)
SIZES = {size.name: size for size in (SMOKE, SMALL, PAPER)}
TUNING_SEED = 100
