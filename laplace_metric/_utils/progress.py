"""The progress bar: of widgets in a notebook that has them, of text anywhere else."""

from __future__ import annotations

import warnings

from tqdm import TqdmWarning

with warnings.catch_warnings():  # a notebook without widgets is told so, with or without a bar
    warnings.simplefilter("ignore", TqdmWarning)
    from tqdm.auto import tqdm

__all__ = ["ItemBar", "tqdm"]


class ItemBar:
    """Counts the items that are done; batches, where the number of items is not known.

    Parameters
    ----------
    title : str
    items, batches : int or None
        How many there will be in all.
    shown : bool
    """

    def __init__(
        self, title: str, items: int | None, batches: int | None = None, *, shown: bool = True
    ) -> None:
        self._by_item = items is not None
        total, unit = (items, " items") if self._by_item else (batches, " batches")
        self._bar = tqdm(total=total, unit=unit, desc=title, disable=not shown)

    def advance(self, items: int, note: str = "") -> None:
        """One batch of so many items is done; ``note`` stands behind the bar."""
        if note:
            self._bar.set_postfix_str(note, refresh=False)
        self._bar.update(items if self._by_item else 1)

    def __enter__(self) -> ItemBar:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()
