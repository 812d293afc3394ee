"""Deep ensembles (Lakshminarayanan et al. 2017) of embedders, aligned before they are averaged."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from baselines.base import UNSAVED, Baseline, Sizes, Training
from baselines.base.baseline import checked
from baselines.base.parts import with_appended
from baselines.base.procrustes import align
from baselines.distributions.empirical import Empirical
from baselines.metric_learning import MetricLearning
from laplace_metric._utils.precision import at_least_float32
from laplace_metric._utils.randomness import Seed, as_generator, own_randomness
from laplace_metric._utils.validation import check_count
from laplace_metric.embedding import Embedding
from laplace_metric.errors import LaplaceMetricWarning
from laplace_metric.heads._capture import embeddings_from
from laplace_metric.heads._located import APPEND
from laplace_metric.inputs import Inputs, ModelInput, read_batch, read_inputs
from laplace_metric.models._batches import labelled_batches
from laplace_metric.models._call_model import to_device
from laplace_metric.models._modules import device_of
from laplace_metric.probabilistic_embedder import Draw


@dataclass(eq=False, kw_only=True)
class DeepEnsemble(Baseline):
    """M embedders that are trained from new weights; costs M trainings and M forward passes.

    ``uncertainty`` is the summed variance of the members' embeddings (on the sphere 1 - R^2 of
    their directions). Members learn latent spaces that are turned against one another; they are
    brought together by orthogonal Procrustes on the embeddings of the loader (``align=False`` shows
    what happens without: the members' mean is no embedding).

    Parameters
    ----------
    model : nn.Module
        Architecture of the members: each is a copy with its layers initialised anew.
    n_members : int
        Number M of members; 5 in LAM. Default: 5.
    loss : nn.Module or None
        Metric loss, as in ``MetricLearning``. None, the default: its contrastive loss.
    align : bool
        True, the default, brings the members' spaces together; False shows what happens without.
    training : Training
        Settings of the training of each member; their seeds follow from its seed, and ensembles of
        other seeds share none. Default: ``Training()``.

    Examples
    --------
    >>> x, y = torch.randn(12, 4), torch.arange(12) % 3
    >>> method = DeepEnsemble(nn.Linear(4, 3), n_members=2, training=Training(epochs=2))
    >>> method.fit([(x, y)], progress=False).sample(x, 2).shape
    torch.Size([2, 12, 3])
    """

    n_members: int = 5
    loss: nn.Module | None = field(default=None, metadata=UNSAVED)
    align: bool = True
    training: Training = Training()  # noqa: RUF009 (frozen)
    losses_: list[list[float]] = field(default_factory=list, init=False, metadata=UNSAVED)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("n_members", self.n_members)

    @property
    def saves_network(self) -> bool:
        """The members are saved."""
        return True

    def build(self, sizes: Sizes) -> dict[str, nn.Module]:
        """Return the members and the rotations that align them."""
        members = nn.ModuleList(copy.deepcopy(self.model) for _ in range(self.n_members))
        return {"members": members, "rotations": Rotations(self.n_members, sizes.embedding)}

    def fit(self, loader: Iterable[Any], *, progress: bool = False) -> DeepEnsemble:
        """Train the members one after the other, then align them.

        Raises
        ------
        HeadError, LabelError, NonFiniteError, EmptyLoaderError
            Nothing changes if training fails or is interrupted.
        """
        before, device = (self.model, self.head), device_of(self.model)
        data = read_inputs("loader", loader, labelled=True)
        batches = labelled_batches(data, device, progress=False, description="")
        first, _ = next(batches)
        try:
            if self.head == APPEND:
                self.model, self.head = with_appended(self.model, first)
            fitted = self.locate(first, torch.empty(0, dtype=torch.long))
            members = [self._member(m).fit(data, progress=progress) for m in range(self.n_members)]
        except BaseException:
            self.model, self.head = before
            raise
        networks = nn.ModuleList(member.model for member in members)
        rotations = Rotations(self.n_members, fitted.sizes.embedding).to(device)
        if self.align:
            rotations.values.copy_(align(_embed_all(networks, data, device, self.spherical)))
        fitted.parts.update({"members": networks, "rotations": rotations})
        self._fitted, self.losses_ = fitted, [member.losses_ for member in members]
        return self

    def _member(self, number: int) -> MetricLearning:
        training = replace(self.training, seed=member_seed(self.training.seed, number))
        model, head = copy.deepcopy((self.model, self.head))
        with own_randomness(torch.Generator().manual_seed(training.seed), device_of(model)):
            initialise(model)
        return MetricLearning(
            model, head=head, spherical=self.spherical, loss=self.loss, training=training
        )

    def unaligned(self) -> DeepEnsemble:
        """Return the same members, each left in its own latent space."""
        parts = nn.ModuleDict(dict(self.parts.items()))
        size, device = self.fitted_.sizes.embedding, device_of(self.model)
        parts["rotations"] = Rotations(self.n_members, size).to(device)
        ensemble = replace(self, align=False)
        ensemble._fitted, ensemble.losses_ = replace(self.fitted_, parts=parts), self.losses_
        return ensemble

    def __call__(self, inputs: ModelInput) -> Embedding:
        """Return the members' embeddings, rotated into one space."""
        return checked(Embedding(Empirical(self._rotated(inputs), self.spherical)))

    def draw(self, n: int, seed: Seed = None) -> Draw:
        """Return n members, the same for all inputs: each once for n = M, else with replacement."""
        check_count("n", n)
        generator = as_generator(seed)
        m = self.n_members
        device = torch.device("cpu") if generator is None else generator.device
        chosen = torch.randint(m, (n,), generator=generator, device=device)
        members = torch.arange(m) if n == m else chosen.cpu()
        return lambda inputs: self._rotated(inputs)[members]

    def _rotated(self, inputs: ModelInput) -> Tensor:
        inputs = to_device(read_batch("inputs", inputs), device_of(self.model))
        members, rotations = self.parts["members"], self.parts["rotations"]
        assert isinstance(members, nn.ModuleList)
        assert isinstance(rotations, Rotations)
        embeddings = _embed(members, inputs, self.spherical)
        return embeddings @ rotations.values.to(embeddings.dtype)


def member_seed(seed: int, number: int) -> int:
    """Return the seed of one member, drawn from a generator with the ensemble's seed.

    Examples
    --------
    >>> member_seed(0, 1) == member_seed(1, 0)
    False
    """
    generator = torch.Generator().manual_seed(seed)
    return int(torch.randint(2**31, (number + 1,), generator=generator)[-1])


class Rotations(nn.Module):
    """M orthogonal matrices [M, Z, Z], the identity before they are learnt."""

    values: Tensor

    def __init__(self, n_members: int, size: int) -> None:
        super().__init__()
        self.register_buffer("values", torch.eye(size).repeat(n_members, 1, 1))


def initialise(model: nn.Module) -> None:
    """Draw the weights of every layer anew, from torch's global generator.

    Warns
    -----
    LaplaceMetricWarning
        If parameters belong to modules without ``reset_parameters``: they stay as they are.
    """
    unchanged = 0
    for module in model.modules():
        reset = getattr(module, "reset_parameters", None)
        if callable(reset):
            reset()
        else:
            unchanged += sum(p.numel() for p in module.parameters(recurse=False))
    if unchanged:
        warnings.warn(
            f"{unchanged} parameters belong to modules without reset_parameters and start from the "
            "same values in every member: give such a module that method.",
            LaplaceMetricWarning,
            stacklevel=4,
        )


def _embed(members: Iterable[nn.Module], inputs: ModelInput, spherical: bool) -> Tensor:
    """Return the members' embeddings [M, B, Z]."""
    stacked = torch.stack([at_least_float32(embeddings_from(m, inputs)) for m in members])
    return nn.functional.normalize(stacked, dim=-1) if spherical else stacked


def _embed_all(
    members: Iterable[nn.Module], data: Inputs, device: torch.device, spherical: bool
) -> Tensor:
    """Return the members' embeddings [M, N, Z] of labelled inputs."""
    batches = labelled_batches(data, device, progress=False, description="")
    return torch.cat([_embed(members, inputs, spherical) for inputs, _ in batches], dim=1)
