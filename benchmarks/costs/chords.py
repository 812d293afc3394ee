"""The quadrature of ``embedder.distance`` against a closed form.

``python -m benchmarks.costs.chords``.
Pairs of zero-mean vectors whose coordinates have variance 1 and correlation ``sqrt(1 - gap^2)``:
the widest posterior there is, and inputs ``gap`` apart. Their cosine is the correlation of a sample
of Z, whose moments are hypergeometric (Muirhead 1982, section 5.1.3); mpmath gives them to 30
digits. Written are relative errors of mean and standard deviation.
"""

from __future__ import annotations

import torch
from mpmath import gamma, hyp2f1, mp, mpf

from benchmarks.records import markdown, read_record, write_record
from laplace_metric.distributions import DiagonalCovariance
from laplace_metric.laplace._embedding_pairs import EmbeddingPairs
from laplace_metric.laplace._squared_distance import squared_distance

SIZES = (2, 3, 4, 8, 16)
GAPS = (1.0, 0.5, 0.1, 0.02, 1e-3)


def closed_form(size: int, gap: float) -> tuple[float, float]:
    """Mean and standard deviation of ``2 - 2 c``."""
    with mp.workdps(30):
        half, rho = mpf(size) / 2, (1 - mpf(gap) ** 2) ** 0.5
        scale = (gamma(half + 0.5) / gamma(half)) ** 2 / half
        mean = scale * rho * hyp2f1(0.5, 0.5, half + 1, rho**2)
        rest = mpf(gap) ** 2 * hyp2f1(1, 1, half + 1, rho**2) if gap < 1 else mpf(1)
        square = 1 - (1 - 1 / mpf(size)) * rest
        return float(2 - 2 * mean), float(2 * (square - mean**2) ** 0.5)


def quadrature(size: int, gap: float) -> tuple[float, float]:
    """The same by ``squared_distance``."""
    one = torch.ones(1, size, dtype=torch.float64)
    xx, yy, xy = (DiagonalCovariance(v * one) for v in (1.0, 1.0, (1 - gap**2) ** 0.5))
    pairs = EmbeddingPairs(1e-9 * one, 1e-9 * one, xx, yy, xy)
    ours = squared_distance(pairs, spherical=True, exact=True)
    return float(ours.mean), float(ours.standard_deviation)


def table() -> str:
    """Relative errors of mean / standard deviation, a size a line."""
    rows = read_record("chords")["rows"]
    lines = []
    for size in SIZES:
        of = [row for row in rows if row["size"] == size]
        cells = [f"{row['mean_error']:.0e} / {row['deviation_error']:.0e}" for row in of]
        lines.append([str(size), *cells])
    return markdown(["Z", *(f"{gap:g} apart" for gap in GAPS)], lines)


def run() -> None:
    """Write ``results/chords.json``."""
    rows = []
    for size in SIZES:
        for gap in GAPS:
            truth, ours = closed_form(size, gap), quadrature(size, gap)
            mean, deviation = (abs(a / b - 1) for a, b in zip(ours, truth, strict=True))
            row = {"size": size, "gap": gap, "mean_error": mean, "deviation_error": deviation}
            rows.append(row)
            print(row)
    print(write_record("chords", {"rows": rows}).name)


if __name__ == "__main__":
    run()
