"""What the terminal shows while the demo works."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from laplace_metric.demo.experiment import Watch

COLUMNS = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())


@contextmanager
def progress_bars(console: Console) -> Iterator[Watch]:
    """A `Watch` with one bar for each description, which grows by every loader it is given."""
    with Progress(*COLUMNS, console=console) as progress:
        tasks: dict[str, TaskID] = {}

        def watch(description: str, loader: Iterable[Any], passes: int = 1) -> Iterable[Any]:
            if description not in tasks:
                tasks[description] = progress.add_task(description, total=0, start=False)
            task = tasks[description]
            more = len(loader) * passes  # type: ignore[arg-type]
            progress.update(task, total=(progress.tasks[task].total or 0) + more)
            return _Watched(loader, progress, task)

        yield watch


@dataclass(frozen=True)
class _Watched:
    """A loader that moves a bar with every batch."""

    loader: Iterable[Any]
    progress: Progress
    task: TaskID

    def __iter__(self) -> Iterator[Any]:
        self.progress.start_task(self.task)
        for batch in self.loader:
            yield batch
            self.progress.advance(self.task)
