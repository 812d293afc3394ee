"""The training of two heads: a step over all pairs of a batch, monitored and resumable.

Means that all point one way and variances that vanish or explode are the failures that users of
probabilistic heads report. Both show in four numbers a side (``Spread``), over the inputs of an
epoch, at which the training stops.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, astuple, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from laplace_metric.errors import CollapseError
from laplace_metric.image_text._heads import GaussianHead, HeadOutput
from laplace_metric.image_text._objectives import Objective
from laplace_metric.image_text._pairs import ImageTextPairs, PairBatch, PairBatches
from laplace_metric.online._state import StateTree, shapes
from laplace_metric.training._loop import Progress, descend

LEAST_SPREAD = 0.01
"""Of unit means; uniform ones have 1."""
LOG_V = (-25.0, 2.0)
"""Least and largest mean log variance of a coordinate; unit means differ by 2 at most."""
LEAST_VARIATION = 1e-6
"""Of the log trace, a standard deviation."""
WARM_UP = 0.05
"""Share of the steps in which the learning rate rises."""
SCALAR_RATE = 10.0
"""Times the learning rate, for the scale and the offset of the loss."""

Features = Callable[[Tensor], Tensor]
"""Rows of a data set [B] -> features [B, F] or [B, 2, F]."""


@dataclass(frozen=True)
class Spread:
    """Spread of one side in one epoch.

    Parameters
    ----------
    means : float in [0, 1]
        ``1 - |mean of the unit means|^2``: 0 where all are alike.
    log_v : float
        Mean log variance of a coordinate; minus infinity without variances.
    trace : float
        Geometric mean of ``tr S``.
    variation : float
        Standard deviation of ``log tr S`` over inputs.
    """

    means: float
    log_v: float
    trace: float
    variation: float

    def check(self, side: str) -> None:
        """Raise ``CollapseError`` if means or variances have collapsed, or variances exploded."""
        advice = "Lower learning_rate, raise the weight of vib, or check that inputs differ."
        if not self.means >= LEAST_SPREAD:
            raise CollapseError(
                f"the means of the {side} have collapsed: 1 - |their mean|^2 is "
                f"{self.means:.2g}, below {LEAST_SPREAD}. {advice} Encoders that train from "
                "nothing need a first b near the log odds of a match: ProLIP(first_b=-2)."
            )
        if self.log_v == -torch.inf:  # no variances
            return
        if not LOG_V[0] <= self.log_v <= LOG_V[1]:
            what = "exploded" if self.log_v > LOG_V[1] else "collapsed"
            raise CollapseError(
                f"the variances of the {side} have {what}: their mean logarithm is "
                f"{self.log_v:.3g}, outside of {LOG_V}. {advice}"
            )
        if not self.variation >= LEAST_VARIATION:
            raise CollapseError(
                f"the variances of the {side} are all alike: log tr S varies by "
                f"{self.variation:.2g}. {advice}"
            )


class SpreadMonitor:
    """Sums of an epoch of one side, ``title``, and the spreads of finished epochs.

    Examples
    --------
    >>> monitor = SpreadMonitor("images")
    >>> monitor.add(HeadOutput(torch.ones(2, 1), torch.eye(2), torch.eye(2) - 3))
    >>> monitor.add(HeadOutput(torch.ones(2, 1), torch.eye(2), torch.zeros(2, 2)))
    >>> monitor.finish_epoch()
    >>> monitor.history[0].means
    0.5
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self.history: list[Spread] = []
        self._sums: Tensor | None = None  # None between epochs

    @torch.no_grad()
    def add(self, output: HeadOutput) -> None:
        """Add the outputs of a batch."""
        log_trace, log_v = output.trace.double().log(), output.log_v.double().mean(-1)
        n = log_trace.new_tensor(len(log_trace))
        parts = [n, log_v.sum(), log_trace.sum(), log_trace.square().sum()]
        sums = torch.cat([torch.stack(parts), output.mu.double().sum(0)]).cpu()
        self._sums = sums if self._sums is None else self._sums + sums

    def finish_epoch(self) -> None:
        """Append the numbers of the epoch to ``history``.

        Raises
        ------
        CollapseError
            If means or variances have collapsed, or variances have exploded.
        """
        assert self._sums is not None
        n, log_v, log_trace, squares = self._sums[:4].tolist()
        means = 1 - float((self._sums[4:] / n).square().sum())
        variation = max(squares / n - (log_trace / n) ** 2, 0.0) ** 0.5
        trace = float(torch.tensor(log_trace / n).exp())
        self._sums = None
        self.history.append(Spread(means, log_v / n, trace, variation))
        self.history[-1].check(self.title)


class TwoHeads(nn.Module):
    """The heads of both towers and the objective that joins them."""

    def __init__(self, image: GaussianHead, text: GaussianHead, objective: Objective) -> None:
        super().__init__()
        self.image, self.text, self.objective = image, text, objective


