"""``PrecomputedLayers``: embeddings and inputs of earlier layers that are arrays already."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from laplace_metric.errors import InputError
from laplace_metric.inputs import read_vectors

EMBEDDINGS = "embeddings"


class PrecomputedLayers(nn.Module):
    """Arrays of several layers of a network: ``embeddings`` [N, D], and others by their names.

    An index ranks by one of the others, too, where it finds more items of the right class
    (``search.Predictive``). Inputs are mappings, such as ``{"embeddings": z, "hidden": g}``.

    Parameters
    ----------
    *names : str
        Names of the other layers, the last one first.

    Raises
    ------
    InputError
        Without names, and for one that is no identifier or is taken.

    Examples
    --------
    >>> import torch
    >>> from laplace_metric import LaplaceEmbedder
    >>> g = torch.Generator().manual_seed(0)
    >>> y = torch.arange(80) % 4
    >>> hidden = torch.nn.functional.one_hot(y, 4) + 0.3 * torch.randn(80, 4, generator=g)
    >>> x = {"embeddings": torch.randn(80, 6, generator=g), "hidden": hidden}
    >>> embedder = LaplaceEmbedder(PrecomputedLayers("hidden"), head="append").fit(x, y)
    >>> index = embedder.index(x, y)
    >>> index.ranking.layer.name, index.search(x, k=1).labels.shape
    ('hidden', (80, 1))
    """

    def __init__(self, *names: str) -> None:
        super().__init__()
        if not names:
            raise InputError(
                "PrecomputedLayers needs the name of at least one layer: PrecomputedLayers("
                '"hidden"). Of embeddings alone, call LaplaceEmbedder.from_embeddings.'
            )
        for name in names:
            taken = name == EMBEDDINGS or (isinstance(name, str) and hasattr(self, name))
            if not isinstance(name, str) or not name.isidentifier() or taken:
                raise InputError(
                    f"names: {name!r} names no layer: pass a word like 'hidden', each once and "
                    f"other than {EMBEDDINGS!r}."
                )
            self.add_module(name, nn.Identity())
        self.earlier_layers = names

    def forward(self, embeddings: Any, **layers: Any) -> Float[Tensor, "N D"]:
        """Return the embeddings as float32 or float64.

        Parameters
        ----------
        embeddings : array [N, D]
            Embeddings to search with, one row for each input.
        **layers : array [N, E]
            Inputs of each named layer, one row for each embedding.

        Raises
        ------
        InputError
            For layers that are missing or unknown, and arrays of other shapes or lengths.
        NonFiniteError
            For NaN or infinity.
        """
        if set(layers) != set(self.earlier_layers):
            raise InputError(
                f"inputs have {sorted(['embeddings', *layers])}, and this model takes 'embeddings' "
                f"and {', '.join(map(repr, self.earlier_layers))}: pass a mapping with these."
            )
        z = read_vectors(EMBEDDINGS, embeddings)
        for name, rows in layers.items():
            g = read_vectors(name, rows)
            if len(g) != len(z):
                raise InputError(
                    f"{name} has {len(g)} rows for {len(z)} embeddings: pass one for each."
                )
            self.get_submodule(name)(g)
        return z

    def extra_repr(self) -> str:
        """Return the names of the layers."""
        return ", ".join(map(repr, self.earlier_layers))
