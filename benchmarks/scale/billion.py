"""A billion items on a cluster, on paper: bytes, exchanges and hours from what was measured.

Compute is scaled from the fits of a million points with the same head (``device cpu``): by the
number of points and cores, and to float64, in which ranks sum, by the measured rates of products.
Nothing here was run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmarks.records import markdown, read_record
from benchmarks.scale.common import NAME

Row = dict[str, Any]
PASSES = {"diag": 2, "kron": 6}
"""Readings of the features, as counted in ``points``."""


@dataclass(frozen=True)
class Cluster:
    """What is assumed; everything else follows or was measured."""

    n: int = 10**9
    n_classes: int = 10**6
    n_features: int = 768
    n_outputs: int = 512
    machines: int = 64
    cores: int = 32
    disk: float = 2e9
    """Bytes a second of one machine's disk."""
    network: float = 1.25e9
    """Bytes a second between machines (10 Gb/s)."""
    images: float = 1e3
    """Images a second through the model on one GPU."""

    @property
    def columns(self) -> int:
        """A."""
        return self.n_features + 1

    @property
    def feature_bytes(self) -> int:
        """Float32 inputs of the head."""
        return 4 * self.n * self.n_features

    @property
    def class_bytes(self) -> int:
        """Class sums, float64."""
        return 8 * self.n_classes * self.n_outputs

    def exchanged(self, structure: str) -> list[int]:
        """Bytes of each all-reduce: class sums, then every pass with its counts."""
        counts, parameters = 8 * self.n_classes, 8 * self.n_outputs * self.columns
        passes = [parameters]
        if structure == "kron":
            half_steps = (8 * self.n_outputs**2, 8 * self.columns**2) * 2
            passes = [*half_steps, parameters]
        return [self.class_bytes + counts, *(counts + size for size in passes)]

    def network_seconds(self, structure: str) -> float:
        """Of ring all-reduces: every byte leaves and enters a machine twice, nearly."""
        share = 2 * (self.machines - 1) / self.machines
        return share * sum(self.exchanged(structure)) / self.network

    def disk_seconds(self, structure: str) -> float:
        """Written once, read in every pass, by all machines at once."""
        return (1 + PASSES[structure]) * self.feature_bytes / self.machines / self.disk


def compute_hours(structure: str, cluster: Cluster, part: Row) -> float:
    """Of all machines at once, after the model."""
    (row,) = (row for row in part["rows"] if row["structure"] == structure)
    slower = part["rates"]["float32_gflops"] / part["rates"]["float64_gflops"]
    threads = part["environment"]["threads"]
    core_seconds = row["fit"]["seconds"] * threads * slower * cluster.n / row["n"]
    return float(core_seconds / cluster.machines / cluster.cores / 3600)


def table() -> str:
    """What a fit of a billion items would move and take."""
    cluster, part = Cluster(), read_record(NAME)["device cpu"]
    lines = [["model, GPU hours", *[f"{cluster.n / cluster.images / 3600:,.0f}"] * 2]]
    lines += [
        [label, *(value(structure) for structure in PASSES)]
        for label, value in {
            "features written, TB": lambda s: f"{cluster.feature_bytes / 1e12:.2f}",
            "features read, TB": lambda s: f"{PASSES[s] * cluster.feature_bytes / 1e12:.1f}",
            "features of one machine, GB": lambda s: (
                f"{cluster.feature_bytes / cluster.machines / 1e9:.0f}"
            ),
            "first all-reduce (class sums), GB": lambda s: f"{cluster.exchanged(s)[0] / 1e9:.2f}",
            "all later all-reduces, MB": lambda s: f"{sum(cluster.exchanged(s)[1:]) / 1e6:.0f}",
            "network, s": lambda s: f"{cluster.network_seconds(s):.0f}",
            "disk, min": lambda s: f"{cluster.disk_seconds(s) / 60:.1f}",
            "compute, min": lambda s: f"{60 * compute_hours(s, cluster, part):.1f}",
        }.items()
    ]
    return markdown(["a billion items", *PASSES], lines)
