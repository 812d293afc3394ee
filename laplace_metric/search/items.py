"""What an index knows of its items: embeddings, head inputs, ids and labels, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from laplace_metric.errors import InputError, LabelError
from laplace_metric.search.columns import Column
from laplace_metric.search.encoding import Encoded


@dataclass(frozen=True)
class Items:
    """N items in the order in which they were added.

    Parameters
    ----------
    encoded : Encoded
    ids : Column [N]
    labels : Column [N] or None
    """

    encoded: Encoded
    ids: Column
    labels: Column | None

    @classmethod
    def of(
        cls, encoded: Encoded, found: Sequence[Any], labels: Any, ids: Any, first: int = 0
    ) -> Items:
        """Checked; labels ``found`` in the batches count unless ``labels`` are given.

        Without ids, items are numbered from ``first``.
        """
        n = len(encoded)
        given = _joined(found) if labels is None else labels
        own = Column.of("ids", np.arange(first, first + n) if ids is None else ids, n)
        if own.duplicates():
            raise InputError(f"ids stand more than once, {own.duplicates()[:3]} among them.")
        return cls(encoded, own, None if given is None else Column.of("labels", given, n))

    def __len__(self) -> int:
        return len(self.encoded)

    def take(self, rows: Tensor) -> Items:
        """Those at ``rows`` [n]."""
        at = rows.cpu().numpy()
        labels = None if self.labels is None else self.labels.take(at)
        return Items(
            self.encoded.take(rows.to(self.encoded.mean.device)), self.ids.take(at), labels
        )

    def joined(self, new: Items) -> Items:
        """With ``new`` items behind, whose ids must be new."""
        ids = self.ids.joined("ids", new.ids)
        if ids.duplicates():
            raise InputError(f"ids are in the index already: {ids.duplicates()[:3]} among them.")
        if (self.labels is None) != (new.labels is None):
            given = "no labels" if new.labels is None else "labels"
            raise LabelError(f"{given} were given, unlike for the items of the index.")
        labels = None
        if self.labels is not None and new.labels is not None:
            labels = self.labels.joined("labels", new.labels)
        return Items(Encoded.concatenate([self.encoded, new.encoded]), ids, labels)

    def rows_of(self, ids: Any) -> Tensor:
        """Rows [n] of these ids; ``InputError`` names those that are not here."""
        asked = Column.of("ids", ids)
        order = np.argsort(self.ids.sortable)
        place = self.ids.take(order).codes_of(asked.values)
        if (place < 0).any():
            missing = asked.values[place < 0][:3].tolist()
            raise InputError(f"ids {missing} are not in the index.")
        return torch.from_numpy(order[place])


def _joined(found: Sequence[Any]) -> Any:
    """Labels of all batches, or None if none had any."""
    if not found:
        return None
    if isinstance(found[0], Tensor):
        return torch.cat([labels.cpu() for labels in found])
    return [name for labels in found for name in labels]
