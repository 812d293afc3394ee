"""Five views of each of four digits, how much each counts, and the one answer."""

from __future__ import annotations

from argparse import Namespace

import torch
from torch import Tensor

from benchmarks.datasets import load
from benchmarks.plots import save_png
from benchmarks.records import FIGURES
from laplace_metric import LaplaceEmbedder
from laplace_metric.plots._shown_figure import ShownFigure
from laplace_metric.plots._style import INK, STYLES
from laplace_metric.search._views import Views

N_ITEMS, N_SHOWN, N_VIEWS, N_WRONG, SIDE, NUMBERS = 2_000, 4, 5, 1, 28, 64
NOISE = 0.45


def run(options: Namespace) -> None:
    """Draw the first digits of a random order, each with one view of another digit."""
    images = load("mnist", "test", options.data)
    x = torch.as_tensor(images.images).float().reshape(-1, SIDE**2) / 255
    y = torch.as_tensor(images.labels).long()
    g = torch.Generator().manual_seed(0)
    order = torch.randperm(len(x), generator=g)
    items, asked = order[:N_ITEMS], order[N_ITEMS : N_ITEMS + N_SHOWN]
    basis = torch.pca_lowrank(x[items], NUMBERS)[2]
    of = torch.arange(N_SHOWN).repeat_interleave(N_VIEWS)
    shown = x[asked][of]
    for i in range(N_SHOWN):  # one view is of something else
        at = i * N_VIEWS + int(torch.randint(N_VIEWS, (1,), generator=g))
        shown[at] = x[order[-1 - i]]
    shown = (shown + NOISE * torch.randn(shown.shape, generator=g)).clamp(0, 1)
    embedder = LaplaceEmbedder.from_embeddings(x[items] @ basis, y[items])
    index = embedder.index(x[items] @ basis, y[items], progress=False)
    v = index.query_vectors(shown @ basis)
    centre = index.engine.vectors.mean(0)
    weights = Views.read(of, len(of)).weights(v - centre)
    one = index.search(shown @ basis, 1).nearest
    joint = index.search(shown @ basis, 1, of=of).nearest
    save_png(
        _drawn(shown, weights, one.tolist(), joint.tolist(), y[asked].tolist()),
        (options.output or FIGURES) / "views.png",
    )


def _drawn(
    shown: Tensor, weights: Tensor, one: list[int], joint: list[int], truth: list[int]
) -> ShownFigure:
    right, wrong = STYLES[2].colour, STYLES[1].colour
    figure = ShownFigure(figsize=(5.4, 5.6), layout="constrained")
    axes = figure.subplots(N_SHOWN, N_VIEWS + 1)
    for row in range(N_SHOWN):
        for column in range(N_VIEWS):
            at, panel = row * N_VIEWS + column, axes[row, column]
            panel.imshow(shown[at].reshape(SIDE, SIDE), cmap="gray_r", vmin=0, vmax=1)
            colour = right if one[at] == truth[row] else wrong
            panel.set_title(f"counts {float(weights[at]):.0%}", fontsize=9, color=INK, pad=3)
            panel.set_xlabel(f"alone: {one[at]}", fontsize=9, color=colour, labelpad=2)
        panel = axes[row, N_VIEWS]
        colour = right if joint[row] == truth[row] else wrong
        panel.text(0.5, 0.5, str(joint[row]), fontsize=26, color=colour, ha="center", va="center")
        panel.set_xlabel("together", fontsize=9, color=INK, labelpad=2)
    for panel in axes.flat:
        panel.set_xticks([])
        panel.set_yticks([])
        for side in panel.spines.values():
            side.set_visible(False)
    return figure
