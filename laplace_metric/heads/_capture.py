"""Return the activations of a model at one head: run the model, or use what it returned before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor, nn

from laplace_metric._utils.precision import full_precision
from laplace_metric.errors import HeadError
from laplace_metric.heads._earlier_layers import entering_layers
from laplace_metric.heads._located import HeadActivations, LocatedHead
from laplace_metric.heads._normalized import check_follows
from laplace_metric.heads._recording import HeadCall, run_recorded
from laplace_metric.inputs._batches import ModelInput
from laplace_metric.inputs._shown import shown
from laplace_metric.models._evaluation_mode import evaluation_mode


@dataclass(frozen=True)
class SeenInputs:
    """A batch of inputs whose activations at a head are known, so that they need not be run.

    It can stand for the inputs wherever a model takes inputs: to fit, embed, index and search.

    Parameters
    ----------
    head : LocatedHead
        The head at which the activations were taken.
    n : int
        Number of items.
    look : callable
        Function that returns the activations. It is called when they are needed, and may then
        read a file or run the model.

    Examples
    --------
    >>> import torch
    >>> from laplace_metric.heads._capture import capture
    >>> from laplace_metric.heads._locate import locate_head
    >>> model, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.ones(3, 4)
    >>> head, activations = locate_head(model, x)
    >>> seen = SeenInputs(head, 3, lambda: activations)
    >>> len(seen), capture(model, head, seen) is activations
    (3, True)
    """

    head: LocatedHead
    n: int
    look: Callable[[], HeadActivations]

    def __len__(self) -> int:
        return self.n

    def at(self, head: str) -> HeadActivations:
        """Return the activations at the head of this name, on the device of the head.

        Raises
        ------
        HeadError
            If the inputs were seen at another head.
        """
        if head != self.head.name:
            raise HeadError(
                f"the inputs were seen at head {self.head.name!r}, not at {head!r}: pass the "
                "inputs themselves."
            )
        seen, parameter = self.look(), next(self.head.module.parameters())
        return seen if seen.features.device == parameter.device else seen.to(parameter.device)


def capture(
    model: nn.Module,
    head: LocatedHead,
    inputs: ModelInput,
    layers: Sequence[str] | None = (),
) -> HeadActivations:
    """Run the model once in eval mode; hooks and modes are put back before it returns.

    Parameters
    ----------
    model : nn.Module
        Model that has the head.
    head : LocatedHead
        Head at which activations are taken.
    inputs : ModelInput
        Batch that the model runs on.
    layers : sequence of str, or None
        Names of other layers whose inputs are taken, too; None: the last before the head. Default:
        none.

    Raises
    ------
    HeadError
        If the model does something else after the head than it did when the head was found.
    """
    if isinstance(inputs, SeenInputs):
        return inputs.at(head.name)
    with evaluation_mode(model), entering_layers(model, layers, inputs) as entered:
        seen = run_captured(model, head, inputs)
        if head.parts is not None and len(seen.raw):  # in training mode a dropout may follow
            check_follows(seen.raw, seen.output, head.name, normalized=head.normalized)
    if not entered.order:
        return seen
    return replace(seen, earlier=entered.before(head, seen.features))


def embeddings_from(model: nn.Module, inputs: ModelInput) -> Tensor:
    """Return the model's output [B, Z] without capturing its head; otherwise as ``capture``."""
    with evaluation_mode(model):
        return run_recorded(model, inputs, {})[0]


def run_captured(model: nn.Module, head: LocatedHead, inputs: ModelInput) -> HeadActivations:
    """Run the model once in its present modes, with gradients where they are enabled.

    Of ``SeenInputs`` there is none.
    """
    if isinstance(inputs, SeenInputs):
        return inputs.at(head.name)
    if head.parts is None:
        return appended_activations(head.module, run_recorded(model, inputs, {})[0])
    output, calls = run_recorded(model, inputs, {head.name: head.parts})
    return captured(calls, output, head.name)


def appended_activations(module: nn.Module, output: Tensor) -> HeadActivations:
    """Apply an appended head to the model's output.

    Raises
    ------
    HeadError
        If it is not as wide as the head.
    """
    weight = next(module.parameters())
    if output.ndim != 2 or output.shape[1] != weight.shape[1]:
        raise HeadError(
            f"the model gives {shown(output)}, the appended head takes [B, {weight.shape[1]}]: "
            "pass the model that was fitted."
        )
    h = output.to(weight)
    with full_precision():
        z = module(h)
    return HeadActivations(h, z, z)


def captured(calls: Sequence[HeadCall], output: Tensor, name: str) -> HeadActivations:
    """Map the one run of a head [B, D] to [B, Z], checked.

    Raises
    ------
    HeadError
        If it did not run once, or does not give the model's [B, Z].
    """
    if len(calls) != 1:
        raise HeadError(f"head {name!r} ran {len(calls)} times in one forward pass, not once.")
    features, raw = calls[0].features, calls[0].raw
    if features.ndim != 2 or len(features) != len(raw) or raw.shape != output.shape:
        raise HeadError(
            f"head {name!r} maps {tuple(features.shape)} to {tuple(raw.shape)} and the model "
            f"returns {tuple(output.shape)}: the head must map [B, D] to the returned [B, Z]. "
            "Name another layer with head=..., or pass head='append' for a new linear layer after "
            "the model."
        )
    return HeadActivations(features, raw, output)
