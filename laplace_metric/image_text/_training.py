"""Features of inputs of which a part is hidden (Chun et al. 2025, eq 6).

What is watched while heads train: whether means differ, and variances neither vanish nor grow.

Means that all point one way and variances that vanish or explode are the failures that users of
probabilistic heads report. Both show in four numbers a side, over the inputs of an epoch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from laplace_metric.errors import CollapseError, InputError
from laplace_metric.image_text._heads import GaussianHead, HeadOutput
from laplace_metric.image_text._objectives import Objective
from laplace_metric.image_text._pairs import (
    Encoder,
    ImageTextPairs,
    PairBatch,
    PairBatches,
    count_inputs,
    encode,
    encode_all,
    take_inputs,
)
from laplace_metric.models import Call
from laplace_metric.models._calling import Inputs
from laplace_metric.online._state import StateTree, shapes
from laplace_metric.training._loop import Progress, descend

MaskedInputs = tuple[Inputs | None, Inputs | None]
"""What is left of each image and of each text, in the order of the pairs; None: not used."""


def masked_features(
    encoders: tuple[Encoder, Encoder],
    pairs: ImageTextPairs,
    features: tuple[Tensor, Tensor],
    masked: MaskedInputs | None,
    objective: Objective,
    *,
    train: bool,
) -> tuple[Features | None, Features | None]:
    """Compute features of masked images and texts: given inputs, or masks drawn anew.

    Masks are drawn for every step where the encoder trains and has ``masked(inputs, share)``.

    Raises
    ------
    InputError
        If there is no way to mask, or no use for what is given.
    """
    if not objective.masked:
        if masked is not None:
            raise InputError(
                "masked= is given, and the objective gives it no weight: pass an objective that "
                "does, such as ProLIP(masked=1e-3)."
            )
        return None, None
    if not isinstance(masked, (tuple, type(None))) or (masked is not None and len(masked) != 2):
        raise InputError("masked= is no tuple (images, texts): pass both, or None for one of them.")
    sides: list[Features | None] = []
    for side, name in enumerate(("images", "texts")):
        full = (pairs.images, pairs.texts)[side]
        given = None if masked is None else masked[side]
        if given is not None:
            sides.append(_given(encoders[side], given, f"masked {name}", features[side], train))
        elif train and callable(getattr(encoders[side], "masked", None)):
            call = Call(encoders[side], "masked", share=objective.masked_share)  # type: ignore[arg-type]
            sides.append(computed(call, full, f"masked {name}"))
        elif masked is not None:
            sides.append(None)
        else:
            raise InputError(
                f"the objective has a weight for masked inputs, and the encoder of {name} cannot "
                "mask: pass masked=(images, texts), each what is left of the inputs in the order "
                "of the pairs, or train an encoder with a method masked(inputs, share)."
            )
    return sides[0], sides[1]


def _given(encoder: Encoder, inputs: Inputs, name: str, full: Tensor, train: bool) -> Features:
    if count_inputs(name, inputs) != len(full):
        n = count_inputs(name, inputs)
        raise InputError(f"{name} has {n} inputs for {len(full)}: pass one for each, in order.")
    if train:
        return computed(encoder, inputs, name)
    features = encode_all(encoder, inputs, name, progress=False)
    if features.shape != full.shape:
        raise InputError(
            f"features of {name} have shape {list(features.shape)}, those of the whole inputs "
            f"{list(full.shape)}: use the same encoder."
        )
    return table(features.to(full))


# The training of two heads: a step over all pairs of a batch, watched, and resumable.


WARM_UP = 0.05
"""Share of the steps in which the learning rate rises."""
SCALAR_RATE = 10.0
"""Times the learning rate, for the scale and the offset of the loss."""

Features = Callable[[Tensor], Tensor]
"""Rows of a data set [B] -> features [B, F] or [B, 2, F]."""


class TwoHeads(nn.Module):
    """The heads of both towers and the objective that joins them."""

    def __init__(self, image: GaussianHead, text: GaussianHead, objective: Objective) -> None:
        super().__init__()
        self.image, self.text, self.objective = image, text, objective


def table(features: Tensor) -> Features:
    """Features of a frozen encoder: computed once, looked up by row."""
    return lambda rows: features[rows.to(features.device)]


def computed(encoder: Encoder, inputs: Inputs, name: str) -> Features:
    """Features of an encoder that trains."""
    return lambda rows: encode(encoder, take_inputs(inputs, rows), name, grad=True)


def optimizer_of(
    heads: TwoHeads,
    encoders: nn.ModuleList,
    learning_rate: float,
    weight_decay: float,
    encoder_rate: float,
) -> torch.optim.Optimizer:
    """AdamW; scale and offset learn faster and do not decay, encoders have a rate of their own."""
    own = [*heads.image.parameters(), *heads.text.parameters()]
    scalars = [p for p in heads.objective.parameters() if p.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": own, "lr": learning_rate, "weight_decay": weight_decay},
        {"params": scalars, "lr": SCALAR_RATE * learning_rate, "weight_decay": 0.0},
    ]
    trained = [p for p in encoders.parameters() if p.requires_grad]
    if trained:
        rate = encoder_rate * learning_rate
        groups.append({"params": trained, "lr": rate, "weight_decay": weight_decay})
    for group in groups:
        group["initial_lr"] = group["lr"]
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
    images, texts : Features
        Of the rows of ``pairs``.
    encoders : nn.ModuleList
        Those that train too.
    settings : dict
        What must be the same in a run that goes on.
    masked : features or None, of images and of texts
        Of the same rows, with a part hidden.
    """

    heads: TwoHeads
    encoders: nn.ModuleList
    optimizer: torch.optim.Optimizer
    pairs: ImageTextPairs
    images: Features
    texts: Features
    loader: PairBatches
    device: torch.device
    settings: StateTree
    masked: tuple[Features | None, Features | None] = (None, None)
    progress: Progress = field(default_factory=Progress)
    image_spread: SpreadMonitor = field(default_factory=lambda: SpreadMonitor("images"))
    text_spread: SpreadMonitor = field(default_factory=lambda: SpreadMonitor("texts"))

    def step(self, rows: Tensor, _: Tensor) -> float:
        """One optimisation step on pairs [P, 2]; returns its loss."""
        rows = rows.cpu()
        i, i_rows = rows[:, 0].unique(return_inverse=True)
        j, j_rows = rows[:, 1].unique(return_inverse=True)
        image, text = self.heads.image(self.images(i)), self.heads.text(self.texts(j))
        local = torch.stack([i_rows, j_rows], 1)
        parts = self.pairs.match(i, j), local, self.pairs.images_per_text[j]
        batch = PairBatch(*(part.to(self.device) for part in parts))
        share = (self.progress.steps + 1) / (self.settings["epochs"] * len(self.loader))
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"] * rate_at(min(share, 1.0))
        value = self.heads.objective(image, text, batch)
        value = value + self._masked_loss(self.heads.image, image, self.masked[0], i)
        value = value + self._masked_loss(self.heads.text, text, self.masked[1], j)
        loss = descend(value, self.optimizer)
        self.image_spread.add(image)
        self.text_spread.add(text)
        return loss

    def _masked_loss(
        self, head: GaussianHead, full: HeadOutput, masked: Features | None, rows: Tensor
    ) -> Tensor | float:
        if masked is None:
            return 0.0
        return self.heads.objective.masked_loss(full, head(masked(rows)))

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
            "spreads": [self.image_spread.state(), self.text_spread.state()],
        }

    def restore(self, state: StateTree) -> None:
        """Put back what ``state`` gave, in place."""
        for name in ("heads", "encoders", "optimizer"):
            getattr(self, name).load_state_dict(dict(state[name]))
        for name, value in state["progress"].items():
            setattr(self.progress, name, value)
        for monitor, saved in zip(
            (self.image_spread, self.text_spread), state["spreads"], strict=True
        ):
            monitor.restore(saved)

    def epoch_done(self) -> None:
        """Note the spreads, or stop."""
        self.image_spread.finish_epoch()
        self.text_spread.finish_epoch()

    def status(self, progress: Progress) -> str:
        """Loss and the spread of the last epoch."""
        line = f"loss {progress.mean_loss:.4g}"
        for side in (self.image_spread, self.text_spread):
            if side.history:
                line += f", {side.title}: spread {side.history[-1].means:.2f}"
                line += f", trace {side.history[-1].trace:.2g}"
        return line


