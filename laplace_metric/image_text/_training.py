"""The training of two heads: a step over all pairs of a batch, monitored and resumable."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from laplace_metric.errors import FileFormatError, InputError
from laplace_metric.image_text._pairs import ImageTextPairs, PairBatch, PairBatches
from laplace_metric.image_text.objectives._objectives import TwoHeads
from laplace_metric.image_text.towers._encoder_features import SIDES, Encoder, encode, encode_all
from laplace_metric.image_text.towers._spread import Spread, SpreadMonitor
from laplace_metric.inputs._batches import ModelInput
from laplace_metric.inputs._by_row import count_inputs, take_inputs
from laplace_metric.io import digest
from laplace_metric.models._fingerprints import row_projections
from laplace_metric.online._state_tree import StateTree, shapes
from laplace_metric.online._training_on_disk import ResumableRun
from laplace_metric.training import Progress, descend

WARM_UP = 0.05
"""Share of the steps in which the learning rate rises."""
SCALAR_RATE = 10.0
"""Times the learning rate, for the scale and the offset of the loss."""
SAME = 1e-3
"""Largest difference of projections of frozen features that only rounding explains."""
Features = Callable[[Tensor], Tensor]
"""Rows of a data set [B] -> features [B, F] or [B, 2, F]."""
MaskedInputs = tuple[ModelInput | None, ModelInput | None]
"""What is left of each image and of each text, in the order of the pairs; None: not used."""


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


def features_of(encoder: Encoder, inputs: ModelInput, name: str, known: Tensor | None) -> Features:
    """Look up the features of a frozen encoder, computed once, or run one that trains."""
    if known is None:
        return lambda rows: encode(encoder, take_inputs(inputs, rows), name, grad=True)
    return lambda rows: known[rows.to(known.device)]


class PairRun(ResumableRun):
    """A training in progress.

    Parameters
    ----------
    encoders : of images and of texts
        Encoder of images and encoder of texts.
    heads : TwoHeads
        Heads to train, in place.
    pairs : ImageTextPairs
        Pairs to train on.
    full : tensors
        Features of all images and texts.
    masked : (images, texts) or None
        Inputs of the same rows, with a part masked.
    settings : dict
        Settings of the heads and of the training, which must be the same in a resumed run.
    generator : torch.Generator
        Generator of the order.
    folder : Path or None
        Folder of the checkpoint; None: no checkpoint.

    Raises
    ------
    InputError
        If masked inputs are missing, not used, or not those of the pairs.
    """

    def __init__(
        self,
        encoders: tuple[Encoder, Encoder],
        heads: TwoHeads,
        pairs: ImageTextPairs,
        full: tuple[Tensor, Tensor],
        masked: MaskedInputs | None,
        settings: StateTree,
        generator: torch.Generator,
        folder: Path | None,
    ) -> None:
        self.heads, self.pairs, self.settings = heads, pairs, settings
        self.train_encoders = settings["train_encoders"]
        trained = [e for e in encoders if isinstance(e, nn.Module)] if self.train_encoders else []
        self.encoders = nn.ModuleList(trained)
        self.features = [
            features_of(encoder, inputs, name, None if self.train_encoders else known)
            for encoder, inputs, name, known in zip(
                encoders, (pairs.images, pairs.texts), SIDES, full, strict=True
            )
        ]
        # those of encoders that train depend on how far the training is
        seen = () if self.train_encoders else full
        self.seen = [row_projections(features.flatten(1)).float().cpu() for features in seen]
        self.masked = self._masked(encoders, masked, full)
        self.monitors = [SpreadMonitor(side) for side in SIDES]
        self.optimizer = self._adam()
        parts = {"heads": heads, "encoders": self.encoders, "optimizer": self.optimizer}
        batches = PairBatches(pairs, settings["batch_size"], generator)
        super().__init__(parts, batches, full[0].device, generator, folder)

    def _masked(
        self,
        encoders: tuple[Encoder, Encoder],
        masked: MaskedInputs | None,
        full: tuple[Tensor, Tensor],
    ) -> list[Features | None]:
        """Return the features of what is left of images and texts after masking (eq 6)."""
        if bool(self.heads.objective.masked) is not (masked is not None):
            raise InputError(
                "masked= goes with an objective that gives it a weight, such as "
                "ProLIP(masked=1e-3): pass both or neither."
            )
        if masked is None:
            return [None, None]
        if not isinstance(masked, tuple) or len(masked) != 2:
            raise InputError(
                "masked= is no tuple (images, texts): pass both, or None for one of them."
            )
        found: list[Features | None] = []
        for encoder, inputs, side, whole in zip(encoders, masked, SIDES, full, strict=True):
            name, known = f"masked {side}", None
            if inputs is None:
                found.append(None)
                continue
            if (n := count_inputs(name, inputs)) != len(whole):
                raise InputError(
                    f"{name} has {n} inputs for {len(whole)}: pass one for each, in order."
                )
            if not self.train_encoders:
                known = encode_all(encoder, inputs, name, progress=False).to(whole)
                if known.shape != whole.shape:
                    raise InputError(
                        f"features of {name} have shape {list(known.shape)}, those of the whole "
                        f"inputs {list(whole.shape)}: use the same encoder."
                    )
            found.append(features_of(encoder, inputs, name, known))
        return found

    def _adam(self) -> torch.optim.Optimizer:
        """Return AdamW; scale and offset learn faster and do not decay, encoders have their own."""
        rate, decay = self.settings["learning_rate"], self.settings["weight_decay"]
        own = [p for head in self.heads.both for p in head.parameters()]
        rates = (
            (own, rate, decay),
            (self.heads.objective.parameters(), SCALAR_RATE * rate, 0.0),
            (self.encoders.parameters(), self.settings["encoder_rate"] * rate, decay),
        )
        groups: list[dict[str, Any]] = []
        for parameters, lr, weight_decay in rates:
            if trained := [p for p in parameters if p.requires_grad]:
                how = {"lr": lr, "initial_lr": lr, "weight_decay": weight_decay}
                groups.append({"params": trained, **how})
        return torch.optim.AdamW(groups, betas=(0.9, 0.95))

    def step(self, inputs: ModelInput, labels: Tensor) -> float:
        """Take one optimisation step on pairs [P, 2]; returns its loss."""
        sides = [side.unique(return_inverse=True) for side in inputs.cpu().unbind(1)]
        (i, i_rows), (j, j_rows) = sides
        heads, objective = self.heads.both, self.heads.objective
        image, text = (
            head(of_rows(rows))
            for head, of_rows, rows in zip(heads, self.features, (i, j), strict=True)
        )
        batch = PairBatch(
            self.pairs.match(i, j).to(self.device),
            torch.stack([i_rows, j_rows], 1).to(self.device),
            self.pairs.images_per_text[j].to(self.device),
        )
        share = (self.progress.steps + 1) / (self.settings["epochs"] * len(self.loader))
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"] * rate_at(min(share, 1.0))
        value = objective(image, text, batch)
        for head, full, masked, rows in zip(heads, (image, text), self.masked, (i, j), strict=True):
            if masked is not None:
                value = value + objective.masked_loss(full, head(masked(rows)))
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
            "rows of pairs": digest("", [self.pairs.pairs]),
        }

    @property
    def spreads(self) -> dict[str, list[Spread]]:
        """Spreads of the finished epochs, of both sides."""
        return {monitor.title: monitor.history for monitor in self.monitors}

    def own_state(self) -> StateTree:
        """Return the spreads so far, and by what frozen features are recognised."""
        spreads = [[list(astuple(s)) for s in one.history] for one in self.monitors]
        return {"spreads": spreads, "features": self.seen}

    def restore(self, state: StateTree) -> None:
        """Put back the spreads.

        Raises
        ------
        FileFormatError
            If frozen features are not those of the checkpoint, up to rounding.
        """
        for side, now, before in zip(SIDES, self.seen, state["features"], strict=False):
            if not torch.allclose(now, before, rtol=0, atol=SAME):
                raise FileFormatError(
                    f"the checkpoint in {self.folder} is of another run: the {side} have other "
                    "features. Pass the inputs and the encoder that it was written with, or "
                    "another folder."
                )
        for monitor, saved in zip(self.monitors, state["spreads"], strict=True):
            monitor.history[:] = [Spread(*row) for row in saved]

    def epoch_done(self, progress: Progress) -> None:
        """Note the spreads, or stop."""
        for monitor in self.monitors:
            monitor.finish_epoch()
        super().epoch_done(progress)

    def status(self, progress: Progress) -> str:
        """Return loss and the spread of the last epoch."""
        line = f"loss {progress.mean_loss:.4g}"
        for title, history in self.spreads.items():
            if history:
                last = history[-1]
                line += f", {title}: spread {last.means:.2f}, trace {last.trace:.2g}"
        return line
