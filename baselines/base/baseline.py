"""The contract of every baseline: one pass through the model, an ``Embedding``, files.

A method is a dataclass whose fields are its settings. Fitting finds the head of the model and makes
``parts``, the modules that hold what was learnt. Most methods are ``OnePass``: their ``embedding``
turns one pass through the model, recorded at the head, into distributions.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from baselines.base.files import (
    load_states,
    loaded_head,
    loaded_settings,
    read_method,
    saved_head,
    saved_settings,
    weights_hash,
    write_method,
)
from baselines.base.parts import Appended, FittedParts, Sizes, identity_layer
from baselines.base.settings import UNSAVED, check_kinds
from baselines.distributions.empirical import Empirical
from laplace_metric._utils.precision import at_least_float32
from laplace_metric._utils.randomness import Seed, as_generator
from laplace_metric._utils.validation import as_path, check_count
from laplace_metric.embedding import Embedding
from laplace_metric.errors import FileFormatError, NonFiniteError, NotFittedError
from laplace_metric.heads._capture import capture
from laplace_metric.heads._locate import find_head
from laplace_metric.heads._located import HeadActivations, LocatedHead
from laplace_metric.inputs import ModelInput, read_batch, read_inputs
from laplace_metric.models._batches import labelled_batches
from laplace_metric.models._call_model import to_device
from laplace_metric.models._evaluation_mode import evaluation_mode
from laplace_metric.models._modules import device_of
from laplace_metric.probabilistic_embedder import Draw, ProbabilisticEmbedder

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(eq=False, kw_only=True)
class Baseline(ProbabilisticEmbedder):
    """A method of ``baselines``; subclasses give ``fit``, ``__call__`` and ``build``.

    Parameters
    ----------
    model : nn.Module
        Embedder: inputs -> [B, Z]; the one that is passed is never changed.
    head : module, dotted name, "append" or None
        Layer at which the features h [B, D] enter and the raw embedding z [B, Z] leaves. None, the
        default: the last ``nn.Linear``, or the last 1x1 convolution if no linear layer fits.
    spherical : bool
        True, the default, compares embeddings by direction; then ``mean`` has unit length.
    """

    model: nn.Module = field(kw_only=False)
    head: nn.Module | str | None = field(default=None, metadata=UNSAVED)
    spherical: bool = True
    _fitted: FittedParts | None = field(default=None, init=False, repr=False, metadata=UNSAVED)

    def __post_init__(self) -> None:
        device_of(self.model)  # refuses what is no module, or has no weights
        check_kinds(self)

    def build(self, sizes: Sizes) -> dict[str, nn.Module]:
        """Return new modules for what is learnt, by name; they hold nothing before ``fit``."""
        return {}

    @property
    def fitted_(self) -> FittedParts:
        """Head, sizes, classes and learnt modules; ``NotFittedError`` before ``fit``."""
        if self._fitted is None:
            raise NotFittedError(
                f"this {type(self).__name__} is not fitted: call fit(loader) first."
            )
        return self._fitted

    @property
    def parts(self) -> nn.ModuleDict:
        """The learnt modules."""
        return self.fitted_.parts

    def draw(self, n: int, seed: Seed = None) -> Draw:
        """Return n draws for each input, independent between inputs."""
        check_count("n", n)
        source = as_generator(seed)
        return lambda inputs: self(inputs).sample(n, source)

    def save(self, path: str | Path) -> None:
        """Write settings and everything learnt to one safetensors file."""
        fitted = self.fitted_
        content = {
            "method": type(self).__name__,
            "settings": saved_settings(self),
            "sizes": asdict(fitted.sizes),
            "head": saved_head(fitted.head),
            "appended": isinstance(self.model, Appended),
            "network": None if self.saves_network else weights_hash(self.model),
        }
        write_method(as_path("path", path), content, fitted.classes, self.learnt())

    @classmethod
    def load(cls, path: str | Path, model: nn.Module, **unsaved: Any) -> Self:
        """Read a saved method onto ``model``, a network of the kind it was fitted with.

        Parameters
        ----------
        path : path
            File of ``save``.
        model : nn.Module
            Network of the kind that the method was fitted with.
        **unsaved
            Settings that are no plain values: a loss with weights of its own must be passed again,
            ``augment`` and the like only to fit once more.

        Raises
        ------
        FileFormatError
            If the file is not ours, damaged, of another method, or does not fit ``model``. A
            method that did not train its network needs the very weights it was fitted with.
        """
        content, tensors = read_method(as_path("path", path), cls.__name__)
        try:
            method = cls(model, **loaded_settings(content["settings"]), **unsaved)
            method._restore(content, tensors)
        except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise FileFormatError(f"{path} does not fit this model: {error}") from error
        return method

    def _restore(self, content: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Take over what ``save`` wrote."""
        model, sizes = self.model, Sizes(**content["sizes"])
        if content["network"] not in (None, weights_hash(model)):
            raise ValueError("its weights differ from those of the network it was fitted with.")
        self.model = self.adopt(model)
        if content["appended"]:
            self.model = Appended(self.model, identity_layer(model, sizes.embedding))
        head = loaded_head(self.model, content["head"], sizes)
        classes = tensors.pop("classes").to(device_of(model))
        with torch.random.fork_rng():
            self.prepare(head)
            self._fitted = self._build(head, sizes, classes, next(head.module.parameters()))
        load_states(self.learnt(), tensors)
        self.head = head.place
        self.parts.eval()

    def learnt(self) -> Iterable[tuple[str, nn.Module]]:
        """Return the modules whose weights are saved."""
        yield "parts", self.parts

    @property
    def saves_network(self) -> bool:
        """True if ``learnt`` holds the whole network, so that any weights may be passed to load."""
        return any(name == "model" for name, _ in self.learnt())

    def activations(
        self, inputs: ModelInput, run: Callable[..., HeadActivations] = capture
    ) -> HeadActivations:
        """Run the model once, recorded at its head in float32 at least."""
        recorded = run(self.model, self.fitted_.head, inputs)
        return recorded.changed(at_least_float32)

    def adopt(self, model: nn.Module) -> nn.Module:
        """Return the network that is used, made of the one that was passed."""
        return model

    def prepare(self, head: LocatedHead) -> None:
        """Change layers of the network, now that its head is known, before anything is learnt."""

    def locate(self, inputs: ModelInput, classes: Tensor) -> FittedParts:
        """Return head and sizes of the model by passes over one batch, and new parts."""
        inputs = to_device(inputs, device_of(self.model))
        head = find_head(self.model, inputs, self.head)
        recorded = capture(self.model, head, inputs)
        self.prepare(head)
        sizes = Sizes(recorded.features.shape[1], recorded.raw.shape[1], len(classes))
        return self._build(head, sizes, classes, recorded.raw)

    def _locate_on(self, loader: Iterable[Any]) -> FittedParts:
        """Call ``locate`` on the first batch of a loader, for a method without classes."""
        data = read_inputs("loader", loader, labelled=True)
        batches = labelled_batches(data, device_of(self.model), progress=False, description="")
        return self.locate(next(batches)[0], torch.empty(0, dtype=torch.long))

    def _build(self, head: LocatedHead, sizes: Sizes, classes: Tensor, like: Tensor) -> FittedParts:
        parts = nn.ModuleDict(self.build(sizes))
        if head.parts is None:
            parts["head"] = head.module
        return FittedParts(head, sizes, classes, parts.to(at_least_float32(like)))


