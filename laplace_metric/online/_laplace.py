"""``OnlineLaplace``: train an embedder and its posterior together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from operator import length_hint
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from laplace_metric._utils.display import Rows, Shown, in_rows
from laplace_metric._utils.precision import at_least_float32, full_precision
from laplace_metric._utils.randomness import Seed, own_randomness
from laplace_metric._utils.validation import as_path, check_count, check_name, check_real
from laplace_metric.curvature import ContrastiveLoss
from laplace_metric.curvature._batch import batch_curvature
from laplace_metric.curvature._structures import Curvature, zero_curvature
from laplace_metric.embedder import LaplaceEmbedder
from laplace_metric.errors import FileFormatError, HeadError, InputError, UnknownNameError
from laplace_metric.heads._backends import jacobian_of
from laplace_metric.heads._identity import named_head
from laplace_metric.heads._jacobian import HeadJacobian
from laplace_metric.heads._locate import find_head
from laplace_metric.heads._located import APPEND, LocatedHead
from laplace_metric.inputs._batches import ModelInput
from laplace_metric.laplace import Fitted, Posterior, Settings
from laplace_metric.laplace._fit import warn_if_degenerate, warn_if_negative
from laplace_metric.laplace._prior_precision import by_marginal_likelihood
from laplace_metric.laplace._settings import Miner
from laplace_metric.models._modules import check_module, device_of
from laplace_metric.models._trained import note_training, trained_on
from laplace_metric.online._checkpoint import ResumableRun
from laplace_metric.online._running_curvature import (
    RunningCurvature,
    curvature_of,
    curvature_tensors,
)
from laplace_metric.online._sampled_pass import SampledPass, sampled_pass, with_parameters
from laplace_metric.online._state_tree import StateTree, shapes
from laplace_metric.training import (
    Loss,
    Progress,
    check_loss,
    check_training,
    default_optimizer,
    descend,
    train_mode,
    trained_parameters,
)

RECURSIONS = ("average", "paper")
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
        trains, and "auto" in a last fit.
    positivity : "absolute" | "clip" or None
        Rule for negative curvature, as in ``LaplaceEmbedder``. None, the default: "clip" while it
        trains, as in the method's paper, and "absolute" in a last fit.
    prior_precision : float > 0, "evidence" or None
        Precision of the prior. A low one drowns the head in noise: on FashionMNIST a third epoch
        with 1 cost 14 points of recall@1 at Z = 3, with 100 or 1,000 none (one seed;
        ``benchmarks/variants/README.md``). "evidence": 1 in the first epoch, and after each the one
        of the largest marginal likelihood, also after a last fit. None, the default: 100 while it
        trains, and 1 in a last fit.
    refit : bool
        Fit a posterior when the training is over, as ``LaplaceEmbedder.fit`` does, to all pairs of
        the loader, which is read once more (or of ``fit(..., refit_loader=)``). It replaces the
        running one, which saw weights of long ago and the pairs of batches: it tells
        out-of-distribution inputs better, and has ``epistemic``, ``near``, ``far``, ``local`` and
        ``ambiguity``. Default: False, the posterior that the training ended with.
    n_effective : float > 0, "points", "pairs" or None
        Number of observations that one average over pairs counts for. "points" is the N points of
        an epoch (in the first epoch as the loader's length says, points so far for a loader without
        a length); "pairs" is their N^2 pairs, which makes the draws far narrower. None, the
        default: "points". A last fit takes a number as it is, and its points for a word.
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
        refit: bool = False,
    ) -> None:
        if isinstance(pairs, str) and pairs == "all":
            raise UnknownNameError("pairs", pairs, ("batch", "a miner (callable)"))
        if not isinstance(refit, bool):
            raise InputError(
                f"refit={refit!r:.60}: pass True or False; what a last fit reads in place of the "
                "loader is fit(..., refit_loader=...)."
            )
        decay = check_real("decay", decay, "number in [0, 1]")
        if not 0 <= decay <= 1:
            raise InputError(f"decay={decay!r}: pass a number in [0, 1].")
        self.samples = check_count("samples", samples)
        self.refresh = check_count("refresh", refresh)
        self.warmup = check_count("warmup", warmup, least=0)
        self.recursion = check_name("recursion", recursion, RECURSIONS)
        self.by_evidence, self.count = isinstance(prior_precision, str), "points"
        if isinstance(n_effective, str):
            self.count = _word("n_effective", n_effective, ("points", "pairs"))
            n_effective = None
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
        self.model, self.head, self.decay = check_module(model), head, decay
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
        of_steps = (
            f"{self.samples} draws each, decay {self.decay:.4g}, {self.warmup} warm-up epochs"
        )
        s, last = self.settings, self.refit_settings
        kind = f"structure={s.structure!r}, positivity={s.positivity!r}"
        prior = f"prior_precision={s.prior_precision:.4g}"
        shown = {"steps": of_steps, "curvature": kind, "prior": prior, "last fit": "none"}
        if last is not None:
            shown["last fit"] = (
                f"structure={last.structure!r}, positivity={last.positivity!r}, "
                f"prior_precision={last.prior_precision:.4g}"
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
        generator: Seed = None,
        progress: bool = True,
        checkpoint: str | Path | None = None,
        refit_loader: Any = None,
    ) -> LaplaceEmbedder:
        """Train the model in place and return it with its posterior.

        Modes are put back at the end, and no global random state is touched: dropout and all
        else draws from states that are seeded from ``generator``.

        Parameters
        ----------
        loader, loss, epochs, optimizer, scheduler
            Data, loss and training, as in ``train_embedder``, with its defaults.
        generator : torch.Generator, seed or None
            Generator of the CPU, or seed. None, the default: a new one, seeded from the state of
            ``torch.manual_seed`` without moving that state on.
        progress : bool
            Show a progress bar. Default: True.
        checkpoint : path or None
            Folder of a checkpoint, written before the first step and after each epoch. If it holds
            a run, that one goes on from its last epoch, to the same bits on a CPU with as many
            threads, with the weights and the learning rate of the checkpoint; if that run is
            finished, its result is returned. The loader must give the same batches from the same
            random state. A last fit is made again. None, the default: no checkpoint.
        refit_loader : what ``LaplaceEmbedder.fit`` takes, or None
            Data that the last fit reads in place of ``loader``, with ``refit=True``: such as each
            input once and without augmentation. None, the default: the loader of the training.

        Raises
        ------
        FileFormatError
            If the checkpoint is damaged, or of another model, loss, optimizer, loader or settings.
        NonFiniteError
            If the loss becomes NaN or infinite; the step is not taken.
        InputError
            For a scheduler without its optimizer, a ``refit_loader`` without ``refit=True``, a
            loader that can be read only once with it, and as in ``train_embedder``.
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
        with own_randomness(generator, device_of(self.model)) as weights:
            with train_mode(modules):
                run = OnlineRun(self, loader, loss, optimizer, scheduler, weights, folder)
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
                raise InputError("refit_loader= is given without a last fit: pass refit=True.")
            return None
        if refit_loader is None and isinstance(loader, Iterator):
            raise InputError(
                f"refit=True reads the loader once more, and a {type(loader).__name__} can be read "
                "only once: pass a list or a DataLoader, or refit_loader=."
            )
        return loader if refit_loader is None else refit_loader

    def _refitted(
        self, head: LocatedHead, loader: Any, settings: Settings, *, progress: bool
    ) -> LaplaceEmbedder:
        """Return the trained model with a posterior that is fitted to it as it is now."""
        values = {field.name: getattr(settings, field.name) for field in fields(settings)}
        embedder = LaplaceEmbedder(self.model, head.place, **values)
        embedder.fit(loader, progress=progress)
        if self.by_evidence:
            embedder.optimize_prior_precision()
        return embedder


