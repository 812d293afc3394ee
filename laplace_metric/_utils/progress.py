"""The progress bar: with widgets in a notebook that has them, as text anywhere else."""

from __future__ import annotations

import warnings

from tqdm import TqdmWarning

with warnings.catch_warnings():  # tqdm warns in every notebook without widgets
    warnings.simplefilter("ignore", TqdmWarning)
    from tqdm.auto import tqdm

__all__ = ["ItemBar", "tqdm"]


class ItemBar:
    """Progress bar of items; of batches, if the number of items is not known.

    Parameters
    ----------
    title : str
        Text before the bar.
    items, batches : int or None
        Numbers of items and of batches in all; None if they are not known.
    shown : bool
        Show the bar. Default: True.
    """

    def __init__(
        self, title: str, items: int | None, batches: int | None = None, *, shown: bool = True
    ) -> None:
        self._by_item = items is not None
        total, unit = (items, " items") if self._by_item else (batches, " batches")
        self._bar = tqdm(total=total, unit=unit, desc=title, disable=not shown)

    def advance(self, items: int, note: str = "") -> None:
        """Count a batch of so many items; ``note`` is shown after the bar."""
        if note:
            self._bar.set_postfix_str(note, refresh=False)
        self._bar.update(items if self._by_item else 1)

    def __enter__(self) -> ItemBar:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()
