"""``OnlineLaplace``: train an embedder and its posterior together."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from laplace_metric._utils.display import Rows, Shown, in_rows
from laplace_metric._utils.randomness import Seed, own_randomness
from laplace_metric._utils.validation import as_path, check_count, check_real
from laplace_metric.curvature._structures import STRUCTURES
from laplace_metric.embedder import LaplaceEmbedder
from laplace_metric.errors import InputError, UnknownNameError
from laplace_metric.laplace import Fitted, Posterior, Settings
from laplace_metric.laplace._fit import warn_if_degenerate
from laplace_metric.laplace._settings import AUTO, Miner
from laplace_metric.models._calling import device_of
from laplace_metric.online._checkpoint import Checkpointer, TrainingRun
from laplace_metric.online._state import RunningCurvature, Scale
from laplace_metric.online._step import OnlineStep
from laplace_metric.training import train_epochs
from laplace_metric.training._loop import (
    Loss,
    Progress,
    check_training,
    default_optimizer,
    train_mode,
)


class OnlineLaplace(Shown):
    """Online Laplace (Warburg et al. 2023, LAM): training that averages over its own posterior.

    Each step draws ``samples`` heads ``theta + eps`` from the present posterior
    ``N(theta, (n_effective H + prior_precision I)^-1)``, descends the mean loss of the drawn heads
    on ``theta`` and on the backbone (which runs once), and takes the mean curvature of the batch at
    the drawn heads into H, a running average (see ``RunningCurvature``, also for what differs
    from the paper's recursion). The model's own weights are the mean ``theta``, before and after.

    Parameters
    ----------
    model, head, distance, hessian, structure, margin, backend
        As in ``LaplaceEmbedder``, but that the structure is "diag" unless another is named (there
        is no "auto"), and that negative curvature is clipped, as in the method's paper.
        ``head="append"`` is not possible: it would not be trained.
    prior_precision : float > 0 or "evidence"
        Too low, it drowns the head in noise: on FashionMNIST a third epoch with 1 cost 14 points of
        recall@1 at Z = 3, with 100 or 1,000 none (one seed; ``benchmarks/variants/README.md``).
        "evidence": 1 in the first epoch, and after each the one of the largest marginal likelihood.
    n_effective : float > 0, "points", "pairs" or None
        What one average over pairs counts for: as many points; the N points of an epoch (also
        None; in the first epoch as the loader's length says, points so far for a loader without a
        length); or their N^2 pairs, which makes the draws far narrower.
    recursion : "average" | "paper"
        "average": H is a mean and the prior stays. "paper": ``P <- decay P + n_effective h`` from
        ``P = prior_precision I`` (eq 70), so that steps add up and the prior fades like
        ``decay^t``; ``priors_`` says what is left of it.
    decay : float in [0, 1]
        H is an average over the last ``1 / (1 - decay)`` steps: many enough to average out the
        batches, few enough to forget the weights of long ago.
    samples : int
        Heads drawn a step; the backbone runs once.
    warmup : int
        Epochs at the mean weights, in which H is averaged and nothing is drawn.
    pairs : "batch" | miner
        Every pair of a batch; or the tuples of a miner of pytorch-metric-learning, for the
        curvature and as third argument of the loss alike.
    refresh : int
        With structure "kron" or "full" the draws come from a decomposition that is this many
        steps old at most; with "diag" always from the present H.

    Attributes
    ----------
    losses_, variances_, priors_ : list of float
        Of each epoch: mean loss of the drawn heads, and at its end the mean posterior variance of
        the head's parameters, and the prior precision.

    Raises
    ------
    UnknownNameError, InputError
        For names that do not exist and numbers out of range.

    Examples
    --------
    >>> from pytorch_metric_learning.losses import ContrastiveLoss
    >>> model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    >>> x, y = torch.randn(20, 4), torch.arange(20) % 2
    >>> online = OnlineLaplace(model, decay=0.9)
    >>> embedder = online.fit([(x, y)], ContrastiveLoss(), epochs=2, progress=False)
    >>> embedder(x).variance.shape, len(online.losses_)
    (torch.Size([20, 2]), 2)
    """

    def __init__(
        self,
        model: nn.Module,
        head: nn.Module | str | None = None,
        distance: str = "arccos",
        hessian: str = "fixed",
        structure: str = "diag",
        margin: float | None = None,
        prior_precision: float | str = 100.0,
        n_effective: float | str | None = None,
        decay: float = 0.999,
        samples: int = 4,
        pairs: str | Miner = "batch",
        backend: str = "auto",
        refresh: int = 10,
        recursion: str = "average",
        warmup: int = 0,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InputError(f"model is a {type(model).__name__}: pass a torch.nn.Module.")
        if isinstance(pairs, str) and pairs == "all":
            raise UnknownNameError("pairs", pairs, ("batch", "a miner (callable)"))
        if isinstance(structure, str) and structure == AUTO:
            raise UnknownNameError("structure", structure, STRUCTURES)
        decay = check_real("decay", decay, "number in [0, 1]")
        if not 0 <= decay <= 1:
            raise InputError(f"decay={decay!r}: pass a number in [0, 1].")
        check_count("samples", samples)
        check_count("refresh", refresh)
        self.scale = Scale.of(recursion, decay, n_effective, prior_precision)
        self.warmup = check_count("warmup", warmup, least=0)
        self.model, self.head = model, head
        self.decay, self.samples, self.refresh = decay, int(samples), int(refresh)
        self.settings = Settings(
            distance,
            hessian,
            structure,
            margin,
            self.scale.prior_precision,
            None if isinstance(self.scale.count, str) else self.scale.count,
            pairs,
            backend,
            positivity="clip",
        )
        self.losses_: list[float] = []
        self.variances_: list[float] = []
        self.priors_: list[float] = []

    def _sentence(self) -> str:
        trained = f"trained for {len(self.losses_)} epochs" if self.losses_ else "not trained yet"
        return f"around a {type(self.model).__name__}, {trained}."

    def _shown_rows(self) -> Rows:
        of_steps = (
            f"{self.samples} draws each, decay {self.decay:.4g}, {self.warmup} warm-up epochs"
        )
        prior = f"prior_precision={self.settings.prior_precision:.4g}"
        return in_rows({"steps": of_steps, "prior": prior}.items())

    def fit(
        self,
        loader: Iterable[Any],
        loss: Loss,
        *,
        epochs: int,
        optimizer: torch.optim.Optimizer | None = None,
        scheduler: torch.optim.lr_scheduler.LRScheduler | None = None,
        generator: Seed = None,
        progress: bool = True,
        checkpoint: str | Path | None = None,
    ) -> LaplaceEmbedder:
        """Train the model in place and return it with its posterior.

        Modes are put back at the end, and no global random state is touched: dropout and all
        else draws from states that are seeded from ``generator``.

        Parameters
        ----------
        loader, loss, epochs, optimizer, scheduler
            As in ``train_embedder``.
        generator : torch.Generator, seed or None
            Of the CPU. None: as ``torch.manual_seed`` has it, without moving that state on.
        checkpoint : path or None
            A folder. The run is written there before the first step and after each epoch. If it
            holds a run, that one goes on from its last epoch, to the same bits on a CPU with as
            many threads, with the weights and the learning rate of the checkpoint; if that run is
            finished, its result is returned. The loader must give the same batches from the same
            random state.

        Raises
        ------
        FileFormatError
            If the checkpoint is damaged, or of another model, loss, optimizer, loader or settings.
        NonFiniteError
            If the loss becomes NaN or infinite; the step is not taken.
        InputError
            For a scheduler without its optimizer, and as in ``train_embedder``.
        EmptyLoaderError, LabelError, HeadError
            As in ``train_embedder`` and ``LaplaceEmbedder.fit``.
        """
        epochs = check_count("epochs", epochs)
        mined = callable(self.settings.pairs)
        check_training(self.model, loss, optimizer, scheduler, mined=mined)
        folder = None if checkpoint is None else as_path("checkpoint", checkpoint)
        modules = [module for module in (self.model, loss) if isinstance(module, nn.Module)]
        if scheduler is not None and optimizer is None:
            raise InputError("scheduler= is given without its optimizer: pass optimizer= too.")
        optimizer, device = optimizer or default_optimizer(modules), device_of(self.model)
        with own_randomness(generator, device) as weights, train_mode(modules):
            step = self._step(loader, loss, optimizer, weights)
            run = TrainingRun(step, scheduler, loader, device)
            checkpointer = Checkpointer(run, weights, folder)
            checkpointer.begin(epochs)
            train_epochs(
                step,
                loader,
                device,
                epochs=epochs,
                scheduler=scheduler,
                show=progress,
                progress=step.progress,
                callback=checkpointer,
            )
        self.losses_ = step.progress.losses
        self.variances_, self.priors_ = run.variances, run.priors
        return self._result(run)

    def _step(
        self,
        loader: Iterable[Any],
        loss: Loss,
        optimizer: torch.optim.Optimizer,
        generator: torch.Generator,
    ) -> OnlineStep:
        refresh = 1 if self.settings.structure == "diag" else self.refresh
        return OnlineStep(
            self.model,
            self.head,
            loss,
            optimizer,
            self.settings,
            replace(self.scale),
            self.samples,
            self.warmup,
            RunningCurvature(self.decay, refresh),
            generator,
            Progress(),
            _n_batches(loader),
        )

    def _result(self, run: TrainingRun) -> LaplaceEmbedder:
        """The mean weights, the running curvature and the settings as a fitted embedder."""
        step, settings, head = run.step, self.settings, run.step.trained
        assert head is not None
        jacobian = head.jacobian()
        curvature = step.curvature.final(settings.structure, jacobian.layouts, run.device)
        mean = jacobian.parameters.clone()
        posterior = Posterior(mean, curvature.decompose(), *step.scales())
        settings = replace(settings, prior_precision=step.scale.prior_precision)
        warn_if_degenerate(head.contrast, posterior)
        n_points = step.progress.n_points
        fitted = Fitted(
            head.located, jacobian, head.contrast, posterior, n_points, settings.structure
        )
        return LaplaceEmbedder.from_fitted(self.model, settings, fitted)


def _n_batches(loader: Iterable[Any]) -> int | None:
    """Batches of an epoch, where the loader says."""
    try:
        return len(loader) if isinstance(loader, Sized) else None
    except TypeError:  # a DataLoader of a data set without length
        return None