def _word(name: str, word: str, words: tuple[str, ...]) -> str:
    """Raise ``UnknownNameError`` for a word where a number could stand, too."""
    if word not in words:
        raise UnknownNameError(name, word, (*words, "a number"))
    return word


class OnlineRun(ResumableRun):
    """A training in progress: sample heads, descend the expected loss, update the curvature.

    Attributes
    ----------
    located : LocatedHead or None
        Head that was found; None before the first batch.
    n_batches : int or None
        Length of the loader; None if it has none.
    prior_precision : float
        Prior precision tau, which the evidence may choose anew after each epoch.
    variance : float
        Mean variance of the parameters in the last posterior that was drawn from.
    variances, priors : list of float
        Mean posterior variance of the head's parameters at the end of each finished epoch, and the
        prior precision that was left, or chosen.
    """

    def __init__(
        self,
        online: OnlineLaplace,
        loader: Iterable[Any],
        loss: Loss,
        optimizer: torch.optim.Optimizer,
        scheduler: torch.optim.lr_scheduler.LRScheduler | None,
        generator: torch.Generator,
        folder: Path | None,
    ) -> None:
        parts: dict[str, Any] = {"model": online.model, "optimizer": optimizer}
        if isinstance(loss, nn.Module):  # it may be a plain function
            parts["loss"] = loss
        if scheduler is not None:
            parts["scheduler"] = scheduler
        super().__init__(parts, loader, device_of(online.model), generator, folder)
        self.online, self.settings, self.model = online, online.settings, online.model
        self.loss, self.optimizer = loss, optimizer
        self.n_batches = length_hint(loader) or None
        refresh = 1 if self.settings.structure == "diag" else online.refresh
        self.curvature = RunningCurvature(
            online.decay, refresh, positivity=self.settings.positivity
        )
        self.seen = note_training(online.model, trained_parameters(optimizer))
        self.located: LocatedHead | None = None
        self.prior_precision, self.variance = self.settings.prior_precision, float("nan")
        self.variances: list[float] = []
        self.priors: list[float] = []

    def step(self, inputs: ModelInput, labels: Int[Tensor, " B"]) -> float:
        """Descend E_q[L] and update H with E_q[h], both at the same sampled heads."""
        located = self.located or self._adopt(self._find_head(inputs))
        if not self.progress.n_points and self.n_batches is not None:
            self.progress.n_points = self.n_batches * len(labels)  # until the first epoch is over
        sampled = sampled_pass(self.model, located, inputs, self._offsets(len(labels)))
        mined = [self._mine(f, labels) for f in sampled.embeddings]
        values = [
            self.loss(f, labels, *pairs) for f, pairs in zip(sampled.embeddings, mined, strict=True)
        ]
        for value in values:
            check_loss(value)
        curvature = self._expected_curvature(sampled, labels, mined)
        self.seen.add(inputs)
        number = descend(torch.stack(values).mean(), self.optimizer)  # only now the weights move
        if curvature is not None:
            self.curvature.update(curvature)
        return number

    def _adopt(self, located: LocatedHead) -> LocatedHead:
        """Take a head, and the structure that "auto" stands for at it."""
        self.located = located
        self.settings = self.settings.for_head(self._jacobian())
        if self.settings.structure == "diag":
            self.curvature.refresh = 1
        return located

    def _find_head(self, inputs: ModelInput) -> LocatedHead:
        located = find_head(self.model, inputs, self.online.head)
        if located.parts is None:
            raise HeadError(
                f"head={APPEND!r} is not part of the model, so training cannot learn it: add a "
                "linear layer to the model and train that."
            )
        if located.source is not None:
            raise HeadError(
                f"the weights of head {located.name!r} are computed (by weight_norm, pruning or "
                "the like), and online training moves the weights themselves: write them out first "
                "(torch.nn.utils.parametrize.remove_parametrizations, remove_weight_norm, "
                "prune.remove), or train as usual and fit LaplaceEmbedder afterwards."
            )
        return located

    def posterior(self, n_batch: int = 0) -> Posterior:
        """Posterior that a step on ``n_batch`` more points would draw from."""
        mean = self._jacobian().parameters
        return Posterior(mean, self.curvature.spectral(mean), *self.scales(n_batch))

    def scales(self, n_batch: int = 0) -> tuple[float, float]:
        """Return n and tau of the posterior.

        The points are those of an epoch: in the first one what the loader's length says, for a
        loader without a length the points so far.
        """
        n_points = float(max(self.progress.n_points, self.progress.epoch_points + n_batch))
        counted = n_points if self.online.count == "points" else n_points * n_points
        n = self.settings.n_effective or counted
        if self.online.recursion == "average":
            return n, self.prior_precision
        return self.curvature.paper_scales(n, self.prior_precision)

    def _jacobian(self, module: nn.Module | None = None) -> HeadJacobian:
        """Return the Jacobians of the head, at the mean weights or of a module with others."""
        assert self.located is not None
        module = self.located.module if module is None else module
        return jacobian_of(module, self.located.n_outputs, self.settings.backend)

    def _contrast(self) -> ContrastiveLoss:
        """Return the loss whose curvature is taken."""
        assert self.located is not None
        return self.settings.loss(normalized=self.located.normalized)

    @full_precision()
    def _offsets(self, n_batch: int) -> Float[Tensor, "S P"]:
        """eps of the present posterior; drawn on the CPU, so that devices agree."""
        posterior = self.posterior(n_batch)
        self.variance = float(posterior.spectrum.mean())  # trace / P: Q is orthogonal
        mean = posterior.mean
        if self.progress.epoch < self.online.warmup:
            return torch.zeros_like(mean)[None]
        shape = (self.online.samples, len(mean))
        noise = torch.randn(shape, generator=self.generator, dtype=mean.dtype).to(mean.device)
        return posterior.basis.from_eigenbasis(noise * posterior.spectrum.sqrt())

    def _mine(self, embeddings: Tensor, labels: Tensor) -> tuple[Any, ...]:
        """Return (index tuple,) of the miner, or () for every pair of the batch."""
        miner = self.settings.pairs
        if not callable(miner):
            return ()
        mined = miner(embeddings, labels)
        is_tuple = isinstance(mined, (tuple, list)) and len(mined) in (3, 4)
        if not is_tuple or not all(isinstance(index, Tensor) for index in mined):
            raise InputError(
                f"pairs gave {type(mined).__name__}: a miner returns 3 or 4 tensors of indices."
            )
        return (mined,)

    @full_precision()
    def _expected_curvature(
        self, sampled: SampledPass, labels: Tensor, mined: list[tuple[Any, ...]]
    ) -> Curvature | None:
        """E_q[h]; None for a batch of one class, which contrasts nothing."""
        assert self.located is not None
        if not mined[0] and len(labels.unique()) < 2:
            return None
        h, contrast = at_least_float32(sampled.features.detach()), self._contrast()
        total: Any = None
        for theta, pairs in zip(sampled.parameters, mined, strict=True):
            value = batch_curvature(
                h,
                self._jacobian(with_parameters(self.located.module, theta)),
                contrast,
                self.settings.structure,
                labels=None if pairs else labels,
                indices_tuple=pairs[0] if pairs else None,
            )
            total = value if total is None else total + value
        return total if len(mined) == 1 else total.scaled(1 / len(mined))

    def identity(self) -> StateTree:
        """Return the settings that a resumed run must share."""
        online = self.online
        names = {k: type(part).__name__ for k, part in self.parts.items() if k != "model"}
        return {
            **online.settings.to_json(),
            "head": _described(self.model, online.head),
            "decay": online.decay,
            "refresh": 1 if online.settings.structure == "diag" else online.refresh,
            "samples": online.samples,
            "warmup": online.warmup,
            "recursion": online.recursion,
            "count": online.count,
            "by evidence": online.by_evidence,
            "names": names,
            "loss function": getattr(self.loss, "__name__", type(self.loss).__name__),
            "model": shapes(self.model.state_dict()),
            "loader length": self.n_batches,
        }

    def own_state(self) -> StateTree:
        """Return the curvature, the prior, the history and where the head is."""
        running, head = self.curvature, self.located
        stale = None if running.decomposed is running.value else running.decomposed
        return {
            "variances": list(self.variances),
            "priors": list(self.priors),
            "prior precision": self.prior_precision,
            "variance": self.variance,
            "n_updates": running.n_updates,
            "curvature": None if running.value is None else curvature_tensors(running.value),
            "decomposed": None if stale is None else curvature_tensors(stale),
            "located head": None if head is None else [head.name, head.normalized, head.n_outputs],
            "seen": torch.from_numpy(self.seen.fingerprints().view(np.int64)),
        }

    def restore(self, state: StateTree) -> None:
        """Put back what ``own_state`` gave."""
        self.variances[:], self.priors[:] = state["variances"], state["priors"]
        self.prior_precision, self.variance = state["prior precision"], state["variance"]
        if "seen" in state:  # checkpoints of version 0.3 and earlier do not have it
            self.seen.add_fingerprints(state["seen"].numpy().view(np.uint64))
        if state["located head"] is None:
            return
        name, normalized, n_outputs = state["located head"]
        named = named_head(self.model, name)
        if named is None:
            raise FileFormatError(f"the checkpoint is for a head {name!r}, which model lacks.")
        self._adopt(LocatedHead(name, named[0], normalized, named[1], n_outputs))
        running, value = self.curvature, self._curvature(state["curvature"])
        running.n_updates, running.value = state["n_updates"], value
        running.decomposed = self._curvature(state["decomposed"]) or value

    def _curvature(self, tensors: Sequence[Tensor] | None) -> Curvature | None:
        if tensors is None:
            return None
        on_device = [tensor.to(self.device) for tensor in tensors]
        return curvature_of(on_device, self.settings.structure, self._jacobian().layouts)

    def epoch_done(self, progress: Progress) -> None:
        """Choose the prior, where the evidence does, and note it with the variance."""
        posterior = self.posterior()
        if self.online.by_evidence:
            self.prior_precision = by_marginal_likelihood(posterior)
            posterior = self.posterior()
        self.variances.append(float(posterior.spectrum.mean()))
        self.priors.append(posterior.prior_precision)
        super().epoch_done(progress)

    def status(self, progress: Progress) -> str:
        return f"loss {progress.mean_loss:.4g}, variance {self.variance:.3g}"

    def result(self) -> LaplaceEmbedder:
        """Return the mean weights, the running curvature and the settings as a fitted embedder."""
        assert self.located is not None
        jacobian, contrast, structure = self._jacobian(), self._contrast(), self.settings.structure
        curvature = self.curvature.value
        if curvature is None:  # no batch had two classes
            curvature = zero_curvature(structure, jacobian.layouts, self.device)
        mean = jacobian.parameters.clone()
        spectral = curvature.decompose(self.settings.positivity)
        posterior = Posterior(mean, spectral, *self.scales())
        if not warn_if_degenerate(contrast, posterior):
            warn_if_negative(spectral, self.settings.positivity)
        n_points = self.progress.n_points
        fitted = Fitted(
            self.located,
            jacobian,
            contrast,
            posterior,
            n_points,
            structure,
            trained_on=trained_on(self.model),
        )
        settings = replace(self.settings, prior_precision=self.prior_precision)
        return LaplaceEmbedder.from_fitted(self.model, settings, fitted)


def _described(model: nn.Module, head: nn.Module | str | None) -> Any:
    """Describe a head as it was asked for: by its name, or the names of its parameters."""
    if not isinstance(head, nn.Module):
        return head
    parameters = {id(p) for p in head.parameters()}
    return [name for name, p in model.named_parameters() if id(p) in parameters]