def optimizer_of(
    heads: TwoHeads, encoders: nn.ModuleList, rate: float, decay: float, encoder_rate: float
) -> torch.optim.Optimizer:
    """AdamW; scale and offset learn faster and do not decay, encoders have a rate of their own."""
    own = [*heads.image.parameters(), *heads.text.parameters()]
    scalars = [p for p in heads.objective.parameters() if p.requires_grad]
    trained = [p for p in encoders.parameters() if p.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": own, "lr": rate, "weight_decay": decay},
        {"params": scalars, "lr": SCALAR_RATE * rate, "weight_decay": 0.0},
        {"params": trained, "lr": encoder_rate * rate, "weight_decay": decay},
    ]
    groups = [{**group, "initial_lr": group["lr"]} for group in groups if group["params"]]
    return torch.optim.AdamW(groups, betas=(0.9, 0.95))


def rate_at(share: float) -> float:
    """Return the learning rate's factor: a linear rise, then half a cosine.

    Examples
    --------
    >>> rate_at(0.025), rate_at(0.05), round(rate_at(1.0), 6)
    (0.5, 1.0, 0.0)
    """
    if share < WARM_UP:
        return share / WARM_UP
    return (1 + math.cos(math.pi * (share - WARM_UP) / (1 - WARM_UP))) / 2


@dataclass
class PairRun:
    """A training in progress.

    Parameters
    ----------
    encoders : nn.ModuleList
        Those that train too.
    images, texts : Features
        Of the rows of ``pairs``.
    masked : features or None, of images and of texts
        Of the same rows, with a part hidden.
    settings : dict
        What must be the same in a resumed run.
    """

    heads: TwoHeads
    encoders: nn.ModuleList
    optimizer: torch.optim.Optimizer
    pairs: ImageTextPairs
    images: Features
    texts: Features
    masked: tuple[Features | None, Features | None]
    loader: PairBatches
    device: torch.device
    settings: StateTree
    progress: Progress = field(default_factory=Progress)
    monitors: tuple[SpreadMonitor, SpreadMonitor] = field(
        default_factory=lambda: (SpreadMonitor("images"), SpreadMonitor("texts"))
    )

    def step(self, rows: Tensor, _: Tensor) -> float:
        """Take one optimisation step on pairs [P, 2]; returns its loss."""
        rows = rows.cpu()
        i, i_rows = rows[:, 0].unique(return_inverse=True)
        j, j_rows = rows[:, 1].unique(return_inverse=True)
        image, text = self.heads.image(self.images(i)), self.heads.text(self.texts(j))
        batch = PairBatch(
            self.pairs.match(i, j).to(self.device),
            torch.stack([i_rows, j_rows], 1).to(self.device),
            self.pairs.images_per_text[j].to(self.device),
        )
        share = (self.progress.steps + 1) / (self.settings["epochs"] * len(self.loader))
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"] * rate_at(min(share, 1.0))
        objective = self.heads.objective
        value = objective(image, text, batch)
        for head, full, masked, own in (
            (self.heads.image, image, self.masked[0], i),
            (self.heads.text, text, self.masked[1], j),
        ):
            if masked is not None:
                value = value + objective.masked_loss(full, head(masked(own)))
        loss = descend(value, self.optimizer)
        self.monitors[0].add(image)
        self.monitors[1].add(text)
        return loss

    def identity(self) -> StateTree:
        """Return the settings that a resumed run must share."""
        return {
            **self.settings,
            "objective": type(self.heads.objective).__name__,
            "weights": self.heads.objective.settings,
            "masked": [part is not None for part in self.masked],
            "heads": shapes(self.heads.state_dict()),
            "encoders": shapes(self.encoders.state_dict()),
            "pairs": [len(self.pairs), self.pairs.n_images, self.pairs.n_texts],
        }

    def state(self) -> StateTree:
        """Return the state that changes, without the random states."""
        return {
            "heads": self.heads.state_dict(),
            "encoders": self.encoders.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "progress": asdict(self.progress),
            "spreads": [[list(astuple(s)) for s in one.history] for one in self.monitors],
        }

    def restore(self, state: StateTree) -> None:
        """Put back what ``state`` gave, in place."""
        for name in ("heads", "encoders", "optimizer"):
            getattr(self, name).load_state_dict(dict(state[name]))
        vars(self.progress).update(state["progress"])
        for monitor, saved in zip(self.monitors, state["spreads"], strict=True):
            monitor.history[:] = [Spread(*row) for row in saved]

    def epoch_done(self) -> None:
        """Note the spreads, or stop."""
        for monitor in self.monitors:
            monitor.finish_epoch()

    def status(self, progress: Progress) -> str:
        """Loss and the spread of the last epoch."""
        line = f"loss {progress.mean_loss:.4g}"
        for monitor in self.monitors:
            if monitor.history:
                last = monitor.history[-1]
                line += f", {monitor.title}: spread {last.means:.2f}, trace {last.trace:.2g}"
        return line
