"""``OnlineLaplace``: train an embedder and its posterior together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

from laplace_metric._utils.display import Rows, Shown, in_rows
from laplace_metric._utils.randomness import Seed, own_randomness
from laplace_metric._utils.validation import as_path, check_count
from laplace_metric.embedder import LaplaceEmbedder
from laplace_metric.errors import InputError, UnknownNameError
from laplace_metric.heads._located import LocatedHead
from laplace_metric.laplace import Settings
from laplace_metric.laplace.fit._settings import Miner
from laplace_metric.models._modules import check_module, device_of
from laplace_metric.online._online_run import OnlineRun
from laplace_metric.online._online_steps import COUNTS, OnlineSteps
from laplace_metric.training import (
    Loss,
    check_training,
    default_optimizer,
    train_mode,
)

EVIDENCE = "evidence"
TRAINING_PRIOR = 100.0
"""The prior precision while a model trains, unless another is given."""
START = 1.0
"""The prior precision until the first epoch is over, where the evidence chooses it."""


class OnlineLaplace(Shown):
    """Online Laplace (Warburg et al. 2023, LAM): training that averages over its own posterior.

    Each step draws ``samples`` heads ``theta + eps`` from the present posterior
    ``N(theta, (n_effective H + prior_precision I)^-1)``, descends the mean loss of the drawn heads
    on ``theta`` and on the backbone (which runs once), and takes the mean curvature of the batch at
    the drawn heads into H, a running average (see ``RunningCurvature``, also for what differs
    from the paper's recursion). The model's own weights are the mean ``theta``, before and after.

    Parameters
    ----------
    model, head, distance, hessian, margin, backend
        Model and settings of the posterior, with the defaults of ``LaplaceEmbedder``.
        ``head="append"`` is not possible: it would not be trained.
    structure : "auto" | "diag" | "kron" | "full" or None
        Structure of the curvature, as in ``LaplaceEmbedder``. None, the default: "diag" while it
        trains, and "auto" in the last fit.
    positivity : "absolute" | "clip" or None
        Rule for negative curvature, as in ``LaplaceEmbedder``. None, the default: "clip" while it
        trains, as in the method's paper, and "absolute" in the last fit.
    prior_precision : float > 0, "evidence" or None
        Precision of the prior. A low one drowns the head in noise: on FashionMNIST a third epoch
        with 1 cost 14 points of recall@1 at Z = 3, with 100 or 1,000 none (one seed;
        ``benchmarks/variants/README.md``). "evidence": 1 in the first epoch, and after each the one
        of the largest marginal likelihood, also after the last fit. None, the default: 100 while it
        trains, and "auto" in the last fit, as for ``LaplaceEmbedder``.
    refit : bool
        Fit a posterior when the training is over, as ``LaplaceEmbedder.fit`` does, to all pairs of
        the loader, which is read once more (or of ``fit(..., refit_loader=)``). It replaces the
        running one, which saw weights of long ago and the pairs of batches: it detects
        out-of-distribution inputs better, and has ``epistemic``, ``near``, ``far``, ``local`` and
        ``ambiguity``. Default: True. False: the posterior that the training ended with, as in the
        method's paper; also for a loader that can be read only once.
    n_effective : float > 0, "points", "pairs" or None
        Number of observations that one average over pairs counts for. "points" is the N points of
        an epoch (in the first epoch as the loader's length says, points so far for a loader without
        a length); "pairs" is their N^2 pairs, which makes the draws far narrower. None, the
        default: "points". The last fit takes a number as it is, and its points for a word.
    recursion : "average" | "paper"
        Recursion of H. With "average", the default, H is a mean and the prior stays. With "paper"
        ``P <- decay P + n_effective h`` from ``P = prior_precision I`` (eq 70), so that steps add
        up and the prior fades like ``decay^t``; ``priors_`` has the rest of it.
    decay : float in [0, 1]
        Decay of the average H, which is over the last ``1 / (1 - decay)`` steps. Default: 0.999:
        many enough to average out the batches, few enough to forget the weights of long ago.
    samples : int
        Number of heads drawn a step; the backbone runs once. Default: 4.
    warmup : int
        Number of epochs at the mean weights, in which H is averaged and heads are not drawn.
        Default: 0.
    pairs : "batch" | miner
        Pairs of the curvature: every pair of a "batch", the default; or the tuples of a miner of
        pytorch-metric-learning, for the curvature and as third argument of the loss alike.
    refresh : int
        Largest age in steps of the decomposition that the draws come from, with structure "kron" or
        "full"; with "diag" they always come from the present H. Default: 10; a larger one is
        faster.

    Attributes
    ----------
    losses_, variances_, priors_ : list of float
        Mean loss of the drawn heads in each epoch, and at its end the mean posterior variance of
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
        structure: str | None = None,
        margin: float | None = None,
        prior_precision: float | str | None = None,
        n_effective: float | str | None = None,
        decay: float = 0.999,
        samples: int = 4,
        pairs: str | Miner = "batch",
        backend: str = "auto",
        refresh: int = 10,
        recursion: str = "average",
        warmup: int = 0,
        positivity: str | None = None,
        refit: bool = True,
    ) -> None:
        if isinstance(pairs, str) and pairs == "all":
            raise UnknownNameError("pairs", pairs, ("batch", "a miner (callable)"))
        if not isinstance(refit, bool):
            raise InputError(
                f"refit={refit!r:.60}: pass True or False; what a last fit reads in place of the "
                "loader is fit(..., refit_loader=...)."
            )
        count, by_evidence = "points", isinstance(prior_precision, str)
        if isinstance(n_effective, str):
            count, n_effective = _word("n_effective", n_effective, COUNTS), None
        self.steps = OnlineSteps(decay, samples, refresh, warmup, recursion, count, by_evidence)
        if isinstance(prior_precision, str):
            _word("prior_precision", prior_precision, (EVIDENCE,))
            prior_precision = START
            if recursion == "paper":
                raise InputError(
                    "prior_precision='evidence' chooses a prior that recursion='paper' lets fade: "
                    "pass recursion='average', or a number."
                )
        if recursion == "paper" and positivity == "absolute":
            raise InputError(
                "recursion='paper' adds up curvatures without their negative part: pass "
                "positivity='clip', or recursion='average'."
            )
        self.model, self.head = check_module(model), head
        self.settings = Settings(
            distance,
            hessian,
            "diag" if structure is None else structure,
            margin,
            TRAINING_PRIOR if prior_precision is None else prior_precision,
            n_effective,
            pairs,
            backend,
            positivity="clip" if positivity is None else positivity,
            temperature=1.0,
        )
        self.refit_settings: Settings | None = None
        if refit:  # what is not given has the defaults of a fit, not those of a training
            usual = Settings()
            self.refit_settings = Settings(
                distance,
                hessian,
                usual.structure if structure is None else structure,
                margin,
                usual.prior_precision if prior_precision is None else prior_precision,
                n_effective,
                backend=backend,
                positivity=usual.positivity if positivity is None else positivity,
            )
        self.losses_: list[float] = []
        self.variances_: list[float] = []
        self.priors_: list[float] = []

    def _sentence(self) -> str:
        trained = f"trained for {len(self.losses_)} epochs" if self.losses_ else "not trained yet"
        return f"around a {type(self.model).__name__}, {trained}."

    def _shown_rows(self) -> Rows:
        steps, s, last = self.steps, self.settings, self.refit_settings
        of_steps = (
            f"{steps.samples} draws each, decay {steps.decay:.4g}, {steps.warmup} warm-up epochs"
        )
        kind = f"structure={s.structure!r}, positivity={s.positivity!r}"
        prior = f"prior_precision={s.prior_precision:g}"
        shown = {"steps": of_steps, "curvature": kind, "prior": prior, "last fit": "none"}
        if last is not None:
            shown["last fit"] = (
                f"structure={last.structure!r}, positivity={last.positivity!r}, "
                f"prior_precision={last.prior_precision}, temperature={last.temperature}"
            )
        return in_rows(shown.items())

    def fit(
        self,
        loader: Iterable[Any],
        loss: Loss,
        *,
        epochs: int,
        optimizer: torch.optim.Optimizer | None = None,
        scheduler: torch.optim.lr_scheduler.LRScheduler | None = None,
        seed: Seed = None,
        progress: bool = False,
        checkpoint: str | Path | None = None,
        refit_loader: Any = None,
    ) -> LaplaceEmbedder:
        """Train the model in place and return it with its posterior.

        Modes are put back at the end, and no global random state is touched: dropout and all
        else draws from states that are seeded from ``seed``.

        Parameters
        ----------
        loader, loss, epochs, optimizer, scheduler
            Data, loss and training, as in ``train_embedder``, with its defaults.
        seed : torch.Generator, int or None
            Generator of the CPU, or seed. None, the default: a new one, seeded from the state of
            ``torch.manual_seed`` without moving that state on.
        progress : bool
            Show a progress bar. Default: False.
        checkpoint : path or None
            Folder of a checkpoint, written before the first step and after each epoch. If it holds
            a run, that one goes on from its last epoch, to the same bits on a CPU with as many
            threads, with the weights and the learning rate of the checkpoint; if that run is
            finished, its result is returned. The loader must give the same batches from the same
            random state. The last fit is made again. None, the default: no checkpoint.
        refit_loader : what ``LaplaceEmbedder.fit`` takes, or None
            Data that the last fit reads in place of ``loader``: such as each input once and without
            augmentation. None, the default: the loader of the training.

        Raises
        ------
        FileFormatError
            If the checkpoint is damaged, or of another model, loss, miner, optimizer, loader, seed
            or settings. Of a model, a loss and a miner, classes and what their constructors took
            are compared, as far as it is kept in plain attributes; of a loader, the sizes of its
            batches and of its data, and its samplers. Nothing changes then.
        NonFiniteError
            If the loss becomes NaN or infinite; the step is not taken.
        InputError
            For a scheduler without its optimizer, a ``refit_loader`` with ``refit=False``, a loader
            that can be read only once with neither, and as in ``train_embedder``.
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
        last = self._last_loader(loader, refit_loader)
        optimizer = optimizer or default_optimizer(modules)
        with own_randomness(seed, device_of(self.model)) as weights:
            with train_mode(modules):
                run = OnlineRun(
                    self.model,
                    self.head,
                    self.settings,
                    self.steps,
                    loader,
                    loss,
                    optimizer,
                    scheduler,
                    weights,
                    folder,
                    None if seed is None else weights.initial_seed(),
                )
                run.train(epochs, show=progress)
            self.losses_ = run.progress.losses
            self.variances_, self.priors_ = run.variances, run.priors
            assert run.located is not None
            if self.refit_settings is None:
                return run.result()
            return self._refitted(run.located, last, self.refit_settings, progress=progress)

    def _last_loader(self, loader: Any, refit_loader: Any) -> Any:
        """Return what the last fit reads; named errors before anything is trained."""
        if self.refit_settings is None:
            if refit_loader is not None:
                raise InputError("refit_loader= is given without a last fit: leave refit=True.")
            return None
        if refit_loader is None and isinstance(loader, Iterator):
            raise InputError(
                f"refit=True reads the loader once more, and a {type(loader).__name__} can be read "
                "only once: pass a list or a DataLoader, refit_loader=, or refit=False."
            )
        return loader if refit_loader is None else refit_loader

    def _refitted(
        self, head: LocatedHead, loader: Any, settings: Settings, *, progress: bool
    ) -> LaplaceEmbedder:
        """Return the trained model with a posterior that is fitted to it as it is now."""
        values = {field.name: getattr(settings, field.name) for field in fields(settings)}
        embedder = LaplaceEmbedder(self.model, head.place, **values)
        embedder.fit(loader, progress=progress)
        if self.steps.by_evidence:
            embedder.tune_prior()
        return embedder


def _word(name: str, word: str, words: tuple[str, ...]) -> str:
    """Raise ``UnknownNameError`` for a word where a number could stand, too."""
    if word not in words:
        raise UnknownNameError(name, word, (*words, "a number"))
    return word
