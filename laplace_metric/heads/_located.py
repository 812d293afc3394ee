"""A head that was found in a model, and the tensors of one forward pass there.

A model is read as ``x -> h -> z = g(h; theta) -> f``: ``h`` [B, D] enters the head, ``z`` [B, Z] is
the raw embedding, and the model's output ``f`` is either ``z`` itself or ``z / |z|``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from laplace_metric._utils.display import Shown


@dataclass(frozen=True)
class HeadActivations:
    """Tensors of one forward pass: ``features`` h [B, D], ``raw`` z [B, Z], ``output`` f [B, Z].

    ``earlier`` has the rows [B, E] that entered other layers, by the name of the layer, where these
    were asked for.
    """

    features: Tensor
    raw: Tensor
    output: Tensor
    earlier: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def concatenate(cls, parts: Sequence[HeadActivations]) -> HeadActivations:
        """Join several passes into one."""
        names = ("features", "raw", "output")
        whole: dict[str, Tensor] = {
            name: torch.cat([getattr(part, name) for part in parts]) for name in names
        }
        layers = parts[0].earlier
        earlier = {name: torch.cat([part.earlier[name] for part in parts]) for name in layers}
        return cls(**whole, earlier=earlier)

    def contiguous(self) -> HeadActivations:
        """Return the same numbers in contiguous rows."""
        return self.changed(Tensor.contiguous)

    def to(self, device: torch.device) -> HeadActivations:
        """Return the same on a device."""
        return self.changed(lambda x: x.to(device))

    def changed(self, change: Callable[[Tensor], Tensor]) -> HeadActivations:
        """Return the same with another tensor for each, by a function of one tensor."""
        earlier = {name: change(x) for name, x in self.earlier.items()}
        return HeadActivations(
            change(self.features), change(self.raw), change(self.output), earlier
        )


@dataclass(frozen=True)
class LocatedHead(Shown):
    """A head inside a model, and whether the model l2-normalises after it.

    Parameters
    ----------
    name : str
        Dotted name; "first..last" of modules in a row; "append" for a new one.
    module : nn.Module
        Head g, whose parameters get the posterior.
    normalized : bool
        True if the model's output is ``z / |z|``.
    parts : (module, module) or None
        Modules at which h enters and z leaves inside the model; None for an appended head.
    n_outputs : int
        Z, the width of the raw embedding.
    source : module or None
        Layers of the model itself, if ``module`` is a copy of them with computed weights written
        out (``weight_norm`` and the like, see ``_computed``). None, the default: ``module`` is that
        of the model.
    """

    name: str
    module: nn.Module
    normalized: bool
    parts: tuple[nn.Module, nn.Module] | None
    n_outputs: int
    source: nn.Module | None = None

    @property
    def place(self) -> nn.Module | str:
        """Value of ``head=`` that finds this head in its model again."""
        if self.parts is None:
            return APPEND
        return self.module if self.source is None else self.source


APPEND = "append"
