"""``BatchEncoder``: encode everything that a caller passed, batch by batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

from laplace_metric._utils.progress import ItemBar
from laplace_metric.errors import EmptyLoaderError
from laplace_metric.inputs import Inputs, ModelInput, read_inputs
from laplace_metric.inputs._rows import rows_before
from laplace_metric.models._fingerprints import Fingerprints
from laplace_metric.search._encoded import Encoded, joined


class BatchEncoder(ABC):
    """Encoder of batches, and of all inputs that ``read`` returned."""

    @abstractmethod
    def __call__(self, inputs: ModelInput, rows: list[Fingerprints] | None = None) -> Encoded:
        """Encode one batch; ``rows`` gets the fingerprints of what enters the head."""

    def read(self, name: str, data: Any, labels: Any = None) -> Inputs:
        """Read what a caller passed: arrays, texts, mappings or loaders."""
        return read_inputs(name, data, labels)

    def all(
        self, inputs: Inputs, *, progress: bool, rows: list[Fingerprints] | None = None
    ) -> tuple[Encoded, list[Any]]:
        """Encode all inputs, and return the labels [n] of each batch that came with any.

        Parameters
        ----------
        inputs : Inputs
            Inputs that ``read`` returned.
        progress : bool
            Show a progress bar.
        rows : list or None
            List to which the fingerprints of each batch are appended.

        Raises
        ------
        EmptyLoaderError
            If there are none.
        """
        labels, bar = list[Any](), None
        if progress:  # a bar that is not shown costs a search time, too
            bar = ItemBar("Embedding", inputs.count, inputs.n_batches)

        def parts() -> Iterator[Encoded]:
            n_read = 0
            for batch in inputs:
                with rows_before(n_read):
                    part = self(batch.inputs, rows)
                n_read += len(part)
                labels.extend([] if batch.labels is None else [batch.labels])
                if bar is not None:
                    bar.advance(len(part))
                yield part

        with bar or nullcontext():
            encoded = joined(parts(), inputs.count)
        if encoded is None:
            raise EmptyLoaderError(f"{inputs.name} holds nothing: pass at least one item.")
        return encoded, labels
