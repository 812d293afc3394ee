"""One online training: its steps, what it notes after each epoch, and its result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from laplace_metric._utils.precision import at_least_float32, full_precision
from laplace_metric.curvature import ContrastiveLoss
from laplace_metric.curvature._mined_pairs import batch_curvature
from laplace_metric.curvature._structures import Curvature, curvature_of, zero_curvature
from laplace_metric.embedder import LaplaceEmbedder
from laplace_metric.errors import FileFormatError, HeadError, InputError
from laplace_metric.heads._backends import jacobian_of
from laplace_metric.heads._identity import named_head
from laplace_metric.heads._jacobian import HeadJacobian
from laplace_metric.heads._locate import find_head
from laplace_metric.heads._located import APPEND, LocatedHead
from laplace_metric.inputs._batches import ModelInput
from laplace_metric.laplace import Fitted, Posterior, Settings
from laplace_metric.laplace._prior_precision import by_marginal_likelihood
from laplace_metric.laplace.fit._fit import warn_if_degenerate, warn_if_negative
from laplace_metric.models._described import described
from laplace_metric.models._modules import device_of
from laplace_metric.models._trained import note_training, trained_on
from laplace_metric.online._online_steps import OnlineSteps
from laplace_metric.online._random_states import loader_settings
from laplace_metric.online._running_curvature import RunningCurvature
from laplace_metric.online._sampled_pass import SampledPass, sampled_pass, with_parameters
from laplace_metric.online._state_tree import StateTree, shapes
from laplace_metric.online._training_on_disk import ResumableRun
from laplace_metric.training import (
    Loss,
    Progress,
    check_loss,
    descend,
    trained_parameters,
)


class OnlineRun(ResumableRun):
    """A training in progress: sample heads, descend the expected loss, update the curvature.

    Parameters
    ----------
    model : nn.Module
        Model to train, in place.
    head : module, dotted name or None
        Head as the user asked for it.
    settings : Settings
        Settings of the posterior as the user gave them, "auto" included.
    steps : OnlineSteps
        Rules of the draws and of the running curvature.
    loader : iterable of (inputs, labels)
        Data of an epoch.
    loss : callable
        Metric loss ``loss(embeddings, labels)``, with a miner's tuples as a third argument.
    optimizer, scheduler
        Optimizer of the model and of the loss, and its schedule; None for no schedule.
    generator : torch.Generator
        Generator that the heads are drawn from.
    folder : Path or None
        Folder of the checkpoint. None: no checkpoint is written.
    seed : int or None
        Seed that the user gave, or that of the generator. None, the default: none was given, so
        that a resumed run may begin at another.

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
        model: nn.Module,
        head: nn.Module | str | None,
        settings: Settings,
        steps: OnlineSteps,
        loader: Iterable[Any],
        loss: Loss,
        optimizer: torch.optim.Optimizer,
        scheduler: torch.optim.lr_scheduler.LRScheduler | None,
        generator: torch.Generator,
        folder: Path | None,
        seed: int | None = None,
    ) -> None:
        parts: dict[str, Any] = {"model": model, "optimizer": optimizer}
        if isinstance(loss, nn.Module):  # it may be a plain function
            parts["loss"] = loss
        if scheduler is not None:
            parts["scheduler"] = scheduler
        super().__init__(parts, loader, device_of(model), generator, folder)
        self.model, self.head, self.asked, self.steps = model, head, settings, steps
        self.settings, self.loss, self.optimizer = settings, loss, optimizer
        self.seed = seed
        self.n_batches = self.inputs.n_batches
        self.curvature = RunningCurvature(
            steps.decay, steps.refresh_of(settings.structure), positivity=settings.positivity
        )
        self.seen = note_training(model, trained_parameters(optimizer))
        self.located: LocatedHead | None = None
        prior = settings.prior_precision
        assert not isinstance(prior, str)  # it is the one of a training, no choice of a fit
        self.prior_precision, self.variance = prior, float("nan")
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
        self.curvature.refresh = self.steps.refresh_of(self.settings.structure)
        return located

    def _find_head(self, inputs: ModelInput) -> LocatedHead:
        located = find_head(self.model, inputs, self.head)
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
        """Return posterior that a step on ``n_batch`` more points would draw from."""
        mean = self._jacobian().parameters
        return Posterior(mean, self.curvature.spectral(mean), *self.scales(n_batch))

    def scales(self, n_batch: int = 0) -> tuple[float, float]:
        """Return n and tau of the posterior.

        The points are those of an epoch: in the first one what the loader's length says, for a
        loader without a length the points so far.
        """
        n_points = float(max(self.progress.n_points, self.progress.epoch_points + n_batch))
        counted = n_points if self.steps.count == "points" else n_points * n_points
        n = self.settings.n_effective or counted
        if self.steps.recursion == "average":
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
        """Draw eps of the present posterior, on the CPU, so that devices agree."""
        posterior = self.posterior(n_batch)
        self.variance = float(posterior.spectrum.mean())  # trace / P: Q is orthogonal
        mean = posterior.mean
        if self.progress.epoch < self.steps.warmup:
            return torch.zeros_like(mean)[None]
        shape = (self.steps.samples, len(mean))
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
        """Compute E_q[h]; None for a batch of one class, which contrasts nothing."""
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
        steps = self.steps
        names = {k: type(part).__name__ for k, part in self.parts.items() if k != "model"}
        miner = self.asked.pairs
        return {
            **self.asked.to_json(),
            "head": _described(self.model, self.head),
            "decay": steps.decay,
            "refresh": steps.refresh_of(self.asked.structure),
            "samples": steps.samples,
            "warmup": steps.warmup,
            "recursion": steps.recursion,
            "count": steps.count,
            "by evidence": steps.by_evidence,
            "names": names,
            "loss function": getattr(self.loss, "__name__", type(self.loss).__name__),
            "model": shapes(self.model.state_dict()),
            "loader length": self.n_batches,
            **loader_settings(self.loader),
            "seed": self.seed,
            "structure of the model": described(self.model),
            "settings of the loss": described(self.loss),
            "settings of the miner": described(miner) if callable(miner) else None,
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
            "curvature": None if running.value is None else running.value.tensors(),
            "decomposed": None if stale is None else stale.tensors(),
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
        if self.steps.by_evidence:
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
