"""A method that learns by gradient descent: every method's loop, on a copy of the model."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from baselines.base.baseline import OnePass
from baselines.base.pairs import check_rows
from baselines.base.parts import FittedParts, with_appended
from baselines.base.settings import UNSAVED, Training
from laplace_metric._utils.randomness import own_randomness
from laplace_metric.errors import InputError, LabelError
from laplace_metric.heads._capture import capture, run_captured
from laplace_metric.heads._located import APPEND, HeadActivations
from laplace_metric.inputs import Inputs, ModelInput, read_inputs
from laplace_metric.models._batches import labelled_batches
from laplace_metric.models._modules import device_of
from laplace_metric.training import Callback, Step, descend, train_epochs, train_mode

if TYPE_CHECKING:
    from typing_extensions import Self

Augment = Callable[[Any], Any]


@dataclass(eq=False, kw_only=True)
class Trained(OnePass):
    """Subclasses give ``build``, ``objective`` and ``embedding``.

    ``fit`` trains a deep copy of the model, which becomes ``method.model``; to ``fit`` once more
    goes on from there with new parts. If it fails or is interrupted, nothing has changed. A frozen
    model is not copied, since nothing changes it.

    Parameters
    ----------
    training : Training
        Epochs, learning rate, seed and so on. Default: ``Training()``.
    frozen : bool
        True trains only the new parts; the model stays as it is, in eval mode. Default: False.
    augment : function of a batch of inputs, or None
        Function that returns a random view of each input of a batch. Methods that contrast pairs
        take two views of an input for its positives and ignore the labels; the others see one view
        with its label. None, the default: inputs as they are.

    Attributes
    ----------
    losses_ : list of float
        Mean loss of each epoch.
    """

    training: Training = Training()  # noqa: RUF009 (frozen)
    frozen: bool = False
    augment: Augment | None = field(default=None, metadata=UNSAVED)
    losses_: list[float] = field(default_factory=list, init=False, repr=False, metadata=UNSAVED)

    contrasts = False
    """Whether the objective is about pairs of the batch, so that labels only say which are one."""

    @abstractmethod
    def objective(self, activations: HeadActivations, labels: Tensor) -> Tensor:
        """Return the loss of a batch; ``labels`` [B] are class numbers 0..C-1."""

    def views(self, inputs: ModelInput, labels: Tensor) -> tuple[ModelInput, Tensor]:
        """Return the views of a batch: itself, or augmented views of it."""
        if self.augment is None:
            return inputs, labels
        if not self.contrasts:
            return self.augment(inputs), labels
        views = [self.augment(inputs) for _ in range(2)]
        if not all(isinstance(view, Tensor) for view in views):
            raise InputError(f"augment gave a {type(views[0]).__name__}: two views need tensors.")
        return torch.cat(views), torch.arange(len(labels), device=labels.device).repeat(2)

    def training_activations(self, inputs: ModelInput) -> HeadActivations:
        """Run the model once in training."""
        return self.activations(inputs, capture if self.frozen else run_captured)

    def adopt(self, model: nn.Module) -> nn.Module:
        """Return a copy that may be trained."""
        if self.frozen:
            return model
        copied, self.head = copy.deepcopy((model, self.head))  # a head stays one of the model's
        return copied

    def after_training(self, data: Inputs, device: torch.device, progress: bool) -> None:
        """Learn what takes one more pass, with the final weights in eval mode."""

    def callback(self) -> Callback:
        """Return the callback of the training, called at epochs and steps."""
        return Callback()

    def learnt(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield the network, unless it is frozen, and the parts."""
        if not self.frozen:
            yield "model", self.model
        yield "parts", self.parts

    def fit(self, loader: Iterable[Any], *, progress: bool = False) -> Self:
        """Train on a loader of ``(inputs, labels)`` that can be gone through again.

        Raises
        ------
        HeadError, LabelError, NonFiniteError, EmptyLoaderError, InputError
            Nothing changes if training fails or is interrupted.
        """
        return self._fit(loader, progress, {})

    def fine_tune(self, loader: Iterable[Any], *, progress: bool = False) -> Self:
        """Repeat ``fit`` on other data, from everything that was learnt.

        New parts go on from the old ones where names and shapes agree (a concentration head); those
        of other classes (proxies, logits) start anew. Set ``training`` before for other epochs.

        Raises
        ------
        NotFittedError
            Before ``fit``; and whatever ``fit`` raises.
        """
        learnt = {name: value.clone() for name, value in self.parts.state_dict().items()}
        return self._fit(loader, progress, learnt)

    def _fit(self, loader: Iterable[Any], progress: bool, learnt: dict[str, Tensor]) -> Self:
        data = read_inputs("loader", loader, labelled=True)
        before = self.model, self.head, self._fitted
        device = device_of(self.model)
        generator = torch.Generator().manual_seed(self.training.seed)
        try:
            with own_randomness(generator, device):
                self.model = self.adopt(self.model)
                self._append(data, device)
                self._fitted = self._start(data, device)
                self._continue(learnt)
                losses = self._train(data, device, progress)
                self.after_training(data, device, progress)
        except BaseException:
            self.model, self.head, self._fitted = before
            raise
        self.losses_ = losses
        return self

    def _continue(self, learnt: dict[str, Tensor]) -> None:
        """Take over what fits the new parts."""
        shapes = {name: value.shape for name, value in self.parts.state_dict().items()}
        fitting = {name: value for name, value in learnt.items() if shapes.get(name) == value.shape}
        self.parts.load_state_dict(fitting, strict=False)

    def _append(self, data: Inputs, device: torch.device) -> None:
        """Make the new layer of ``head="append"`` a part of the network that is trained."""
        if self.frozen or self.head != APPEND or hasattr(self.model, "appended"):
            return
        first, _ = next(labelled_batches(data, device, progress=False, description=""))
        self.model, self.head = with_appended(self.model, first)

    def _start(self, data: Inputs, device: torch.device) -> FittedParts:
        """Find head and classes, build the parts."""
        batches = labelled_batches(data, device, progress=False, description="")
        first, labels = next(batches)
        classes = torch.cat([labels, *(rest for _, rest in batches)]).unique()
        if len(classes) < 2 and not (self.contrasts and self.augment):
            raise LabelError(f"labels hold the single class {classes.tolist()}: give two or more.")
        return self.locate(first, classes)

    def _train(self, data: Inputs, device: torch.device, progress: bool) -> list[float]:
        trained = [module for _, module in self.learnt()]
        optimizer, scheduler = self.training.optimize(
            chain.from_iterable(module.parameters() for module in trained)
        )
        with train_mode(trained):
            losses = train_epochs(
                self._step(optimizer),
                data,
                device,
                epochs=self.training.epochs,
                scheduler=scheduler,
                show=progress,
                callback=self.callback(),
            ).losses
        for module in trained:
            module.eval()
        return losses

    def _step(self, optimizer: torch.optim.Optimizer) -> Step:
        classes = self.fitted_.classes

        def step(inputs: ModelInput, labels: Tensor) -> float:
            views, numbers = self.views(inputs, class_numbers(labels, classes))
            activations = self.training_activations(views)
            check_rows(activations.raw, numbers)
            return descend(self.objective(activations, numbers), optimizer)

        return step


def class_numbers(labels: Tensor, classes: Tensor) -> Tensor:
    """Return numbers 0..C-1 of labels [B] among the sorted classes [C].

    Raises
    ------
    LabelError
        For a label that the first pass through the loader did not show.

    Examples
    --------
    >>> class_numbers(torch.tensor([7, -1]), torch.tensor([-1, 3, 7]))
    tensor([2, 0])
    """
    numbers = torch.searchsorted(classes, labels).clamp_max(len(classes) - 1)
    unknown = labels[classes[numbers] != labels]
    if len(unknown):
        raise LabelError(
            f"label {int(unknown[0])} was not among those of the first pass through the loader: "
            "let every pass show every class."
        )
    return numbers
