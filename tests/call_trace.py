"""How far a call travels through the package: files, changes of file, frames above the curvature.

``python -m tests.call_trace`` prints a row for each of fit, embed, search and the command line's
fit; ``-v`` lists every call of ``fit``, indented by its depth.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn

import laplace_metric
from laplace_metric import LaplaceEmbedder
from laplace_metric.cli import main

PACKAGE = str(Path(laplace_metric.__file__).parent) + os.sep
FIRST_NUMBERS = ("diagonal_sum", "left_sum")
"""Functions whose result is the first number of H."""


@dataclass
class Trace:
    """The calls of functions of the package, in order: file, function, depth in the package."""

    calls: list[tuple[str, str, int]] = field(default_factory=list)

    def _hook(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not _inside(frame.f_code):
            return
        depth, above = 1, frame.f_back
        while above is not None:
            depth, above = depth + _inside(above.f_code), above.f_back
        path = frame.f_code.co_filename[len(PACKAGE) :]
        self.calls.append((path, frame.f_code.co_name, depth))

    def __enter__(self) -> Trace:
        sys.setprofile(self._hook)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    @property
    def files(self) -> int:
        """Files of the package that run."""
        return len({path for path, _, _ in self.calls})

    @property
    def rooms(self) -> int:
        """Folders or modules at the top of the package that run."""
        return len({path.split(os.sep)[0] for path, _, _ in self.calls})

    @property
    def changes(self) -> int:
        """How often one call is in another file than the call before."""
        paths = [path for path, _, _ in self.calls]
        return sum(a != b for a, b in pairwise(paths))

    @property
    def frames_to_curvature(self) -> int | None:
        """Frames of the package above the first number of H."""
        depths = [depth for _, name, depth in self.calls if name in FIRST_NUMBERS]
        return depths[0] - 1 if depths else None


def _inside(code: CodeType) -> bool:
    return code.co_filename.startswith(PACKAGE)


def traced(call: Callable[[], Any]) -> Trace:
    """The second of two calls: the first one loads what is imported late."""
    call()
    with Trace() as trace:
        call()
    return trace


def traces() -> dict[str, Trace]:
    """Fit of a diagonal posterior on one batch, its embeddings, a search, the command line."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    x, y = torch.randn(40, 8), torch.arange(40) % 4
    fit = lambda: LaplaceEmbedder(model, structure="diag").fit([(x, y)], progress=False)  # noqa: E731
    embedder = fit()
    index = embedder.index(x, y, progress=False)
    return {
        "fit": traced(fit),
        "embed": traced(lambda: embedder(x).variance),
        "search": traced(lambda: index.search(x, k=3)),
        "command-line fit": traced(lambda: _command_line_fit(x, y)),
    }


def _command_line_fit(x: torch.Tensor, y: torch.Tensor) -> None:
    import numpy as np

    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.npz"
        np.savez(data, embeddings=x.numpy(), labels=y.numpy())
        main(["fit", str(data), "--output", str(Path(folder) / "posterior"), "--quiet"])


if __name__ == "__main__":
    measured = traces()
    print(f"{'':18}calls  files  rooms  changes  frames")
    for name, trace in measured.items():
        frames = trace.frames_to_curvature or ""
        row = f"{len(trace.calls):5}{trace.files:7}{trace.rooms:7}{trace.changes:9}{frames:8}"
        print(f"{name:18}{row}")
    if "-v" in sys.argv:
        for path, name, depth in measured["fit"].calls:
            print("  " * depth + f"{path}: {name}")
