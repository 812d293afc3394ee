"""A head inside a model, what one forward pass has there, and inputs of which that is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from laplace_metric._utils.display import Shown
from laplace_metric.errors import HeadError


@dataclass(frozen=True)
class HeadActivations:
    """One forward pass seen at the head: ``features`` h [B, D], ``raw`` z [B, Z], ``output`` f."""

    features: Tensor
    raw: Tensor
    output: Tensor

    @classmethod
    def concatenate(cls, parts: Sequence[HeadActivations]) -> HeadActivations:
        """One pass out of several."""
        names = ("features", "raw", "output")
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in names))

    def contiguous(self) -> HeadActivations:
        """The same numbers in plain rows, whatever they were views of."""
        return HeadActivations(*(x.contiguous() for x in (self.features, self.raw, self.output)))

    def to(self, device: torch.device) -> HeadActivations:
        """The same on a device."""
        return HeadActivations(*(x.to(device) for x in (self.features, self.raw, self.output)))


@dataclass(frozen=True)
class LocatedHead(Shown):
    """A head inside a model, and whether the model l2-normalises after it.

    Parameters
    ----------
    name : str
        Dotted name; "first..last" of modules in a row; "append" for a new one.
    module : nn.Module
        g, whose parameters get the posterior.
    normalized : bool
        Whether the model's output is ``z / |z|``.
    parts : (module, module) or None
        Where h enters and z leaves inside the model; None for an appended head.
    n_outputs : int
        Z.
    """

    name: str
    module: nn.Module
    normalized: bool
    parts: tuple[nn.Module, nn.Module] | None
    n_outputs: int


@dataclass(frozen=True)
class SeenInputs:
    """A batch of inputs that need not enter the model: what they give at its head is known.

    Wherever a model takes inputs, to fit, to embed, to index, to search, it takes these.

    Parameters
    ----------
    head : LocatedHead
        Of the model that has seen them.
    n : int
        Items.
    look : callable
        What they gave, asked for when it is needed: it may read a file, or run the model then.

    Examples
    --------
    >>> from laplace_metric.models.heads import capture, locate_head
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
        """What they gave at the head of this name, on the device of the head.

        Raises
        ------
        HeadError
            If it was another head.
        """
        if head != self.head.name:
            raise HeadError(
                f"the inputs were seen at head {self.head.name!r}, not at {head!r}: pass the "
                "inputs themselves."
            )
        seen, parameter = self.look(), next(self.head.module.parameters())
        return seen if seen.features.device == parameter.device else seen.to(parameter.device)
