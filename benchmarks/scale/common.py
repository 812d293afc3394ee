"""What the pieces share: points made on the fly, the process of a piece, one JSON."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.records import folder_of, write_part
from benchmarks.sizes import Problem, ScaleSize
from benchmarks.timing import in_own_process

NAME = "scale"
Row = dict[str, Any]


@dataclass(frozen=True)
class Points:
    """Class means plus noise, the same at every pass: (features [b, D], labels [b]) batches.

    A shard of ``n_shards`` takes every so-manieth batch.

    Examples
    --------
    >>> from benchmarks.sizes import SMALL_PROBLEM
    >>> points = Points(500, SMALL_PROBLEM)
    >>> [len(y) for _, y in points]
    [200, 200, 100]
    >>> [len(y) for _, y in Points(500, SMALL_PROBLEM, shard=1, n_shards=2)]
    [200]
    """

    n: int
    problem: Problem
    device: str = "cpu"
    shard: int = 0
    n_shards: int = 1

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        batch, shape = self.problem.batch, (self.problem.n_classes, self.problem.n_features)
        means = torch.randn(shape, generator=self._generator(0), device=self.device)
        if self.problem.common:
            means += self.problem.common * torch.randn(
                shape[1], generator=self._generator(-1), device=self.device
            )
        for start in range(self.shard * batch, self.n, self.n_shards * batch):
            generator = self._generator(1 + start)
            size = min(batch, self.n - start)
            labels = torch.randint(shape[0], (size,), generator=generator, device=self.device)
            x = torch.randn(size, shape[1], generator=generator, device=self.device)
            yield x.add_(means[labels]), labels

    def _generator(self, seed: int) -> torch.Generator:
        return torch.Generator(self.device).manual_seed(seed)

    def together(self) -> tuple[Tensor, Tensor]:
        """All at once [N, D] and [N]."""
        x = torch.empty(self.n, self.problem.n_features, device=self.device)
        labels = torch.empty(self.n, dtype=torch.int64, device=self.device)
        start = 0
        for part, y in self:
            x[start : start + len(y)], labels[start : start + len(y)] = part, y
            start += len(y)
        return x, labels


def apart(size: ScaleSize, function: Callable[..., Any], *arguments: Any) -> Any:
    """In a fresh process, whose peak memory is its own; here for a smoke run."""
    if size.name == "smoke":
        return function(*arguments)
    return in_own_process(function, *arguments)


def write_piece(name: str, content: Row, options: Namespace) -> None:
    """Put one piece into the record, beside the others."""
    path = write_part(NAME, name, {"budget": options.size, **content}, folder_of(options))
    print(path.name, name, flush=True)


def show(row: Row) -> Row:
    """Print a row in few digits; returns it."""
    print({k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in row.items()}, flush=True)
    return row