def checked(embedding: Embedding) -> Embedding:
    """Return the embedding itself.

    Raises
    ------
    NonFiniteError
        If means or uncertainties are NaN or infinite; it counts the rows.
    """
    fine = embedding.mean.isfinite().all(-1) & embedding.uncertainty.isfinite()
    if not bool(fine.all()):
        raise NonFiniteError(
            f"embeddings or uncertainties of {int((~fine).sum())} of {len(fine)} inputs are NaN or "
            "infinite: check those inputs, and whether their embedding is zero."
        )
    return embedding


@dataclass(eq=False, kw_only=True)
class OnePass(Baseline):
    """A method whose distributions follow from one pass through the model."""

    @abstractmethod
    def embedding(self, activations: HeadActivations) -> Embedding:
        """Return distributions from one pass, in eval mode and without gradients."""

    def means(self, activations: HeadActivations) -> Tensor:
        """Return vectors to search with [B, Z]: the model's output, of unit length if spherical."""
        output = activations.output
        return nn.functional.normalize(output, dim=-1) if self.spherical else output

    def points(self, activations: HeadActivations, score: Tensor) -> Embedding:
        """Return point masses with a score [B]."""
        return Embedding(Empirical(self.means(activations)[None], self.spherical), score)

    def __call__(self, inputs: ModelInput) -> Embedding:
        """Return distributions over the embeddings of a batch: one forward pass."""
        parts = self.parts
        inputs = to_device(read_batch("inputs", inputs), device_of(self.model))
        activations = self.activations(inputs)
        with evaluation_mode(parts):
            return checked(self.embedding(activations))