LEAST_SPREAD = 0.01
"""Of unit means; uniform ones have 1."""
LOG_V = (-25.0, 2.0)
"""Least and largest mean log variance of a coordinate; unit means differ by 2 at most."""
LEAST_VARIATION = 1e-6
"""Of the log trace, a standard deviation."""


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


class SpreadMonitor:
    """Sums of an epoch of one side; ``title`` is what errors call it.

    Examples
    --------
    >>> monitor = SpreadMonitor("images")
    >>> monitor.add(HeadOutput(torch.ones(2, 1), torch.eye(2), torch.eye(2) - 3))
    >>> monitor.add(HeadOutput(torch.ones(2, 1), torch.eye(2), torch.zeros(2, 2)))
    >>> monitor.finish_epoch().means
    0.5
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self.history: list[Spread] = []
        self._sums: Tensor | None = None

    @torch.no_grad()
    def add(self, output: HeadOutput) -> None:
        """The outputs of a batch."""
        log_trace, log_v = output.trace.double().log(), output.log_v.double().mean(-1)
        n = log_trace.new_tensor(len(log_trace))
        parts = [n, log_v.sum(), log_trace.sum(), log_trace.square().sum()]
        sums = torch.cat([torch.stack(parts), output.mu.double().sum(0)]).cpu()
        self._sums = sums if self._sums is None else self._sums + sums

    def finish_epoch(self) -> Spread:
        """The numbers of the epoch, also in ``history``.

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
        spread = Spread(means, log_v / n, trace, variation)
        self.history.append(spread)
        self._check(spread)
        return spread

    def _check(self, spread: Spread) -> None:
        advice = "Lower learning_rate, raise the weight of vib, or check that inputs differ."
        if not spread.means >= LEAST_SPREAD:
            raise CollapseError(
                f"the means of the {self.title} have collapsed: 1 - |their mean|^2 is "
                f"{spread.means:.2g}, below {LEAST_SPREAD}. {advice} Encoders that train from "
                "nothing need a first b near the log odds of a match: ProLIP(first_b=-2)."
            )
        if spread.log_v == -torch.inf:  # no variances
            return
        if not LOG_V[0] <= spread.log_v <= LOG_V[1]:
            what = "exploded" if spread.log_v > LOG_V[1] else "collapsed"
            raise CollapseError(
                f"the variances of the {self.title} have {what}: their mean logarithm is "
                f"{spread.log_v:.3g}, outside of {LOG_V}. {advice}"
            )
        if not spread.variation >= LEAST_VARIATION:
            raise CollapseError(
                f"the variances of the {self.title} are all alike: log tr S varies by "
                f"{spread.variation:.2g}. {advice}"
            )

    def state(self) -> dict[str, Any]:
        """Sums and history, as values that can be written down."""
        rows = [[s.means, s.log_v, s.trace, s.variation] for s in self.history]
        return {"sums": self._sums, "history": rows}

    def restore(self, state: dict[str, Any]) -> None:
        """Put back what ``state`` gave."""
        self._sums = state["sums"]
        self.history[:] = [Spread(*row) for row in state["history"]]
