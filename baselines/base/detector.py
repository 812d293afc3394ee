"""Post-hoc detectors: the model stays as it is, vectors of the training set are summarised."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from baselines.base.baseline import OnePass
from baselines.base.pairs import check_rows
from baselines.base.parts import vectors
from baselines.base.settings import check_layer
from laplace_metric.embedding import Embedding
from laplace_metric.errors import NonFiniteError
from laplace_metric.heads._located import HeadActivations
from laplace_metric.inputs import Inputs, read_inputs
from laplace_metric.models._batches import labelled_batches
from laplace_metric.models._modules import device_of


class Memory(nn.Module):
    """Named buffers whose shapes follow from the data; files read them back as they were.

    Examples
    --------
    >>> memory, loaded = Memory("centre"), Memory("centre")
    >>> memory.store(centre=torch.ones(3))
    >>> loaded.load_state_dict(memory.state_dict())
    <All keys matched successfully>
    >>> loaded.centre
    tensor([1., 1., 1.])
    """

    def __init__(self, *names: str) -> None:
        super().__init__()
        for name in names:
            self.register_buffer(name, torch.empty(0))

    def store(self, **values: Tensor) -> None:
        """Set buffers."""
        for name, value in values.items():
            getattr(self, name)  # an unknown name is a mistake
            setattr(self, name, value)

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *args: Any) -> None:
        for name, buffer in list(self.named_buffers(recurse=False)):
            if prefix + name in state:
                setattr(self, name, torch.empty_like(state[prefix + name], device=buffer.device))
        super()._load_from_state_dict(state, prefix, *args)


@dataclass(eq=False, kw_only=True)
class Detector(OnePass):
    """Subclasses give ``build`` (modules such as ``Memory``), ``learn`` and ``score``.

    Embeddings are points; ``fit`` is one pass through the loader and holds its vectors, N times Z
    (or D) numbers. If it fails, nothing has changed.

    Parameters
    ----------
    on : "embedding" | "features"
        Vectors that are compared: the raw embedding z [B, Z], the default, or the features h [B, D]
        before the head.
    """

    on: str = "embedding"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_layer(self.on)

    @abstractmethod
    def learn(self, vectors: Tensor, labels: Tensor) -> None:
        """Fill ``parts`` from training vectors [N, Z] and class numbers [N] in 0..C-1."""

    @abstractmethod
    def score(self, vectors: Tensor) -> Tensor:
        """Return uncertainty [B] of vectors [B, Z]."""

    def fit(self, loader: Iterable[Any], *, progress: bool = False) -> Detector:
        """Gather and summarise a loader of ``(inputs, labels)``.

        Raises
        ------
        HeadError, LabelError, NonFiniteError, EmptyLoaderError, InputError
        """
        data, before = read_inputs("loader", loader, labelled=True), self._fitted
        try:
            gathered, labels = self._gather(data, progress)
            classes, numbers = labels.unique(return_inverse=True)
            sizes = replace(self.fitted_.sizes, classes=len(classes))
            self._fitted = replace(self.fitted_, sizes=sizes, classes=classes)
            self.learn(gathered, numbers)
        except BaseException:
            self._fitted = before
            raise
        return self

    def embedding(self, activations: HeadActivations) -> Embedding:
        """Return point masses with the detector's score."""
        return self.points(activations, self.score(vectors(activations, self.on)))

    def _gather(self, data: Inputs, progress: bool) -> tuple[Tensor, Tensor]:
        """Return vectors [N, Z] and labels [N] of all; the head is found on the first batch."""
        device = device_of(self.model)
        rows, labels = [], []
        located = False
        for inputs, batch in labelled_batches(data, device, progress=progress, description="Fit"):
            if not located:
                self._fitted, located = self.locate(inputs, batch.new_empty(0)), True
            rows.append(vectors(self.activations(inputs), self.on))
            check_rows(rows[-1], batch)
            labels.append(batch)
        gathered = torch.cat(rows)
        if not bool(gathered.isfinite().all()):
            raise NonFiniteError(f"the model's {self.on} holds NaN or infinity on the loader.")
        return gathered, torch.cat(labels)
